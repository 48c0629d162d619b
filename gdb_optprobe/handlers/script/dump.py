"""Show a program as text, for `optprobe script -d`.

    if (*(u32 *)($rdi + 16) == 5)
        @start[*(u32 *)($rdi + 24)] = clock
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdb_optprobe.guest_text import printable
from gdb_optprobe.handlers.ir import (
    And,
    Assign,
    Binary,
    Break,
    BytesLoad,
    Choose,
    Clock,
    Constant,
    ContainsText,
    Continue,
    Convert,
    Copy,
    Cut,
    Delete,
    Each,
    Emit,
    Get,
    Has,
    If,
    Length,
    Literal,
    Load,
    Loop,
    Map,
    Modify,
    Operand,
    Or,
    Part,
    PerCpuBase,
    Program,
    Put,
    Register,
    Return,
    SameText,
    Set,
    Slice,
    Statement,
    Stop,
    StringEquals,
    StringLoad,
    Unary,
    Update,
    Variable,
)
from gdb_optprobe.maps.aggregate import number

INDENT = "    "
_DECIMAL = 1 << 20


def lines(program: Program) -> Iterator[str]:
    """Yield the lines of a program."""
    if program.condition is not None:
        yield f"if {shown(program.condition)}"
    yield from _block(program.actions, 1 if program.condition is not None else 0)


def shown(node: Operand | None) -> str:
    """Return an expression as text."""
    match node:
        case None:
            return ""
        case Constant(value):
            signed = number(value, True)
            return str(signed) if abs(signed) < _DECIMAL else f"{value:#x}"
        case Register(name):
            return f"${name}"
        case PerCpuBase():
            return "per_cpu"
        case Clock():
            return "clock"
        case Variable(name):
            return name
        case Load(address, size, signed):
            return f"*({_word(size, signed)} *)({shown(address)})"
        case Unary(op, value):
            return f"{op.value}{shown(value)}"
        case Binary(op, left, right):
            return f"({shown(left)} {op.value} {shown(right)})"
        case Convert(value, bits, signed):
            return f"({'s' if signed else 'u'}{bits}){shown(value)}"
        case And(left, right):
            return f"({shown(left)} && {shown(right)})"
        case Or(left, right):
            return f"({shown(left)} || {shown(right)})"
        case Choose(condition, yes, no):
            return f"({shown(condition)} ? {shown(yes)} : {shown(no)})"
        case StringEquals(address, literal):
            return f'(str({shown(address)}) == "{printable(literal[:-1])}")'
        case SameText(left, right, most):
            return f"same({shown(left)}, {shown(right)}{'' if most is None else f', {most}'})"
        case ContainsText(text, needle):
            return f"contains({shown(text)}, {shown(needle)})"
        case StringLoad(address, size):
            return f"str({shown(address)}, {size})"
        case BytesLoad(address, size, _, length):
            return f"bytes({shown(address)}, {size}{'' if length is None else f', {shown(length)}'})"
        case Slice(buffer, offset, size):
            return f"{buffer.name}[{offset}:{offset + size}]"
        case Part(buffer, offset, size, signed, index):
            at = "" if index is None else f" + {size} * {shown(index)}"
            return f"({_word(size, signed)}){buffer.name}[{offset}{at}]"
        case Literal(data):
            return f'"{printable(data.rstrip(bytes(1)))}"'


def _word(size: int, signed: bool) -> str:
    return f"{'s' if signed else 'u'}{8 * size}"


def _block(statements: Sequence[Statement], depth: int) -> Iterator[str]:
    for each in statements:
        yield from (f"{INDENT * depth}{line}" for line in _statement(each))


def _statement(each: Statement) -> Iterator[str]:
    match each:
        case Assign(variable, value):
            yield f"{variable.name} = {shown(value)}"
        case Copy(into, source):
            yield f"{shown(into)} = {shown(source)}"
        case Cut(place, length):
            yield f"cut {shown(place)} after {shown(length)}"
        case If(condition, then, otherwise):
            yield f"if {shown(condition)}"
            yield from _block(then, 1)
            if otherwise:
                yield "else"
                yield from _block(otherwise, 1)
        case Loop(body, step, most):
            yield f"loop, at most {most} times"
            yield from _block((*body, *step), 1)
        case Each(target, key, value, body):
            yield f"each {shown(key)}, {shown(value)} of @{target.name}"
            yield from _block(body, 1)
        case Get(target, by, into):
            yield f"{shown(into)} = {_of(target, by)}"
        case Set(target, by, stored):
            yield f"{_of(target, by)} = {', '.join(map(shown, stored))}"
        case Modify(target, by, op, value, old, new):
            gets = ", ".join(f"{what} {variable.name}" for what, variable in (("old", old), ("new", new)) if variable)
            yield f"{_of(target, by)} {op.value}= {shown(value)}{gets and f' ({gets})'}"
        case Has(target, by, variable):
            yield f"{variable.name} = has {_of(target, by)}"
        case Delete(target, by):
            yield f"delete {_of(target, by)}"
        case Length(target, variable):
            yield f"{variable.name} = len @{target.name}"
        case Update(Map() as target, value, by):
            assert not isinstance(target.value, tuple)
            yield f"{_of(target, by)} takes {type(target.value).__name__.lower()}({shown(value)})"
        case Emit(target, fields):
            yield f"record {target.name}: {', '.join(map(shown, fields))}".rstrip(": ")
        case Break() | Continue() | Return() | Stop():
            yield type(each).__name__.lower()
        case Put(address, value):
            yield f"*{shown(address)} = {shown(value)}"
        case Update(target):
            yield f"{target.name}"


def _of(target: Map, by: Sequence[Operand]) -> str:
    return f"@{target.name}[{', '.join(map(shown, by))}]" if by else f"@{target.name}"
