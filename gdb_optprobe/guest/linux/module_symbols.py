"""The symbols of one module, in the form of a small kernel for the readers of a kernel's tables.

    what the linker calls         of the kernel's image       of a module
    _stext … _etext               its text                    its text
    __start___ex_table …          the exception table         extable, num_exentries
    a function                    kallsyms                    core_kallsyms, in the module's own memory
    anything else                 the kernel's

A function reaches to the next symbol, as in the kernel; zeros behind its end are what the loader left between sections.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import iter_unpack

from gdb_optprobe import guest_text
from gdb_optprobe.budget import Budget, OverBudget
from gdb_optprobe.guest.linux.kernel import Kernel, Located, NoSuchKernel
from gdb_optprobe.guest.linux.kernel import Symbols as Names
from gdb_optprobe.guest.linux.modules import SYMBOL, Module, Range, Table
from gdb_optprobe.guest.symbols import FUNCTION_TYPES, Symbols, SymbolTable

# Limits (budget.py), and what the largest module of Debian's has (amdgpu).
LARGEST_NAMES = 1 << 24
"""Bytes of names: 0.5 MB."""
MOST_SYMBOLS = 1 << 18
"""26,000."""
MOST_OF_NAMES = 8
"""Bytes of all names for each byte of their table, in which one's end may be another: 1."""
LONGEST_NAME = 511
"""KSYM_NAME_LEN - 1. A symbol with a longer name is passed over."""
MAPPING = re.compile(r"\$[adtx](\..*)?")
"""Names of no functions: on some ISAs they say where code begins, and data (include/linux/module_symbol.h)."""
NOTHING: Range = (0, 0)
_ROWS = {"jump_entries": 16, "static_call_sites": 8}
_TABLES = {
    "extable": ("__start___ex_table", "__stop___ex_table"),
    "jump_entries": ("__start___jump_table", "__stop___jump_table"),
    "static_call_sites": ("__start_static_call_sites", "__stop_static_call_sites"),
    "bug_table": ("__start___bug_table", "__stop___bug_table"),
}
# Tables that only the kernel has, never a module.
_NONE = (
    ("__static_call_text_start", "__static_call_text_end"),
    ("__entry_text_start", "__entry_text_end"),
    ("__smp_locks", "__smp_locks_end"),
)


class ModuleSymbols:
    """`guest.linux.kernel.Symbols` of a module. Raises OptprobeError where its symbols cannot be read."""

    def __init__(self, module: Module, kernel: Kernel, bug: int, extable: int = 12) -> None:
        """Read the symbols. bug, extable: bytes of a row of the bug table, and of the exception table."""
        self._module = module
        self._core: Names = kernel.symbols
        self._kernel = kernel
        symbols, self._sizes = _symbols(module, kernel)
        self.table = SymbolTable(symbols, [module.text])
        self._ends: dict[int, int] = {}
        self._ranges = _ranges(module, {**_ROWS, "bug_table": bug, "extable": extable})

    def address(self, name: str) -> int | None:
        if name in self._ranges:
            return self._ranges[name]
        found = self.table.address(name)
        return found if found is not None else self._core.address(name)

    def lookup(self, name: str) -> Sequence[int]:
        return self.table.lookup(name)

    def at(self, address: int) -> Located | None:
        return self.table.at(address) if self._module.holds(address) else self._core.at(address)

    def names_at(self, addresses: Iterable[int]) -> Sequence[str]:
        return [found.name if (found := self.at(address)) is not None else "" for address in addresses]

    def function_bounds(self, address: int) -> Range | None:
        start, end = self._module.text
        if not start <= address < end:
            return self._core.function_bounds(address)
        bounds = self.table.function_bounds(address)
        if bounds is None:
            return None
        last = self._end(*bounds)
        return (bounds[0], last) if address < last else None

    def functions(self) -> Iterator[tuple[str, int]]:
        """Yield all functions, ascending, with aliases."""
        start, end = self._module.text
        symbols = self.table.symbols
        for name, address, kind in zip(symbols.names, symbols.addresses, symbols.types, strict=True):
            if kind in FUNCTION_TYPES and start <= address < end:
                yield name, address

    def _end(self, start: int, following: int) -> int:
        """Return the end of the function at `start`: `following`, less zeros before it."""
        if start not in self._ends:
            end = start + self._sizes.get(start, 0)
            gap = self._kernel.read(end, following) if start < end < following else b"\xff"
            self._ends[start] = following if any(gap) else end
        return self._ends[start]


