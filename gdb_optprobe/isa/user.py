"""What probes on user programs need of an instruction set: registers that a trap has saved, and what to do to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gdb_optprobe.isa.abi import ElfMachine, UserFrames
from gdb_optprobe.isa.base import Code, Dead, Insn
from gdb_optprobe.isa.codegen import Emitter, EntryState, MemoryValue

ABSENT, OTHER = 0, 1
"""What a routine that looks a page up leaves in place of its record: there is none, or none that we have written to."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The registers of the routine that looks up the page that a user's address is on.

    address: given, and kept. record: where the kernel's record of the page (struct page) is; ABSENT; OTHER.
    entry:   where the page's entry in the page tables can be read. value: what that was. lost: what is changed else.
    """

    address: str
    record: str
    entry: str
    value: str
    lost: tuple[str, ...] = ()


class UserEmitter(Emitter, Protocol):
    """An emitter of what a trap comes to."""

    def begin(self) -> None:
        """The first of all: from here on registers are saved, and `scratch` may be changed."""

    def kernels(self, address: int) -> None:
        """On to the kernel's own handler, which finds everything as if nobody had come between."""

    def call(self, routine: int) -> None:
        """One of ours; what it changes is for the caller to know."""

    def back(self) -> None:
        """The trap is over: on with the saved registers, with nothing more done about it."""


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
    pc:        offset of the saved PC there. behind: how far that is behind the trap.
    mode:      what tells from where the trap came; user: bits of it that are set for user mode.
    far:       bits of it that are set where the PC alone is not the address: a segment of the program's own; or 0.
    leaf:      of the routine that finds the trap's page.
    scratch:   what a C function may change.
    registers: by name, the offset of each in what `frame` leads to.
    around:    bytes of code around an instruction that tell whether it is such a place as `reserved` finds.
    resident:  names for registers that programs read as they are, not as they were saved: the kernel's own.
    frames:    what is on programs' stacks, by their bits.
    stopping:  how its code stops the guest; None where that is not built.
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
    def stopping(self) -> UserStopping | None: ...

    @property
    def pc(self) -> int: ...

    @property
    def mode(self) -> MemoryValue: ...

    def emitter(self, before: EntryState) -> UserEmitter: ...

    def order(self, before: EntryState) -> tuple[str, ...]:
        """See Machine."""

    @property
    def registers(self) -> Mapping[str, int]: ...

    def decode(self, code: bytes, address: int, bits: int) -> list[Insn]:
        """As Isa.decode, of a program of 32 or 64 bits."""

    def reserved(self, code: Sequence[Insn]) -> Collection[int]:
        """Where in `code` a trap would make the program's store-conditional fail, for ever."""

    def copy(self, insn: Insn, at: int, bits: int, pie: bool) -> bytes:
        """`insn`, to run at `at`, with the way back; pie: wherever the program is loaded.

        Raises Unrelocatable, OutOfReach.
        """

    def emulation(self, insn: Insn, bits: int, writable: int) -> Emulation | None:
        """insn: of a program of 32 or 64 bits, wherever it is loaded.

        writable: the address of a routine: where the kernel may write what is at a user's address.

        None where it is not one that is emulated.
        """

    def go_to(self, register: str) -> bytes:
        """On at the address that a register holds."""

    def moved(self, distance: int) -> Code:
        """The saved PC goes on by so much; back."""


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
