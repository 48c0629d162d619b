"""Symbols of a vmlinux, the ELF file of a kernel's build, where the kernel in memory does not have all of them.

    the kernel has              taken of the vmlinux
    no kallsyms                 all symbols
    no KALLSYMS_ALL             its data, per-CPU variables among it

The caller has compared the build-ids of the file and of the running kernel (linux/kernel_discovery.py).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from pathlib import Path

from gdb_optprobe.budget import Budget
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.symbols import FUNCTION_TYPES, Symbols
from gdb_optprobe.guest_text import printable

__all__ = ["Vmlinux", "completed", "has_data", "is_kernel", "load", "read"]

HEADER, SECTION, SYMBOL = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")
ELF64 = b"\x7fELF\x02\x01"
SYMTAB, NOBITS = 2, 8  # sh_type
RELOCATABLE = 1  # e_type
OF_KERNELS = b"\0.init.text\0"
"""Code that is freed after the boot: in every kernel, and in no program."""
WRITE, ALLOC, CODE = 1, 2, 4  # sh_flags
RESERVED = 0xFF00  # SHN_LORESERVE: absolute and common symbols
NO_TYPE, OBJECT, FUNCTION = 0, 1, 2  # STT_*
LOCAL, WEAK = 0, 2  # STB_*
START = "_text"
# Limits (budget.py), and what Debian's kernels have at the most.
LONGEST_NAME = 511
"""KSYM_NAME_LEN - 1. A symbol with a longer name is passed over."""
MOST_SECTION_NAMES = 1 << 20
"""Bytes: 1,200."""
MOST_OF_NAMES = 8
"""Bytes of all names for each byte of their table, in which one's end may be another: 1."""
# What no kallsyms has either (scripts/mksysmap): labels within functions, and what modules are linked by.
NOT_NAMES = (".L", "$", "__crc_", "__kcrctab_", "__kstrtab", "__ksymtab_", "__UNIQUE_ID_", "L0\1")
STATIC_VARIABLES = frozenset("db")
"""Without KALLSYMS_ALL a kernel has but the tables' bounds of its data, which are global."""


@dataclass(frozen=True, slots=True)
class Vmlinux:
    """symbols: at the addresses that they were linked for. start: of `_text`, among them."""

    symbols: Symbols
    start: int

    def at(self, start: int) -> Symbols:
        """Return the symbols of a kernel at `start`. Raises OptprobeError where some would be beyond all memory."""
        try:
            return self.symbols.moved(start - self.start)
        except OverflowError:
            raise OptprobeError("the vmlinux that GDB has loaded has symbols that no kernel has") from None


def load(path: Path) -> Vmlinux:
    """Read a vmlinux. Raises OptprobeError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise OptprobeError(f"GDB's symbol file cannot be read: {error}") from None
    return read(data)


def read(data: bytes) -> Vmlinux:
    """Raises OptprobeError for what is no vmlinux with a symbol table."""
    try:
        found = _symbols(data)
    except (struct.error, ValueError, IndexError, OverflowError):
        found = None
    start = found.address(START) if found is not None else None
    if found is None or start is None:
        raise OptprobeError("the vmlinux that GDB has loaded has no symbol table of a kernel")
    return Vmlinux(found, start)


def is_kernel(path: Path) -> bool:
    """Return whether a file is a kernel's ELF file, by the names of its sections. A module is relocatable."""
    try:
        with path.open("rb") as file:
            header = HEADER.unpack(file.read(HEADER.size))
            if header[0][:6] != ELF64 or header[1] == RELOCATABLE:
                return False
            file.seek(header[6])
            sections = list(SECTION.iter_unpack(file.read(SECTION.size * header[12])))
            names = sections[header[13]]
            file.seek(names[4])
            return OF_KERNELS in file.read(min(names[5], MOST_SECTION_NAMES))
    except (OSError, struct.error, IndexError, OverflowError):
        return False


def has_data(symbols: Symbols) -> bool:
    """Return whether a kernel's symbols are more than its code's (CONFIG_KALLSYMS_ALL)."""
    return not STATIC_VARIABLES.isdisjoint(symbols.types)


def completed(symbols: Symbols, others: Symbols) -> Symbols:
    """Return `symbols`, with the data symbols of `others` that have names which `symbols` does not have."""
    known = set(symbols.names)
    added = (row for row in _rows(others) if row[2] not in FUNCTION_TYPES and row[1] not in known)
    return _columns(merge(_rows(symbols), added, key=lambda row: row[0]))


Row = tuple[int, str, str]


def _rows(symbols: Symbols) -> Iterator[Row]:
    return zip(symbols.addresses, symbols.names, symbols.types, strict=True)


def _columns(rows: Iterable[Row]) -> Symbols:
    addresses, names, types = array("Q"), [], []
    for address, name, type_ in rows:
        addresses.append(address)
        names.append(name)
        types.append(type_)
    return Symbols(addresses, names, "".join(types))


def _symbols(data: bytes) -> Symbols | None:
    if data[:6] != ELF64:
        return None
    header = HEADER.unpack_from(data)
    at, each, count = header[6], header[11], header[12]
    sections = [SECTION.unpack_from(data, at + each * number) for number in range(count)]
    table = next((section for section in sections if section[1] == SYMTAB), None)
    if table is None:
        return None
    offset, size, strings = table[4], table[5], sections[table[6]]
    names = data[strings[4] : strings[4] + strings[5]]
    letters = [_letter(section[1], section[2]) for section in sections]
    found: list[tuple[int, bool, int, int, str, str]] = []
    budget = Budget(MOST_OF_NAMES * len(names), "the symbol table of the vmlinux that GDB has loaded", "bytes of names")
    rows = SYMBOL.iter_unpack(data[offset : offset + size - size % SYMBOL.size])
    for number, (name_at, info, _, section, value, _) in enumerate(rows):
        if info & 15 > FUNCTION or not 0 < section < RESERVED or not letters[section]:
            continue
        end = names.find(b"\0", name_at, name_at + LONGEST_NAME + 1)
        name = printable(names[name_at : max(end, name_at)])
        budget.spend(len(name))
        if name and not name.startswith(NOT_NAMES):
            bare = len(name) - len(name.lstrip("_"))
            letter = _bound(letters[section], info)
            found.append((value, info >> 4 == WEAK, bare, number, name, letter))
    # Of several names of one address the first is shown: as scripts/kallsyms.c sorts them.
    found.sort()
    return _columns((value, name, letter) for value, _, _, _, name, letter in found)


def _letter(type_: int, flags: int) -> str:
    """Return nm(1)'s letter of a local symbol; "" for a section that is not in memory."""
    if not flags & ALLOC:
        return ""
    if flags & CODE:
        return "t"
    if type_ == NOBITS:
        return "b"
    return "d" if flags & WRITE else "r"


def _bound(letter: str, info: int) -> str:
    binding = info >> 4
    if binding == WEAK:
        return "W" if letter == "t" else "V"
    return letter if binding == LOCAL else letter.upper()
