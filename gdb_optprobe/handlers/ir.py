"""The program of a probe, typed and complete: all that a lowering to native code, or the interpreter, needs.

    Program ── condition ── Expr                    a word; the actions are carried out where it is not 0
            └─ actions ──── Update(cell, value, by)   into a counter, a sum, a histogram, …, or a table of them by key
                            Put(address, value)       into memory of the arena
                            Emit(records, fields)     into the ring
                            Stop                      the guest stops there, for GDB
                            statements of a script    see below

**Words.** Every `Expr` is a word of 64 bits: the value of an integer type of fewer bits is sign-extended if the type is
signed, else zero-extended. In these files a word is an int from 0 to 2**64 - 1. An expression has a value and may
fault; it has no other effect. Operands may be evaluated in any order, equal ones once for all; but all are evaluated,
faults included, that `And`, `Or` and `Choose` do not leave out.

**Operations** (`Unary`, `Binary`) have a width, 32 or 64, and a sign; these are C's after its promotions. Operands are
words of that width and sign (but for a shift's count), and the result is again one: wrapped round to the width, two's
complement, then extended. Comparisons have the sign and width of what they compare, and give 0 or 1.

- DIV rounds towards zero, MOD has the dividend's sign. A divisor of 0 is a fault. The smallest number divided by -1
  is itself, its remainder 0.
- UDIV, UMOD, LSHL, LSHR and UMULH are those of scripts, of 64 bits. UDIV and UMOD are unsigned whatever `signed` is;
  divided by 0, UDIV gives 0 and UMOD the dividend. LSHL and LSHR take the count modulo 64; LSHR is logical. UMULH is
  the upper half of the product of 128 bits, of unsigned words.
- SHL and SHR take the count as an unsigned word, whatever its type. A count of the width or more, so also a negative
  one, shifts every bit out: 0, or -1 where SHR is signed and the number negative. GDB does the same; C leaves it open.
  SHR is arithmetic where it is signed.

**Memory.** A `Load` or `StringLoad` that is not `mapped` may get any address, of the kernel or of a program, mapped or
not, and must neither trap nor sleep: if it cannot be read, it faults. One that is `mapped` may be a plain load.
Memory is little-endian; addresses need not be aligned.

**Faults.** A fault ends the condition or the action that it happens in: no part of it is carried out, and one is added
to the probe's faults. After a fault of the condition no action is carried out; after that of an action the others are.
All that an action needs is evaluated before any of it is carried out. What may fault: `may_fault`.

In a program that is `quiet`, a script's, no fault ends anything and none is counted. A `Load` that cannot be read is 0,
a `StringLoad` or `BytesLoad` is all zeros, a `StringEquals` compares with the text "". DIV and MOD do not occur.

**Statements.** They are carried out in their order. Expressions have no effect, so all that has one is a statement of
its own: `f($x++) + @m[k]++` is the Assign of $x, a Modify of @m and then the expression, each value in a variable.
What && and ?: leave out, and has an effect or costs much, is in an If.

    Assign(variable, value)                   a word
    Copy(slice, operand)                      bytes: a string, a tuple, a part of one
    Cut(slice, length)                        all bytes from there on become 0
    If(condition, then, otherwise)
    Loop(body, step, most), Break, Continue   Break and Continue are of the innermost loop
    Return                                    ends the program of this hit; what was done before stays done
    Get, Set, Modify, Has, Delete, Length, Each, Update(map, value, by)    of a map
    Emit, Put                                 as above, at that point of the order

**Variables** and buffers belong to one hit, by their names; blocks have no scope. One that this hit has not assigned
is 0, every byte of it. Several hits at a time, also one that interrupts another, have their own.

**Maps** belong to the session: all programs that name one use the same. A key is its columns, one after the other, as
of a `HashMap`; a map without columns is a scalar, which has the key (). Each key has an aggregate, or the
value's columns as they were stored last. There is room for `most` keys. An operation that would add a key to a full map
does nothing, its variables get the values as if it had been done, and the drop is counted (one word a map).

Each of `Get`, `Set`, `Modify`, `Has`, `Delete` and `Update` is atomic for a value of one word. An aggregate of more
words, and a value of more, is read and written word by word, each word atomically, as `Update` does it everywhere. Key
and value are evaluated before the map is touched. An operation may be interrupted by another hit at any instruction,
or run on several vCPUs; none waits for another, and nothing is lost or counted twice. Where a hit has read a value and
has done nothing since that has an effect, reading it again may give what it has already.

**Order of records.** `Emit` writes its record at once, so the ring has them in the order of the program. What a script
does asynchronously (printf, print, clear, zero, time, exit, join, cat, system) is a record each; the host carries it
out when it reads the ring.
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
    UDIV = "u/"
    UMOD = "u%"
    LSHL = "u<<"
    LSHR = "u>>"
    UMULH = "u*>>64"

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
    """The time stamp counter, or the time base. All of a hit has one value of it, but for what a script reads."""


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


@dataclass(frozen=True, slots=True)
class Variable:
    """A word of this hit: a script's `$x`, or one that the compiler made. As an expression: its value."""

    name: str


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes of this hit: a string, a tuple. size: a multiple of 8."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Some bytes of a buffer. offset, size: multiples of 8, within it."""

    buffer: Buffer
    offset: int
    size: int

    @classmethod
    def whole(cls, buffer: Buffer) -> Slice:
        return cls(buffer, 0, buffer.size)


