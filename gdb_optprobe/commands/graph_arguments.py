"""Parse `optprobe graph ROOT [OPTIONS] [if EXPR]`. No GDB here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gdb_optprobe.commands.options import Line, Option, option_at, seconds_or_none, take_option
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.source import Fragment, fault, whole_number
from gdb_optprobe.probes.graph.functions import Request

OPTIONS: Mapping[str, str] = {
    "-depth": "N",
    "-also": "GLOB[,GLOB...]",
    "-not": "GLOB[,GLOB...]",
    "-min-time": "TIME",
    "-max-time": "TIME",
    "-count": "N",
    "-last": "N",
    "-for": "SECONDS",
    "-guest": "COMMAND",
    "-args": "",
    "-retval": "",
    "-tail": "",
    "-proc": "",
    "-json": "",
}
DEPTH = 3
_MOST = {"-depth": 64, "-count": (1 << 31) - 1, "-last": (1 << 31) - 1}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s)", re.ASCII)
_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_IF = re.compile(r"if(?=[\s(]|$)")
_USAGE = "optprobe graph ROOT [OPTIONS] [if EXPR]"


@dataclass(frozen=True, slots=True)
class GraphArguments:
    """least, most: nanoseconds of the root's calls that are shown; None for any. count: how many; None for all.

    last: how many, of those before the guest stopped; None where they are shown as they come.
    tails, threads: see GraphText.
    """

    request: Request
    least: int | None = None
    most: int | None = None
    count: int | None = None
    last: int | None = None
    seconds: float | None = None
    guest: str = ""
    tails: bool = False
    threads: bool = False
    json: bool = False

    def shows(self, nanoseconds: int | None) -> bool:
        """Return whether a call of the root is shown that took so long; None for one that has not returned."""
        if nanoseconds is None:
            return self.most is None
        return (self.least or 0) <= nanoseconds and (self.most is None or nanoseconds <= self.most)


def parse_graph(text: str) -> GraphArguments:
    """Return the arguments of `optprobe graph`. Raises OptprobeError, pointing."""
    line = Line(text, "graph")
    options: dict[str, Option] = {}
    roots: list[Fragment] = []
    condition: Fragment | None = None
    at = line.skip(0)
    while at < len(text):
        if (word := option_at(line, at)) is not None:
            at = line.skip(take_option(line, word, OPTIONS, options))
        elif roots and _IF.match(text, at):
            condition = Fragment(text, at + 2, len(text)).stripped()
            if not condition.text:
                raise fault("an expression is missing after 'if'", Fragment(text, at, at + 2))
            break
        else:
            roots.append(word := line.word(at))
            at = line.skip(word.end)
    if len(roots) != 1:
        if roots:
            raise fault(f"'{roots[1].text}' is not expected here", roots[1], _USAGE)
        raise OptprobeError("no root: the function of which the calls are shown", _USAGE)
    numbers = {name: _number(options[name]) for name in _MOST if name in options}
    request = Request(
        roots[0].text,
        numbers.get("-depth", DEPTH),
        _globs(options.get("-also")),
        _globs(options.get("-not")),
        condition,
        "-args" in options,
        "-retval" in options,
        "-last" in options,
    )
    if request.root in request.unwanted:
        raise fault(f"{request.root} is the root, and -not leaves it out", options["-not"].argument, _USAGE)
    if "-last" in options and "-count" in options:
        raise fault("-count and -last exclude each other", options["-last"].where, "-last ends as the guest stops")
    for name in ("-tail", "-proc"):
        if name in options and "-json" in options:
            raise fault(f"{name} and -json exclude each other", options[name].where, "-json has both")
    return GraphArguments(
        request,
        _time(options.get("-min-time")),
        _time(options.get("-max-time")),
        numbers.get("-count"),
        numbers.get("-last"),
        seconds_or_none(options.get("-for")),
        options["-guest"].value if "-guest" in options else "",
        tails="-tail" in options,
        threads="-proc" in options,
        json="-json" in options,
    )


def _number(option: Option) -> int:
    name = option.where.text
    if not (option.value.isascii() and option.value.isdecimal() and option.value.strip("0")):
        raise fault(f"{name} takes a number from 1 on", option.argument)
    number = whole_number(option.typed, _MOST[name])
    if number > _MOST[name]:
        raise fault(f"{name} is at most {_MOST[name]}", option.argument)
    return number


def _globs(option: Option | None) -> tuple[str, ...]:
    return tuple(filter(None, option.value.split(","))) if option is not None else ()


def _time(option: Option | None) -> int | None:
    """Return nanoseconds."""
    if option is None:
        return None
    found = _TIME.fullmatch(option.value)
    if found is None or len(found[1]) > 16:
        raise fault(f"'{option.value}' is no time", option.argument, f"{option.where.text} 100us; ns, us, ms, s")
    return round(float(found[1]) * _UNITS[found[2]])
