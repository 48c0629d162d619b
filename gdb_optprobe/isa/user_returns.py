"""The codegen backend of uretprobes: the return address of a program's function, once a trap has saved registers.

Calls are seen to return in one of two ways. Where the return address is on the stack, or its place there is known, it
is replaced by a trampoline's. Where a function keeps it in a register, and puts it anywhere, maybe signed, it is left
alone: the instructions by which the function returns are traps (`Leaving`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gdb_optprobe.isa.base import Dead, Insn
from gdb_optprobe.isa.codegen import Address, Emitter, EntryState, Label


@dataclass(frozen=True, slots=True)
class Leaving:
    """insn: the instruction by which functions return. link: offset of the saved register that has where to."""

    insn: bytes
    link: int


class UserReturnEmitter(Emitter, Protocol):
    """An emitter with verbs for return addresses of programs."""

    def return_place(self, to: str, size: int, label: Label) -> None:
        """Compute, at a trap on a function's entry, where the kernel can write the return address, of `size` bytes.

        Jump to the label if it cannot be written here; only saved registers are preserved then.
        """


@runtime_checkable
class TrampolineEmitter(UserReturnEmitter, Protocol):
    """One with verbs for return addresses that are a trampoline's."""

    def stack_place(self, to: str, at: str, size: int, label: Label) -> None:
        """Compute the same for the call with the stack address `at`, which returns later. Interrupts are off."""

    def exchange(self, memory: Address, old: str, new: str, size: int) -> None:
        """Replace `old` by `new`, atomically; 4 or 8 bytes."""

    def hold_interrupts(self) -> None:
        """Disable interrupts."""

    def allow_interrupts(self) -> None:
        """Restore interrupts as they were before `hold_interrupts`."""


class UserReturning(Protocol):
    """Makes such emitters.

    slot:      the register that has the address of a call's slot in the code that runs at its return.
    sp:        the offset of the stack pointer in the registers that a trap has saved.
    also:      offsets of other saved registers that have the return address after a return, beside the PC.
    arguments: the registers of a C function's first two.
    scratch:   what such a function may change.
    leaving:   how calls are seen to return; None where they return to a trampoline.
    """

    @property
    def slot(self) -> str: ...

    @property
    def sp(self) -> int: ...

    @property
    def also(self) -> tuple[int, ...]: ...

    @property
    def arguments(self) -> tuple[str, str]: ...

    @property
    def scratch(self) -> Dead: ...

    @property
    def leaving(self) -> Leaving | None: ...

    def emitter(self, before: EntryState, place: int) -> UserReturnEmitter:
        """Return an emitter. place: address of the routine that finds where the kernel can write a user address."""

    def reads(self, code: Sequence[Insn]) -> bool:
        """Return whether a function that begins so certainly reads its return address, to use or to store it."""

    def popped(self, size: int) -> int:
        """Return the distance from a call's stack address to the stack pointer after its return. size: of a word."""
