"""The parameters of a program's functions, from its debug information (DWARF 4 and 5). Pure: bytes in.

    .debug_info     units ─► trees of entries: subprogram ─► formal_parameter ─► base_type, pointer_type, …
    .debug_abbrev   which attributes an entry has, and in which form each is
    .debug_str, .debug_line_str, .debug_str_offsets, .debug_addr: what forms refer to

Numbers in angle brackets, such as <7.5.4>, are sections of DWARF 5. Every number is checked. What this reader does not
know, such as a unit of another version, has no functions; a type that it does not know is void.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from gdb_optprobe.budget import Budget
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.user import leb128
from gdb_optprobe.guest_text import printable
from gdb_optprobe.handlers.ctype import (
    Array,
    CType,
    Enum,
    Float,
    Function,
    Incomplete,
    Integer,
    Member,
    Pointer,
    Struct,
    Void,
    one_spelling,
)

SECTIONS = (".debug_info", ".debug_abbrev", ".debug_str", ".debug_line_str", ".debug_str_offsets", ".debug_addr")
MOST_ENTRIES = 1 << 18
"""A limit (budget.py), of entries right below units; those of functions and types are passed over."""
MOST_MEMBERS = 1 << 13
"""Of a list, and of a struct with all that are within: BTF has 65,535, a kernel 257."""
MOST_ABBREVIATIONS, MOST_ATTRIBUTES = 1 << 14, 64
LONGEST_NAME = 1 << 10
LARGEST = 1 << 40
"""Bytes from the start of a struct to a member."""
DEEPEST = 32
"""Of types within types, and of entries that refer to others."""

# <7.5.3>, table 7.3
ARRAY, CLASS, ENUMERATION, PARAMETER, MEMBER, POINTER, REFERENCE = 0x01, 0x02, 0x04, 0x05, 0x0D, 0x0F, 0x10
STRUCTURE, SUBROUTINE, TYPEDEF, UNION, SUBRANGE, BASE, CONSTANT = 0x13, 0x15, 0x16, 0x17, 0x21, 0x24, 0x26
ENUMERATOR, SUBPROGRAM, VOLATILE, RESTRICT, RVALUE, ATOMIC = 0x28, 0x2E, 0x35, 0x37, 0x42, 0x47
_TRANSPARENT = (TYPEDEF, CONSTANT, VOLATILE, RESTRICT, ATOMIC)
_POINTERS = (POINTER, REFERENCE, RVALUE)
_STRUCTS = {STRUCTURE: "struct", CLASS: "struct", UNION: "union"}
# <7.5.4>, table 7.5
SIBLING, NAME, SIZE, LOW, VALUE, UPPER = 0x01, 0x03, 0x0B, 0x11, 0x1C, 0x2F
ORIGIN, COUNT, LOCATION, DECLARATION, ENCODING, SPECIFICATION, TYPE = 0x31, 0x37, 0x38, 0x3C, 0x3E, 0x47, 0x49
BIT_SIZE, OLD_BIT_OFFSET, BIT_OFFSET, STRING_BASE, ADDRESS_BASE = 0x0D, 0x0C, 0x6B, 0x72, 0x73
_OF_NUMBERS = (1, 2, 4, 8, 16)
_SIGNED, _BOOLEAN, _FLOAT = (0x05, 0x06, 0x0D), 0x02, (0x03, 0x04)  # <7.8>, table 7.11
# <7.5.6>, table 7.6
_FIXED = {
    0x05: 2, 0x06: 4, 0x07: 8, 0x0B: 1, 0x0C: 1, 0x0E: 4, 0x10: 4, 0x11: 1, 0x12: 2, 0x13: 4, 0x14: 8, 0x17: 4,
    0x1C: 4, 0x1D: 4, 0x1E: 16, 0x1F: 4, 0x20: 8, 0x24: 8, 0x25: 1, 0x26: 2, 0x27: 3, 0x28: 4, 0x29: 1, 0x2A: 2,
    0x2B: 3, 0x2C: 4, 0x1F20: 4, 0x1F21: 4,
}  # fmt: skip
_ADDRESS, _STRING, _SDATA, _PRESENT, _INDIRECT, _IMPLICIT = 0x01, 0x08, 0x0D, 0x19, 0x16, 0x21
_BLOCKS, _LONG_BLOCKS = {0x03: 2, 0x04: 4, 0x0A: 1}, (0x09, 0x18)
_ULEB = (0x0F, 0x15, 0x1A, 0x1B, 0x22, 0x23)
_ANYWHERE, _LOCAL = 0x10, (0x11, 0x12, 0x13, 0x14, 0x15)
_STRINGS = {0x0E: ".debug_str", 0x1F: ".debug_line_str"}
_STRING_INDEX, _ADDRESS_INDEX = (0x1A, 0x25, 0x26, 0x27, 0x28), (0x1B, 0x29, 0x2A, 0x2B, 0x2C)
Abbreviation = tuple[int, bool, tuple[tuple[int, int, int], ...]]
"""Tag, whether there are children, and (attribute, form, constant) of each attribute."""
_COMPILED, _PARTIAL = 0x01, 0x03  # <7.5.1>, table 7.2


@dataclass(frozen=True, slots=True)
class Unit:
    """start, end: of it in .debug_info. first: its root. strings, addresses: its parts of tables."""

    start: int
    first: int
    end: int
    version: int
    abbreviations: int
    strings: int = 8
    addresses: int = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """at: its offset. values: form and value of each attribute. behind: the offset of the next entry in the file."""

    at: int
    unit: Unit
    tag: int
    has_children: bool
    values: Mapping[int, tuple[int, int | bytes]]
    behind: int


@dataclass(frozen=True)
class DebugInfo:
    """section: returns the content of one by its name, b"" where the file has none. Raises OptprobeError."""

    name: str
    section: Callable[[str], bytes]
    _kept: dict[str, bytes] = field(default_factory=dict, repr=False)
    _abbreviations: dict[int, Mapping[int, Abbreviation]] = field(default_factory=dict, repr=False)

    def parameters(self, address: int) -> Mapping[str, CType]:
        """Return the parameters of the function at an address, in order; none where it is not known.

        Raises OptprobeError where the information is damaged.
        """
        place = self._functions.get(address)
        found = self._entry(*place) if place is not None else None
        if found is None:
            return {}
        # A copy of an inlined function has its parameters in an order of its own: the original has the source's.
        named = self._original(found)
        return {
            name: self._type_of(each) for each in self._children(named) if each.tag == PARAMETER
            if (name := self._text(each, NAME)) is not None
        }  # fmt: skip

    # entries ---------------------------------------------------------------------------------------------------------

    @cached_property
    def _functions(self) -> Mapping[int, tuple[Unit, int]]:
        """Return unit and offset of each function's entry, by its address."""
        budget, found = self._budget(MOST_ENTRIES), {}
        for unit in self._units:
            root = self._entry(unit, unit.first)
            for entry in self._children(root, budget) if root is not None else ():
                if entry.tag == SUBPROGRAM and (address := self._address(entry, LOW)) is not None:
                    found[address] = unit, entry.at
        return found

    def _budget(self, most: int = 0) -> Budget:
        return Budget(most or MOST_MEMBERS, f"the debug information of {self.name}", "entries")

    def _original(self, entry: Entry) -> Entry:
        for _ in range(DEEPEST):
            other = self._copied(entry)
            if other is None or not any(each.tag == PARAMETER for each in self._children(other)):
                return entry
            entry = other
        return entry

    @cached_property
    def _units(self) -> Sequence[Unit]:
        return tuple(self._read_units())

    def _read_units(self) -> Iterator[Unit]:
        """Yield the units <7.5.1> of versions that are known."""
        data, at = self._data(".debug_info"), 0
        while at + 12 <= len(data):
            length, version = _word(data, at, 4), _word(data, at + 4, 2)
            end = at + 4 + length
            if length >= 0xFFFFFFF0 or end > len(data) or length < 8:
                raise self._damaged()
            if version == 4 and data[at + 10] == 8:
                yield Unit(at, at + 11, end, version, _word(data, at + 6, 4))
            elif version == 5 and data[at + 6] in (_COMPILED, _PARTIAL) and data[at + 7] == 8:
                unit = Unit(at, at + 12, end, version, _word(data, at + 8, 4))
                yield self._with_bases(unit)
            at = end

    def _with_bases(self, unit: Unit) -> Unit:
        root = self._entry(unit, unit.first)
        if root is None:
            return unit
        bases = {"strings": self._number(root, STRING_BASE), "addresses": self._number(root, ADDRESS_BASE)}
        return replace(unit, **{name: base for name, base in bases.items() if base is not None})

    def _children(self, entry: Entry, budget: Budget | None = None) -> Iterator[Entry]:
        """Yield the entries right below one."""
        budget = budget or self._budget()
        at, depth = entry.behind, 0
        if not entry.has_children:
            return
        while True:
            budget.spend()
            found = self._entry(entry.unit, at)
            if found is None:
                depth -= 1
                if depth < 0:
                    return
                at += 1
                continue
            if not depth:
                yield found
            at = found.behind
            if found.has_children:
                sibling = self._number(found, SIBLING)
                if sibling is not None and found.behind < (following := entry.unit.start + sibling):
                    at = following
                else:
                    depth += 1

    def _entry(self, unit: Unit, at: int) -> Entry | None:
        """Return the entry at an offset; None for the one that ends a list."""
        data = self._data(".debug_info")
        if not unit.first <= at < unit.end:
            raise self._damaged()
        code, place = self._leb(data, at, unit.end)
        if not code:
            return None
        if (found := self._abbreviation(unit.abbreviations).get(code)) is None:
            raise self._damaged()
        tag, has_children, attributes = found
        values: dict[int, tuple[int, int | bytes]] = {}
        for attribute, form, constant in attributes:
            used, value, place = self._value(unit, form, constant, place)
            values[attribute] = used, value
        return Entry(at, unit, tag, has_children, values, place)

    def _value(self, unit: Unit, form: int, constant: int, at: int) -> tuple[int, int | bytes, int]:
        """Return the form, the value and where the next one is."""
        data, end = self._data(".debug_info"), unit.end
        if form == _INDIRECT:
            form, at = self._leb(data, at, end)
            if form == _INDIRECT:
                raise self._damaged()
        if form in (_PRESENT, _IMPLICIT):
            return form, 1 if form == _PRESENT else constant, at
        if form == _STRING:
            stop = data.find(b"\0", at, end)
            if stop < 0:
                raise self._damaged()
            return form, data[at:stop], stop + 1
        if form in _BLOCKS or form in _LONG_BLOCKS:
            size = _BLOCKS.get(form, 0)
            length, start = (_word(data, at, size), at + size) if size else self._leb(data, at, end)
            return form, data[start : start + length], self._inside(start + length, end)
        if form == _SDATA:
            value, behind = self._leb(data, at, end, signed=True)
            return form, value, behind
        if form in _ULEB:
            value, behind = self._leb(data, at, end)
            return form, value, behind
        size = 8 if form == _ADDRESS else _FIXED.get(form, 0)
        if not size:
            raise self._damaged()
        return form, _word(data, at, size), self._inside(at + size, end)

    def _abbreviation(self, offset: int) -> Mapping[int, Abbreviation]:
        """Return the abbreviations <7.5.3> of a unit, by their codes."""
        if offset in self._abbreviations:
            return self._abbreviations[offset]
        data, at = self._data(".debug_abbrev"), offset
        end = len(data)
        found: dict[int, Abbreviation] = {}
        while True:
            code, at = self._leb(data, at, end)
            if not code:
                break
            tag, at = self._leb(data, at, end)
            has_children, at = data[self._inside(at, end - 1)] != 0, at + 1
            attributes: list[tuple[int, int, int]] = []
            while True:
                attribute, at = self._leb(data, at, end)
                form, at = self._leb(data, at, end)
                if not attribute and not form:
                    break
                constant = 0
                if form == _IMPLICIT:
                    constant, at = self._leb(data, at, end, signed=True)
                attributes.append((attribute, form, constant))
                if len(attributes) > MOST_ATTRIBUTES:
                    raise self._damaged()
            found[code] = tag, has_children, tuple(attributes)
            if len(found) > MOST_ABBREVIATIONS:
                raise self._damaged()
        self._abbreviations[offset] = found
        return found

    # attributes ------------------------------------------------------------------------------------------------------

    def _number(self, entry: Entry, attribute: int) -> int | None:
        value = entry.values.get(attribute, (0, b""))[1]
        return value if isinstance(value, int) else None

    def _address(self, entry: Entry, attribute: int) -> int | None:
        value = self._number(entry, attribute)
        if value is None or entry.values[attribute][0] not in _ADDRESS_INDEX:
            return value
        return self._indexed(".debug_addr", entry.unit.addresses, value, 8)

    def _text(self, entry: Entry, attribute: int) -> str | None:
        """Return a text, or that of the entry that this one is a copy of."""
        for _ in range(DEEPEST):
            if attribute in entry.values:
                form, value = entry.values[attribute]
                return self._string(entry.unit, form, value)
            other = self._copied(entry)
            if other is None:
                return None
            entry = other
        return None

    def _string(self, unit: Unit, form: int, value: int | bytes) -> str | None:
        if isinstance(value, bytes):
            return printable(value[:LONGEST_NAME]) if form == _STRING else None
        section = _STRINGS.get(form, "")
        if form in _STRING_INDEX:
            section, value = ".debug_str", self._indexed(".debug_str_offsets", unit.strings, value, 4)
        if not section:
            return None
        data = self._data(section)
        stop = data.find(b"\0", value, value + LONGEST_NAME)
        return printable(data[value:stop]) if value <= stop else None

    def _indexed(self, section: str, base: int, index: int, size: int) -> int:
        data = self._data(section)
        at = base + index * size
        if at < 0 or at + size > len(data):
            raise self._damaged()
        return _word(data, at, size)

    def _reference(self, entry: Entry, attribute: int) -> Entry | None:
        """Return the entry that an attribute names; None for one in another file."""
        form, value = entry.values.get(attribute, (0, 0))
        if not isinstance(value, int) or form not in (*_LOCAL, _ANYWHERE):
            return None
        at = value if form == _ANYWHERE else entry.unit.start + value
        index = bisect_right(self._units, at, key=lambda unit: unit.first) - 1
        unit = self._units[index] if index >= 0 else entry.unit
        return self._entry(unit, at) if unit.first <= at < unit.end else None

    def _copied(self, entry: Entry) -> Entry | None:
        """Return the entry that this one is a copy of, or that declares it."""
        return self._reference(entry, ORIGIN) or self._reference(entry, SPECIFICATION)

    # types -----------------------------------------------------------------------------------------------------------

    def _type_of(self, entry: Entry, depth: int = 0) -> CType:
        """Return the type that an entry, or the one that it is a copy of, names; void where it names none."""
        for _ in range(DEEPEST):
            if TYPE in entry.values:
                found = self._reference(entry, TYPE)
                return Void() if found is None else self._type(found, depth + 1)
            other = self._copied(entry)
            if other is None:
                return Void()
            entry = other
        return Void()

    def _type(self, entry: Entry, depth: int) -> CType:
        if depth > DEEPEST:
            return Void()
        name, size = self._text(entry, NAME) or "", self._number(entry, SIZE) or 0
        if entry.tag in _TRANSPARENT:
            return self._type_of(entry, depth)
        if entry.tag in _POINTERS:
            return Pointer(self._type_of(entry, depth))
        if entry.tag in _STRUCTS and DECLARATION in entry.values:
            return Incomplete(f"{_STRUCTS[entry.tag]} {name}")
        if entry.tag in _STRUCTS:
            return self._struct(entry, name, size)
        if entry.tag == ARRAY:
            return self._array(entry, depth)
        if entry.tag == SUBROUTINE:
            return Function()
        encoding = self._number(entry, ENCODING)
        if entry.tag == BASE and encoding in _FLOAT:
            return Float(name, size)
        if size not in _OF_NUMBERS:
            return Void()
        if entry.tag == ENUMERATION:
            values = partial(self._enumerators, entry)
            return Enum(name, size, any(value < 0 for value in values()), values)
        return Integer(one_spelling(name), size, encoding in _SIGNED, encoding == _BOOLEAN)

    def _array(self, entry: Entry, depth: int) -> CType:
        element = self._type_of(entry, depth)
        for each in reversed([each for each in self._children(entry) if each.tag == SUBRANGE][:DEEPEST]):
            upper, count = self._number(each, UPPER), self._number(each, COUNT)
            element = Array(element, count if count is not None else 0 if upper is None else upper + 1)
        return element

    def _enumerators(self, entry: Entry) -> Mapping[int, str]:
        found = {}
        for each in self._children(entry):
            name, value = self._text(each, NAME), self._number(each, VALUE)
            if each.tag == ENUMERATOR and name is not None and value is not None:
                found[value] = name
        return found

    def _struct(self, entry: Entry, name: str, size: int) -> Struct:
        def lookup(wanted: str) -> Member | None:
            return next((each for each in self._members(entry, 0, self._budget()) if each.name == wanted), None)

        def names() -> tuple[str, ...]:
            return tuple(each.name for each in self._members(entry, 0, self._budget()))

        return Struct(name, size, entry.tag == UNION, entry.at, lookup, names)

    def _members(self, entry: Entry, base: int, budget: Budget, depth: int = 0) -> Iterator[Member]:
        """Yield the members, and those of structs without a name among them. base: of the struct, in bits."""
        for each in self._children(entry, budget):
            if each.tag != MEMBER:
                continue
            bits = self._number(each, BIT_SIZE) or 0
            first = base + (self._number(each, BIT_OFFSET) or 8 * (self._number(each, LOCATION) or 0))
            if (before := self._number(each, OLD_BIT_OFFSET)) is not None:
                # <DWARF 4, 5.5.6>: of the bits before it in a word that big-endian machines have.
                first += 8 * (self._number(each, SIZE) or 0) - before - bits
            name = self._text(each, NAME)
            if not 0 <= first < 8 * LARGEST or bits > 64:
                raise self._damaged()
            if name:
                yield Member(name, first // 8, self._type_of(each, depth), first % 8, bits)
            elif (inner := self._reference(each, TYPE)) is not None and inner.tag in _STRUCTS and depth < DEEPEST:
                yield from self._members(inner, first, budget, depth + 1)

    # bytes -----------------------------------------------------------------------------------------------------------

    def _data(self, name: str) -> bytes:
        if name not in self._kept:
            self._kept[name] = self.section(name)
        return self._kept[name]

    def _leb(self, data: bytes, at: int, end: int, signed: bool = False) -> tuple[int, int]:
        if at < 0 or (found := leb128.number(data, at, end, signed)) is None:
            raise self._damaged()
        return found

    def _inside(self, at: int, end: int) -> int:
        if not 0 <= at <= end:
            raise self._damaged()
        return at

    def _damaged(self) -> OptprobeError:
        return OptprobeError(f"the debug information of {self.name} is damaged")


def _word(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")
