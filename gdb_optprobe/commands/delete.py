from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.commands.base import Subcommand, probe_words, resolve
from gdb_optprobe.commands.options import Selection, parse_selection
from gdb_optprobe.commands.output import Output


class DeleteCommand(Subcommand[Selection]):
    """Remove probes: the guest's code is as it was.

    optprobe delete [N...]

    Without N, all probes.

    Examples:
      optprobe delete
      optprobe delete 1-3 reads
    """

    word = "delete"

    def parse(self, text: str) -> Selection:
        return parse_selection(text, {})

    def run(self, args: Selection, out: Output) -> None:
        session = self.session
        session.delete(resolve(session, args))
        out.lines(session.untraced())

    def candidates(self, text: str) -> Sequence[str]:
        return probe_words()