@dataclass(frozen=True, slots=True)
class Literal:
    """Constant bytes, a multiple of 8 of them."""

    data: bytes

    @classmethod
    def text(cls, text: bytes, size: int) -> Literal:
        """Return a string of `size` bytes, zeros behind the text."""
        return cls(text.ljust(size, b"\0"))


Bytes = Slice | Literal


@dataclass(frozen=True, slots=True)
class Part:
    """An integer in a buffer: size bytes (1, 2, 4, 8) at an offset, extended to a word. offset: of any alignment.

    index: a word, the number of the `size` bytes from `offset` on; one beyond the buffer's end reads 0.
    """

    buffer: Buffer
    offset: int
    size: int = WORD
    signed: bool = False
    index: Expr | None = None


@dataclass(frozen=True, slots=True)
class SameText:
    """1 if two texts are equal, else 0. A text ends before its first 0, or with its bytes.

    most: bytes compared at most, as of strncmp; longer texts are equal if these bytes are.
    """

    left: Bytes
    right: Bytes
    most: int | None = None


@dataclass(frozen=True, slots=True)
class ContainsText:
    """1 if `needle` occurs in `text`, else 0; a text as in SameText. An empty needle does."""

    text: Bytes
    needle: Bytes


@dataclass(frozen=True, slots=True)
class BytesLoad:
    """The `size` bytes at `address`, zeros among them: not a word, but the source of a `Copy`, and nothing else.

    size is a number of bytes, rounded up to words as of StringLoad.
    length: a word, if it is smaller: no byte from there on is read, and those are 0.
    text:   none after the first 0 is read, as of a StringLoad.
    """

    address: Expr
    size: int
    mapped: bool = False
    length: Expr | None = None
    text: bool = False


Expr = (
    Constant | Register | PerCpuBase | Clock | Load | Unary | Binary | Convert | And | Or | Choose | StringEquals
    | Variable | Part | SameText | ContainsText
)  # fmt: skip
Operand = Expr | StringLoad | BytesLoad | Slice | Literal
_LOADS = (Load, StringLoad, StringEquals, BytesLoad)


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
class Map:
    """A symbolic object: a map of the session, the same one wherever its name is.

    name:    without the `@`.
    columns: of the key; none: a scalar.
    value:   an aggregate, or the columns of what is stored.
    most:    keys that there is room for.
    """

    name: str
    columns: tuple[Column, ...]
    value: Aggregate | tuple[Column, ...]
    most: int = 4096

    @property
    def key_size(self) -> int:
        return sum(column.size for column in self.columns)

    @property
    def value_size(self) -> int:
        """Return the bytes of a value."""
        if isinstance(self.value, tuple):
            return sum(column.size for column in self.value)
        return WORD * self.value.words


@dataclass(frozen=True, slots=True)
class Records:
    """A symbolic object: one kind of record in the ring.

    kind:   its number in the ring, of a script; None: by its place among the objects of the program.
    format: of `print`, C's; empty for the others.
    stack:  words of the stack after the columns, at most. The columns are Frame's then: stack pointer first, room last.
    tried:  the stack may not be mapped: the words up to the first unreadable one are taken, and room counts them.
    """

    name: str
    columns: tuple[Column, ...]
    format: str = ""
    stack: int = 0
    tried: bool = False
    kind: int | None = None

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

    target: Cell | HashMap | Map
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


