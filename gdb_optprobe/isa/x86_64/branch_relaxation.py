"""Encode jumps inside a program as short as possible: 2 bytes, or 5 (jmp) and 6 (jcc)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from gdb_optprobe.isa.codegen import Label
from gdb_optprobe.isa.x86_64.encoder import Relative
from gdb_optprobe.isa.x86_64.writer import fits

SHORT = 2


@dataclass(frozen=True, slots=True)
class LabelBranch:
    """A jump to a label. condition: the lowest four bits of jcc; None for jmp."""

    condition: int | None
    label: Label

    @property
    def long(self) -> int:
        return 5 if self.condition is None else 6


Item = bytes | Relative | Label | LabelBranch


def encode_items(items: Sequence[Item], at: int = 0) -> bytes:
    """Return the code for an address. All jumps are short that can be. Raises OutOfReach."""
    long, places, labels = _relax(items)
    code = bytearray()
    for index, item in enumerate(items):
        match item:
            case bytes():
                code += item
            case Relative():
                code += item.encode(at + len(code))
            case LabelBranch(_, label):
                code += _encoded(item, labels[label] - places[index], index in long)
    return bytes(code)


def place_labels(items: Sequence[Item]) -> Iterator[tuple[int, Label]]:
    """Yield the offset of each label in the same code."""
    _, places, _ = _relax(items)
    return ((place, item) for place, item in zip(places, items, strict=True) if isinstance(item, Label))


def _relax(items: Sequence[Item]) -> tuple[frozenset[int], list[int], Mapping[Label, int]]:
    """Return which jumps cannot be short, and the offset of every item and of every label."""
    jumps, marks, sizes = dict[int, LabelBranch](), dict[Label, int](), list[int]()
    for index, item in enumerate(items):
        match item:
            case bytes() | Relative():
                sizes.append(len(item))
            case LabelBranch():
                jumps[index] = item
                sizes.append(SHORT)
            case Label():
                marks[item] = index
                sizes.append(0)
    long = set[int]()
    while True:
        places = [0, *accumulate(sizes)]
        labels = {item: places[index] for item, index in marks.items()}
        short = jumps.keys() - long
        far = [at for at in short if not fits(labels[jumps[at].label] - places[at] - SHORT, 8)]
        if not far:
            return frozenset(long), places[:-1], labels
        for at in far:
            sizes[at] = jumps[at].long
        long.update(far)


def _encoded(jump: LabelBranch, distance: int, is_long: bool) -> bytes:
    """Encode a jump. distance: from its first byte."""
    if not is_long:
        opcode = 0xEB if jump.condition is None else 0x70 | jump.condition
        return bytes((opcode,)) + (distance - SHORT).to_bytes(1, "little", signed=True)
    start = b"\xe9" if jump.condition is None else bytes((0x0F, 0x80 | jump.condition))
    return start + (distance - jump.long).to_bytes(4, "little", signed=True)
