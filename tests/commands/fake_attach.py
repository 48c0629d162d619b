"""Sourced in GDB before scripts/optprobe.py: the commands are real, the session is not."""

import sys
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gdb_optprobe import debugger
from tests.commands.fake_session import FakeSession

session = FakeSession()
attach = ModuleType("gdb_optprobe.debugger.attach")
attach.current_session = attach.session_or_none = lambda: session  # type: ignore[attr-defined]
sys.modules["gdb_optprobe.debugger.attach"] = attach
debugger.attach = attach  # type: ignore[attr-defined]
debugger.load = lambda: None  # type: ignore[attr-defined]
