"""The codegen backend of uprobes: code that runs at a trap of a program and changes the registers that it saved."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gdb_optprobe.isa.abi import ElfMachine, UserFrames
from gdb_optprobe.isa.base import Code, Dead, Insn
from gdb_optprobe.isa.codegen import Address, Comparison, Emitter, EntryState, Label, MemoryValue


@dataclass(frozen=True, slots=True)
class Leaf:
    """The registers of the lookup of a user address's page.

    address: the argument, preserved. record: address of the kernel's record of the page (struct page).
    entry:   address of the leaf entry. value: that entry. lost: registers that are changed beside these.
    """

    address: str
    record: str
    entry: str
    value: str
    lost: tuple[str, ...] = ()


class UserEmitter(Emitter, Protocol):
    """An emitter with verbs for traps of programs."""

    def begin(self) -> None:
        """Begin: from here on registers are saved, and `scratch` may be changed."""

    def kernels(self, address: int) -> None:
        """Continue with the kernel's handler, with everything as the trap has left it."""

    def find_page(self, absent: Label, other: Label) -> None:
        """Look up the page of a trap's address, by the registers of `leaf`. other: no page that was written to."""

    def load_two(self, first: str, second: str, base: str, at: tuple[int, int]) -> None:
        """Load the words at two offsets from `base`, which neither register is."""

    def join(self, to: str, upper: str, low: int) -> None:
        """Keep the lowest `low` bits of `to`, and put those of `upper`, which is lost, above them."""

    def branch_unless(self, words: Sequence[tuple[MemoryValue, str]], label: Label) -> None:
        """Jump to the label if a word in memory is not what a register has: one of several, loaded in this order."""

    def back(self) -> None:
        """End the trap: return to the program with the saved registers."""

    def continue_at(self, register: str) -> None:
        """Continue at the address that a register holds."""


def load_each(emit: Emitter, registers: Sequence[str], base: str, at: Sequence[int]) -> None:
    """Do as UserEmitter.load_two, by a load for each."""
    for register, offset in zip(registers, at, strict=True):
        emit.load(register, MemoryValue(Address(base, offset)))


def branch_each(emit: Emitter, words: Sequence[tuple[MemoryValue, str]], label: Label) -> None:
    """Do as UserEmitter.branch_unless, by a branch for each."""
    for value, register in words:
        emit.branch(Comparison.NE, value, register, False, label)


@dataclass(frozen=True, slots=True)
class Emulation:
    """Code that emulates an instruction on saved registers, and then returns from the handler.

    may_fail: it falls through, with nothing changed, if it cannot be done here.
    """

    code: Code
    may_fail: bool


class UserTrapping(Protocol):
    """Makes code that runs in place of the kernel's handler of such traps, a C function with one argument.

    trap:      the trap instruction in user text.
    frame:     the register that has the address of the saved registers.
    pc:        offset of the saved PC there. behind: how far that is behind the trap.
    mode:      the saved word with the CPU mode; None where only user mode comes there. user: its bits for user mode.
    far:       its bits that are set if the PC alone is not the address: a segment of the program's own; or 0.
    leaf:      of the lookup of the trap's page.
    scratch:   what a C function may change.
    registers: by name, the offset of each from `frame`.
    around:    bytes of code around an instruction that `reserved` needs.
    resident:  names of registers of the kernel, which programs read as they are, not as they were saved.
    frames:    frames on programs' stacks, by the programs' bits.
    stopping:  the backend of stops.
    """

    @property
    def trap(self) -> bytes: ...

    @property
    def frame(self) -> str: ...

    @property
    def behind(self) -> int: ...

    @property
    def around(self) -> int: ...

    @property
    def user(self) -> int: ...

    @property
    def far(self) -> int: ...

    @property
    def leaf(self) -> Leaf: ...

    @property
    def scratch(self) -> Dead: ...

    @property
    def resident(self) -> Mapping[str, str]: ...

    @property
    def frames(self) -> Mapping[int, UserFrames]: ...

    @property
    def stopping(self) -> UserStopping: ...

    @property
    def pc(self) -> int: ...

    @property
    def mode(self) -> MemoryValue | None: ...

    def emitter(self, before: EntryState) -> UserEmitter: ...

    def order(self, before: EntryState) -> tuple[str, ...]:
        """Do as Backend.order."""

    @property
    def registers(self) -> Mapping[str, int]: ...

    def decode(self, code: bytes, address: int, bits: int) -> list[Insn]:
        """Decode code of a program of 32 or 64 bits, as Isa.decode."""

    def reserved(self, code: Sequence[Insn]) -> Collection[int]:
        """Return the addresses in `code` where a trap would make the program's store-conditional fail, for ever."""

    def is_landing_pad(self, insn: Insn) -> bool:
        """Return whether indirect branches must find this instruction, in programs that ask for that."""

    def copy(self, insn: Insn, at: int, bits: int, pie: bool) -> bytes:
        """Copy `insn` to run at `at`, with the branch back. pie: wherever the program is loaded.

        Raises Unrelocatable, OutOfReach.
        """

    def emulation(self, insn: Insn, bits: int, writable: int) -> Emulation | None:
        """Return code that emulates `insn`, of a program of 32 or 64 bits, wherever loaded; None if not emulated.

        writable: address of the routine that finds where the kernel can write a user address.
        """

    def moved(self, distance: int) -> Code:
        """Return code that moves the saved PC forward and ends the trap."""


class UserStopping(Protocol):
    """Makes code that calls a place where a debugger may stop the guest.

    machine: for the file that GDB is given.
    number:  the register with the number of the probe there. ticket: the one with the number of the hit.
    place:   the code of the place: a return to its caller.
    columns: DWARF's numbers of the registers that a trap saves, by name; of the PC, that of its frames.
    swapped: by name of a register that is the kernel's there, the one that holds the program's value, "" for none.
    gates:   the address from which GDB unwinds to the program (guest/trap_frames.py).
    """

    machine: ElfMachine
    number: str
    ticket: str
    place: bytes
    columns: Mapping[str, int]
    swapped: Mapping[str, str]
    gates: int

    def call(self, number: int, place: int) -> Code:
        """Return code that calls the place, within that of a trap, between two programs."""
