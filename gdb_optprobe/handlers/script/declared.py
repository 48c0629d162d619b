"""What a script has declared: its own types and constants, and the types of its maps, which its assignments decide.

Types are found by walking all probes again and again until no map and no variable gets another type. Only the last
walk, which makes the programs, reports what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.ctype import Array, CType, Enum, Integer, Member, Pointer, Struct, size_of
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.handlers.script import tree
from gdb_optprobe.handlers.script.place import Place, wrong
from gdb_optprobe.handlers.script.requests import Request
from gdb_optprobe.handlers.script.scope import Kernel
from gdb_optprobe.handlers.script.settings import Settings
from gdb_optprobe.handlers.script.types import (
    NOTHING,
    Blob,
    Folded,
    Nothing,
    Text,
    Type,
    alignment_of,
    larger,
    own_type,
    same_kind,
    spelled,
)
from gdb_optprobe.maps.aggregate import Aggregate, Linear, LogLinear, Powers


@dataclass(slots=True)
class MapType:
    """value: NOTHING until it is known. key: None until it is known; NOTHING of a scalar."""

    value: Type = NOTHING
    key: Type | None = None


@dataclass(slots=True)
class Known:
    """What the probes of a session know of each other's maps and records. maps, requests: as those of Declared."""

    maps: dict[str, MapType] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)


