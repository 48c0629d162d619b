"""The codegen backend: the verbs that programs are lowered to, on every instruction set.

    lowering ──verbs──► Emitter ──finish(at)──► bytes      the same number of them at every address
                          │
                        RegisterPool: the registers, those in use, those used so far

Registers are named as GDB names them. A register holds a word of 64 bits; an operation of 32 bits takes words that are
numbers of 32 bits, sign- or zero-extended, and leaves one. A verb changes no register but its destination, which may
be one of its operands too. All else that it needs it allocates from the pool and frees again; what it changes beside
general registers (flags) it adds to `used` of the pool, to be saved as well. No verb can trap.

Which registers a program uses is known once it is emitted. What saves them is then put before it, or it is emitted
again with these saved (handlers/lower_program.py), where a verb has used a register that the program reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeVar

from gdb_optprobe.isa.base import Code, Dead, NotedCode, Notes, PooledCode, ReadMemory


class Arithmetic(Enum):
    """Operations on two operands. SHL, SHR: the count is an unsigned word; from the width on all bits are shifted out.

    DIV, MOD: the divisor is not 0, and not -1 if it is signed.
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


class Comparison(Enum):
    """Comparisons, of words."""

    EQ = "=="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="

    @property
    def opposite(self) -> Comparison:
        return _OPPOSITES[self]

    @property
    def turned(self) -> Comparison:
        """Return the same comparison with its operands exchanged."""
        return _TURNED.get(self, self)


_OPPOSITES = {Comparison.EQ: Comparison.NE, Comparison.LT: Comparison.GE, Comparison.LE: Comparison.GT}
_OPPOSITES |= {right: left for left, right in _OPPOSITES.items()}
_TURNED = {Comparison.LT: Comparison.GT, Comparison.LE: Comparison.GE}
_TURNED |= {right: left for left, right in _TURNED.items()}


@dataclass(frozen=True, slots=True)
class Address:
    """The address base + 8 * index + offset, in this CPU's part if it is `per_cpu`.

    base, index: registers; an address that has neither is `offset`, of 64 bits. Otherwise offset is signed.
    near: the offset is an address in the arena, within Isa.data_reach of the code.
    """

    base: str | None = None
    offset: int = 0
    index: str | None = None
    per_cpu: bool = False
    near: bool = False


@dataclass(frozen=True, slots=True)
class MemoryValue:
    """A value in memory: size bytes (1, 2, 4, 8), extended to a word."""

    memory: Address
    size: int = 8
    signed: bool = False


@dataclass(frozen=True, slots=True)
class ProbeReadRoutines:
    """The addresses of the routines that read memory which may be unmapped: bytes, and text up to its first 0."""

    bytes: int
    text: int


@dataclass(frozen=True, slots=True)
class ProbeReadCode:
    """Position-independent code of both `ProbeReadRoutines`; that for bytes is first. text: offset of the other."""

    code: bytes
    text: int

    def at(self, address: int) -> ProbeReadRoutines:
        return ProbeReadRoutines(address, address + self.text)


_Item = TypeVar("_Item")


class Label:
    """A position in a program, by identity."""


class Note(Label):
    """The position where code for `text` begins; None: where the innermost such code ends."""

    def __init__(self, text: str | None) -> None:
        self.text = text


class TooManyRegisters(Exception):
    """An expression needs more registers than there are."""


