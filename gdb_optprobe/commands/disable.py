from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.commands.base import Subcommand, probe_words, resolve
from gdb_optprobe.commands.options import Selection, parse_selection
from gdb_optprobe.commands.output import Output


class DisableCommand(Subcommand[Selection]):
    """Keep probes from counting: the guest runs its original code.

    optprobe disable [N...]

    Without N, all probes. Counters keep their values.

    Examples:
      optprobe disable
      optprobe disable 1-3 reads
    """

    word = "disable"

    def parse(self, text: str) -> Selection:
        return parse_selection(text, {})

    def run(self, args: Selection, out: Output) -> None:
        session = self.session
        session.disable(resolve(session, args))

    def candidates(self, text: str) -> Sequence[str]:
        return probe_words()
