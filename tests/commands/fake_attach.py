"""Sourced in GDB before scripts/optprobe.py: the commands are real, the session is not."""

import sys
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import gdb

from gdb_optprobe.lazy_dataclasses import while_importing

with while_importing():
    from gdb_optprobe import debugger
    from gdb_optprobe.errors import OptprobeError
    from tests.commands.fake_session import FakeSession

session = FakeSession()
attach = ModuleType("gdb_optprobe.debugger.attach")


class NoGuest:
    """There is none to be examined."""

    def seen(self) -> None:
        raise OptprobeError("no guest is connected", "target remote PATH-OF-THE-GDB-SOCKET (or :PORT)")


vars(attach).update(
    Attachment=object,
    attachments=NoGuest(),
    stopped_guest=NoGuest().seen,
    current_session=lambda pending=False: session,
    session_or_none=lambda: session,
    is_connected=lambda: True,
    convenience=gdb.convenience_variable,
)
sys.modules["gdb_optprobe.debugger.attach"] = attach
debugger.attach = attach
debugger.load = lambda: None
