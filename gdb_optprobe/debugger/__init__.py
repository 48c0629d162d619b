"""All that talks to GDB. `load` installs it once."""

from __future__ import annotations


def load() -> None:
    """Install listeners for guests and steps, the unwinder and the disassembler. A second call does nothing."""
    from gdb_optprobe.debugger import disassembler, unwinder
    from gdb_optprobe.debugger.attach import attachments, session_or_none, unwind_kernel
    from gdb_optprobe.debugger.early_symbols import EarlySymbols
    from gdb_optprobe.debugger.lifecycle import Lifecycle
    from gdb_optprobe.debugger.stepping import Stepping
    from gdb_optprobe.interrupts import spare_events

    if attachments.installed:
        return
    spare_events()
    attachments.installed = [Lifecycle(attachments), Stepping(session_or_none), early := EarlySymbols(attachments)]
    disassembler.install(session_or_none)
    unwinder.install(session_or_none, unwind_kernel)
    early.load()
