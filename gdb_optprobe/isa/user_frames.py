"""What an instruction set's ABI says of frames on a program's stack: where callers' registers are found."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UserFrames:
    """word: bytes of an address. sp, pc: names of registers. cost: instructions to take eight bytes of a stack.

    numbers: by DWARF's number, the registers that frames may be described by, and that are recorded of a hit.
    kept:    of these, what a call leaves as it was where nothing else is said.
    link:    the register that a call leaves its return address in; "" where that is on the stack.
    chain:   where in the frame that the stack pointer links to its own return address is; None without such links.
    """

    word: int
    cost: int
    sp: str
    pc: str
    numbers: Mapping[int, str]
    kept: Collection[str]
    link: str = ""
    chain: int | None = None

    @property
    def registers(self) -> tuple[str, ...]:
        """What is recorded of a hit, the stack pointer first."""
        return (self.sp, self.pc, *(name for name in self.numbers.values() if name not in (self.sp, self.pc)))
