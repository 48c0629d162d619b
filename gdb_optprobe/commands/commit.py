from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.commands.base import Subcommand
from gdb_optprobe.commands.options import COMMIT_OPTIONS, Commit, parse_commit
from gdb_optprobe.commands.output import Output


class CommitCommand(Subcommand[Commit]):
    """Run the guest in slices until everything queued is optimized and everything freed is reclaimed.

    optprobe commit [-timeout SECONDS]

    Meanwhile it prints how many there are and which threads are still inside.

    Examples:
      optprobe commit
      optprobe commit -timeout 10
    """

    word = "commit"

    def parse(self, text: str) -> Commit:
        return parse_commit(text)

    def run(self, args: Commit, out: Output) -> None:
        out.lines(self.session.commit(args.timeout, lambda line: out.lines([line])))

    def candidates(self, text: str) -> Sequence[str]:
        return tuple(COMMIT_OPTIONS)
