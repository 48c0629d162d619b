"""A block of pages that the guest's kernel lends for data, or for code, as the journal has it.

    more   cell: the address of a word of data   [order, place]     before the kernel is asked for 2**order pages
                                                 [order, place, true]                                  … for code
The place is where the block appears as data. Where that is the kernel's own address of it, it is 0 while it does not.
The guest itself writes into the cell where it has the block, and 0 as it gives the block back, so that both outlive a
GDB that is killed meanwhile:
    cell 0, no thread in the code of a call   nothing is lent
    cell set, nothing mapped at the place     lent, and used by nothing; so it is where the place is 0
    cell set, mapped at the place             data of the arena
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gdb_optprobe.detours.journal import Item
from gdb_optprobe.maps import validate
from gdb_optprobe.maps.journal_format import State

CELL = 8
MOST = 1 << 10
"""Blocks, at most."""
ORDERS = 32

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LentBlock:
    """cell: see above. order: of the pages. place: where the block appears as data, or as code."""

    cell: int
    order: int
    place: int
    is_code: bool = False


def encode(block: LentBlock) -> list[int]:
    return [block.order, block.place, *([True] if block.is_code else [])]


def decode_all(state: State, data: Range) -> tuple[LentBlock, ...]:
    """Return the blocks of a journal's state. data: where cells can be. Raises ValueError."""
    kind = f"{Item.MORE} "
    found = [_decode(int(key.removeprefix(kind), 16), state[key], data) for key in state if key.startswith(kind)]
    places = [one.place for one in found if one.place]
    if len(found) > MOST or len({*places}) < len(places):
        raise ValueError("blocks of data that are at the same place")
    return tuple(sorted(found, key=lambda one: one.cell))


def _decode(cell: int, value: Any, data: Range) -> LentBlock:
    order, place, *kind = validate.row(value, 2, 3)
    if not data[0] <= cell <= data[1] - CELL or cell % CELL:
        raise ValueError(f"no word of data at {cell:#x}")
    is_code = bool(kind) and validate.flag(kind[0])
    return LentBlock(cell, validate.number(order, ORDERS), validate.number(place), is_code)


def joined(ranges: Iterable[Range]) -> Sequence[Range]:
    """Return the ranges, ascending, those that touch as one."""
    found = sorted(ranges)
    cuts = [number for number, (one, other) in enumerate(pairwise(found), 1) if one[1] < other[0]]
    pieces = (found[start:end] for start, end in pairwise([0, *cuts, len(found)]))
    return [(piece[0][0], piece[-1][1]) for piece in pieces if piece]
