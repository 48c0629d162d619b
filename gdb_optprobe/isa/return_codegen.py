"""The codegen backend of return probes: a function's return address, at its entry and at its return."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from gdb_optprobe.isa.base import Dead, Insn, ReadMemory
from gdb_optprobe.isa.codegen import Address, Arithmetic, Comparison, Emitter, EntryState, Label, MemoryValue
from gdb_optprobe.maps.aggregate import number
from gdb_optprobe.maps.call_table import Homing


class ReturnEmitter(Emitter, Protocol):
    """An emitter with verbs for a function's entry, and for a trampoline behind `begin`."""

    def key(self, to: str) -> None:
        """Compute the key of a call: a stack address, the same at its entry and at its return, + 1."""

    def fold(self, to: str, key: str, by: int) -> None:
        """Compute the exclusive or of a key and the key moved down by so many bits."""

    def insert(self, to: str, source: str, low: int, bits: int, into: int) -> None:
        """Compute an address near the code with the lowest bits of `source` in place of its own, from the bit `low` on.

        into: has zeros there, and below.
        """

    def go_to_found(self, slot: str, key: str, to: str, label: Label) -> bool:
        """Jump to the label if the slot of a call, which begins with key and return address, has the key.

        Return whether `to` has the call's return address there; else it is still to be loaded.
        """

    def return_address(self, to: str) -> None:
        """Load the return address."""

    def return_to(self, address: str | int) -> None:
        """Replace the return address."""


def fold_by_two(emit: Emitter, to: str, key: str, by: int) -> None:
    """Do as ReturnEmitter.fold, by two verbs."""
    emit.binary(Arithmetic.SHR, to, key, by, 64, False)
    emit.binary(Arithmetic.XOR, to, to, key, 64, False)


def insert_by_three(emit: Emitter, to: str, source: str, low: int, bits: int, into: int) -> None:
    """Do as ReturnEmitter.insert, by three verbs."""
    emit.binary(Arithmetic.AND, to, source, (1 << bits) - 1, 64, False)
    emit.binary(Arithmetic.SHL, to, to, low, 64, False)
    emit.address(to, Address(to, number(into, True), near=True))


def compare_in_memory(emit: Emitter, slot: str, key: str, label: Label) -> bool:
    """Do as ReturnEmitter.go_to_found, where memory is an operand."""
    emit.branch(Comparison.EQ, MemoryValue(Address(slot)), key, False, label)
    return False


class ReturnBackend(Protocol):
    """Makes such emitters.

    begin:    the first code of a trampoline; end: its last, which jumps to the return address.
    slot:     the register that has the address of a call's slot while the programs of a trampoline run.
    pc:       the name of the PC.
    homing:   of its tables of calls.
    link:     the register that has the return address at the entry; None if it is on the stack, see `shown_at`.
    stubs:    how thousands of functions share the code of their entries; None where they cannot.
    """

    begin: bytes
    end: bytes
    homing: Homing
    link: str | None
    slot: str
    pc: str

    @property
    def stubs(self) -> EntryStubs | None: ...

    def emitter(self, before: EntryState) -> ReturnEmitter: ...

    def order(self, before: EntryState) -> tuple[str, ...]:
        """Do as Backend.order."""

    def kept(self, used: Collection[str], before: EntryState) -> tuple[str, ...]:
        """Do as Backend.kept."""

    def saved(self, kept: Collection[str]) -> Dead:
        """Return what may be overwritten once the registers of `kept` are saved."""

    def returns(self, entry: int, code: Mapping[int, Insn]) -> bool:
        """Return False if the function, `code` by address, certainly does not return with its caller's stack."""

    def key_of(self, sp: int) -> int:
        """Return the key of a call by the stack pointer at its entry."""

    def key_after(self, sp: int) -> int:
        """Return the key of a call by the stack pointer after its return."""

    def shown_at(self, key: int) -> int | None:
        """Return the address on the stack where a call's function stores the return address.

        None where functions have it at different places: only where `link` is a register.
        """


class EntryStubs(Protocol):
    """Detours by which functions share the code of their entries.

    A stub numbers the function in the register `number` and jumps to the shared code. Where the function continues it
    leaves on the stack or in a register: an address in its text, so that none of the arena stays on a stack.

    size:  bytes of a stub. begin: the first of the shared code. kept: registers that it must leave as they are.
    entry: makes emitters for it.
    """

    size: int
    number: str
    kept: frozenset[str]

    @property
    def begin(self) -> bytes: ...

    @property
    def entry(self) -> ReturnBackend: ...

    def end(self, displaced: bytes, text: int) -> bytes:
        """Return the last of the shared code: `displaced`, which runs anywhere, and the jump back to a function.

        text: an address in their text.
        """

    def continues_at(self, registers: Mapping[str, int], sp: int, read: ReadMemory) -> tuple[int, int]:
        """Return where the function continues, and its stack pointer there, of a thread in the shared code.

        sp: without what the shared code has pushed.
        """

    def encode(self, at: int, step: int, shared: int, ends: Sequence[int], first: int = 0) -> bytes:
        """Return stubs that follow one another from `at` on, `step` bytes each, the rest of it breakpoints.

        They go to the code at `shared`; the functions continue at `ends`, and have numbers from `first` on.
        Raises OutOfReach.
        """

    def may_return(self, code: bytes, start: int) -> bool:
        """Return False if the function, `code` at `start`, seems to have no way to return; cheap, and not sure."""
