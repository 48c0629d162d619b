"""The tables that a kernel's symbols were read from, and the hash of their content.

    names    ┌ num_syms │ names │ markers │ … │ token_table │ token_index ┐
    offsets  ┌ s32 for each symbol │ relative_base, if the kernel has one ┐

The symbols depend on these bytes and on their offsets from `_text` alone: two kernels with the same hash have the same
symbols, wherever address randomization put them. The base is the only word that it relocates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.symbols import KERNEL_HALF

__all__ = ["KallsymsTables"]

READER = b"gdb_optprobe: symbols of kallsyms, 1"
"""Renumbered when the reader makes other symbols of the same bytes."""
PLACES = Struct("<4q")
BASE = 8
REACH = 1 << 30
LARGEST = 1 << 25
"""Bytes of one table: Debian's largest kernel has 4 MB."""
MASK = (1 << 64) - 1

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class KallsymsTables:
    """Bounds of the tables, as offsets from `_text`. offsets: with the word behind, which may be the base."""

    names: Span
    offsets: Span

    @classmethod
    def of(cls, fact: object) -> KallsymsTables | None:
        """Decode what `fact` made; None for anything else."""
        if not isinstance(fact, list) or len(fact) != 4 or any(type(each) is not int for each in fact):
            return None
        found = cls((fact[0], fact[1]), (fact[2], fact[3]))
        return found if all(_is_sound(span) for span in (found.names, found.offsets)) else None

    def fact(self) -> list[int]:
        """Return the tables as JSON can hold them."""
        return [*self.names, *self.offsets]

    def key(self, text: int, read_many: Callable[[Sequence[Span]], Sequence[bytes]]) -> str | None:
        """Return the hash of the tables of the kernel at `text`; None where they cannot be read, or are no tables."""
        if not all(_is_sound(span) for span in (self.names, self.offsets)):
            return None
        # Memory takes spans in the order of their addresses.
        spans = {span: (text + span[0], text + span[1]) for span in sorted((self.names, self.offsets))}
        try:
            held = dict(zip(spans, read_many([*spans.values()]), strict=True))
            names, offsets = held[self.names], held[self.offsets]
        except OptprobeError:
            return None
        base = int.from_bytes(offsets[-BASE:], "little")
        moves = base >= KERNEL_HALF
        found = sha256(READER)
        found.update(PLACES.pack(*self.fact()))
        found.update(names)
        found.update(offsets[:-BASE])
        found.update(bytes([moves]) + (base - moves * text & MASK).to_bytes(BASE, "little"))
        return found.hexdigest()


def _is_sound(span: Span) -> bool:
    start, end = span
    return 0 <= start < REACH and BASE < end - start <= LARGEST
