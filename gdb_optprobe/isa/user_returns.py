"""Where a user's function has its return address once a trap has saved its registers: what an ISA is asked for."""

from __future__ import annotations

from typing import Protocol

from .base import Dead
from .emitter import Before, Emitter, Label


class UserReturnEmitter(Emitter, Protocol):
    """An emitter with this verb more, in code that runs at a trap on a function's entry."""

    def return_place(self, to: str, size: int, label: Label) -> None:
        """Where the word is, `size` bytes, that the call returns by; to the label where it cannot be written here.

        Nothing else than that is kept in registers of the scratch.
        """


class UserReturning(Protocol):
    """How an ISA makes such emitters.

    slot:      the register that has the address of a call's slot in the code that its return comes to.
    sp:        the offset of the stack pointer in what a trap has saved.
    arguments: the registers of a C function's first two.
    scratch:   what such a function may change.
    """

    slot: str
    sp: int
    arguments: tuple[str, str]
    scratch: Dead

    def emitter(self, before: Before, writable: int) -> UserReturnEmitter:
        """writable: as of UserTrapping.emulation."""

    def popped(self, size: int) -> int:
        """How far the stack pointer is behind a call's stack address once it has returned; size: of a word."""
