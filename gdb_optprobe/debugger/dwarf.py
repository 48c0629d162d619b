"""Types and variables from the debug information that GDB has: of a vmlinux, or of a module's file.

GDB's Python has the types. It has no locations of variables; `info scope` prints them (guest/variables.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import gdb

from gdb_optprobe.guest.abi import Abi
from gdb_optprobe.guest.variables import located, meaning
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
from gdb_optprobe.handlers.ir import Expr
from gdb_optprobe.handlers.scope import Meaning, Missing

DEEPEST = 64


@dataclass(frozen=True)
class Dwarf:
    """Implements guest.scope.Debug for one address. frame: the CFA there; None where it is not known."""

    address: int
    abi: Abi
    frame: Callable[[], Expr | None]

    @cached_property
    def _symbols(self) -> Mapping[str, gdb.Symbol]:
        """Return parameters and variables of the function, innermost block first."""
        found: dict[str, gdb.Symbol] = {}
        for block in _blocks(self.address):
            for symbol in block:
                if symbol.is_argument or symbol.is_variable or symbol.addr_class == gdb.SYMBOL_LOC_COMPUTED:
                    found.setdefault(symbol.name, symbol)
        return found

    @cached_property
    def _where(self) -> Mapping[str, str]:
        return located(gdb.execute(f"info scope *{self.address:#x}", to_string=True), self.address)

    def names(self) -> tuple[str, ...]:
        return tuple(self._symbols)

    def variable(self, name: str) -> Meaning | Missing | None:
        """Return a local or a parameter; None where the function has none of that name."""
        symbol = self._symbols.get(name)
        if symbol is None or symbol.type is None:
            return None
        return meaning(self._where.get(name, ""), converted(symbol.type), self.abi, self.frame)

    @property
    def _outermost(self) -> gdb.Block | None:
        """Return the block of the function itself. A function inlined at the address has other parameters."""
        found, block = None, gdb.block_for_pc(self.address)
        while block is not None and not block.is_global and not block.is_static:
            found = block if block.function is not None else found
            block = block.superblock
        return found

    def result(self) -> CType | None:
        function = self._outermost.function if self._outermost is not None else None
        returned = function.type.target() if function is not None and function.type is not None else None
        return converted(returned) if returned is not None else None

    def parameters(self) -> Mapping[str, CType]:
        """Return the types of the function's parameters, in order."""
        outermost = self._outermost
        if outermost is None:
            return {}
        return {each.name: converted(each.type) for each in outermost if each.is_argument and each.type is not None}

    def type(self, keyword: str, name: str) -> CType | None:
        """Return a type by name. keyword: "struct", "union", "enum", or "" for a typedef."""
        try:
            return converted(gdb.lookup_type(f"{keyword} {name}".strip()))
        except gdb.error:
            return None

    def symbol(self, name: str) -> CType | None:
        """Return the type of a global variable or function."""
        found = _global(name)
        return None if found is None or found.type is None or _is_constant(found) else converted(found.type)

    def constant(self, name: str) -> int | None:
        """Return the value of an enumerator."""
        found = _global(name)
        return int(found.value()) if found is not None and _is_constant(found) else None


def dwarf(address: int, abi: Abi, frame: Callable[[], Expr | None]) -> Dwarf | None:
    """Return GDB's debug information at an address; None where it has none."""
    return Dwarf(address, abi, frame) if gdb.block_for_pc(address) is not None else None


def _blocks(address: int) -> Iterator[gdb.Block]:
    """Yield blocks, from the innermost one to the function's, inlined or not."""
    block = gdb.block_for_pc(address)
    while block is not None and not block.is_global and not block.is_static:
        yield block
        block = None if block.function is not None else block.superblock


def _global(name: str) -> gdb.Symbol | None:
    return gdb.lookup_global_symbol(name) or gdb.lookup_static_symbol(name)


def _is_constant(symbol: gdb.Symbol) -> bool:
    return bool(symbol.addr_class == gdb.SYMBOL_LOC_CONST)


def converted(type_: gdb.Type, depth: int = 0) -> CType:
    """Convert a type to that of handlers/, without typedefs and qualifiers. Nested deeper than DEEPEST it is void."""
    if depth > DEEPEST:
        return Void()
    type_ = type_.strip_typedefs().unqualified()
    name, size = type_.name or "", type_.sizeof
    match type_.code:
        case gdb.TYPE_CODE_INT | gdb.TYPE_CODE_CHAR:
            return Integer(one_spelling(name), size, type_.is_signed)
        case gdb.TYPE_CODE_BOOL:
            return Integer(one_spelling(name), size, False, True)
        case gdb.TYPE_CODE_ENUM:
            return Enum(type_.tag or "", size, type_.is_signed)
        case gdb.TYPE_CODE_FLT:
            return Float(name, size)
        case gdb.TYPE_CODE_PTR:
            return Pointer(converted(type_.target(), depth + 1))
        case gdb.TYPE_CODE_ARRAY:
            low, high = type_.range()
            return Array(converted(type_.target(), depth + 1), max(0, high - low + 1))
        case gdb.TYPE_CODE_STRUCT | gdb.TYPE_CODE_UNION:
            return _struct(type_)
        case gdb.TYPE_CODE_FUNC:
            return Function()
        case _:
            return Void()


def _struct(type_: gdb.Type) -> Struct | Incomplete:
    union = type_.code == gdb.TYPE_CODE_UNION
    if not type_.fields() and not type_.sizeof:
        return Incomplete(f"{'union' if union else 'struct'} {type_.tag or ''}")

    def lookup(name: str) -> Member | None:
        return _member(type_, name) if name else None

    def names() -> tuple[str, ...]:
        return tuple(field.name for field in type_.fields() if field.name)

    identity = 0 if type_.tag else hash(str(type_))
    return Struct(type_.tag or "", type_.sizeof, union, identity, lookup, names)


def _member(type_: gdb.Type, name: str, base: int = 0) -> Member | None:
    """Find a member, in anonymous structs and unions too. base: bytes from the start of the outermost one."""
    for field in type_.fields():
        if field.type is None or not hasattr(field, "bitpos"):
            continue
        offset = base + field.bitpos // 8
        if field.name == name:
            bit = field.bitpos % 8 if field.bitsize else 0
            return Member(name, offset, converted(field.type), bit, field.bitsize)
        inner = field.type.strip_typedefs()
        within = not field.name and inner.code in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION)
        if within and (found := _member(inner, name, offset)) is not None:
            return found
    return None
