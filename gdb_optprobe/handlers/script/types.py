"""The types of a script: C's integers, pointers, arrays and structs, and what bpftrace has besides.

Values are words, or bytes of whole words: a text, a tuple (its parts one after the other), a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gdb_optprobe.handlers.ctype import (
    OWN,
    TYPEDEFS,
    Array,
    CType,
    Enum,
    Integer,
    Pointer,
    Struct,
    Void,
    describe,
    size_of,
)
from gdb_optprobe.handlers.ir import WORD
from gdb_optprobe.maps.aggregate import (
    Aggregate,
    Average,
    Count,
    Greatest,
    Least,
    Linear,
    LogLinear,
    Powers,
    Stats,
    Sum,
)

INT8, INT16, INT32, INT64 = (Integer(f"int{bits}", bits // 8, True) for bits in (8, 16, 32, 64))
UINT8, UINT16, UINT32, UINT64 = (Integer(f"uint{bits}", bits // 8, False) for bits in (8, 16, 32, 64))
BOOL = Integer("bool", 1, False, boolean=True)
_INTEGERS = {(each.size, each.signed): each for each in (INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64)}


@dataclass(frozen=True, slots=True)
class Nothing:
    """What a function without a value has, and what is not known yet."""


@dataclass(frozen=True, slots=True)
class Text:
    """A string. size: its bytes with the 0 that ends it."""

    size: int


@dataclass(frozen=True, slots=True)
class Tuple:
    parts: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class Blob:
    """What `buf` has taken. size: at most. The first word is how many bytes there are."""

    size: int


@dataclass(frozen=True, slots=True)
class Stack:
    """user: of the program, not of the kernel. mode: "bpftrace", "perf" or "raw". depth: frames, at most.

    words: of the value itself; the host makes frames of it.
    """

    user: bool
    mode: str
    depth: int
    words: int = 1


@dataclass(frozen=True, slots=True)
class Symbol:
    """An address that is shown as a name.

    user: of a program. The second word is its process; or the inode of its file, where the address is the file's own.
    """

    user: bool


@dataclass(frozen=True, slots=True)
class Internet:
    """An address of the internet: the family, as the guest's kernel numbers it, and 16 bytes."""


@dataclass(frozen=True, slots=True)
class Ethernet:
    """The 6 bytes of a MAC address."""


@dataclass(frozen=True, slots=True)
class Time:
    """A time that is shown by a format. boot: since the guest's start, else since 1970."""

    format: str
    boot: bool = True


@dataclass(frozen=True, slots=True)
class UserName:
    """A user's number that is shown as a name."""


