"""What probes on user programs need of an instruction set: registers that a trap has saved, and what to do to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from .base import Insn
from .code import Code
from .trapping import Trapping


@dataclass(frozen=True, slots=True)
class Emulation:
    """What an instruction does, done to saved registers; it returns from the handler where that is done.

    may_fail: it goes on behind its end where it cannot be done here, and nothing is changed then.
    """

    code: Code
    may_fail: bool


class UserTrapping(Trapping, Protocol):
    """Beside Trapping.

    trap:      the trap instruction in user text.
    registers: by name, the offset of each in what `frame` leads to.
    """

    trap: bytes

    @property
    def registers(self) -> Mapping[str, int]: ...

    def decode(self, code: bytes, address: int, bits: int) -> list[Insn]:
        """As Isa.decode, of a program of 32 or 64 bits."""

    def copy(self, insn: Insn, at: int, bits: int, pie: bool) -> bytes:
        """`insn`, to run at `at`, with the way back; pie: wherever the program is loaded.

        Raises Unrelocatable, OutOfReach.
        """

    def emulation(self, insn: Insn, bits: int, writable: int) -> Emulation | None:
        """insn: of a program of 32 or 64 bits, wherever it is loaded.

        writable: the address of a routine: where the kernel may write what is at a user's address.

        None where it is not one that is emulated. The saved PC is that of the byte behind the trap.
        """

    def go_to(self, register: str) -> bytes:
        """On at the address that a register holds."""

    def moved(self, distance: int) -> Code:
        """The saved PC goes on by so much; back."""
