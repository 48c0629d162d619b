"""The values of a script's expressions while it is compiled, and how they become words, bytes and columns.

    Word      a number or a pointer, a special of one word      an expression of the program
    Data      a text, a record, a special of several words      whole words in a buffer, or a constant
    Group     a tuple                                            its parts
    Inside    a part of a record in a buffer                     at any offset
    Memory    an object in the guest's memory                    read when its value is needed
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ctype import Array, CType, Enum, Integer, Pointer, size_of
from gdb_optprobe.handlers.ir import (
    WORD,
    Buffer,
    Bytes,
    Column,
    Constant,
    ContainsText,
    Expr,
    Form,
    Literal,
    Op,
    Operand,
    Part,
    SameText,
    Slice,
    StringLoad,
    Variable,
    nodes,
)
from gdb_optprobe.handlers.script.types import INT64, UINT64, Text, Tuple, Type, bytes_of, is_signed, is_word


@dataclass(frozen=True, slots=True)
class Word:
    """literal: written as a number."""

    type: Type
    expr: Expr
    literal: bool = False
    mapped: bool = False


@dataclass(frozen=True, slots=True)
class Data:
    type: Type
    data: Slice | Literal | StringLoad


@dataclass(frozen=True, slots=True)
class Group:
    type: Tuple
    parts: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Inside:
    """unit: of a bit field, the bytes to load and the lowest bit in them."""

    type: CType
    buffer: Buffer
    offset: int
    unit: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """unit: as of Inside."""

    type: CType
    address: Expr
    mapped: bool = False
    unit: tuple[int, int] | None = None


Value = Word | Data | Group | Inside | Memory


def number(value: int, type_: Type | None = None) -> Word:
    """Return a constant."""
    return Word(type_ or (UINT64 if value >> 31 > 0 else INT64), fold.constant(value))


def binary(op: Op, left: Expr, right: Expr, signed: bool = False) -> Expr:
    """Return `op` of two words of 64 bits."""
    return fold.binary(op, left, right, 64, signed)


def added(address: Expr, offset: int) -> Expr:
    """Return an address so many bytes behind another."""
    return binary(Op.ADD, address, fold.constant(offset))


def text(data: bytes) -> Data:
    """Return a constant text. Its 0 ends it, and a 0 within it does."""
    size = len(data) + 1
    return Data(Text(size), Literal.text(data.partition(b"\0")[0], bytes_of(Text(size))))


def is_char(type_: Type) -> bool:
    """Return whether an array of these is a text: bpftrace takes `char` for one, and no other type of one byte."""
    return isinstance(type_, Integer) and type_.name == "char"


def is_characters(type_: Type) -> bool:
    """Return whether an object of this type is a text."""
    return isinstance(type_, Array) and type_.count > 0 and is_char(type_.element)


def depends(operand: Operand) -> bool:
    """Return whether a value reads variables or buffers of the hit, which later statements may change."""
    return any(isinstance(each, Variable | Part | Slice) for each in nodes(operand))


def columns(type_: Type) -> tuple[Column, ...]:
    """Return the columns of a value in a key, a map or a record: those of a tuple are its parts'."""
    if isinstance(type_, Tuple):
        return tuple(column for part in type_.parts for column in columns(part))
    if isinstance(type_, Pointer):
        return (Column("", Form.POINTER),)
    if isinstance(type_, Integer | Enum):
        return (Column("", Form.SIGNED if is_signed(type_) else Form.UNSIGNED),)
    return (Column("", Form.UNSIGNED if is_word(type_) else Form.TEXT, bytes_of(type_)),)


def split(slice_: Slice, type_: Type) -> tuple[Operand, ...]:
    """Return the operands that a value in a buffer has as the columns of its type."""
    if isinstance(type_, Tuple):
        found: list[Operand] = []
        at = slice_.offset
        for part in type_.parts:
            found += split(Slice(slice_.buffer, at, bytes_of(part)), part)
            at += bytes_of(part)
        return tuple(found)
    return (Part(slice_.buffer, slice_.offset),) if is_word(type_) else (slice_,)


def from_slice(slice_: Slice, type_: Type) -> Value:
    """Return the value of a type that a buffer has."""
    return Word(type_, Part(slice_.buffer, slice_.offset)) if is_word(type_) else Data(type_, slice_)


def element(data: Slice, type_: Tuple, number_: int) -> Value:
    """Return a part of a tuple in a buffer."""
    at = data.offset + sum(map(bytes_of, type_.parts[:number_]))
    part = type_.parts[number_]
    return from_slice(Slice(data.buffer, at, bytes_of(part)), part)


def loads(size: int) -> tuple[int, ...]:
    """Return the sizes of loads that read so many bytes, one after the other."""
    found: list[int] = []
    for width in (8, 4, 2, 1):
        count, size = divmod(size, width)
        found += [width] * count
    return tuple(found)


def packed(parts: list[tuple[Expr, int]]) -> Expr:
    """Return one word of numbers without a sign, with the bytes that each has, lowest first."""
    word: Expr = Constant(0)
    at = 0
    for expr, size in parts:
        shifted = binary(Op.SHL, expr, fold.constant(8 * at)) if at else expr
        word = binary(Op.OR, word, shifted) if at else shifted
        at += size
    assert at <= WORD
    return word


def same_text(left: Bytes, right: Bytes, most: int | None = None) -> Expr:
    """Return 1 if two texts are equal, else 0; of two constants, which."""
    if isinstance(left, Literal) and isinstance(right, Literal):
        return Constant(int(_text_of(left)[:most] == _text_of(right)[:most]))
    return SameText(left, right, most)


def contains_text(text_: Bytes, needle: Bytes) -> Expr:
    """Return 1 if a text is in another one, else 0; of two constants, which."""
    if isinstance(text_, Literal) and isinstance(needle, Literal):
        return Constant(int(_text_of(needle) in _text_of(text_)))
    return ContainsText(text_, needle)


def _text_of(literal: Literal) -> bytes:
    return literal.data.partition(b"\0")[0]


def narrowed(word: Expr, type_: Type, given: Type | None = None) -> Expr:
    """Return a word as an integer type holds it. given: the type that it has."""
    if not isinstance(type_, Integer | Enum) or type_.width >= 64:
        return word
    if isinstance(given, Integer) and given.size <= type_.size and given.signed == type_.signed:
        return word
    return fold.convert(word, type_.width, type_.signed)


def size_or(type_: Type, default: int = 1) -> int:
    """Return the size that C's pointer arithmetic takes for an element."""
    return (size_of(type_) if not isinstance(type_, Tuple | Text) else None) or default  # type: ignore[arg-type]
