"""Sourced in GDB before scripts/optprobe.py: the commands are real, the session is not."""

import sys
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import gdb

from gdb_optprobe import debugger
from tests.commands.fake_session import FakeSession

session = FakeSession()
attach = ModuleType("gdb_optprobe.debugger.attach")
vars(attach).update(
    current_session=lambda: session,
    session_or_none=lambda: session,
    is_connected=lambda: True,
    convenience=gdb.convenience_variable,
)
sys.modules["gdb_optprobe.debugger.attach"] = attach
debugger.attach = attach
debugger.load = lambda: None
