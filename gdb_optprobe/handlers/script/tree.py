"""The syntax tree of a script. Every node has its place, so that an error can point at it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import get_args

from gdb_optprobe.handlers.script.place import Place

# expressions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Number:
    """negative: written with a minus directly before it; value is then below 0."""

    where: Place
    value: int
    negative: bool = False


@dataclass(frozen=True, slots=True)
class String:
    where: Place
    data: bytes


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$1`; number 0 is `$#`."""

    where: Place
    number: int


@dataclass(frozen=True, slots=True)
class Name:
    """A built-in variable, an enumerator, a constant, or a word such as `perf`."""

    where: Place
    name: str


@dataclass(frozen=True, slots=True)
class Variable:
    """name: with its dollar."""

    where: Place
    name: str


@dataclass(frozen=True, slots=True)
class Map:
    """name: with its at-sign. key: None for the map as a whole; a Tuple for several."""

    where: Place
    name: str
    key: Expression | None = None


@dataclass(frozen=True, slots=True)
class Call:
    where: Place
    name: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Unary:
    """op: one of - ! ~ *"""

    where: Place
    op: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Step:
    """`++x`, `x--`. by: 1 or -1. post: the value is the one before."""

    where: Place
    target: Map | Variable
    by: int
    post: bool


@dataclass(frozen=True, slots=True)
class Binary:
    """sign: the operator itself."""

    where: Place
    op: str
    left: Expression
    right: Expression
    sign: Place


@dataclass(frozen=True, slots=True)
class Conditional:
    where: Place
    condition: Expression
    yes: Expression
    no: Expression


@dataclass(frozen=True, slots=True)
class Member:
    """arrow: `->`, not `.`"""

    where: Place
    thing: Expression
    name: str
    arrow: bool


@dataclass(frozen=True, slots=True)
class Element:
    """`.1` of a tuple."""

    where: Place
    thing: Expression
    number: int


@dataclass(frozen=True, slots=True)
class Index:
    where: Place
    array: Expression
    index: Expression


@dataclass(frozen=True, slots=True)
class Tuple:
    where: Place
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class TypeName:
    """keyword: "struct", "union", "enum", or "". pointers: stars behind. count: of an array, 0 where it says none."""

    where: Place
    keyword: str
    name: str
    pointers: int = 0
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Cast:
    where: Place
    type: TypeName
    value: Expression


@dataclass(frozen=True, slots=True)
class SizeOf:
    where: Place
    thing: Expression | TypeName


@dataclass(frozen=True, slots=True)
class OffsetOf:
    where: Place
    thing: Expression | TypeName
    members: tuple[str, ...]


Expression = (
    Number | String | Parameter | Name | Variable | Map | Call | Unary | Step | Binary | Conditional | Member | Element
    | Index | Tuple | Cast | SizeOf | OffsetOf
)  # fmt: skip

# statements ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evaluate:
    """An expression as a statement."""

    where: Place
    value: Expression


@dataclass(frozen=True, slots=True)
class Assign:
    """let: the variable is declared here, with this type if there is one."""

    where: Place
    target: Map | Variable
    value: Expression
    let: bool = False
    type: TypeName | None = None


@dataclass(frozen=True, slots=True)
class Declare:
    """`let $x`"""

    where: Place
    variable: Variable
    type: TypeName | None


@dataclass(frozen=True, slots=True)
class If:
    where: Place
    condition: Expression
    yes: tuple[Statement, ...]
    no: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class While:
    where: Place
    condition: Expression
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Unroll:
    where: Place
    times: Expression
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class For:
    """`for ($kv : @m) { … }`"""

    where: Place
    variable: Variable
    map: Map
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Jump:
    """kind: "break", "continue" or "return"."""

    where: Place
    kind: str


@dataclass(frozen=True, slots=True)
class Block:
    where: Place
    body: tuple[Statement, ...]


Statement = Evaluate | Assign | Declare | If | While | Unroll | For | Jump | Block

# the script ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Point:
    """One attach point, as typed, with parameters put in."""

    where: Place
    text: str


@dataclass(frozen=True, slots=True)
class Probe:
    where: Place
    points: tuple[Point, ...]
    predicate: Expression | None
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class MemberDeclaration:
    """A member of a struct.

    bits: of a bit field. counts: of an array, outermost first. inner: a struct that is defined here.
    """

    where: Place
    name: str
    type: TypeName
    counts: tuple[int, ...] = ()
    bits: int | None = None
    inner: Definition | None = None


@dataclass(frozen=True, slots=True)
class Definition:
    """A struct, union or enum of the script. members: of an enum, none; enumerators: of an enum, in order."""

    where: Place
    keyword: str
    name: str
    members: tuple[MemberDeclaration, ...] = ()
    enumerators: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of `config = { … }`. value: a number, a word or a string."""

    where: Place
    name: str
    value: int | str


@dataclass(frozen=True, slots=True)
class Script:
    definitions: tuple[Definition, ...]
    settings: tuple[Setting, ...]
    probes: tuple[Probe, ...]


Node = Expression | Statement | TypeName
_MEMBERS = {kind: tuple(each.name for each in fields(kind)) for kind in get_args(Node)}


def nodes(node: Node) -> Iterator[Node]:
    """Yield a node and all expressions and statements below it."""
    yield node
    for name in _MEMBERS[type(node)]:
        value = getattr(node, name)
        for inner in value if isinstance(value, tuple) else (value,):
            if type(inner) in _MEMBERS:
                yield from nodes(inner)
