"""The kernel's types as DWARF, for a GDB that has no vmlinux: made of its BTF (btf.py).

    .debug_abbrev   an entry for each shape of DIE
    .debug_info     one unit: a DIE for each type, in BTF's order
    .debug_str      BTF's strings, so that a name has the same offset in both

It is DWARF 4 (sections 2, 5 and 7.5), and of that what `print *(struct file *)$rdi` and `ptype` need. Functions and
variables are left out: the symbol file has their addresses. GDB follows types by recursion, so those that lead back to
themselves, or are nested too deeply, are refused here.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gdb_optprobe.guest.btf import (
    ARRAY,
    CONST,
    ENUM,
    ENUM64,
    FLOAT,
    FUNC_PROTO,
    FWD,
    INT,
    POINTER_SIZE,
    PTR,
    RESTRICT,
    STRUCT,
    TYPE_TAG,
    TYPEDEF,
    UNION,
    VOLATILE,
    Btf,
    damaged,
)

__all__ = ["Dwarf", "dwarf_of"]

DEEPEST = 64
"""Types within, or behind, one another without a struct between: 17 in Debian's kernels."""
VERSION, C11 = 4, 0x1D
HEADER = struct.Struct("<IHIB")
"""Of the unit: bytes behind this word, version, offset in .debug_abbrev, bytes of an address."""
SIGNED, BOOL = 1, 4
"""Bits of an integer's encoding in BTF (include/uapi/linux/btf.h)."""
ATE_BOOLEAN, ATE_FLOAT, ATE_SIGNED, ATE_SIGNED_CHAR, ATE_UNSIGNED, ATE_UNSIGNED_CHAR = 2, 4, 5, 6, 7, 8
NEGATIVE = 0xFFFF_FFFF << 32

# Attributes and forms, DWARF 4, figures 20 and 21. A form's letter is of `struct`; a flag takes no byte.
NAME, SIZE, BITS, LANGUAGE, VALUE, COUNT = 0x03, 0x0B, 0x0D, 0x13, 0x1C, 0x37
LOCATION, DECLARATION, ENCODING, TYPE, BIT_OFFSET = 0x38, 0x3C, 0x3E, 0x49, 0x6B
DATA1, DATA4, DATA8, STRING, REFERENCE, PRESENT = 0x0B, 0x06, 0x07, 0x0E, 0x13, 0x19
LETTERS = {DATA1: "B", DATA4: "I", DATA8: "Q", STRING: "I", REFERENCE: "I", PRESENT: ""}


class _Shape:
    """A shape of DIE. code: of its abbreviation, the byte before each such DIE. type_at: where it refers to a type."""

    def __init__(self, code: int, tag: int, children: bool, *attributes: tuple[int, int]) -> None:
        flat = [number for pair in (*attributes, (0, 0)) for number in pair]
        self.abbreviation = bytes([code, tag, children, *flat])
        self.code = code
        letters = [LETTERS[form] for _, form in attributes]
        self.layout = struct.Struct("<B" + "".join(letters))
        before = next((letters[:at] for at, (_, form) in enumerate(attributes) if form == REFERENCE), None)
        self.type_at = None if before is None else struct.calcsize("<B" + "".join(before))