@dataclass(frozen=True, slots=True)
class Assign:
    """Give a variable a value."""

    variable: Variable
    value: Expr


@dataclass(frozen=True, slots=True)
class Copy:
    """Fill a slice: the bytes of `source`, which are at most as many, and zeros behind them."""

    into: Slice
    source: Operand


@dataclass(frozen=True, slots=True)
class Cut:
    """Set all bytes of a slice from the number `length` on to 0: a word, which may be greater than the slice."""

    slice: Slice
    length: Expr


@dataclass(frozen=True, slots=True)
class If:
    """Carry out `then` if condition is not 0, else `otherwise`. A fault that counts leaves both out."""

    condition: Expr
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class Loop:
    """Repeat `body` and then `step`, until a Break. Continue leads to `step`, which has neither itself.

    most: how often `body` is begun; the program of this hit ends where it would be begun once more, and that is counted
    as a fault, in quiet programs too.
    """

    body: tuple[Statement, ...]
    step: tuple[Statement, ...] = ()
    most: int = 1024


@dataclass(frozen=True, slots=True)
class Break:
    """Leave the innermost Loop or Each."""


@dataclass(frozen=True, slots=True)
class Continue:
    """Begin the next round of the innermost Loop or Each."""


@dataclass(frozen=True, slots=True)
class Return:
    """End the program of this hit."""


@dataclass(frozen=True, slots=True)
class Get:
    """Read what a map has for a key. A missing one reads as zeros and is not created.

    into: a variable: the first word of a value; of an aggregate what it amounts to: Count, Sum, Least, Greatest: their
    number, Average and Stats: the average, rounded towards 0; 0 where there was no value. Histograms cannot be read.
    A slice: the bytes of a stored value, as many as its columns.
    """

    map: Map
    by: tuple[Operand, ...]
    into: Variable | Slice


@dataclass(frozen=True, slots=True)
class Set:
    """Store a value for a key. value: as the map's columns of the value."""

    map: Map
    by: tuple[Operand, ...]
    value: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Modify:
    """Store `old op value`, of 64 bits, for a key; atomically. A missing one is 0. The map has one word by key.

    old, new: variables that get the value before and after.
    """

    map: Map
    by: tuple[Operand, ...]
    op: Op
    value: Expr
    old: Variable | None = None
    new: Variable | None = None


@dataclass(frozen=True, slots=True)
class Has:
    """Set a variable to 1 if a map has a key, else to 0."""

    map: Map
    by: tuple[Operand, ...]
    into: Variable


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key with its value. A missing one is no fault."""

    map: Map
    by: tuple[Operand, ...]
    had: Variable | None = None
    """Set to 1 if it was there, else to 0."""


@dataclass(frozen=True, slots=True)
class Length:
    """Set a variable to the number of keys of a map."""

    map: Map
    into: Variable


@dataclass(frozen=True, slots=True)
class Each:
    """Carry out `body` for every key of a map, in any order. Keys that come or go meanwhile may be left out.

    key, value: where they are put first; value as `Get`'s.
    """

    map: Map
    key: Slice | None
    value: Variable | Slice | None
    body: tuple[Statement, ...]


Action = Update | Emit | Put | Stop
MapStatement = Get | Set | Modify | Has | Delete | Length
Statement = Action | MapStatement | Assign | Copy | Cut | If | Loop | Break | Continue | Return | Each


@dataclass(frozen=True, slots=True)
class Program:
    """What a hit does. condition: None for always. quiet: see faults, above."""

    condition: Expr | None = None
    actions: tuple[Statement, ...] = ()
    quiet: bool = False

    @property
    def objects(self) -> tuple[Cell | HashMap | Records, ...]:
        """Return what the program writes to, in the order of its statements; the session's maps are apart.

        Each has its own, but for a script's records: what several statements write to is one object.
        """
        found: list[Cell | HashMap | Records] = []
        for each in self.statements():
            match each:
                case Update(Cell() | HashMap() as target):
                    found.append(target)
                case Emit(target) if target.kind is None or target not in found:
                    found.append(target)
        return tuple(found)

    @property
    def maps(self) -> tuple[Map, ...]:
        """Return the session's maps that the program uses, each once, in the order of its statements."""
        return tuple(dict.fromkeys(found for each in self.statements() if (found := map_of(each)) is not None))

    @property
    def stop(self) -> Stop | None:
        """Return the action that stops the guest; None if no hit does."""
        return next((each for each in self.statements() if isinstance(each, Stop)), None)

    @property
    def registers(self) -> frozenset[str]:
        """Return the registers that the program reads as they were at the probed address."""
        return frozenset(node.name for node in self.nodes() if isinstance(node, Register))

    @property
    def dereferences(self) -> bool:
        """Return whether the program reads memory that may not be mapped."""
        tried = any(isinstance(each, Emit) and each.target.tried for each in self.statements())
        return tried or any(map(dereferences, self.operands()))

    def statements(self) -> Iterator[Statement]:
        """Yield every statement, each before those in its blocks."""
        yield from within(self.actions)

    def nodes(self) -> Iterator[Operand]:
        """Yield every node of every expression, a shared one as often as it is used."""
        for operand in self.operands():
            yield from nodes(operand)

    def operands(self) -> Iterator[Operand]:
        """Yield the condition and the operands of all statements, in order."""
        if self.condition is not None:
            yield self.condition
        for each in self.statements():
            yield from operands(each)