class RegisterPool:
    """The registers that a program may use, the best first.

    used: all that were ever allocated but for lent ones, and what emitters changed beside them.
    free: registers that need not be saved. read: those that the program reads where they are, until they are saved.
    """

    def __init__(self, order: Sequence[str], free: Collection[str] = (), read: Collection[str] = ()) -> None:
        self.order = tuple(order)
        self.used: set[str] = set()
        self.read = frozenset(read)
        self._free = frozenset(free)
        self._taken: set[str] = set()
        self._lent: frozenset[str] = frozenset()

    @property
    def taken(self) -> frozenset[str]:
        """Return the registers in use now."""
        return frozenset(self._taken)

    def is_taken(self, register: str) -> bool:
        """Return whether a register is in use now."""
        return register in self._taken

    @contextmanager
    def holding(self, registers: Iterable[str]) -> Iterator[None]:
        """Have these in use for the block, whatever is in use now: for code that is emitted elsewhere."""
        before = self._taken
        self._taken = {*registers}
        yield
        self._taken = before

    @contextmanager
    def lending(self, registers: Iterable[str]) -> Iterator[None]:
        """Have these, which the code of the block saves itself, count as used by nothing else."""
        before = self._lent
        self._lent = before.union(registers)
        yield
        self._lent = before

    def is_saved(self, register: str) -> bool:
        """Return whether allocating a register costs nothing: it need not be saved, or is already."""
        return register in self._free or register in self.used or register in self._lent

    def allocate(self, avoid: Collection[str] = ()) -> str:
        """Allocate a register, one that costs nothing first. avoid: prefer others to these. Raises TooManyRegisters."""
        found, least = "", 4
        taken, free, used, lent = self._taken, self._free, self.used, self._lent
        for register in self.order:
            if register in taken:
                continue
            cost = 2 * (register in avoid) + (register not in free and register not in used and register not in lent)
            if cost < least:
                found, least = register, cost
                if not cost:
                    break
        if not found:
            raise TooManyRegisters
        return self._mark(found)

    def reserve(self, register: str) -> bool:
        """Allocate this register; return whether it was free."""
        if register in self._taken or register not in self.order:
            return False
        self._mark(register)
        return True

    def free(self, register: str) -> None:
        self._taken.discard(register)

    def scratch(self, avoid: Collection[str] = ()) -> Scratch:
        """Allocate a register for a block."""
        return Scratch(self, avoid)

    def _mark(self, register: str) -> str:
        self._taken.add(register)
        if register not in self._lent:
            self.used.add(register)
        return register


class Scratch:
    """A register of a pool, for a block: no generator, for a program has hundreds of them."""

    __slots__ = ("_avoid", "_pool", "_register")

    def __init__(self, pool: RegisterPool, avoid: Collection[str]) -> None:
        self._pool = pool
        self._avoid = avoid

    def __enter__(self) -> str:
        self._register = self._pool.allocate(self._avoid)
        return self._register

    def __exit__(self, *_: object) -> None:
        self._pool.free(self._register)


NOTHING_DEAD = Dead()


