"""Cases of the language, in the form of bpftrace's own: a name, a program, what it prints.

    NAME division is unsigned
    PROG BEGIN { print(7 / 2); exit(); }
    EXPECT 3

PROG continues on indented lines. Of EXPECT, EXPECT_NONE, EXPECT_REGEX (a line) and EXPECT_LINES there may be several.
ARGS: of `$1`, …. FLAGS: json, quiet, unsafe. STATUS: what exit was given. ERROR: a part of the error; `^` marks
where it points. EXPECT_LINES continues on indented lines, of which `~` is an empty one: these must follow each other.

Files of cases that are like bpftrace's (`whole`) have a few more. LIKE: the name of its case. EXPECT, EXPECT_NONE: a
whole line. EXPECT_NONE_REGEX: of no line. EXPECT_JSON: all of the output, each line as JSON. DIFFERENCE: of two numbers
that are the last lines but for empty ones. WORK: a command in the guest. More FLAGS: see of_bpftrace.py.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).with_name("cases")
_KEY = re.compile(
    r"(NAME|LIKE|PROG|ARGS|FLAGS|WORK|STATUS|ERROR|WARNING|DIFFERENCE"
    r"|EXPECT(?:_NONE|_REGEX|_NONE_REGEX|_LINES|_JSON)?)(?: (.*))?$"
)


@dataclass
class Case:
    topic: str
    name: str
    program: str = ""
    arguments: Sequence[str] = ()
    flags: Sequence[str] = ()
    status: int | None = None
    error: str = ""
    warnings: list[str] = field(default_factory=list)
    expectations: list[tuple[str, str]] = field(default_factory=list)
    whole: bool = False
    like: str = ""
    work: str = ""

    def __str__(self) -> str:
        return f"{self.topic}: {self.name}"

    def trouble(self, printed: str) -> str:
        """Return what is wrong with an output; "" if nothing is."""
        for key, text in self.expectations:
            if not self._is_met(key, text, printed):
                return f"{key} {text!r} in {printed!r}"
        return ""

    def _is_met(self, key: str, text: str, printed: str) -> bool:
        lines = printed.splitlines()
        match key:
            case "EXPECT" | "EXPECT_NONE":
                found = text.strip() in map(str.strip, lines) if self.whole else text in printed
                return found == (key == "EXPECT")
            case "EXPECT_REGEX" | "EXPECT_NONE_REGEX":
                return any(re.fullmatch(text, line) for line in lines) == (key == "EXPECT_REGEX")
            case "EXPECT_LINES":
                return f"\n{text}\n" in f"\n{printed}\n" if self.whole else text in printed
            case "EXPECT_JSON":
                return _objects(printed) == _objects(text)
        first, second = (int(line) if line.isdecimal() else 0 for line in [*filter(None, lines)][-2:])
        return second - first == int(text)


def _objects(text: str) -> list[object]:
    """Return the lines of JSON; of a text that is none, itself."""
    try:
        return [json.loads(line) for line in text.splitlines() if line]
    except ValueError:
        return [text]


def cases(folder: Path = FOLDER, whole: bool = False) -> Iterator[Case]:
    """Yield all cases of all files."""
    for path in sorted(folder.glob("*.txt")):
        yield from _of(path, whole)


def _of(path: Path, whole: bool) -> Iterator[Case]:
    case: Case | None = None
    last = ""
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            continue
        found = _KEY.match(line)
        if found is None:
            assert not line or (case is not None and line.startswith("    ")), f"{path.name}: {line}"
            if case is not None and line:
                _continue(case, last, "" if line.strip() == "~" else line[4:])
            continue
        key, text = found[1], found[2] or ""
        if key == "NAME":
            if case is not None:
                yield case
            case = Case(path.stem, text, whole=whole)
        assert case is not None
        match key:
            case "PROG":
                case.program = text
            case "ARGS":
                case.arguments = shlex.split(text)
            case "FLAGS":
                case.flags = text.split()
            case "LIKE":
                case.like = text
            case "WORK":
                case.work = text
            case "STATUS":
                case.status = int(text)
            case "ERROR":
                case.error = text
            case "WARNING":
                case.warnings.append(text)
            case _ if key != "NAME":
                case.expectations.append((key, "" if text == "~" else text))
        last = key
    if case is not None:
        yield case


def _continue(case: Case, key: str, line: str) -> None:
    if key == "PROG":
        case.program += ("\n" if case.program else "") + line
    elif key == "ERROR":
        case.error += "\n" + line
    else:
        kind, text = case.expectations[-1]
        case.expectations[-1] = (kind, f"{text}\n{line}")
