"""Find saved PCs inside a range. The scan is conservative: any word that could be a saved PC counts as one.

    window of a branch              a slot that is to be freed
    ┌───┬───┬───┬───┬───┐           ┌───┬───┬───┬───┐
    │ s │ x │ x │ x │ x │           │ x │ x │ x │ x │    x: a saved PC here is inside
    └───┴───┴───┴───┴───┘           └───┴───┴───┴───┘
      └ a PC at the start is not       every byte counts: no thread may come back in
        inside: it runs the branch

One pass over the words serves any number of ranges.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gdb_optprobe.guest.saved_pcs import SavedWords

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Inside:
    """A thread or CPU that is, or may be, at `pc`, inside the range `where`. owner: its name."""

    owner: str
    pc: int
    where: Range


def window(address: int, patch_size: int) -> Range:
    """Return the range that no saved PC may be in when a branch is written, or removed, at `address`."""
    return address + 1, address + patch_size


def busy(ranges: Iterable[Range], saved: Iterable[SavedWords]) -> tuple[Inside, ...]:
    """Return each saved word in one of `ranges`, (start, end) pairs that may overlap."""
    wanted = sorted(r for r in ranges if r[0] < r[1])
    if not wanted:
        return ()
    low, high = wanted[0][0], max(end for _, end in wanted)
    starts = [start for start, _ in wanted]
    longest = max(end - start for start, end in wanted)
    found: list[Inside] = []
    for some in saved:
        for word in some.words:
            if low <= word < high:
                found += [Inside(some.owner, word, r) for r in _around(word, wanted, starts, longest)]
    return tuple(found)


def _around(word: int, wanted: Sequence[Range], starts: Sequence[int], longest: int) -> Iterable[Range]:
    place = bisect_right(starts, word)
    while place and starts[place - 1] > word - longest:
        place -= 1
        if word < wanted[place][1]:
            yield wanted[place]
