"""Lower the search through an open hash table in guest memory: from a key's home on, and round the end.

The order of the slots is the same as in maps/.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gdb_optprobe.isa.codegen import Address, Arithmetic, Comparison, Emitter, Label
from gdb_optprobe.maps.aggregate import number


@dataclass(frozen=True, slots=True)
class SlotArray:
    """first, end: addresses. size: of a slot, a power of two, like `homes`.

    home: (key * factor mod 2^64 >> shift) & (homes - 1)
    """

    first: int
    end: int
    size: int
    homes: int
    factor: int
    shift: int


def lower_home(emit: Emitter, slots: SlotArray, key: str, slot: str) -> None:
    """Compute into `slot` the address of the key's first slot."""
    emit.binary(Arithmetic.MUL, slot, key, slots.factor, 64, False)
    if shift := slots.shift - slots.size.bit_length() + 1:
        emit.binary(Arithmetic.SHR, slot, slot, shift, 64, False)
    emit.binary(Arithmetic.AND, slot, slot, (slots.homes - 1) * slots.size, 64, False)
    emit.address(slot, Address(slot, number(slots.first, True), near=True))


def lower_search(emit: Emitter, slots: SlotArray, key: str, slot: str, compare: Callable[[], None]) -> None:
    """Compare the slots from the key's home on, at the address in register `slot`.

    compare: emits the comparison with a slot, which leaves the search where the slot is the key's, or free.
    """
    again = Label()
    lower_home(emit, slots, key, slot)
    emit.bind(again)
    compare()
    lower_next_slot(emit, slots, slot)
    emit.jump(again)


def lower_next_slot(emit: Emitter, slots: SlotArray, slot: str) -> None:
    """Move `slot` to the next slot."""
    on = Label()
    emit.binary(Arithmetic.ADD, slot, slot, slots.size, 64, False)
    with emit.pool.scratch() as end:
        emit.constant(end, slots.end)
        emit.branch(Comparison.NE, slot, end, False, on)
    emit.constant(slot, slots.first)
    emit.bind(on)