@dataclass(frozen=True, slots=True)
class ErrorText:
    """An error's number that is shown as a text."""


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The number of a control group that is shown as a path."""


@dataclass(frozen=True, slots=True)
class Folded:
    """The value of a map that an aggregate makes of many."""

    aggregate: Aggregate


Special = Blob | Stack | Symbol | Internet | Ethernet | Time | UserName | ErrorText | ControlGroup
Type = CType | Nothing | Text | Tuple | Special | Folded

NOTHING = Nothing()

NAMED: Mapping[str, Type] = {
    **{each.name: each for each in _INTEGERS.values()},
    "bool": BOOL,
    "void": Void(),
    "string": Text(0),
    "inet": Internet(),
    "buffer": Blob(0),
    "timestamp": Time("%H:%M:%S"),
    "macaddr_t": Ethernet(),
    "cgroup_path_t": ControlGroup(),
    "strerror_t": ErrorText(),
    "ksym_t": Symbol(False),
    "usym_t": Symbol(True),
    "username": UserName(),
    "count_t": Folded(Count()),
    "sum_t": Folded(Sum(True)),
    "min_t": Folded(Least(True)),
    "max_t": Folded(Greatest(True)),
    "avg_t": Folded(Average(True)),
    "stats_t": Folded(Stats(True)),
    "usum_t": Folded(Sum(False)),
    "umin_t": Folded(Least(False)),
    "umax_t": Folded(Greatest(False)),
}
"""Types that a script can name without the kernel."""


def integer(size: int, signed: bool) -> Integer:
    """Return an integer type by its bytes."""
    return _INTEGERS[size, signed]


def plain(type_: Type) -> Type:
    """Return C's integer types by bpftrace's one name for each size and sign; any other type as it is."""
    if isinstance(type_, Integer) and not type_.bits and (type_.size, type_.signed) in _INTEGERS:
        return _INTEGERS[type_.size, type_.signed]
    return type_


def own_type(name: str) -> Type | None:
    """Return a type that needs no kernel: bpftrace's, C's basic ones and the usual typedefs of them."""
    found = NAMED.get(name)
    if found is None and (name in OWN or name in TYPEDEFS):
        found = OWN[TYPEDEFS.get(name, name)]
    return found


def is_integer(type_: Type) -> bool:
    """Return whether it is a number, an enumerator too."""
    return isinstance(type_, Integer | Enum)


def is_readable(type_: Type) -> bool:
    """Return whether it is an aggregate that amounts to one number."""
    return isinstance(type_, Folded) and isinstance(type_.aggregate, Count | Sum | Least | Greatest | Average)


def is_signed(type_: Type) -> bool:
    """Return whether a number of this type has a sign."""
    match type_:
        case Integer(signed=signed) | Enum(signed=signed):
            return signed
        case Folded(Sum(signed) | Least(signed) | Greatest(signed) | Average(signed)):
            return signed
    return isinstance(type_, Folded)


def stored(type_: Type) -> Type:
    """Return the type of a map's value or key that is first given one of `type_`: integers take 64 bits there."""
    match type_:
        case Integer(signed=signed):
            return integer(8, signed)
        case Enum():
            return Enum(type_.name, 8, type_.signed, type_.enumerators)
        case Tuple(parts):
            return Tuple(tuple(map(stored, parts)))
    return type_


def as_key(type_: Type) -> Type:
    """Return the type of a key of this type: an aggregate's number."""
    match type_:
        case Folded():
            return integer(8, is_signed(type_)) if is_readable(type_) else type_
        case Tuple(parts):
            return Tuple(tuple(map(as_key, parts)))
    return stored(type_)


def same_kind(one: Type, other: Type) -> bool:
    """Return whether values of two types may be kept in one place, sizes apart."""
    match one, other:
        case (Integer() | Enum(), Integer() | Enum()):
            return True
        case (Tuple(left), Tuple(right)):
            # A part of a type that an early walk has not found yet may be anything; the last walk refuses it.
            return len(left) == len(right) and all(
                same_kind(*parts) or any(isinstance(each, Nothing) for each in parts)
                for parts in zip(left, right, strict=True)
            )
        case (Folded(left), Folded(right)):
            return type(left) is type(right)
        case (Stack(user, mode, depth), Stack(other_user, other_mode, other_depth)):
            return (user, mode, depth) == (other_user, other_mode, other_depth)
        case (Pointer(), Pointer()):
            return True
        case (Array(left, count), Array(right, other_count)):
            return count == other_count and same_kind(left, right)
        case (Struct(name), Struct(other_name)):
            return name == other_name
        case (Symbol(user), Symbol(other_user)):
            return user == other_user
    return type(one) is type(other)


def larger(one: Type, other: Type) -> Type:
    """Return the type that holds values of both, which are of one kind."""
    match one, other:
        case (Nothing(), _):
            return other
        case (Text(size), Text(other_size)):
            return Text(max(size, other_size))
        case (Blob(size), Blob(other_size)):
            return Blob(max(size, other_size))
        case (Tuple(left), Tuple(right)):
            return Tuple(tuple(map(larger, left, right)))
        case (Enum(), Enum()):
            return one if one == other else integer(8, one.signed)
        case (Integer(size=size, signed=signed) | Enum(size=size, signed=signed), Integer() | Enum()):
            return integer(max(size, other.size), signed)
    return one


