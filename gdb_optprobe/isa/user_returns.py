"""Where a user's function has its return address once a trap has saved its registers: what an ISA is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gdb_optprobe.isa.base import Dead, Insn
from gdb_optprobe.isa.codegen import Address, Emitter, EntryState, Label


class UserReturnEmitter(Emitter, Protocol):
    """An emitter with these verbs more."""

    def return_place(self, to: str, size: int, label: Label) -> None:
        """At a trap on a function's entry: where the word is, `size` bytes, that the call returns by.

        To the label where it cannot be written here; no register is kept then but those that are saved.
        """

    def stack_place(self, to: str, at: str, size: int, label: Label) -> None:
        """The same of the word by which a call with the stack address `at` returns later; interrupts are held."""

    def exchange(self, memory: Address, old: str, new: str, size: int) -> None:
        """Store `new` where `old` is, atomically; 4 or 8 bytes."""

    def hold_interrupts(self) -> None: ...

    def allow_interrupts(self) -> None:
        """As they were when they were held."""


class UserReturning(Protocol):
    """How an ISA makes such emitters.

    slot:      the register that has the address of a call's slot in the code that its return comes to.
    sp:        the offset of the stack pointer in what a trap has saved.
    also:      those of what else than the PC is where a call has returned to.
    arguments: the registers of a C function's first two.
    scratch:   what such a function may change.
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

    def emitter(self, before: EntryState, place: int) -> UserReturnEmitter:
        """place: the address of a routine: where the kernel may write what is at a user's address."""

    def reads(self, code: Sequence[Insn]) -> bool:
        """Whether a function that begins so surely looks at its return address, to tell it or to keep it."""

    def popped(self, size: int) -> int:
        """How far the stack pointer is behind a call's stack address once it has returned; size: of a word."""