def within(statements: tuple[Statement, ...]) -> Iterator[Statement]:
    """Yield statements and all in their blocks, each before those in its blocks."""
    for each in statements:
        yield each
        for block in blocks(each):
            yield from within(block)


def blocks(statement: Statement) -> tuple[tuple[Statement, ...], ...]:
    """Return the blocks of a statement."""
    match statement:
        case If(_, then, otherwise):
            return (then, otherwise)
        case Loop(body, step):
            return (body, step)
        case Each(body=body):
            return (body,)
        case _:
            return ()


def map_of(statement: Statement) -> Map | None:
    """Return the session's map that a statement uses; None if it uses none."""
    match statement:
        case Update(Map() as target):
            return target
        case Get() | Set() | Modify() | Has() | Delete() | Length() | Each():
            return statement.map
        case _:
            return None


def operands(statement: Statement) -> tuple[Operand, ...]:
    """Return what a statement evaluates before it does anything, what its blocks evaluate apart."""
    match statement:
        case Update(_, value, by):
            return by if value is None else (value, *by)
        case Emit(_, fields):
            return fields
        case Put(address, value):
            return (address, value)
        case Assign(_, value):
            return (value,)
        case Copy(_, source):
            return (source,)
        case Cut(_, length):
            return (length,)
        case If(condition):
            return (condition,)
        case Set(_, by, stored):
            return (*by, *stored)
        case Modify(_, by, _, value):
            return (*by, value)
        case Get(_, by) | Has(_, by) | Delete(_, by):
            return by
        case Stop() | Loop() | Break() | Continue() | Return() | Length() | Each():
            return ()


def children(node: Operand) -> tuple[Operand, ...]:
    """Return the nodes directly below a node. Those that a program has most of are tried first."""
    match node:
        case Constant() | Variable() | Register():
            return ()
        case Binary(_, left, right) | And(left, right) | Or(left, right):
            return (left, right)
        case Load(address=address) | StringLoad(address=address) | StringEquals(address=address):
            return (address,)
        case BytesLoad(address=address, length=length):
            return (address,) if length is None else (address, length)
        case Unary(_, value) | Convert(value):
            return (value,)
        case Choose(condition, yes, no):
            return (condition, yes, no)
        case SameText(one, other) | ContainsText(one, other):
            return (one, other)
        case Part(index=index):
            return () if index is None else (index,)
        case PerCpuBase() | Clock() | Slice() | Literal():
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
    return any(isinstance(each, _LOADS) and not each.mapped for each in nodes(node))


def may_fault(node: Operand) -> bool:
    """Return whether evaluating it may fault: it reads what may not be mapped, or divides by what may be 0."""
    return any(
        (isinstance(each, _LOADS) and not each.mapped)
        or (
            isinstance(each, Binary)
            and each.op in (Op.DIV, Op.MOD)
            and not (isinstance(each.right, Constant) and each.right.value)
        )
        for each in nodes(node)
    )
