"""C's types as both ISAs have them: LP64, little endian. Typedefs and qualifiers are gone; `describe` says them in C.

A struct's members are looked up when they are asked for: a kernel's types refer to each other without end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.handlers.source import Fragment, fault

POINTER_SIZE = 8
LARGEST = 1 << 63
"""Bytes that no object has, whatever the type information of a guest says."""


@dataclass(frozen=True, slots=True)
class Void:
    """The target of a `void *`."""


@dataclass(frozen=True, slots=True)
class Integer:
    """size: bytes. bits: of a bit field, how many it has; else 0. boolean: `_Bool`, which holds 0 or 1."""

    name: str
    size: int
    signed: bool
    boolean: bool = False
    bits: int = 0

    @property
    def width(self) -> int:
        """Return the bits of a value."""
        return self.bits or 8 * self.size


@dataclass(frozen=True, slots=True)
class Enum:
    """enumerators: their names by value, where they are known."""

    name: str
    size: int
    signed: bool
    enumerators: Callable[[], Mapping[int, str]] = field(default=dict, compare=False, repr=False)

    @property
    def width(self) -> int:
        return 8 * self.size


@dataclass(frozen=True, slots=True)
class Float:
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Pointer:
    target: CType


@dataclass(frozen=True, slots=True)
class Array:
    """count: 0 where the type does not say."""

    element: CType
    count: int


@dataclass(frozen=True, slots=True)
class Function:
    """Code: what a function's name and a pointer to one lead to."""


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A struct, union or enum that is declared and nowhere defined. name: with its keyword."""

    name: str


@dataclass(frozen=True, slots=True)
class Member:
    """offset: bytes from the start of the struct; of a bit field, to the byte of its lowest bit.

    bit_offset, bit_size: of a bit field, its lowest bit in that byte and how many it has; else 0.
    """

    name: str
    offset: int
    type: CType
    bit_offset: int = 0
    bit_size: int = 0


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct or union. Members of anonymous ones within are among its own.

    name:     its tag; empty without one.
    identity: differs from that of other structs of its name.
    lookup:   a member by name; None where it has none of that name.
    names:    those of its members, in order.
    """

    name: str
    size: int
    union: bool = False
    identity: int = 0
    lookup: Callable[[str], Member | None] = field(default=lambda name: None, compare=False, repr=False)
    names: Callable[[], Sequence[str]] = field(default=tuple, compare=False, repr=False)


CType = Void | Integer | Enum | Float | Pointer | Array | Function | Incomplete | Struct
Scalar = Integer | Enum | Pointer

INT = Integer("int", 4, signed=True)
UNSIGNED_INT = Integer("unsigned int", 4, signed=False)
LONG = Integer("long", 8, signed=True)
UNSIGNED_LONG = Integer("unsigned long", 8, signed=False)
CHAR = Integer("char", 1, signed=True)

OWN: Mapping[str, CType] = {
    "void": Void(),
    "_Bool": Integer("_Bool", 1, signed=False, boolean=True),
    "char": CHAR,
    "signed char": Integer("signed char", 1, signed=True),
    "unsigned char": Integer("unsigned char", 1, signed=False),
    "short": Integer("short", 2, signed=True),
    "unsigned short": Integer("unsigned short", 2, signed=False),
    "int": INT,
    "unsigned int": UNSIGNED_INT,
    "long": LONG,
    "unsigned long": UNSIGNED_LONG,
    "long long": Integer("long long", 8, signed=True),
    "unsigned long long": Integer("unsigned long long", 8, signed=False),
    "__int128": Integer("__int128", 16, signed=True),
    "unsigned __int128": Integer("unsigned __int128", 16, signed=False),
    "float": Float("float", 4),
    "double": Float("double", 8),
    "long double": Float("long double", 16),
}
"""By their one spelling (`one_spelling`). A plain char is signed or not as the ISA's ABI has it: see scope.py."""

_FIXED = ("signed char", "unsigned char", "short", "unsigned short", "int", "unsigned int", "long", "unsigned long")
TYPEDEFS: Mapping[str, str] = {
    **dict(zip(("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"), _FIXED, strict=True)),
    **dict(zip((f"{u}int{bits}_t" for bits in (8, 16, 32, 64) for u in ("", "u")), _FIXED, strict=True)),
    "bool": "_Bool",
    "size_t": "unsigned long",
    "ssize_t": "long",
    "uintptr_t": "unsigned long",
    "pid_t": "int",
}
"""Names that are always types, so that a guest without type information can be asked about its memory too."""