def _ranges(module: Module, rows: Mapping[str, int]) -> dict[str, int]:
    named: dict[tuple[str, str], Range] = dict.fromkeys(_NONE, NOTHING)
    tables = module.tables or {}
    named |= {names: _extent(tables.get(member, Table()), rows[member]) for member, names in _TABLES.items()}
    named[("_stext", "_etext")] = module.text
    named[("_sinittext", "_einittext")] = module.init
    named[("__start_rodata", "__end_rodata")] = module.constants[0] if module.constants else NOTHING
    named[("_sdata", "_edata")] = module.data[0] if module.data else NOTHING
    return {name: at for names, extent in named.items() for name, at in zip(names, extent, strict=True)}


def _extent(table: Table, row: int) -> Range:
    return (table.start, table.start + table.count * row) if table.count else NOTHING


def _symbols(module: Module, kernel: Kernel) -> tuple[Symbols, dict[int, int]]:
    """Return the symbols, sorted, with the ends of the module's memory among them, and their sizes by address."""
    table = module.symbols
    if table.count > MOST_SYMBOLS:
        raise OverBudget(f"the module {module.name}", MOST_SYMBOLS, "symbols")
    data = kernel.read(table.start, table.start + table.count * SYMBOL)
    kinds = kernel.read(module.types, module.types + table.count) if module.types and table.count else b""
    end = next((end for start, end in module.memory if start <= module.strings < end), module.strings)
    strings = kernel.read(module.strings, min(end, module.strings + LARGEST_NAMES))
    budget = Budget(MOST_OF_NAMES * len(strings), f"the symbol table of the module {module.name}", "bytes of names")
    rows: list[tuple[int, int, str, str]] = []
    sizes: dict[int, int] = {}
    first, last = module.text
    for index, (name, _, _, _, value, size) in enumerate(iter_unpack("<IBBHQQ", data)):
        text = _text(strings, name)
        if not text or not module.holds(value) or MAPPING.fullmatch(text):
            continue
        budget.spend(len(text))
        inside = first <= value < last
        kind = guest_text.printable(kinds[index : index + 1]) if kinds else "t" if inside else "d"
        rows.append((value, index, text, kind if kind.isalpha() else "?"))
        sizes[value] = max(size, sizes.get(value, 0))
    # Every byte of the text belongs to a symbol, so that a sweep over it finds all.
    rows += [(at, -1, f"[{module.name}]", "N") for at in (first, *(end for _, end in module.memory)) if at not in sizes]
    rows.sort()
    symbols = Symbols(array("Q", (row[0] for row in rows)), [row[2] for row in rows], "".join(row[3] for row in rows))
    return symbols, sizes


def _text(strings: bytes, offset: int) -> str:
    if offset >= len(strings):
        raise NoSuchKernel(f"the name of a symbol lies beyond its strtab, at {offset:#x}")
    end = strings.find(b"\0", offset, offset + LONGEST_NAME + 1)
    if end < 0 and len(strings) - offset > LONGEST_NAME:
        return ""
    return guest_text.name(strings[offset : end if end >= 0 else len(strings)])


class ModuleNames:
    """Names in the text of a module, for guest.text.Text."""

    module: Module
    symbols: ModuleSymbols

    def spell(self, address: int) -> str:
        name = self.symbol(address)
        return f"{address:#x} <{name}>" if name else f"{address:#x}"

    def symbol(self, address: int) -> str:
        """Return MODULE:NAME+OFFSET."""
        found = self.symbols.table.at(address)
        return f"{self.module.name}:{found}" if found is not None else ""