_name, _type, _small, _large = (NAME, STRING), (TYPE, REFERENCE), (SIZE, DATA1), (SIZE, DATA4)
UNIT = _Shape(1, 0x11, True, (LANGUAGE, DATA1))
BASE = _Shape(2, 0x24, False, _name, _small, (ENCODING, DATA1))
STRUCTS = {
    STRUCT: (_Shape(3, 0x13, True, _large), _Shape(4, 0x13, True, _name, _large)),
    UNION: (_Shape(5, 0x17, True, _large), _Shape(6, 0x17, True, _name, _large)),
}
"""Without and with a name; so are the next two."""
ENUMS = _Shape(7, 0x04, True, _small), _Shape(8, 0x04, True, _name, _small)
MEMBERS = _Shape(9, 0x0D, False, _type, (LOCATION, DATA4)), _Shape(10, 0x0D, False, _name, _type, (LOCATION, DATA4))
BITFIELD = _Shape(11, 0x0D, False, _name, _type, (BITS, DATA1), (BIT_OFFSET, DATA4))
ENUMERATOR = _Shape(12, 0x28, False, _name, (VALUE, DATA8))
DECLARED = (
    _Shape(13, 0x13, False, _name, (DECLARATION, PRESENT)), _Shape(14, 0x17, False, _name, (DECLARATION, PRESENT)),
)  # fmt: skip
"""A struct and a union without members here: GDB looks for one of that name that has them."""
REFERRING = {
    PTR: (_Shape(15, 0x0F, False), _Shape(16, 0x0F, False, _type)),
    CONST: (_Shape(17, 0x26, False), _Shape(18, 0x26, False, _type)),
    VOLATILE: (_Shape(19, 0x35, False), _Shape(20, 0x35, False, _type)),
    RESTRICT: (_Shape(21, 0x37, False), _Shape(22, 0x37, False, _type)),
}
"""To void, which has no DIE, and to a type; so are the next three."""
TYPEDEFS = _Shape(23, 0x16, False, _name), _Shape(24, 0x16, False, _name, _type)
ARRAYS = _Shape(25, 0x01, True), _Shape(26, 0x01, True, _type)
FUNCTIONS = _Shape(27, 0x15, True), _Shape(28, 0x15, True, _type)
SUBRANGE = _Shape(29, 0x21, False, (COUNT, DATA4))
PARAMETER, MORE_PARAMETERS = _Shape(30, 0x05, False, _type), _Shape(31, 0x18, False)
SHAPES = (
    UNIT, BASE, *STRUCTS[STRUCT], *STRUCTS[UNION], *ENUMS, *MEMBERS, BITFIELD, ENUMERATOR, *DECLARED, *REFERRING[PTR],
    *REFERRING[CONST], *REFERRING[VOLATILE], *REFERRING[RESTRICT], *TYPEDEFS, *ARRAYS, *FUNCTIONS, SUBRANGE, PARAMETER,
    MORE_PARAMETERS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dwarf:
    """The contents of the three sections."""

    info: bytes
    abbreviations: bytes
    strings: bytes


def dwarf_of(btf: Btf) -> Dwarf:
    """Return all types of a kernel. Raises OptprobeError where GDB could not follow them."""
    return _Writer(btf).written()


class _Writer:
    def __init__(self, btf: Btf) -> None:
        raw = btf.raw
        self._words, self._places, self._strings = raw.words, raw.places, raw.strings
        self._kinds = bytes([0, *(self._words[place + 1] >> 24 & 31 for place in self._places[1:])])
        self._out = bytearray(HEADER.size)
        self._references = array("I")

    def written(self) -> Dwarf:
        self._check_depth(self._behind)
        self._check_depth(self._within)
        self._put(UNIT, C11)
        offsets = array("I", [0])
        for number in range(1, len(self._places)):
            offsets.append(len(self._out))
            self._put_type(number)
        self._end()
        for at in self._references:
            self._out[at : at + 4] = offsets[int.from_bytes(self._out[at : at + 4], "little")].to_bytes(4, "little")
        HEADER.pack_into(self._out, 0, len(self._out) - 4, VERSION, 0, POINTER_SIZE)
        abbreviations = b"".join(shape.abbreviation for shape in SHAPES) + b"\0"
        return Dwarf(bytes(self._out), abbreviations, _printable(self._strings))

    def _put(self, shape: _Shape, *values: int) -> None:
        if shape.type_at is not None:
            self._references.append(len(self._out) + shape.type_at)
        self._out += shape.layout.pack(shape.code, *values)

    def _end(self) -> None:
        """End the children of a DIE."""
        self._out.append(0)

    def _refer(self, shapes: tuple[_Shape, _Shape], number: int, *before: int) -> None:
        """Put a DIE that refers to a type: to void by the first shape."""
        target = self._type(number)
        self._put(shapes[target != 0], *before, *([target] if target else ()))

    def _put_type(self, number: int) -> None:
        place = self._places[number]
        name, third = self._words[place], self._words[place + 2]
        match self._kinds[number]:
            case kind if kind == INT:
                self._put(BASE, name, min(third, 255), _encoding(self._words[place + 3] >> 24, third))
            case kind if kind == FLOAT:
                self._put(BASE, name, min(third, 255), ATE_FLOAT)
            case kind if kind in REFERRING:
                self._refer(REFERRING[kind], third)
            case kind if kind == TYPEDEF:
                self._refer(TYPEDEFS, third, name)
            case kind if kind == ARRAY:
                self._refer(ARRAYS, self._words[place + 3])
                self._put(SUBRANGE, self._words[place + 5])
                self._end()
            case kind if kind in STRUCTS:
                self._put(STRUCTS[kind][name != 0], *([name] if name else ()), third)
                self._put_members(number)
                self._end()
            case kind if kind in (ENUM, ENUM64):
                self._put(ENUMS[name != 0], *([name] if name else ()), min(third, 255))
                self._put_enumerators(number, kind == ENUM64)
                self._end()
            case kind if kind == FWD:
                self._put(DECLARED[self._words[place + 1] >> 31], name)
            case kind if kind == FUNC_PROTO:
                self._refer(FUNCTIONS, third)
                for _, parameter in self._entries(number, 2):
                    self._refer((MORE_PARAMETERS, PARAMETER), parameter)
                self._end()

    def _put_members(self, number: int) -> None:
        has_bits = self._words[self._places[number] + 1] >> 31  # kind_flag: bits in the offsets' upper byte
        for name, type_, where in self._entries(number, 3):
            target = self._type(type_)
            bits, first = (where >> 24, where & 0xFF_FFFF) if has_bits else (0, where)
            if not target:
                raise damaged(f"a member of type {number} has no type")
            bits = bits or self._narrow(target)
            if bits:
                self._put(BITFIELD, name, target, bits, first)
            else:
                self._put(MEMBERS[name != 0], *([name] if name else ()), target, first // 8)

    def _put_enumerators(self, number: int, wide: bool) -> None:
        for name, low, *high in self._entries(number, 3 if wide else 2):
            above = high[0] << 32 if high else NEGATIVE * (low >> 31)
            self._put(ENUMERATOR, name, above | low)

    def _entries(self, number: int, words: int) -> Iterator[Sequence[int]]:
        """Yield the words of each member, enumerator or parameter of a type."""
        first = self._places[number] + 3
        for at in range(first, first + words * (self._words[first - 2] & 0xFFFF), words):
            yield self._words[at : at + words]

    def _narrow(self, number: int) -> int:
        """Return the bits of an integer with fewer than its bytes have, as bitfields were before kind_flag; else 0."""
        if self._kinds[number] != INT:
            return 0
        place = self._places[number]
        bits = self._words[place + 3] & 0xFF
        return bits if bits != 8 * self._words[place + 2] else 0

    def _type(self, number: int) -> int:
        """Return a type without the tags around it, which C does not have; 0 for void, and for what is no type."""
        for _ in range(DEEPEST):
            if number >= len(self._places):
                raise damaged(f"it has no type {number}")
            if self._kinds[number] != TYPE_TAG:
                return number if self._kinds[number] in KINDS else 0
            number = self._words[self._places[number] + 2]
        raise damaged(f"type {number} is nested too deeply")

    # what GDB would follow without an end ------------------------------------------------------------------------

    def _behind(self, number: int) -> Iterator[int]:
        """Yield the types that one is made of, where it has no members: GDB reads them when it reads the type."""
        place = self._places[number]
        kind = self._kinds[number]
        if kind in REFERRING or kind in (TYPEDEF, FUNC_PROTO):
            yield self._type(self._words[place + 2])
        if kind == ARRAY:
            yield self._type(self._words[place + 3])
        if kind == FUNC_PROTO:
            yield from (self._type(parameter) for _, parameter in self._entries(number, 2))

    def _within(self, number: int) -> Iterator[int]:
        """Yield the types that one contains: GDB prints them when it prints the type."""
        kind = self._kinds[number]
        if kind in STRUCTS:
            yield from (self._type(type_) for _, type_, _ in self._entries(number, 3))
        elif kind not in (PTR, FUNC_PROTO):
            yield from self._behind(number)

    def _check_depth(self, below: Callable[[int], Iterator[int]]) -> None:
        """Check that no type is below itself, and none of more than DEEPEST."""
        entered, unknown = -1, 0
        depths = [unknown] * len(self._places)
        depths[0] = 1
        for number in range(1, len(self._places)):
            path = [number]
            while path:
                top = path[-1]
                if depths[top] > 0:
                    path.pop()
                elif depths[top] == unknown:
                    depths[top] = entered
                    path += (each for each in below(top) if depths[each] <= 0)
                    if any(depths[each] == entered for each in below(top)):
                        raise damaged(f"type {top} is a part of itself")
                else:
                    depths[top] = 1 + max((depths[each] for each in below(top)), default=0)
                    if depths[top] > DEEPEST:
                        raise damaged(f"type {top} is nested too deeply")


KINDS = frozenset({INT, FLOAT, TYPEDEF, ARRAY, ENUM, ENUM64, FWD, FUNC_PROTO, *STRUCTS, *REFERRING})
"""Those that have a DIE. Functions, variables and tags have none."""


def _encoding(bits: int, size: int) -> int:
    if bits & BOOL:
        return ATE_BOOLEAN
    if size == 1:  # BTF tells no characters from numbers
        return ATE_SIGNED_CHAR if bits & SIGNED else ATE_UNSIGNED_CHAR
    return ATE_SIGNED if bits & SIGNED else ATE_UNSIGNED


def _printable(strings: bytes) -> bytes:
    """Return names that GDB may print, each as long as before."""
    return strings.translate(bytes(each if not each or 0x20 <= each < 0x7F else ord("?") for each in range(256)))