class Emitter(Protocol):
    """Emits a program.

    pool: the registers for destinations and for what a verb needs; the lowering replaces it between parts of a program.
    probe_read_clobbers: registers that `probe_read` saves elsewhere while they are in use.
    swap_clobbers: the same for `compare_and_swap`.
    """

    pool: RegisterPool
    probe_read_clobbers: tuple[str, ...]
    swap_clobbers: tuple[str, ...]

    # registers

    def save(self, names: Sequence[str]) -> None:
        """Save on the stack what `kept` named. Nests."""

    def restore(self, names: Sequence[str], dead: Dead = NOTHING_DEAD) -> None:
        """Restore what the innermost `save` saved; the same names. What is dead need not be restored."""

    def open_save(self) -> None:
        """Leave room for a `save`; `close_save` comes before its `restore`."""

    def close_save(self, names: Sequence[str]) -> bool:
        """Save registers at `open_save`, if the code since then is what it is behind that `save`; return whether so."""

    def register(self, name: str) -> str | None:
        """Return the general register that still holds the probed value of `name`; None if it was saved."""

    def read(self, to: str, name: str) -> None:
        """Load the value of a register at the probed address. Raises KeyError for one that cannot be read."""

    def open_frame(self, size: int) -> None:
        """Make room on the stack, a multiple of 16 bytes, between a `save` and its `restore`; one at a time."""

    def close_frame(self) -> None: ...

    def local(self, offset: int) -> Address:
        """Return the address of what is at an offset in the frame."""

    # values

    def constant(self, to: str, word: int) -> None: ...

    def copy(self, to: str, source: str) -> None: ...

    def load(self, to: str, value: MemoryValue) -> None: ...

    def probe_read(self, to: str, address: str, size: int, short: Label, *, text: bool = False, got: str = "") -> None:
        """Load 1 to 8 bytes from an address that may be unmapped; the bytes above them are undefined.

        Jump to the label if not all could be read: then `got` is the number of bytes before the first that could not,
        and others are 0xFF. Text is complete at its first 0 byte; those after it are 0. Raises KeyError if there are
        no routines.
        """

    def per_cpu_base(self, to: str) -> None: ...

    def clock(self, to: str, more: int = 0) -> None:
        """Load the clock, and add a word."""

    def address(self, to: str, memory: Address) -> None:
        """Load the address itself; not a per-CPU one."""

    def negate(self, to: str, source: str, bits: int, signed: bool) -> None: ...

    def invert(self, to: str, source: str, bits: int, signed: bool) -> None: ...

    def extend(self, to: str, source: str, bits: int, signed: bool) -> None:
        """Sign- or zero-extend the lowest 1 to 63 bits."""

    def binary(self, op: Arithmetic, to: str, left: str, right: str | int, bits: int, signed: bool) -> None: ...

    def multiply_high(self, to: str, left: str, right: str | int) -> None:
        """Compute the upper half of the product of two unsigned words."""

    def compare(self, test: Comparison, to: str, left: str, right: str | int, signed: bool) -> None:
        """Set `to` to 1 if the comparison holds, else to 0."""

    def logarithm(self, to: str, source: str, any_set: bool = False) -> None:
        """Find the number of the highest bit that is set; -1 if none is. any_set: whether one certainly is."""

    def logarithm_less(self, to: str, source: str) -> int:
        """Find the same less a constant, where that takes fewer instructions; return the constant."""

    # flow

    def bind(self, label: Label) -> None: ...

    def jump(self, label: Label) -> None: ...

    def branch(self, test: Comparison, left: str | MemoryValue, right: str | int, signed: bool, label: Label) -> None:
        """Jump to the label if the comparison holds."""

    def branch_bits(self, left: str | MemoryValue, mask: int, any_set: bool, label: Label) -> None:
        """Jump to the label if some bit of mask is set in left, or if none is."""

    def restore_and_jump(self, names: Sequence[str], address: int) -> None:
        """Restore what the innermost `save` saved, and jump to code elsewhere; behind this it is saved as before."""

    # memory; atomic and published words are never per CPU

    def store(self, memory: Address, word: str | int, size: int = 8) -> None: ...

    def atomic_add(self, memory: Address, word: str | int) -> None:
        """Add to 8 aligned bytes, atomically."""

    def atomic_extreme(self, test: Comparison, memory: Address, word: str, signed: bool) -> None:
        """Replace 8 aligned bytes by `word` if `word test bytes` (LT, GT) holds, atomically."""

    def atomic_fetch_add(self, to: str, memory: Address, word: int) -> None:
        """Add to 8 aligned bytes, atomically; `to` is their value before."""

    def compare_and_swap(self, memory: Address, expected: str | int, word: str, label: Label) -> None:
        """Replace 8 aligned bytes by `word` if they are `expected`, atomically, after all earlier stores.

        Jump to the label if they are not.
        """

    def claim(self, memory: Address, label: Label) -> None:
        """Set bit 0 of 8 aligned bytes, atomically, before later loads and stores; jump to the label if it was set."""

    def claim_for(self, memory: Address, word: str, label: Label, behind: str | None = None) -> int:
        """Do so where these bytes are 0 unless bit 0 is set, which it is in `word`; jump to the label if it was not.

        behind: a word for the 8 bytes behind, if 16 are aligned.
        Return how many of the words are then there; the others are still to be stored.
        """

    def publish(self, memory: Address, word: str | int) -> None:
        """Store 8 aligned bytes, ordered after all earlier stores."""

    def acquire(self) -> None:
        """Order later loads after what an earlier branch has tested."""

    @property
    def pool_words(self) -> tuple[int, ...]:
        """Return what a pool has to hold for the code that reads one; none where that would not be shorter."""

    def finish(self, at: int, pool: int | None = None) -> bytes:
        """Return the code to run at `at`. pool: where its words are; None if nowhere. Raises OutOfReach."""

    def labels(self, has_pool: bool = False) -> Iterator[tuple[int, Label]]:
        """Yield the offset in the code of each label that was bound, in order. has_pool: in the code that reads one."""