def size_of(type_: CType) -> int | None:
    """Return sizeof, in bytes; None if it has none. That of void and of a function is 1, as for GCC and GDB."""
    match type_:
        case Void() | Function():
            return 1
        case Pointer():
            return POINTER_SIZE
        case Array(element, count):
            size = size_of(element)
            return size * count if size is not None and 0 < size * count < LARGEST else None
        case Incomplete():
            return None
        case _:
            return type_.size


def describe(type_: CType) -> str:
    """Return the type as C writes it: `struct file *`, `char [16]`."""
    match type_:
        case Void():
            return "void"
        case Pointer(Function()):
            return "a pointer to a function"
        case Pointer(target):
            text = describe(target)
            return f"{text}{'' if text.endswith('*') else ' '}*"
        case Array(element, count):
            inner, _, more = describe(element).partition(" [")
            return f"{inner} [{count or ''}]{more and f'[{more}'}"
        case Function():
            return "a function"
        case Enum(name):
            return f"enum {name}".strip()
        case Struct(name, union=union):
            return f"{'union' if union else 'struct'} {name}".strip()
        case _:
            return type_.name


def promoted(type_: Integer | Enum) -> Integer:
    """Return the type after C's integer promotions, 6.3.1.1: what fits into an int becomes one, a bit field too.

    A bit field of more than 32 bits becomes a long or an unsigned long, as Clang has it; C leaves it open.
    """
    if type_.width < INT.width or (type_.width == INT.width and type_.signed):
        return INT
    if type_.width == INT.width:
        return UNSIGNED_INT
    return LONG if type_.signed else UNSIGNED_LONG


def common(left: Integer | Enum, right: Integer | Enum) -> Integer:
    """Return the type in which two numbers are added or compared: C's usual arithmetic conversions, 6.3.1.8."""
    one, other = promoted(left), promoted(right)
    if one.size != other.size:
        return one if one.size > other.size else other
    return other if one.signed else one


def fits(type_: Scalar, target: Integer | Enum) -> bool:
    """Return whether every value of `type_` is one of `target` with the same word."""
    width, signed = (64, False) if isinstance(type_, Pointer) else (type_.width, type_.signed)
    if target.width >= 64:
        return True
    return width < target.width if not signed and target.signed else width <= target.width and signed == target.signed


def number_type(value: int, suffix: str, decimal: bool) -> Integer:
    """Return the type of an integer constant, 6.4.4.1. One too large for a long is unsigned long, as in GDB."""
    for type_ in (INT, UNSIGNED_INT, LONG, UNSIGNED_LONG):
        wanted = not ("u" in suffix and type_.signed) and not ("l" in suffix and type_.size < LONG.size)
        skipped = decimal and "u" not in suffix and not type_.signed and type_.size < LONG.size
        if wanted and not skipped and value < 1 << (type_.width - type_.signed):
            return type_
    return UNSIGNED_LONG


# Basic types have several spellings, their words in any order: `long unsigned int` is `unsigned long`. 6.7.2.
TAGGED = ("struct", "union", "enum")
QUALIFIERS = ("const", "volatile", "restrict", "__restrict", "__const", "__volatile__")

_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "void": ("void",),
    "_Bool": ("_Bool",),
    "char": ("char",),
    "signed char": ("signed char",),
    "unsigned char": ("unsigned char",),
    "short": ("short", "signed short", "short int", "signed short int"),
    "unsigned short": ("unsigned short", "unsigned short int"),
    "int": ("int", "signed", "signed int"),
    "unsigned int": ("unsigned", "unsigned int"),
    "long": ("long", "signed long", "long int", "signed long int"),
    "unsigned long": ("unsigned long", "unsigned long int"),
    "long long": ("long long", "signed long long", "long long int", "signed long long int"),
    "unsigned long long": ("unsigned long long", "unsigned long long int"),
    "__int128": ("__int128", "signed __int128"),
    "unsigned __int128": ("unsigned __int128",),
    "float": ("float",),
    "double": ("double",),
    "long double": ("long double",),
}
_BY_WORDS = {tuple(sorted(way.split())): name for name, ways in _SPELLINGS.items() for way in ways}
WORDS = frozenset(word for words in _BY_WORDS for word in words)


def one_spelling(name: str) -> str:
    """Return the one spelling of a basic type of C; any other name as it is."""
    return _BY_WORDS.get(tuple(sorted(name.split())), name)


def spelling(words: Sequence[str], where: Fragment) -> str:
    """Return the one spelling of the type that these words name, in any order. Raises OptprobeError."""
    found = _BY_WORDS.get(tuple(sorted(words)))
    if found is None:
        raise fault(f"'{' '.join(words)}' is no type", where, "as in C: unsigned int, long, unsigned char, …")
    return found
