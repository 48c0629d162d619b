"""The kernel's own type information, from the BTF that it carries (between `__start_BTF` and `__stop_BTF`).

    header │ types: records of three words and what their kind adds, numbered from 1; 0 is void │ strings

Documentation/bpf/btf.rst, include/uapi/linux/btf.h. Types refer to others by number, so `Btf.type` gives one type at a
time and nothing is decoded before it is asked for: a kernel has more than 100,000.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from gdb_optprobe.budget import Budget, OverBudget
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.little_endian import little_endian
from gdb_optprobe.guest_text import printable
from gdb_optprobe.isa.words import places_of

__all__ = [
    "Array",
    "Btf",
    "Enum",
    "Field",
    "Float",
    "Forward",
    "Function",
    "Int",
    "Member",
    "Parameter",
    "Pointer",
    "Qualified",
    "RawTypes",
    "Struct",
    "Type",
    "Typedef",
    "Void",
]

MAGIC = 0xEB9F
HEADER = struct.Struct("<HBBIIIII")
INT, PTR, ARRAY, STRUCT, UNION, ENUM, FWD, TYPEDEF, VOLATILE, CONST = range(1, 11)
RESTRICT, FUNC, FUNC_PROTO, VAR, DATASEC, FLOAT, DECL_TAG, TYPE_TAG, ENUM64 = range(11, 20)
QUALIFIERS = {VOLATILE: "volatile", CONST: "const", RESTRICT: "restrict", TYPE_TAG: "tag"}
# Words that follow the common three: for all of a kind, and for each of its vlen entries.
FIXED = {INT: 1, ARRAY: 3, VAR: 1, DECL_TAG: 1}
EACH = {STRUCT: 3, UNION: 3, ENUM: 2, FUNC_PROTO: 2, DATASEC: 3, ENUM64: 3}
POINTER_SIZE = 8
# Limits (budget.py), and what Debian's kernels have at the most.
LARGEST = 1 << 26
"""Bytes of all: 5.5 MB."""
MOST_TYPES = 1 << 20
"""126,586."""
MOST_MEMBERS, MOST_OF_ALL = 1 << 16, 1 << 18
"""Of a struct, with those of anonymous ones within: 272. Of all structs: 70,230. A long name counts as several."""
MOST_ENUMERATORS = 1 << 17
"""Of all enums: 18,885. A long name counts as several."""
LONG = 64
"""Characters of a name that count as one member more."""
MOST_PARAMETERS = 1 << 8
"""Of a function: 18."""
MOST_NAMESAKES = 1 << 10
"""Functions of one name that are compared: 1, and a few with other compilers."""
LONGEST_NAME = 511
"""KSYM_NAME_LEN - 1: so does the kernel itself check BTF (kernel/bpf/btf.c, btf_name_valid_identifier)."""
DEEPEST = 64
"""Typedefs, qualifiers and arrays around a type: 6. The kernel's own limit is 32 (MAX_RESOLVE_DEPTH)."""
DEEPEST_STRUCT = 32
"""Anonymous structs within one another: 6."""
LARGEST_TYPE = (1 << 32) - 1
"""Bytes of a type, as the kernel has it (btf_array_resolve): its members' offsets are numbers of 32 bits."""


@dataclass(frozen=True, slots=True)
class Void:
    """No type: what a `void *` points to."""


@dataclass(frozen=True, slots=True)
class Int:
    name: str
    size: int
    signed: bool
    boolean: bool


@dataclass(frozen=True, slots=True)
class Float:
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Pointer:
    """target: the number of the type pointed to."""

    target: int


