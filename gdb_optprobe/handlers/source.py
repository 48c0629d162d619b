"""What a user typed, with places in it, so that an error can point.

optprobe: no action named 'conut'
    vfs_read do conut
                ^~~~~
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError

_CLOSES = {"(": ")", "[": "]", "{": "}"}
_WORD = re.compile(r"\$?\w+")


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of a typed line: line[start:end]."""

    line: str
    start: int
    end: int

    @classmethod
    def whole(cls, line: str) -> Fragment:
        return cls(line, 0, len(line)).stripped()

    @property
    def text(self) -> str:
        return self.line[self.start : self.end]

    def stripped(self) -> Fragment:
        text = self.text
        start = self.start + len(text) - len(text.lstrip())
        return Fragment(self.line, start, max(start, self.start + len(text.rstrip())))

    def first_word(self) -> Fragment:
        found = _WORD.match(self.line, self.start, self.end)
        return Fragment(self.line, self.start, found.end()) if found else self


def fault(message: str, where: Fragment, hint: str = "") -> OptprobeError:
    """An error that shows the line and points at `where`."""
    marks = "^" + "~" * (where.end - where.start - 1)
    line = where.line.expandtabs(1).rstrip()
    return OptprobeError(f"{message}\n    {line}\n    {' ' * where.start}{marks}", hint)


def outside(line: str, start: int = 0) -> Iterator[int]:
    """The places of `line`, from `start`, that stand outside quotes and brackets. Raises OptprobeError on an open one.

    An opening quote or bracket itself counts as inside, a closing one too.
    """
    open_brackets: list[int] = []
    at = start
    while at < len(line):
        character = line[at]
        if character in "\"'":
            at = _end_of_quote(line, at)
        elif character in _CLOSES:
            open_brackets.append(at)
        elif character in _CLOSES.values():
            if not open_brackets or _CLOSES[line[open_brackets[-1]]] != character:
                raise fault(f"'{character}' closes nothing", Fragment(line, at, at + 1))
            open_brackets.pop()
        elif not open_brackets:
            yield at
        at += 1
    if open_brackets:
        place = open_brackets[-1]
        raise fault(f"'{line[place]}' is never closed", Fragment(line, place, place + 1))


def _end_of_quote(line: str, start: int) -> int:
    at = start + 1
    while at < len(line):
        if line[at] == "\\":
            at += 1
        elif line[at] == line[start]:
            return at
        at += 1
    raise fault(f"{line[start]} is never closed", Fragment(line, start, start + 1))


def split(part: Fragment, separator: str = ",") -> tuple[Fragment, ...]:
    """`part` cut at every separator outside quotes and brackets, each piece stripped."""
    text = part.line[: part.end]
    cuts = [at for at in outside(text, part.start) if text[at] == separator]
    starts = [part.start, *(cut + 1 for cut in cuts)]
    ends = [*cuts, part.end]
    return tuple(Fragment(part.line, start, end).stripped() for start, end in zip(starts, ends, strict=True))
