from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.commands.base import Subcommand, probe_words, resolve
from gdb_optprobe.commands.options import Selection, parse_selection
from gdb_optprobe.commands.output import Output


class EnableCommand(Subcommand[Selection]):
    """Let disabled probes count again.

    optprobe enable [N...]

    Without N, all probes.

    Examples:
      optprobe enable
      optprobe enable 1-3 reads
    """

    word = "enable"

    def parse(self, text: str) -> Selection:
        return parse_selection(text, {})

    def run(self, args: Selection, out: Output) -> None:
        session = self.session
        session.enable(resolve(session, args))

    def candidates(self, text: str) -> Sequence[str]:
        return probe_words()
