"""The guest's own types (btf.py), converted to the C types of handlers/ when they are looked up."""

from __future__ import annotations

from functools import partial

from gdb_optprobe.guest import btf
from gdb_optprobe.guest.btf import Btf
from gdb_optprobe.handlers.ctype import (
    OWN,
    TYPEDEFS,
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

DEEPEST = 64


class BtfTypes:
    """Types by name or by number. Raises OptprobeError where the BTF is damaged."""

    def __init__(self, btf: Btf) -> None:
        self.btf = btf

    def named(self, keyword: str, name: str) -> CType | None:
        """Return a type by name; None where this kernel has none. keyword: "struct", "union", "enum", or "" for a
        typedef.
        """
        number = self.btf.find(keyword or "typedef", name)
        return None if number is None else self.type(number)

    def plain_char(self) -> CType | None:
        """Return `char`, signed or not as the kernel was compiled."""
        number = self.btf.find("int", "char")
        return None if number is None else self.type(number)

    def type(self, number: int, depth: int = 0) -> CType:
        """Return the type with this number, without typedefs and qualifiers; void where it is nested too deeply."""
        if depth > DEEPEST:
            return Void()
        inner = partial(self.type, depth=depth + 1)
        resolved = self.btf.resolve(number)
        match resolved:
            case btf.Int(name, size, signed, boolean):
                return Integer(one_spelling(name), size, signed, boolean)
            case btf.Float(name, size):
                return Float(name, size)
            case btf.Pointer(target):
                return Pointer(inner(target))
            case btf.Array(element, count):
                return Array(inner(element), count)
            case btf.Enum(name, size, signed, values):
                return Enum(name, size, signed, lambda: {value: each for each, value in values.items()})
            case btf.Struct():
                return self._struct(resolved, number)
            case btf.Forward(name, union):
                keyword = "union" if union else "struct"
                defined = self.btf.find(keyword, name)
                return Incomplete(f"{keyword} {name}") if defined is None else self.type(defined, depth + 1)
            case btf.Function():
                return Function()
            case _:
                return Void()

    def _struct(self, struct: btf.Struct, number: int) -> Struct:
        def lookup(name: str) -> Member | None:
            found = struct.member(name) if name else None
            if found is None:
                return None
            return Member(name, found.offset, self.type(found.type), found.bit_offset, found.bit_size)

        def names() -> tuple[str, ...]:
            return tuple(member.name for member in struct.members if member.name)

        return Struct(struct.name, struct.size, struct.union, number, lookup, names)


def own_type(name: str) -> CType | None:
    """Return a type that needs no type information: C's own, by their one spelling, and usual names like u64."""
    return OWN.get(TYPEDEFS.get(name, name))
