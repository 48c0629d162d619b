"""What the register machine asks about the operands of an instruction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gdb_optprobe.isa.codegen import Address, MemoryValue
from gdb_optprobe.isa.x86_64.writer import fits
from gdb_optprobe.isa.x86_64.writer import signed as as_number


def moved(memory: Address, places: Mapping[str, str]) -> Address:
    """The same address once its registers are elsewhere."""
    base, index = (None if name is None else places.get(name, name) for name in (memory.base, memory.index))
    return replace(memory, base=base, index=index)


def within(mask: int, value: MemoryValue) -> int:
    """The bits of what is in memory that a mask of the word tests."""
    bits = 8 * value.size
    beyond = mask >> bits and value.signed
    return mask & (1 << bits) - 1 | (1 << bits - 1 if beyond else 0)


def fits_operand(word: int, value: MemoryValue) -> bool:
    """Whether `word` can be compared with what is in memory as it stands there."""
    if value.size == 8 or value.signed:
        return fits(as_number(word), min(8 * value.size, 32))
    return word < 1 << 8 * value.size
