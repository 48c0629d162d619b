from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.commands.base import Subcommand, probe_words, resolve
from gdb_optprobe.commands.options import LIST_OPTIONS, Selection, parse_selection
from gdb_optprobe.commands.output import Output
from gdb_optprobe.errors import OptprobeError


class ShowCommand(Subcommand[Selection]):
    """Show the code of a probe: original, patched, and the detour, with what each part is for.

    optprobe show N [-json]

    Of a return probe also the trampoline, to which calls return.

    Examples:
      optprobe show 1
      optprobe show $optprobe -json
    """

    word = "show"

    def parse(self, text: str) -> Selection:
        selection = parse_selection(text, LIST_OPTIONS)
        if not selection.wanted:
            raise OptprobeError("show needs the number of a probe", "optprobe show N; optprobe list has the numbers")
        return selection

    def run(self, args: Selection, out: Output) -> None:
        session = self.session
        out.show([session.show(number) for number in resolve(session, args) or ()])

    def candidates(self, text: str) -> Sequence[str]:
        return [*probe_words(), *LIST_OPTIONS]
