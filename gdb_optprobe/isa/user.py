"""What probes on user programs need of an instruction set: registers that a trap has saved, and what to do to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from .base import Dead, Insn
from .code import Code
from .emitter import Before, Emitter, Value


@dataclass(frozen=True, slots=True)
class Emulation:
    """What an instruction does, done to saved registers; it returns from the handler where that is done.

    may_fail: it goes on behind its end where it cannot be done here, and nothing is changed then.
    """

    code: Code
    may_fail: bool


class UserTrapping(Protocol):
    """How an ISA makes code that runs in place of the handler of such traps, a C function with one argument.

    trap:      the trap instruction in user text.
    frame:     the register that has the address of the saved registers.
    pc:        offset of the saved PC there, which is that of the byte behind the trap.
    mode:      what tells from where the trap came; user: bits of it that are set for user mode.
    scratch:   what a C function may change.
    back:      code that goes back to who called the handler, with nothing more done about the trap.
    registers: by name, the offset of each in what `frame` leads to.
    """

    trap: bytes
    frame: str
    pc: int
    mode: Value
    user: int
    scratch: Dead
    back: bytes

    def emitter(self, before: Before) -> Emitter: ...

    def order(self, before: Before) -> tuple[str, ...]:
        """See Machine."""

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
