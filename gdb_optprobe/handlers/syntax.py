"""The syntax tree of typed text. Every node has its position, so that an error can point at it.

The meaning of names is in types.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.handlers.source import Fragment


@dataclass(frozen=True, slots=True)
class Number:
    """suffix: "u", "l", "ul" or ""; decimal: not hexadecimal, octal or binary, which C types otherwise."""

    where: Fragment
    value: int
    suffix: str = ""
    decimal: bool = True


@dataclass(frozen=True, slots=True)
class Character:
    where: Fragment
    value: int


@dataclass(frozen=True, slots=True)
class String:
    """data: without the 0 byte that C adds."""

    where: Fragment
    data: bytes


@dataclass(frozen=True, slots=True)
class Name:
    """A parameter, a symbol, an enumerator."""

    where: Fragment
    name: str


@dataclass(frozen=True, slots=True)
class Dollar:
    """`$name`: a register, a built-in one, a convenience variable. name: without the dollar."""

    where: Fragment
    name: str


@dataclass(frozen=True, slots=True)
class Str:
    """`str(p)`"""

    where: Fragment
    pointer: Expression


@dataclass(frozen=True, slots=True)
class PerCpu:
    """`$percpu(x)`: this CPU's copy of an object."""

    where: Fragment
    thing: Expression


@dataclass(frozen=True, slots=True)
class Unary:
    """op: one of + - ! ~ * &"""

    where: Fragment
    op: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Binary:
    """sign: the operator itself."""

    where: Fragment
    op: str
    left: Expression
    right: Expression
    sign: Fragment


@dataclass(frozen=True, slots=True)
class Conditional:
    where: Fragment
    condition: Expression
    yes: Expression
    no: Expression


@dataclass(frozen=True, slots=True)
class Member:
    """arrow: `->`, not `.`"""

    where: Fragment
    thing: Expression
    name: Fragment
    arrow: bool


@dataclass(frozen=True, slots=True)
class Index:
    where: Fragment
    array: Expression
    index: Expression


@dataclass(frozen=True, slots=True)
class TypeName:
    """A type as C writes it.

    keyword:  "struct", "union", "enum", or "" for a typedef or one of C's own.
    name:     of a type of C's own, its one spelling: "unsigned long".
    pointers: how many stars follow.
    """

    where: Fragment
    keyword: str
    name: str
    pointers: int = 0


@dataclass(frozen=True, slots=True)
class Cast:
    where: Fragment
    type: TypeName
    value: Expression


@dataclass(frozen=True, slots=True)
class SizeOf:
    where: Fragment
    thing: Expression | TypeName


Expression = (
    Number
    | Character
    | String
    | Name
    | Dollar
    | Str
    | PerCpu
    | Unary
    | Binary
    | Conditional
    | Member
    | Index
    | Cast
    | SizeOf
)


@dataclass(frozen=True, slots=True)
class Action:
    """One action.

    where:     all of it.
    name:      its name.
    arguments: those in the parentheses; of print, the format is the first.
    keys:      what follows `by`.
    """

    where: Fragment
    name: Fragment
    arguments: tuple[Expression, ...] = ()
    keys: tuple[Expression, ...] = ()


def inner(node: Expression) -> tuple[Expression, ...]:
    """Return the expressions directly below a node."""
    match node:
        case Str(_, value) | PerCpu(_, value) | Unary(_, _, value) | Member(_, value) | Cast(_, _, value):
            return (value,)
        case Binary(_, _, left, right) | Index(_, left, right):
            return (left, right)
        case Conditional(_, condition, yes, no):
            return (condition, yes, no)
        case SizeOf(_, thing):
            return () if isinstance(thing, TypeName) else (thing,)
        case Number() | Character() | String() | Name() | Dollar():
            return ()