def size_in_c(type_: Type) -> int | None:
    """Return what sizeof is: that of a tuple is C's of a struct of its parts."""
    match type_:
        case Tuple(parts):
            at = largest = 0
            for part in parts:
                size = size_in_c(part) or 0
                alignment = alignment_of(part)
                at, largest = -(-at // alignment) * alignment + size, max(largest, alignment)
            return -(-at // max(largest, 1)) * max(largest, 1)
        case Text(size):
            return size
        case Blob(size):
            return size + 4
        case Symbol(user):
            return 16 if user else 8
        case Internet():
            return 24
        case Ethernet():
            return 6
        case Stack():
            return 12
        case Time():
            return 16
        case Nothing():
            return 0
        case Folded() | UserName() | ErrorText() | ControlGroup():
            return WORD
        case _:
            return size_of(type_)


def bytes_in_c(type_: CType) -> int:
    """Return the size of a type; 0 of one that has none."""
    return size_of(type_) or 0


def alignment_of(type_: Type) -> int:
    """Return the alignment of a type, as C has it."""
    match type_:
        case Text() | Ethernet() | Blob():
            return 1
        case Array(element):
            return alignment_of(element)
        case Struct():
            members = (found.type for name in type_.names() if (found := type_.lookup(name)) is not None)
            return max(map(alignment_of, members), default=1)
        case Tuple(parts):
            return max(map(alignment_of, parts), default=1)
        case Integer(size=size) | Enum(size=size):
            return size
    return WORD


def bytes_of(type_: Type) -> int:
    """Return the bytes that a value takes in a buffer, a key or a record: whole words."""
    match type_:
        case Tuple(parts):
            return sum(map(bytes_of, parts))
        case Text(size):
            return _rounded(max(size, 1))
        case Blob(size):
            return WORD + _rounded(size)
        case Symbol(user):
            return 2 * WORD if user else WORD
        case Internet():
            return 3 * WORD
        case Stack(words=words):
            return WORD * words
        case Array() | Struct():
            return _rounded(size_of(type_) or 0)
    return WORD


def is_word(type_: Type) -> bool:
    """Return whether a value is one word."""
    special = Time | UserName | ErrorText | ControlGroup | Ethernet | Folded | Nothing
    return isinstance(type_, Integer | Enum | Pointer | special) or (isinstance(type_, Symbol) and not type_.user)


def spelled(type_: Type) -> str:
    """Return a type as bpftrace's messages write it."""
    match type_:
        case Nothing():
            return "none"
        case Text(size):
            return f"string[{size}]"
        case Tuple(parts):
            return f"({','.join(map(spelled, parts))})"
        case Blob(size):
            return f"buffer[{size}]"
        case Stack(user):
            return "ustack" if user else "kstack"
        case Symbol(user):
            return "usym_t" if user else "ksym_t"
        case Internet():
            return "inet"
        case Ethernet():
            return "macaddr_t"
        case Time():
            return "timestamp"
        case UserName():
            return "username"
        case ErrorText():
            return "strerror_t"
        case ControlGroup():
            return "cgroup_path_t"
        case Folded(aggregate):
            return _FOLDED[type(aggregate)]
        case Integer():
            found = plain(type_)
            return found.name if isinstance(found, Integer) else type_.name
        case Pointer(target):
            return f"{spelled(target)} *"
        case Array(element, count):
            return f"{spelled(element)}[{count}]"
    return describe(type_)


_FOLDED = {
    Count: "count_t",
    Sum: "sum_t",
    Least: "min_t",
    Greatest: "max_t",
    Average: "avg_t",
    Stats: "stats_t",
    Powers: "hist_t",
    LogLinear: "hist_t",
    Linear: "lhist_t",
}


def _rounded(size: int) -> int:
    return -(-size // WORD) * WORD
