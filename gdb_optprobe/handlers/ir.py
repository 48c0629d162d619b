"""The program of a probe, typed and complete: all that a lowering to native code, or the interpreter, needs.

    Program ── condition ── Expr                    a word; the actions are carried out where it is not 0
            └─ actions ──── Update(cell, value, by)   into a counter, a sum, a histogram, …, or a table of them by key
                            Put(address, value)       into memory of the arena
                            Emit(records, fields)     into the ring
                            Stop                      the guest stops there, for GDB

**Words.** Every `Expr` is a word of 64 bits: the value of an integer type of fewer bits is sign-extended if the type is
signed, else zero-extended. In these files a word is an int from 0 to 2**64 - 1. An expression has a value and may
fault; it has no other effect. Operands may be evaluated in any order, equal ones once for all; but all are evaluated,
faults included, that `And`, `Or` and `Choose` do not leave out.

**Operations** (`Unary`, `Binary`) have a width, 32 or 64, and a sign; these are C's after its promotions. Operands are
words of that width and sign (but for a shift's count), and the result is again one: wrapped round to the width, two's
complement, then extended. Comparisons have the sign and width of what they compare, and give 0 or 1.

- DIV rounds towards zero, MOD has the dividend's sign. A divisor of 0 is a fault. The smallest number divided by -1
  is itself, its remainder 0.
- SHL and SHR take the count as an unsigned word, whatever its type. A count of the width or more, so also a negative
  one, shifts every bit out: 0, or -1 where SHR is signed and the number negative. GDB does the same; C leaves it open.
  SHR is arithmetic where it is signed.

**Memory.** A `Load` or `StringLoad` that is not `mapped` may get any address, of the kernel or of a program, mapped or
not, and must neither trap nor sleep: if it cannot be read, it faults. One that is `mapped` may be a plain load.
Memory is little-endian; addresses need not be aligned.

**Faults.** A fault ends the condition or the action that it happens in: no part of it is carried out, and one is added
to the probe's faults. After a fault of the condition no action is carried out; after that of an action the others are.
All that an action needs is evaluated before any of it is carried out. What may fault: `may_fault`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from gdb_optprobe.maps.aggregate import Aggregate

WORD = 8
MASK = (1 << 64) - 1


class UnaryOp(Enum):
    NEGATE = "-"
    INVERT = "~"


class Op(Enum):
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
    EQ = "=="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="

    @property
    def compares(self) -> bool:
        return self in (Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE)


@dataclass(frozen=True, slots=True)
class Constant:
    """value: 0 to 2**64 - 1."""

    value: int


@dataclass(frozen=True, slots=True)
class Register:
    """A register, by its name in the ISA's `registers`, as it is before the instruction at the probed address.

    One of fewer than 64 bits is zero-extended.
    """

    name: str


@dataclass(frozen=True, slots=True)
class PerCpuBase:
    """The base of this CPU's per-CPU variables, if a register holds it: it is added to their addresses."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The time stamp counter, or the time base."""


@dataclass(frozen=True, slots=True)
class Load:
    """size bytes (1, 2, 4 or 8) at `address`, extended to a word.

    mapped: known to be readable, in any context. source: as typed, "" where nothing was.
    """

    address: Expr
    size: int
    signed: bool
    mapped: bool = False
    source: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Unary:
    op: UnaryOp
    value: Expr
    bits: int
    signed: bool


@dataclass(frozen=True, slots=True)
class Binary:
    """bits: 32 or 64. A constant operand is on the right, except for SUB, DIV, MOD and shifts."""

    op: Op
    left: Expr
    right: Expr
    bits: int
    signed: bool


@dataclass(frozen=True, slots=True)
class Convert:
    """The lowest `bits` (1 to 63, any number: bit fields) of a word, sign- or zero-extended."""

    value: Expr
    bits: int
    signed: bool


@dataclass(frozen=True, slots=True)
class And:
    """1 if both are not 0, else 0. If left is 0, right is not evaluated and cannot fault."""

    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Or:
    """0 if both are 0, else 1. If left is not 0, right is not evaluated."""

    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Choose:
    """`yes` if condition is not 0, else `no`; the other one is not evaluated."""

    condition: Expr
    yes: Expr
    no: Expr


@dataclass(frozen=True, slots=True)
class StringLoad:
    """The bytes at `address` up to the first 0, at most `size` of them: not a word, but a part of a key or a record.

    There it takes `size` bytes, rounded up to words; those after its end are 0.
    size:  of an array, its own; else the setting for strings.
    whole: an array: all of its bytes are read. Else none after the first 0 is.
    """

    address: Expr
    size: int
    mapped: bool
    whole: bool


@dataclass(frozen=True, slots=True)
class StringEquals:
    """1 if the text at `address` is `literal`, else 0.

    literal ends in a 0 byte, its only one. Bytes are compared in order, and none after the first that differs is read.
    """

    address: Expr
    literal: bytes
    mapped: bool


Expr = (
    Constant | Register | PerCpuBase | Clock | Load | Unary | Binary | Convert | And | Or | Choose | StringEquals
)  # fmt: skip
Operand = Expr | StringLoad


