"""What a kernel's trap handler is given: the registers of who has trapped, saved in memory (struct pt_regs)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from .base import Dead
from .emitter import Before, Emitter, Value


class Trapping(Protocol):
    """How an ISA makes code that runs in place of the handler, a C function with one argument.

    frame:  the register that has the address of the saved registers.
    pc:     offset of the saved PC there, which is that of the trap.
    mode:   what tells from where the trap came; user: bits of it that are set for user mode.
    scratch: what a C function may change.
    back:   code that goes back to who called the handler, with nothing more done about the trap.
    """

    frame: str
    pc: int
    mode: Value
    user: int
    scratch: Dead
    back: bytes

    def emitter(self, before: Before) -> Emitter: ...

    def order(self, before: Before) -> tuple[str, ...]:
        """See Machine."""

    def kept(self, used: Collection[str], before: Before) -> tuple[str, ...]:
        """See Machine."""
