"""Cases of the language, in the form of bpftrace's own: a name, a program, what it prints.

    NAME division is unsigned
    PROG BEGIN { print(7 / 2); exit(); }
    EXPECT 3

PROG continues on indented lines. Of EXPECT, EXPECT_NONE, EXPECT_REGEX (a line) and EXPECT_LINES there may be several.
ARGS: of `$1`, …. FLAGS: json, quiet, unsafe. STATUS: what exit was given. ERROR: a part of the error; `^` marks
where it points. EXPECT_LINES continues on indented lines, of which `~` is an empty one: these must follow each other.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).with_name("cases")
_KEY = re.compile(r"(NAME|PROG|ARGS|FLAGS|STATUS|ERROR|WARNING|EXPECT(?:_NONE|_REGEX|_LINES)?)(?: (.*))?$")


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

    def __str__(self) -> str:
        return f"{self.topic}: {self.name}"

    def trouble(self, printed: str) -> str:
        """Return what is wrong with an output; "" if nothing is."""
        for key, text in self.expectations:
            lines = printed.splitlines()
            found = {
                "EXPECT": text in printed,
                "EXPECT_NONE": text not in printed,
                "EXPECT_REGEX": any(re.fullmatch(text, line) for line in lines) if key == "EXPECT_REGEX" else True,
                "EXPECT_LINES": text in printed,
            }[key]
            if not found:
                return f"{key} {text!r} in {printed!r}"
        return ""


def cases() -> Iterator[Case]:
    """Yield all cases of all files."""
    for path in sorted(FOLDER.glob("*.txt")):
        yield from _of(path)


def _of(path: Path) -> Iterator[Case]:
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
            case = Case(path.stem, text)
        assert case is not None
        match key:
            case "PROG":
                case.program = text
            case "ARGS":
                case.arguments = shlex.split(text)
            case "FLAGS":
                case.flags = text.split()
            case "STATUS":
                case.status = int(text)
            case "ERROR":
                case.error = text
            case "WARNING":
                case.warnings.append(text)
            case _ if key.startswith("EXPECT"):
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
