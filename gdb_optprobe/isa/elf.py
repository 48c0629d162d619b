"""What files of an ISA's code say: ELF headers, and DWARF's call frame information."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ElfMachine:
    """number, flags: e_machine and e_flags. name: for caches.

    outermost: a CIE of DWARF 5, 6.4, behind its identifier: version 1, no augmentation, factors of 1, the return
               address undefined, the CFA the stack pointer.
    """

    name: str
    number: int
    flags: int
    outermost: bytes