class _Noted:
    """Code with a note: no generator, as for Scratch."""

    __slots__ = ("_emit", "_text")

    def __init__(self, emit: Emitter, text: str) -> None:
        self._emit = emit
        self._text = text

    def __enter__(self) -> None:
        self._emit.bind(Note(self._text))

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._emit.bind(Note(None))


def noted(emit: Emitter, text: str) -> AbstractContextManager[None]:
    """Note what the code that is emitted within the block is for."""
    return _Noted(emit, text)


def noted_save(emit: Emitter, names: Sequence[str]) -> None:
    """Emit: save on the stack what is used."""
    with noted(emit, f"saved: {', '.join(names)}"):
        emit.save(names)


def save_before(emit: Emitter, items: list[_Item], opened: int, names: Sequence[str]) -> None:
    """Emit: save what is used, before `items` of the emitter from the `opened`th on."""
    behind = items[opened:]
    del items[opened:]
    noted_save(emit, names)
    items += behind


def labels_among_words(items: Iterable[object]) -> Iterator[tuple[int, Label]]:
    """Yield each label with its offset in code where every other item is an instruction of four bytes."""
    at = 0
    for item in items:
        if isinstance(item, Label):
            yield at, item
        else:
            at += 4


def emitted_code(emit: Emitter) -> Code:
    """Return what was emitted, which reads a pool where it can."""
    alone = NotedCode(emit.finish, lambda at: _notes(at, emit.labels()))
    if not (words := emit.pool_words):
        return alone
    return PooledCode(alone, emit.finish, words, lambda at: _notes(at, emit.labels(has_pool=True)))


def _notes(at: int, labels: Iterable[tuple[int, Label]]) -> Notes:
    """Return the notes among labels. Of those at one place the last is of the code there."""
    around: list[str] = []
    found: dict[int, tuple[str, ...]] = {}
    for offset, label in labels:
        if isinstance(label, Note):
            if label.text is not None:
                around.append(label.text)
            else:
                around.pop()
            found[at + offset] = tuple(around)
    return found


@dataclass(frozen=True, slots=True)
class OuterSaves:
    """Registers that code before a program saves and code behind it restores: `names`, in the order of `save`.

    but: the one of them that holds another value for the program, to be read in place.
    """

    names: tuple[str, ...] = ()
    but: str = ""

    def in_place(self, reads: Collection[str]) -> frozenset[str]:
        """Return which of the registers that a program reads are not on the stack."""
        return frozenset(reads).difference(name for name in self.names if name != self.but)


@dataclass(frozen=True, slots=True)
class EntryState:
    """The state before a program.

    dead:    registers that may be overwritten.
    reads:   registers that the program reads.
    per_cpu: where the kernel has the base of per-CPU addresses: see the ISA. None if it is not known.
    base:    of Isa.bases: the value of the register that counters are addressed by.
    readers: None if this guest has none.
    kept:    registers already on the stack; the stack pointer that a program reads is the one before.
    """

    dead: Dead = field(default_factory=Dead)
    reads: frozenset[str] = frozenset()
    per_cpu: int | None = None
    base: int | None = None
    readers: ProbeReadRoutines | None = None
    kept: OuterSaves = field(default_factory=OuterSaves)


class Backend(Protocol):
    """The codegen backend of an ISA.

    pc: the name of the PC.
    """

    pc: str

    def emitter(self, before: EntryState) -> Emitter: ...

    def order(self, before: EntryState) -> tuple[str, ...]:
        """Return the general registers that a program may use: dead ones first, those it reads last."""

    def kept(self, used: Collection[str], before: EntryState) -> tuple[str, ...]:
        """Return what must be saved of what a pool used, in the order of `save`: what lives, or is read."""

    def caller(self, routine: bytes, at: int, registers: Mapping[str, int], read: ReadMemory) -> Mapping[str, int]:
        """Return the caller's registers, `at` bytes into a `ProbeReadCode`: at least PC and stack pointer."""

    def resumed(self, registers: Mapping[str, int]) -> Mapping[str, int]:
        """Return the registers of the probed code, from those within a program, without what is on the stack."""
