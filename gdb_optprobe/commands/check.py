from __future__ import annotations

from gdb_optprobe.commands.base import Subcommand
from gdb_optprobe.commands.options import Nothing, parse_nothing
from gdb_optprobe.commands.output import Output
from gdb_optprobe.errors import OptprobeError


class CheckCommand(Subcommand[Nothing]):
    """Compare the guest's memory with what was written; an error where it differs.

    optprobe check

    Examples:
      optprobe check
    """

    word = "check"

    def parse(self, text: str) -> Nothing:
        return parse_nothing(text)

    def run(self, args: Nothing, out: Output) -> None:
        problems = self.session.check()
        if problems:
            raise OptprobeError("\n    ".join(("the guest's memory is not what we wrote:", *problems)))
        out.lines(["The guest's memory holds what we wrote.", *self.session.untraced()])
