"""Typed text with positions, so that an error can point at its part.

optprobe: no action named 'conut'
    vfs_read do conut
                ^~~~~
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest_text import one_line

_CLOSES = {"(": ")", "[": "]", "{": "}"}
# Characters of a long line that an error shows: on each side of what it points at; of that and after it.
AROUND, MOST_SHOWN = 200, 400
_ILLEGIBLE = re.compile(r"[\0\ud800-\udfff]")
_WORD = re.compile(r"\$?\w+")


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of a typed line: line[start:end]."""

    line: str
    start: int
    end: int

    @classmethod
    def whole(cls, line: str) -> Fragment:
        """Return all of a line, without spaces at its ends."""
        return cls(line, 0, len(line)).stripped()

    @property
    def text(self) -> str:
        return self.line[self.start : self.end]

    def stripped(self) -> Fragment:
        """Return it without spaces at its ends."""
        text = self.text
        start = self.start + len(text) - len(text.lstrip())
        return Fragment(self.line, start, max(start, self.start + len(text.rstrip())))

    def first_word(self) -> Fragment:
        """Return its first word; all of it if it does not begin with one."""
        found = _WORD.match(self.line, self.start, self.end)
        return Fragment(self.line, self.start, found.end()) if found else self


def fault(message: str, where: Fragment, hint: str = "") -> OptprobeError:
    """Return an error that shows the line and points at `where`."""
    first, last = max(0, where.start - AROUND), min(len(where.line), where.end + AROUND, where.start + MOST_SHOWN)
    before = ("…" if first else "") + _shown(where.line[first : where.start])
    marked = _shown(where.line[where.start : min(where.end, last)])
    behind = _shown(where.line[where.end : last]) + ("…" if last < len(where.line) else "")
    marks = "^" + "~" * (len(marked) - 1)
    line = f"{before}{marked}{behind}".rstrip()
    return OptprobeError(f"{short(message)}\n    {line}\n    {' ' * len(before)}{marks}", short(hint))


def legible(line: str) -> str:
    """Return a typed line. Raises OptprobeError, pointing, at what is no character, for GDB and files."""
    found = _ILLEGIBLE.search(line)
    if found is not None:
        raise fault("this is no character", Fragment(line, *found.span()))
    return line


def whole_number(where: Fragment, most: int) -> int:
    """Return the decimal number at `where`, digits alone. Raises OptprobeError if it is too large."""
    digits = where.text.lstrip("0") or "0"
    # Python converts no number of more than some thousand digits.
    if len(digits) > len(str(most)) or int(digits) > most:
        raise fault("the number is too large", where, f"at most {most}")
    return int(digits)


def _shown(text: str) -> str:
    return one_line(text.expandtabs(1))


def short(message: str) -> str:
    """Return a message as one line, without its middle if it is very long."""
    message = one_line(message)
    return message if len(message) <= MOST_SHOWN else f"{message[: MOST_SHOWN // 2]}…{message[-MOST_SHOWN // 4 :]}"


def outside(line: str, start: int = 0) -> Iterator[int]:
    """Yield the places of `line`, from `start`, outside quotes and brackets. Raises OptprobeError on an open one.

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
    """Cut `part` at every separator outside quotes and brackets; return the pieces, stripped."""
    text = part.line[: part.end]
    cuts = [at for at in outside(text, part.start) if text[at] == separator]
    starts = [part.start, *(cut + 1 for cut in cuts)]
    ends = [*cuts, part.end]
    return tuple(Fragment(part.line, start, end).stripped() for start, end in zip(starts, ends, strict=True))