class Form(Enum):
    """How the report shows a word."""

    SIGNED = "signed"
    UNSIGNED = "unsigned"
    POINTER = "pointer"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Column:
    """A part of a key or of a record. label: as typed; size: its bytes, a multiple of 8.

    points_to_text: whether it is a pointer to characters, which `str` would read.
    """

    label: str
    form: Form
    size: int = WORD
    points_to_text: bool = field(default=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Frame:
    """What the stack at a hit is unwound from.

    registers: those that a copy of the stack needs beside it, the stack pointer first.
    room:      bytes from there on that are certainly readable, whole words of them; None if each has to be tried.
    also:      by name, what else to record of the running program.
    probed:    the register with the probed address, if the load address of the code has to be computed; else "".
    """

    registers: tuple[str, ...]
    room: Expr | None
    also: tuple[tuple[str, Expr], ...] = ()
    probed: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A symbolic object: an aggregate of its own, somewhere in guest memory. name: the action, as typed."""

    name: str
    aggregate: Aggregate


@dataclass(frozen=True, slots=True)
class HashMap:
    """A symbolic object: aggregates by key. A key is its columns, one after the other."""

    name: str
    columns: tuple[Column, ...]
    aggregate: Aggregate

    @property
    def key_size(self) -> int:
        return sum(column.size for column in self.columns)


@dataclass(frozen=True, slots=True)
class Records:
    """A symbolic object: one kind of record in the ring.

    format: of `print`, C's; empty for the others.
    stack:  words of the stack after the columns, at most. The columns are Frame's then: stack pointer first, room last.
    tried:  the stack may not be mapped: the words up to the first unreadable one are taken, and room counts them.
    """

    name: str
    columns: tuple[Column, ...]
    format: str = ""
    stack: int = 0
    tried: bool = False

    @property
    def size(self) -> int:
        """Return the bytes of the columns and the stack, without the header of every record."""
        return self.fields + WORD * self.stack

    @property
    def fields(self) -> int:
        """Return the bytes of the columns."""
        return sum(column.size for column in self.columns)


@dataclass(frozen=True, slots=True)
class Update:
    """Add one value to an aggregate. value: None for a count. by: as the table's columns; empty for a cell.

    A cell in an array of words has its index there in `by`; only a routine of a block has such (lower_routine.py).
    """

    target: Cell | HashMap
    value: Expr | None = None
    by: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Emit:
    """Write a record. fields: as its columns."""

    target: Records
    fields: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Put:
    """Store a word for later in the same hit, at an address in the arena. It is not a part of the results."""

    address: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the guest at the probed address, after all other actions, whatever their order."""


Action = Update | Emit | Put | Stop


@dataclass(frozen=True, slots=True)
class Program:
    """What a hit does. condition: None for always."""

    condition: Expr | None = None
    actions: tuple[Action, ...] = ()

    @property
    def objects(self) -> tuple[Cell | HashMap | Records, ...]:
        """Return what the program writes to, in the order of its actions: each has its own."""
        return tuple(action.target for action in self.actions if not isinstance(action, Put | Stop))

    @property
    def stop(self) -> Stop | None:
        """Return the action that stops the guest; None if no hit does."""
        return next((action for action in self.actions if isinstance(action, Stop)), None)

    @property
    def registers(self) -> frozenset[str]:
        """Return the registers that the program reads as they were at the probed address."""
        return frozenset(node.name for node in self.nodes() if isinstance(node, Register))

    @property
    def dereferences(self) -> bool:
        """Return whether the program reads memory that may not be mapped."""
        tried = any(isinstance(action, Emit) and action.target.tried for action in self.actions)
        return tried or any(map(dereferences, self.operands()))

    def nodes(self) -> Iterator[Operand]:
        """Yield every node of every expression, a shared one as often as it is used."""
        for operand in self.operands():
            yield from nodes(operand)

    def operands(self) -> Iterator[Operand]:
        """Yield the condition and the operands of all actions, in order."""
        if self.condition is not None:
            yield self.condition
        for action in self.actions:
            yield from operands(action)


def operands(action: Action) -> tuple[Operand, ...]:
    """Return what an action evaluates before it does anything."""
    match action:
        case Update(_, value, by):
            return by if value is None else (value, *by)
        case Emit(_, fields):
            return fields
        case Put(address, value):
            return (address, value)
        case Stop():
            return ()


def children(node: Operand) -> tuple[Expr, ...]:
    """Return the nodes directly below a node."""
    match node:
        case Load(address=address) | StringLoad(address=address) | StringEquals(address=address):
            return (address,)
        case Unary(_, value) | Convert(value):
            return (value,)
        case Binary(_, left, right) | And(left, right) | Or(left, right):
            return (left, right)
        case Choose(condition, yes, no):
            return (condition, yes, no)
        case Constant() | Register() | PerCpuBase() | Clock():
            return ()


def nodes(node: Operand) -> Iterator[Operand]:
    """Yield a node and all below it."""
    waiting: list[Operand] = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(children(node)))


def dereferences(node: Operand) -> bool:
    """Return whether evaluating it reads memory that may not be mapped."""
    return any(isinstance(each, Load | StringLoad | StringEquals) and not each.mapped for each in nodes(node))


def may_fault(node: Operand) -> bool:
    """Return whether evaluating it may fault: it reads what may not be mapped, or divides by what may be 0."""
    return any(
        (isinstance(each, Load | StringLoad | StringEquals) and not each.mapped)
        or (
            isinstance(each, Binary)
            and each.op in (Op.DIV, Op.MOD)
            and not (isinstance(each.right, Constant) and each.right.value)
        )
        for each in nodes(node)
    )
