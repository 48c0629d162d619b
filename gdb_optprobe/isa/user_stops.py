"""Where code at a trap of a program's stops the guest, and what a debugger needs to show the program there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gdb_optprobe.isa.code import Code
from gdb_optprobe.isa.elf import ElfMachine


class UserStopping(Protocol):
    """How an ISA comes to a place where a debugger may stop it, and goes on behind it.

    machine: for the file that GDB is given.
    number:  the register that says there on whose behalf. ticket: the one that says which hit that is.
    place:   the code of the place: back to who has called it.
    columns: DWARF's numbers of the registers that a trap saves, by name; of the PC, what its frames' is.
    swapped: by name of a register that is the kernel's there, the one that holds the program's, "" for none.
    """

    machine: ElfMachine
    number: str
    ticket: str
    place: bytes
    columns: Mapping[str, int]
    swapped: Mapping[str, str]

    def call(self, number: int, place: int) -> Code:
        """In a trap's code: nothing is changed but what that may change between two programs."""
