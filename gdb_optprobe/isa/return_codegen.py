"""Where a function's return address is at its entry and at its return: what return probes need of an ISA."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from gdb_optprobe.isa.base import Dead, Insn
from gdb_optprobe.isa.codegen import Emitter, EntryState


class ReturnEmitter(Emitter, Protocol):
    """An emitter with these verbs more. They hold at a function's entry, and in a trampoline behind `begin`."""

    def key(self, to: str) -> None:
        """The stack address that a call is known by, + 1: the same at its entry and at its return."""

    def return_address(self, to: str) -> None:
        """Where the function returns to."""

    def return_to(self, address: str | int) -> None:
        """It returns there instead."""


class ReturnBackend(Protocol):
    """How an ISA makes such emitters.

    begin:    the first code of a trampoline; end: its last, which goes to the return address.
    slot:     the register that has the address of a call's slot while the programs of a trampoline run.
    pc:       the name of the PC.
    link:     the register that has the return address at the entry; None where it is where `shown_at` says already.
    """

    begin: bytes
    end: bytes
    link: str | None
    slot: str
    pc: str

    def emitter(self, before: EntryState) -> ReturnEmitter: ...

    def order(self, before: EntryState) -> tuple[str, ...]:
        """See Machine."""

    def kept(self, used: Collection[str], before: EntryState) -> tuple[str, ...]:
        """See Machine."""

    def saved(self, kept: Collection[str]) -> Dead:
        """What may be overwritten once this is saved, as `kept` named it."""

    def returns(self, entry: int, code: Mapping[int, Insn]) -> bool:
        """False where the function, `code` by address, surely does not return to its caller with the stack as it was.
        """

    def key_of(self, sp: int) -> int:
        """The key of a call, by what the stack pointer is at its entry."""

    def key_after(self, sp: int) -> int:
        """The same by what the stack pointer is where it has returned."""

    def shown_at(self, key: int) -> int:
        """Where on the stack a call's return address is, once its function has stored it there."""
