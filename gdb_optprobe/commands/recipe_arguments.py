"""The arguments of `optprobe offcpu`, `profile`, `latency` and `calls`. No GDB here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gdb_optprobe.commands.options import Option, most_rows, only_options, seconds_or_none, unexpected
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.source import Fragment, fault, whole_number

_COMMON: Mapping[str, str] = {"-for": "SECONDS", "-guest": "COMMAND", "-o": "FILE", "-json": "", "-script": ""}
_STACKS: Mapping[str, str] = {"-folded": "", "-top": "N"}
OFFCPU_OPTIONS: Mapping[str, str] = {"-by": "comm|stack", **_STACKS, **_COMMON}
PROFILE_OPTIONS: Mapping[str, str] = {"-hz": "N", "-table": "", "-top": "N", **_COMMON}
LATENCY_OPTIONS: Mapping[str, str] = {"-every": "SECONDS", **_COMMON}
CALLS_OPTIONS: Mapping[str, str] = {**_STACKS, **_COMMON}
TOP = 20
HERTZ = 99
_MOST_HERTZ = 10_000
_LEAST_EVERY = 0.01
_FUNCTION = re.compile(r"(\w+:)?[A-Za-z_.][\w.]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class RecipeArguments:
    """seconds: how long it runs at most. guest: a command in the guest, with which it ends. output: a file.

    function: of `latency` and `calls`. by_stack: of `offcpu`. hertz: of `profile`. every: seconds of `latency`.
    folded: stacks for flame graphs; else a table of `top` rows. json: all rows, a line each. script: print that alone.
    """

    function: str = ""
    seconds: float | None = None
    guest: str = ""
    output: str = ""
    json: bool = False
    folded: bool = False
    top: int = TOP
    by_stack: bool = False
    hertz: int = HERTZ
    every: float = 1.0
    script: bool = False


def parse_offcpu(text: str) -> RecipeArguments:
    options = only_options(text, OFFCPU_OPTIONS)
    by = options.get("-by")
    if by is not None and by.value not in ("comm", "stack"):
        raise fault(f"-by takes comm or stack, not '{by.value}'", by.argument, "optprobe offcpu -by stack")
    by_stack, folded = by is not None and by.value == "stack", options.get("-folded")
    if folded is not None and not by_stack:
        raise fault("-folded prints stacks", folded.where, "optprobe offcpu -by stack -folded")
    return _common(options, by_stack=by_stack)


def parse_profile(text: str) -> RecipeArguments:
    options = only_options(text, PROFILE_OPTIONS)
    hertz = options.get("-hz")
    if "-top" in options and "-table" not in options:
        raise fault("-top is for the table", options["-top"].where, "optprobe profile -table -top 10")
    return _common(options, folded="-table" not in options, hertz=HERTZ if hertz is None else _hertz(hertz))


def parse_latency(text: str) -> RecipeArguments:
    words: list[Fragment] = []
    options = only_options(text, LATENCY_OPTIONS, words)
    every = seconds_or_none(options.get("-every")) or 1.0
    if every < _LEAST_EVERY:
        where = options["-every"].argument
        raise fault("the guest would be stopped too often", where, f"at least {_LEAST_EVERY} seconds")
    return _common(options, function=_function(words, LATENCY_OPTIONS, "latency"), every=every)


def parse_calls(text: str) -> RecipeArguments:
    words: list[Fragment] = []
    options = only_options(text, CALLS_OPTIONS, words)
    return _common(options, function=_function(words, CALLS_OPTIONS, "calls"))


def _common(
    options: Mapping[str, Option],
    *,
    function: str = "",
    by_stack: bool = False,
    folded: bool | None = None,
    hertz: int = HERTZ,
    every: float = 1.0,
) -> RecipeArguments:
    most, guest, output, json = options.get("-top"), options.get("-guest"), options.get("-o"), "-json" in options
    for other in ("-folded", "-table", "-top"):
        if json and other in options:
            raise fault(f"{other} and -json exclude each other", options[other].where, "-json has all of it")
    return RecipeArguments(
        function,
        seconds_or_none(options.get("-for")),
        guest.value if guest else "",
        output.value if output else "",
        json,
        "-folded" in options if folded is None else folded,
        TOP if most is None else most_rows(most),
        by_stack,
        hertz,
        every,
        "-script" in options,
    )


def _function(words: list[Fragment], known: Mapping[str, str], command: str) -> str:
    if not words:
        raise OptprobeError("a function is missing", f"optprobe {command} vfs_read")
    if len(words) > 1:
        raise unexpected(words[1], known)
    if not _FUNCTION.fullmatch(words[0].text):
        raise fault("this is no function's name", words[0], f"optprobe {command} vfs_read")
    return words[0].text


def _hertz(option: Option) -> int:
    if not option.value.isdecimal() or not 0 < int(option.value[:9]) <= _MOST_HERTZ:
        raise fault("-hz takes a number from 1 to 10000", option.argument, f"-hz {HERTZ}")
    return whole_number(option.typed, _MOST_HERTZ)
