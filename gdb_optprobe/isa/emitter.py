"""A register machine that both instruction sets can be: the verbs that programs are lowered to.

    lowering ──verbs──► Emitter ──finish(at)──► bytes      the same number of them wherever they stand
                          │
                        Pool        which registers there are, which are in use, which have been

Registers are named as GDB names them. A register holds a word of 64 bits; an operation of 32 bits takes words that are
numbers of 32 bits, sign- or zero-extended, and leaves one. A verb changes no register but its destination, which may
be one of its operands too. What else it needs it takes from the pool and gives back, and what it changes beside general
registers (flags) it adds to what the pool has `used`, so that this can be saved as well. No verb can trap.

A program is emitted more than once: a first time to find out what it uses, then with that saved (lowering.py). What the
first time emits need not work: a register that a verb needs for itself may be one that the program reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from .base import Dead, ReadMemory


class Arithmetic(Enum):
    """Two operands. SHL, SHR: the count is an unsigned word, and at the width or above everything is shifted out.

    DIV, MOD: the divisor is not 0, and not -1 where it is signed.
    """

    ADD = "+"
    SUB = "-"
    MUL = "*"
    DIV = "/"
    MOD = "%"
    SHL = "<<"
    SHR = ">>"
    AND = "&"
    OR = "|"
    XOR = "^"


class Test(Enum):
    """Comparisons, of words."""

    EQ = "=="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="

    @property
    def opposite(self) -> Test:
        return _OPPOSITES[self]

    @property
    def turned(self) -> Test:
        """The same with its operands exchanged."""
        return _TURNED.get(self, self)


_OPPOSITES = {Test.EQ: Test.NE, Test.LT: Test.GE, Test.LE: Test.GT}
_OPPOSITES |= {right: left for left, right in _OPPOSITES.items()}
_TURNED = {Test.LT: Test.GT, Test.LE: Test.GE, Test.GT: Test.LT, Test.GE: Test.LE}


@dataclass(frozen=True, slots=True)
class Memory:
    """The address base + 8 * index + offset, in this CPU's part where it is `per_cpu`.

    base, index: registers; an address that has neither is `offset`, of 64 bits. Otherwise offset is signed.
    near: it is ours, within Isa.data_reach of where the code will stand.
    """

    base: str | None = None
    offset: int = 0
    index: str | None = None
    per_cpu: bool = False
    near: bool = False


@dataclass(frozen=True, slots=True)
class Value:
    """What is in memory: size bytes (1, 2, 4, 8), extended to a word."""

    memory: Memory
    size: int = 8
    signed: bool = False


@dataclass(frozen=True, slots=True)
class Readers:
    """Where the routines stand that read memory which may not be there: bytes, and text up to its first 0."""

    bytes: int
    text: int


@dataclass(frozen=True, slots=True)
class Routine:
    """Code for both of `Readers`, wherever it stands; that for bytes is at its start. text: where the other begins."""

    code: bytes
    text: int

    def at(self, address: int) -> Readers:
        return Readers(address, address + self.text)


class Label:
    """A place in a program, by identity."""


class TooManyRegisters(Exception):
    """An expression needs more registers than there are."""


class Pool:
    """The registers that a program may use, the best first.

    used: all that were ever taken, and what emitters changed beside them.
    """

    def __init__(self, order: Sequence[str]) -> None:
        self.order = tuple(order)
        self.used: set[str] = set()
        self._taken: set[str] = set()

    def take(self, but: Collection[str] = ()) -> str:
        """but: rather others than these. Raises TooManyRegisters."""
        for register in sorted(self.order, key=but.__contains__) if but else self.order:
            if register not in self._taken:
                return self._mark(register)
        raise TooManyRegisters

    def take_this(self, register: str) -> bool:
        """Whether it was free; it is taken now."""
        if register in self._taken or register not in self.order:
            return False
        self._mark(register)
        return True

    def give(self, register: str) -> None:
        self._taken.discard(register)

    @contextmanager
    def borrowed(self, but: Collection[str] = ()) -> Iterator[str]:
        register = self.take(but)
        try:
            yield register
        finally:
            self.give(register)

    def _mark(self, register: str) -> str:
        self._taken.add(register)
        self.used.add(register)
        return register


LIVES = Dead()


class Emitter(Protocol):
    """Code in the making.

    pool:  where destinations and what a verb needs come from; the lowering exchanges it between parts of a program.
    peeks: registers that `peek` moves aside where they are in use.
    """

    pool: Pool
    peeks: tuple[str, ...]

    # registers

    def save(self, names: Sequence[str]) -> None:
        """Keep on the stack what `kept` named. Nests."""

    def restore(self, names: Sequence[str], dead: Dead = LIVES) -> None:
        """What the innermost `save` kept; the same names. What is dead need not be what it was."""

    def register(self, name: str) -> str | None:
        """The general register that holds what `name` held at the probed address: itself; None where it was saved."""

    def read(self, to: str, name: str) -> None:
        """Any register of the ISA, as it was at the probed address. Raises KeyError for one that cannot be read."""

    # values

    def constant(self, to: str, word: int) -> None: ...

    def copy(self, to: str, source: str) -> None: ...

    def load(self, to: str, value: Value) -> None: ...

    def peek(self, to: str, address: str, size: int, short: Label, *, text: bool = False, got: str = "") -> None:
        """1 to 8 bytes at an address that may lead nowhere; what is above them is undefined.

        To the label where not all could be read: then `got` is how many come before the first that could not, and
        others are 0xFF. Of text, all could be read where a 0 byte was; what is behind the first is 0. Raises KeyError:
        no readers.
        """

    def per_cpu_base(self, to: str) -> None: ...

    def clock(self, to: str) -> None: ...

    def address(self, to: str, memory: Memory) -> None:
        """The address itself; not of what is per CPU."""

    def negate(self, to: str, source: str, bits: int, signed: bool) -> None: ...

    def invert(self, to: str, source: str, bits: int, signed: bool) -> None: ...

    def extend(self, to: str, source: str, bits: int, signed: bool) -> None:
        """The lowest 1 to 63 bits, sign- or zero-extended."""

    def binary(self, op: Arithmetic, to: str, left: str, right: str | int, bits: int, signed: bool) -> None: ...

    def compare(self, test: Test, to: str, left: str, right: str | int, signed: bool) -> None:
        """1 or 0."""

    def logarithm(self, to: str, source: str) -> None:
        """The number of the highest bit that is set; -1 where none is."""

    # flow

    def mark(self, label: Label) -> None: ...

    def jump(self, label: Label) -> None: ...

    def branch(self, test: Test, left: str | Value, right: str | int, signed: bool, label: Label) -> None:
        """To the label where the comparison holds."""

    def branch_bits(self, left: str | Value, mask: int, any_set: bool, label: Label) -> None:
        """To the label where some bit of mask is set in left, or where none is."""

    def leave(self, names: Sequence[str], address: int) -> None:
        """Restore what the innermost `save` kept, and go to code elsewhere; behind this it is kept as before."""

    # memory; what is changed atomically or published is not per CPU

    def store(self, memory: Memory, word: str | int, size: int = 8) -> None: ...

    def add(self, memory: Memory, word: str | int) -> None:
        """Add to 8 aligned bytes, atomically."""

    def keep_extreme(self, test: Test, memory: Memory, word: str, signed: bool) -> None:
        """Exchange 8 aligned bytes for `word` where `word test bytes` (LT, GT) holds, atomically."""

    def fetch_add(self, to: str, memory: Memory, word: int) -> None:
        """Add to 8 aligned bytes, atomically; what was there."""

    def claim(self, memory: Memory, label: Label) -> None:
        """Set bit 0 of 8 aligned bytes, atomically; to the label where it was set. What is stored later is so after."""

    def publish(self, memory: Memory, word: str | int) -> None:
        """Store 8 aligned bytes, after all that was stored before."""

    def acquire(self) -> None:
        """What is loaded behind this is loaded after what a branch before it has tested."""

    def finish(self, at: int) -> bytes:
        """The code to run at `at`. Raises OutOfReach."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What code before a program has saved and code behind it restores: `names`, in an order for `save`.

    but: of these the register that the program finds something else in, to be read in place.
    """

    names: tuple[str, ...] = ()
    but: str = ""

    def in_place(self, reads: Collection[str]) -> frozenset[str]:
        """Of the registers that a program reads, those that it does not find on the stack."""
        return frozenset(reads).difference(name for name in self.names if name != self.but)


@dataclass(frozen=True, slots=True)
class Before:
    """What is known of the moment before a program.

    dead:    what may be overwritten.
    reads:   registers whose values the program reads.
    per_cpu: where the kernel keeps what is added to per-CPU addresses: x86-64: the per-CPU address of `this_cpu_off`;
             ppc64le: the offset of `data_offset` in the PACA. None where it is not known.
    base:    of Isa.bases: what r2 is, on ppc64le.
    readers: None where this guest has none.
    kept:    what is on the stack already; the stack pointer that a program reads is the one before.
    """

    dead: Dead = field(default_factory=Dead)
    reads: frozenset[str] = frozenset()
    per_cpu: int | None = None
    base: int | None = None
    readers: Readers | None = None
    kept: Kept = field(default_factory=Kept)


class Machine(Protocol):
    """How an ISA makes its emitters.

    pc: the name of the PC.
    """

    pc: str

    def emitter(self, before: Before) -> Emitter: ...

    def order(self, before: Before) -> tuple[str, ...]:
        """General registers that a program may use, the best first: dead ones, and what is read last."""

    def kept(self, used: Collection[str], before: Before) -> tuple[str, ...]:
        """What of what a pool was used for must be saved, in an order for `save`: it lives, or is read."""

    def caller(self, routine: bytes, at: int, registers: Mapping[str, int], read: ReadMemory) -> Mapping[str, int]:
        """The registers of whoever called, `at` bytes into a routine of `Routine`: PC and stack pointer at least."""

    def resumed(self, registers: Mapping[str, int]) -> Mapping[str, int]:
        """The registers of the probed code, from those within a program: but for what the program keeps on the stack.
        """