@dataclass(slots=True)
class Declared:
    """final: this walk makes the programs. changed: a type has changed in this walk.

    stays: whether the probes stay without a script that runs: what only that carries out is refused.
    """

    kernel: Kernel
    settings: Settings
    parameters: Sequence[str]
    unsafe: bool = False
    stays: bool = False
    maps: dict[str, MapType] = field(default_factory=dict)
    variables: dict[tuple[int, Place], Type] = field(default_factory=dict)
    wide: set[tuple[int, str]] = field(default_factory=set)
    """Variables, by the probe's number, that are read behind the block that assigns them: theirs is 0.17's rule."""
    requests: list[Request] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    structs: dict[tuple[str, str], CType] = field(default_factory=dict)
    enumerators: dict[str, tuple[int, CType]] = field(default_factory=dict)
    final: bool = False
    changed: bool = False

    # maps

    def map(self, name: str) -> MapType:
        return self.maps.setdefault(name, MapType())

    def value_given(self, name: str, type_: Type, where: Place) -> Type:
        """Note that a map is given a value of a type. Return the type of its values."""
        found = self.map(name)
        merged = self._merged(found.value, type_)
        if isinstance(found.value, Folded) and isinstance(type_, Folded):
            _check_buckets(name, found.value.aggregate, type_.aggregate, where)
        if merged is None:
            known = f"when map already contains a value of type '{spelled(found.value)}'"
            raise wrong(f"Type mismatch for {name}: trying to assign value of type '{spelled(type_)}' {known}", where)
        self.changed |= merged != found.value
        found.value = merged
        return merged

    def key_given(self, name: str, type_: Type, where: Place) -> Type:
        """Note that a map is used with a key of a type; NOTHING without a key. Return the type of its keys."""
        found = self.map(name)
        merged = type_ if found.key is None else self._merged(found.key, type_)
        if merged is None or isinstance(found.key or type_, Nothing) != isinstance(type_, Nothing):
            raise self._other_key(name, found.key or NOTHING, type_, where)
        self.changed |= merged != found.key
        found.key = merged
        return merged

    def _merged(self, known: Type, given: Type) -> Type | None:
        """Return the type for values of both; None where there is none."""
        if isinstance(known, Nothing) or isinstance(given, Nothing):
            return given if isinstance(known, Nothing) else known if not self.final else None
        return larger(known, given) if same_kind(known, given) else None

    def _other_key(self, name: str, known: Type, given: Type, where: Place) -> OptprobeError:
        message = f"Argument mismatch for {name}: trying to access with "
        if isinstance(given, Nothing):
            return wrong(f"{message}no arguments when map expects arguments: '{spelled(known)}'", where)
        given_ = f"arguments: '{spelled(given)}'"
        if isinstance(known, Nothing):
            return wrong(f"{message}{given_} when map expects no arguments", where)
        return wrong(f"{message}{given_} when map expects arguments: '{spelled(known)}'", where)

    def request(self, request: Request) -> int:
        """Return the number of a request: the kind of its records."""
        if request not in self.requests:
            self.requests.append(request)
        return self.requests.index(request)

    def warn(self, message: str) -> None:
        """Note a warning of the last walk, once."""
        if self.final and message not in self.warnings:
            self.warnings.append(message)

    # types

    def resolve(self, name: tree.TypeName) -> Type:
        """Return the type that is written. Raises OptprobeError, pointing."""
        found: Type | Missing | None = self.structs.get((name.keyword, name.name))
        if found is None and not name.keyword:
            found = own_type(name.name)
        if found is None:
            found = self.kernel.type(name.keyword, name.name)
        if isinstance(found, Missing):
            raise wrong(found.message, name.where, found.hint)
        for _ in range(name.pointers):
            found = Pointer(_in_c(found, name.where))
        if name.count is None:
            return found
        if isinstance(found, Text | Blob):
            return type(found)(name.count)
        return Array(_in_c(found, name.where), name.count)

    def in_c(self, name: tree.TypeName) -> CType:
        """Return a type that is one of C's. Raises OptprobeError, pointing."""
        return _in_c(self.resolve(name), name.where)

    def define(self, definition: tree.Definition) -> CType:
        """Add a type of the script. Raises OptprobeError, pointing."""
        found: CType
        if definition.keyword == "enum":
            values: Mapping[int, str] = {value: label for label, value in definition.enumerators}
            found = Enum(definition.name, 8, False, lambda: values)
            self.enumerators.update({label: (value, found) for label, value in definition.enumerators})
        else:
            found = self._laid_out(definition)
        if definition.name:
            self.structs[definition.keyword, definition.name] = found
        return found

    def _laid_out(self, definition: tree.Definition) -> Struct:
        """Lay out a struct as C does, ISO C17 6.7.2.1 and the ABI of both ISAs: bit fields share their type's unit."""
        members: dict[str, Member] = {}
        union = definition.keyword == "union"
        bits = widest = most = 0
        for each in definition.members:
            type_ = self.define(each.inner) if each.inner is not None else self.in_c(each.type)
            for _ in range(each.type.pointers if each.inner is not None else 0):
                type_ = Pointer(type_)
            for count in reversed(each.counts):
                type_ = Array(type_, count)
            size, alignment = size_of(type_), alignment_of(type_)
            if size is None and not (isinstance(type_, Array) and not type_.count):
                raise wrong(f"the size of '{each.name}' is not known", each.where)
            bits = 0 if union else bits
            if each.bits is None:
                bits = -(-bits // (8 * alignment)) * 8 * alignment
                member = Member(each.name, bits // 8, type_)
                bits += 8 * (size or 0)
            else:
                unit = 8 * (size or 1)
                if not isinstance(type_, Integer) or not 0 < each.bits <= unit:
                    raise wrong(f"'{each.name}' is no bit field of its type", each.where)
                if bits // unit != (bits + each.bits - 1) // unit:
                    bits = -(-bits // unit) * unit
                member = Member(each.name, bits // 8, type_, bits % 8, each.bits)
                bits += each.bits
            widest, most = max(widest, alignment), max(most, bits)
            if each.name:
                members[each.name] = member
            elif isinstance(type_, Struct):
                for label in type_.names():
                    inner = type_.lookup(label)
                    assert inner is not None
                    members[label] = Member(
                        label, member.offset + inner.offset, inner.type, inner.bit_offset, inner.bit_size
                    )
        size = -(-most // (8 * max(widest, 1))) * max(widest, 1)
        return Struct(definition.name, size, union, 0, members.get, lambda: tuple(members))


def _check_buckets(name: str, known: Aggregate, given: Aggregate, where: Place) -> None:
    """Refuse histograms with other buckets than those that a map has."""
    if isinstance(known, Linear) and isinstance(given, Linear) and known != given:
        raise wrong(f"Different lhist bounds in a single map unsupported: {name}", where)
    if isinstance(known, Powers | LogLinear) and isinstance(given, Powers | LogLinear) and known != given:
        raise wrong(f"Different bits in a single hist unsupported: {name}", where)


def _in_c(type_: Type, where: Place) -> CType:
    if isinstance(type_, CType):
        return type_
    raise wrong(f"'{spelled(type_)}' is no type of memory", where)
