from __future__ import annotations

from gdb_optprobe.commands.base import Subcommand
from gdb_optprobe.commands.options import Nothing, parse_nothing
from gdb_optprobe.commands.output import Output
from gdb_optprobe.commands.render_text import versions
from gdb_optprobe.debugger.doctor import version


class VersionCommand(Subcommand[Nothing]):
    """Print the versions of optprobe, GDB and its Python.

    optprobe version

    Examples:
      optprobe version
    """

    word = "version"

    def parse(self, text: str) -> Nothing:
        return parse_nothing(text)

    def run(self, args: Nothing, out: Output) -> None:
        out.lines([versions(version())])