@dataclass(frozen=True, slots=True)
class Array:
    element: int
    count: int


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a struct or union; those of anonymous ones within are members of the outer one.

    offset:     bytes from the start of the struct to the member; for a bitfield, to the byte of its lowest bit.
    bit_offset: for a bitfield, its lowest bit in that byte.
    bit_size:   bits of a bitfield; 0 for any other member.
    """

    name: str
    offset: int
    type: int
    bit_offset: int = 0
    bit_size: int = 0


@dataclass(frozen=True, slots=True)
class Struct:
    name: str
    size: int
    members: tuple[Member, ...]
    union: bool = False

    def member(self, name: str) -> Member | None:
        return next((member for member in self.members if member.name == name), None)


@dataclass(frozen=True, slots=True)
class Enum:
    name: str
    size: int
    signed: bool
    values: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Forward:
    """A struct or union that is declared and defined nowhere."""

    name: str
    union: bool


@dataclass(frozen=True, slots=True)
class Typedef:
    name: str
    target: int


@dataclass(frozen=True, slots=True)
class Qualified:
    qualifier: str
    target: int


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    type: int


@dataclass(frozen=True, slots=True)
class Function:
    """A function or, with no name, the type of one."""

    name: str
    parameters: tuple[Parameter, ...]
    result: int
    variadic: bool


Type = Void | Int | Float | Pointer | Array | Struct | Enum | Forward | Typedef | Qualified | Function


@dataclass(frozen=True, slots=True)
class Field:
    """What a path of members leads to: as `Member`, with its size in bytes (of a bitfield: the bytes it touches)."""

    offset: int
    size: int
    type: int
    bit_offset: int = 0
    bit_size: int = 0


@dataclass(frozen=True, slots=True)
class RawTypes:
    """All types as they are encoded. places: of each type in `words`, by its number; that of type 0 is not used."""

    words: array[int]
    places: array[int]
    strings: bytes

    @property
    def hash(self) -> str:
        """The SHA-256 of all of them."""
        return sha256(self.words.tobytes() + self.strings).hexdigest()


class Btf:
    """Types by number or by name. Raises OptprobeError where `blob` is damaged or a name is unknown."""

    def __init__(self, blob: bytes) -> None:
        try:
            magic, _version, _flags, header, type_start, type_size, string_start, string_size = HEADER.unpack_from(blob)
        except struct.error:
            raise damaged("it has no header") from None
        types, strings = header + type_start, header + string_start
        if magic != MAGIC:
            raise damaged("it has no header")
        if len(blob) > LARGEST:
            raise damaged(f"it has over {LARGEST:,} bytes")
        if type_size % 4 or types + type_size > len(blob) or strings + string_size > len(blob):
            raise damaged("it is cut off")
        self._words = little_endian(array("I", blob[types : types + type_size]))
        self._strings = blob[strings : strings + string_size]
        self._places = self._index()
        # Each type's name as an offset into the strings. As bytes they are searched thirty times as fast.
        self._names = array("I", [0, *map(self._words.__getitem__, self._places[1:])]).tobytes()
        self._numbers: dict[str, Sequence[int]] = {}
        self._structs: dict[int, Struct | OverBudget] = {}
        self._enums: dict[int, Enum] = {}
        self._found: dict[tuple[str, str], int | None] = {}
        self._members_left = Budget(MOST_OF_ALL, "the guest's type information (BTF)", "members of structs")
        self._enumerators_left = Budget(MOST_ENUMERATORS, "the guest's type information (BTF)", "enumerators")
        self._constants: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self._places)

    @property
    def raw(self) -> RawTypes:
        """Return all types as they are encoded, for a writer of another format."""
        return RawTypes(self._words, self._places, self._strings)

    def struct(self, name: str) -> Struct:
        """Return the struct or union called `name` (a tag, or a typedef of one)."""
        for number in self._named(name):
            if self._kind(number) in (STRUCT, UNION):
                return self._struct(number)
        for number in self._named(name):
            if self._kind(number) == TYPEDEF:
                target = self.resolve(number)
                if isinstance(target, Struct):
                    return target
        raise OptprobeError(f"the guest's kernel has no struct '{name}'")

    def has_struct(self, name: str) -> bool:
        return any(self._kind(number) in (STRUCT, UNION) for number in self._named(name))

    def function(self, name: str) -> Function | None:
        """Return the function called `name`, with its parameters; None where BTF has none, or several that differ."""
        numbers = [number for number in self._named(name) if self._kind(number) == FUNC]
        if len(numbers) > MOST_NAMESAKES:
            raise damaged(f"it has over {MOST_NAMESAKES:,} functions '{name}'")
        found = {
            (function.parameters, function.result, function.variadic): function
            for function in map(self.type, numbers)
            if isinstance(function, Function)
        }
        return next(iter(found.values())) if len(found) == 1 else None

    def variable(self, name: str) -> int | None:
        """Return the number of a variable's type; None where BTF has none of that name: a kernel's has the per-CPU
        ones.
        """
        found = next((number for number in self._named(name) if self._kind(number) == VAR), None)
        return None if found is None else self._words[self._places[found] + 2]

    def placed(self, section: str, name: str) -> int | None:
        """Return where a variable is in a section of which BTF has the variables; None where it has none such, or
        several.
        """
        variables = {number for number in self._named(name) if self._kind(number) == VAR}
        found = []
        for number in self._named(section) if variables else ():
            if self._kind(number) == DATASEC:
                at, count = self._places[number], self._words[self._places[number] + 1] & 0xFFFF
                rows = range(at + 3, at + 3 + EACH[DATASEC] * count, EACH[DATASEC])
                found += [self._words[row + 1] for row in rows if self._words[row] in variables]
        return found[0] if len(found) == 1 else None

    def find(self, keyword: str, name: str) -> int | None:
        """Return the number of a type by what C calls it: "struct", "union", "enum", "typedef" or "int", and a name."""
        kinds = {
            "struct": (STRUCT,),
            "union": (UNION,),
            "enum": (ENUM, ENUM64),
            "typedef": (TYPEDEF,),
            "int": (INT,),
        }[keyword]
        if (keyword, name) not in self._found:
            named = (number for number in self._named(name) if self._kind(number) in kinds)
            self._found[keyword, name] = next(named, None)
        return self._found[keyword, name]

    def constant(self, name: str) -> int | None:
        """Return the value of an enumerator of any enum."""
        if self._constants is None:
            found: dict[str, int] = {}
            for number in range(1, len(self)):
                if self._kind(number) in (ENUM, ENUM64):
                    for key, value in self._enum(number).values.items():
                        found.setdefault(key, value)
            self._constants = found
        return self._constants.get(name)

    def offset(self, name: str, path: str) -> int:
        """Return the bytes from the start of struct `name` to the member that `path` ("a.b[2].c") leads to."""
        return self.field(name, path).offset

    def has(self, name: str, path: str) -> bool:
        """Return whether struct `name` exists and has the member that `path` leads to."""
        try:
            self.field(name, path)
        except OptprobeError:
            return False
        return True

    def field(self, name: str, path: str) -> Field:
        """Return offset, size and type of that member."""
        current: Type = self.struct(name)
        found: Field | None = None
        offset = 0
        for step, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
            if index and isinstance(current, Array):
                number = current.element
                offset += int(index) * self.size(number)
                found = Field(offset, self.size(number), number)
            else:
                member = current.member(step) if isinstance(current, Struct) else None
                if member is None:
                    raise OptprobeError(f"struct '{name}' of the guest's kernel has no member '{path}'")
                offset, number = offset + member.offset, member.type
                touched = -(-(member.bit_offset + member.bit_size) // 8)
                size = touched if member.bit_size else self.size(number)
                found = Field(offset, size, number, member.bit_offset, member.bit_size)
            current = self.resolve(number)
        if found is None:
            raise OptprobeError(f"'{path}' names no member of struct '{name}'")
        return found

    def size(self, number: int) -> int:
        """Return sizeof a type; 0 for one that has none."""
        count, inner = 1, number
        for _ in range(DEEPEST):
            resolved = self.resolve(inner)
            if not isinstance(resolved, Array):
                break
            count *= resolved.count
            inner = resolved.element
        each = POINTER_SIZE if isinstance(resolved, Pointer) else 0
        if isinstance(resolved, Int | Float | Struct | Enum):
            each = resolved.size
        if count * each > LARGEST_TYPE:
            raise damaged(f"type {number} is too large")
        return count * each

    def resolve(self, number: int) -> Type:
        """Return the type with this number, without typedefs and qualifiers around it."""
        for _ in range(DEEPEST):
            found = self.type(number)
            if not isinstance(found, Typedef | Qualified):
                return found
            number = found.target
        raise damaged(f"type {number} is defined by itself, or nested too deeply")

    def type(self, number: int) -> Type:
        """Return the type with this number."""
        if not number:
            return Void()
        if number >= len(self):
            raise damaged(f"it has no type {number}")
        place = self._places[number]
        name, kind, third = self._string(self._words[place]), self._kind(number), self._words[place + 2]
        if kind in (STRUCT, UNION):
            return self._struct(number)
        if kind in (ENUM, ENUM64):
            return self._enum(number)
        if kind == INT:
            encoding = self._words[place + 3] >> 24
            return Int(name, third, signed=bool(encoding & 1), boolean=bool(encoding & 4))
        if kind == ARRAY:
            return Array(self._words[place + 3], self._words[place + 5])
        if kind == FWD:
            return Forward(name, union=bool(self._words[place + 1] >> 31))
        if kind in QUALIFIERS:
            return Qualified(QUALIFIERS[kind], third)
        if kind == FUNC:
            if not 0 < third < len(self) or self._kind(third) != FUNC_PROTO:
                raise damaged(f"function '{name}' has no prototype")
            return self._prototype(name, self._places[third])
        if kind == FUNC_PROTO:
            return self._prototype("", place)
        if kind == PTR:
            return Pointer(third)
        if kind == TYPEDEF:
            return Typedef(name, third)
        if kind == FLOAT:
            return Float(name, third)
        raise damaged(f"type {number} is of kind {kind}")

    def _index(self) -> array[int]:
        """Return where each type begins, in words; the place of type 0 is not used."""
        words = self._words
        each = [EACH.get(kind, 0) for kind in range(32)]
        size = [3 + FIXED.get(kind, 0) if 0 < kind <= ENUM64 else 0 for kind in range(32)]
        places = array("I", [0])
        note = places.append
        at, end = 0, len(words)
        try:
            for _ in range(MOST_TYPES):  # a kernel has a hundred thousand
                if at >= end:
                    break
                note(at)
                info = words[at + 1]
                if not (fixed := size[kind := info >> 24 & 31]):
                    # Without knowing how long this kind is nothing behind it can be found.
                    raise damaged(f"it holds types of the unknown kind {kind}")
                at += fixed + each[kind] * (info & 0xFFFF)
            else:
                raise damaged(f"it has over {MOST_TYPES:,} types")
        except IndexError:
            raise damaged("its types are cut off") from None
        if at != end:
            raise damaged("its types are cut off")
        return places

    def _kind(self, number: int) -> int:
        return self._words[self._places[number] + 1] >> 24 & 31

    def _named(self, name: str) -> Sequence[int]:
        """Return the numbers of the types called `name`, kept."""
        if name not in self._numbers:
            self._numbers[name] = [*self._find(name)]
        return self._numbers[name]

    def _find(self, name: str) -> Iterator[int]:
        """Yield the numbers of the types called `name`. libbpf stores each string once, so offsets are compared."""
        wanted = b"\0" + name.encode() + b"\0"
        offset = self._strings.find(wanted) + 1
        if not name or not offset:
            return
        word = array("I", [offset]).tobytes()
        for at in places_of(word, self._names, len(word)):
            yield at // len(word)

    def _string(self, offset: int) -> str:
        end = self._strings.find(b"\0", offset, offset + LONGEST_NAME + 1)
        if end < 0:
            raise damaged("its strings are cut off, or one is too long")
        return printable(self._strings[offset:end])

    def _struct(self, number: int) -> Struct:
        if number not in self._structs:
            self._structs[number] = self._decoded(number)
        found = self._structs[number]
        if isinstance(found, OverBudget):
            raise found
        return found

    def _decoded(self, number: int) -> Struct | OverBudget:
        place = self._places[number]
        members: list[Member] = []
        budget = Budget(MOST_MEMBERS, f"type {number} of the guest's BTF", "members")
        try:
            self._add_members(members, number, 0, 0, budget)
        except OverBudget as error:
            return error
        union = self._kind(number) == UNION
        return Struct(self._string(self._words[place]), self._words[place + 2], tuple(members), union)

    def _add_members(self, found: list[Member], number: int, base: int, depth: int, budget: Budget) -> None:
        """Members at `base` bits and more, anonymous structs and unions among them replaced by theirs."""
        if depth > DEEPEST_STRUCT:
            raise damaged(f"type {number} contains itself")
        place = self._places[number]
        info = self._words[place + 1]
        for at in range(place + 3, place + 3 + 3 * (info & 0xFFFF), 3):
            name, type_, where = self._words[at : at + 3]
            label = self._string(name)
            for limit in (budget, self._members_left):
                limit.spend(1 + len(label) // LONG)
            # With kind_flag the size of a bitfield is in the bits above its offset.
            bit_size, bits = (where >> 24, base + (where & 0xFFFFFF)) if info >> 31 else (0, base + where)
            if not name and type_ < len(self) and self._kind(type_) in (STRUCT, UNION):
                self._add_members(found, type_, bits, depth + 1, budget)
            else:
                bit_size = bit_size or self._int_bits(type_)
                found.append(Member(label, bits // 8, type_, bits % 8 if bit_size else 0, bit_size))

    def _int_bits(self, number: int) -> int:
        """Return the bits of an integer type: before kind_flag a bitfield's type had fewer bits than its bytes have."""
        if 0 < number < len(self) and self._kind(number) == INT:
            place = self._places[number]
            bits = self._words[place + 3] & 0xFF
            return bits if bits != 8 * self._words[place + 2] else 0
        return 0

    def _enum(self, number: int) -> Enum:
        if number not in self._enums:
            self._enums[number] = self._decoded_enum(number)
        return self._enums[number]

    def _decoded_enum(self, number: int) -> Enum:
        place = self._places[number]
        info = self._words[place + 1]
        signed = bool(info >> 31)
        values: dict[str, int] = {}
        wide = self._kind(number) == ENUM64
        step, bits = (3, 64) if wide else (2, 32)
        for at in range(place + 3, place + 3 + step * (info & 0xFFFF), step):
            value = self._words[at + 1] | (self._words[at + 2] << 32 if wide else 0)
            # Before kind_flag (6.0) an enum had no sign; then small negative values show that it is signed.
            negative = value >> (bits - 1) and (signed or not wide)
            label = self._string(self._words[at])
            self._enumerators_left.spend(1 + len(label) // LONG)
            values[label] = value - (1 << bits) if negative else value
        return Enum(
            self._string(self._words[place]),
            self._words[place + 2],
            signed or min(values.values(), default=0) < 0,
            values,
        )

    def _prototype(self, name: str, place: int) -> Function:
        count = self._words[place + 1] & 0xFFFF
        if count > MOST_PARAMETERS:
            raise damaged(f"a function has {count} parameters")
        pairs = [(self._words[at], self._words[at + 1]) for at in range(place + 3, place + 3 + 2 * count, 2)]
        variadic = bool(pairs) and pairs[-1] == (0, 0)
        parameters = tuple(Parameter(self._string(at), type_) for at, type_ in (pairs[:-1] if variadic else pairs))
        return Function(name, parameters, self._words[place + 2], variadic)


def damaged(how: str) -> OptprobeError:
    return OptprobeError(f"the guest's type information (BTF) cannot be read: {how}")
