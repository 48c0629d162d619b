"""A place in a script of several lines, for errors that point at it."""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.source import Fragment, fault


@dataclass(frozen=True, slots=True)
class Place(Fragment):
    """A part of one line of a script. number: of the line, from 1; 0 in a script of one line."""

    number: int = 0


def span(first: Place, last: Place) -> Place:
    """Return the place from `first` to the end of `last`; to the end of the first line if they are on two."""
    if (first.number, first.line) == (last.number, last.line):
        return Place(first.line, first.start, max(first.end, last.end), first.number)
    return Place(first.line, first.start, max(first.end, len(first.line.rstrip())), first.number)


def wrong(message: str, where: Place, hint: str = "") -> OptprobeError:
    """Return an error that shows the line, with its number, and points at `where`."""
    return fault(f"line {where.number}: {message}" if where.number else message, where, hint)
