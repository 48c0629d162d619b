from __future__ import annotations

from dataclasses import dataclass

import gdb

from gdb_optprobe.commands.base import Subcommand
from gdb_optprobe.commands.options import sides
from gdb_optprobe.commands.output import Output
from gdb_optprobe.errors import OptprobeError


@dataclass(frozen=True, slots=True)
class Expectation:
    expression: str
    json: bool = False


class ExpectCommand(Subcommand[Expectation]):
    """Fail unless EXPR is true. It decides the exit status of a script.

    optprobe expect EXPR

    Examples:
      optprobe expect $optprobe_hits(1) == 1000
      optprobe expect $optprobe_missed($optprobe) == 0
      optprobe expect $optprobe_value(1, "count by $comm", "dd") == 1000
      optprobe expect $optprobe_quantile(2, "latency", 99) < 1000000
    """

    word = "expect"

    def parse(self, text: str) -> Expectation:
        if not text.strip():
            raise OptprobeError("no expression to expect", "optprobe expect $optprobe_hits(1) == 1000")
        return Expectation(text.strip())

    def run(self, args: Expectation, out: Output) -> None:
        if not gdb.parse_and_eval(args.expression):
            raise OptprobeError(f"expected {args.expression}{_but(args.expression)}")

    def candidates(self, text: str) -> int:
        return gdb.COMPLETE_EXPRESSION


def _but(expression: str) -> str:
    compared = sides(expression)
    if compared is None:
        return ""
    values = [(side, str(gdb.parse_and_eval(side))) for side in compared]
    known = [f"{side} is {value}" for side, value in values if side != value]
    return ", but " + " and ".join(known) if known else ""
