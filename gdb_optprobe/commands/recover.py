from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.commands.base import Subcommand
from gdb_optprobe.commands.convenience import remember
from gdb_optprobe.commands.options import RECOVER_OPTIONS, Recover, parse_recover
from gdb_optprobe.commands.output import Output
from gdb_optprobe.debugger.attach import current_session
from gdb_optprobe.recovery.adopt import recover, remove


class RecoverCommand(Subcommand[Recover]):
    """Take over the probes that an earlier GDB left in the guest, with what they have counted; or take them out.

    optprobe recover [-remove] [-timeout SECONDS]

    A GDB that was killed, crashed or disconnected leaves its optimized probes running.
    With -remove, the guest runs in slices until no thread is inside their code.

    Examples:
      optprobe recover
      optprobe recover -remove
    """

    word = "recover"

    def parse(self, text: str) -> Recover:
        return parse_recover(text)

    def run(self, args: Recover, out: Output) -> None:
        if args.remove:
            count = remove(current_session(), args.timeout)
            out.lines([f"{count} probe{'s'[: count != 1]} of an earlier GDB removed"])
            return
        found = recover(current_session())
        if found.probes:
            remember(found.probes)
            out.added(found.probes)
        if found.lost:
            out.lines(found.lost)

    def candidates(self, text: str) -> Sequence[str]:
        return tuple(RECOVER_OPTIONS)
