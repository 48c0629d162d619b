"""A program's ELF file: its code and its symbols. Pure: bytes in.

    header ─► program headers: PT_LOAD: what is mapped where; PT_NOTE: the build-id
           └► section headers: SYMTAB, DYNSYM and their strings; .eh_frame

System V ABI, chapters 4 and 5; 32-bit and 64-bit, little-endian. Addresses are the file's own ("virtual"), as symbols
have them; where the program is loaded elsewhere, all are shifted alike. Every number is checked.
"""

from __future__ import annotations

import re
import struct
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice

from gdb_optprobe.budget import Budget
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.user.cfi import CallFrames
from gdb_optprobe.guest.linux.user.dwarf import DebugInfo
from gdb_optprobe.guest_text import printable

Read = Callable[[int, int], bytes]
"""Bytes of the file, by offset and size. Raises OptprobeError."""

MAGIC = b"\x7fELF"
LITTLE_ENDIAN = 1
EXECUTABLE, SHARED = 2, 3  # e_type
LOAD, NOTE = 1, 4  # p_type
CODE = 1  # PF_X
COMPRESSED, ZLIB = 1 << 11, 1  # SHF_COMPRESSED, ELFCOMPRESS_ZLIB
PROGBITS, SYMTAB, DYNSYM = 1, 2, 11  # sh_type
UNWIND = 0x7000_0001  # sh_type that a processor's own ABI may give .eh_frame: clang and lld do
NOTHING, FUNCTION = 0, 2  # STT_NOTYPE, STT_FUNC
BUILD_ID, PROPERTIES = 3, 5  # NT_GNU_BUILD_ID, NT_GNU_PROPERTY_TYPE_0
FEATURES, CHECKS_BRANCHES = 0xC000_0000, 1  # the first property of a processor's own ABI (GNU_PROPERTY_LOPROC); a bit
EH_FRAME = b".eh_frame\0"
UNDEFINED = 0  # SHN_UNDEF
# Limits (budget.py), and what the largest of Debian's programs and libraries have.
MOST_HEADERS = 1 << 12
"""Of sections: 80; of segments: 14."""
LARGEST_TABLE = 1 << 26
"""Bytes of .eh_frame: 6.2 MB; of a symbol table and of names: 4 MB."""
LARGEST_NOTE, MOST_NOTES = 1 << 12, 16
"""Bytes: 68; of them: 3."""
MOST_CODE = 16
"""Segments with code: 1."""
LONGEST_NAME = 1 << 14
"""Bytes of a symbol's name: 1,500 in C++. A symbol with a longer one is passed over."""
LARGEST_FUNCTION = 1 << 20
"""Bytes: 150,000. A function with a longer symbol is decoded as code without a symbol."""
MOST_OF_NAMES = 8
"""Bytes of all names for each byte of their table, in which one's end may be another: 1."""
MOST_TOLD = 16
"""How many functions of one name a message lists."""
_LOCATION = re.compile(r"(?P<symbol>[^+\s]+?)(\s*\+\s*(?P<offset>0[xX][0-9a-fA-F]+|\d+))?")


@dataclass(frozen=True, slots=True)
class Kind:
    """Programs of a machine: e_machine may be one of these, and a page has so many bytes.
    local_entries: whether st_other has the distance from a function's global entry to its local one.
    marks: how names of labels begin that say where code and data are, and name no place.
    """

    machines: tuple[int, ...]
    page: int
    local_entries: bool = False
    marks: bytes = b""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Of one word size: header behind e_ident, program and section headers, symbol, and the order of their fields."""

    header: struct.Struct
    program: struct.Struct
    section: struct.Struct
    symbol: struct.Struct
    program_fields: tuple[str, ...]
    symbol_fields: tuple[str, ...]


_LAYOUTS = {
    32: _Layout(
        struct.Struct("<HHIIIIIHHHHHH"),
        struct.Struct("<IIIIIIII"),
        struct.Struct("<IIIIIIIIII"),
        struct.Struct("<IIIBBH"),
        ("type", "offset", "address", "physical", "size", "memory", "flags", "align"),
        ("name", "value", "size", "info", "other", "section"),
    ),
    64: _Layout(
        struct.Struct("<HHIQQQIHHHHHH"),
        struct.Struct("<IIQQQQQQ"),
        struct.Struct("<IIQQQQIIQQ"),
        struct.Struct("<IBBHQQ"),
        ("type", "flags", "offset", "address", "physical", "size", "memory", "align"),
        ("name", "info", "other", "section", "value", "size"),
    ),
}


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment that is mapped: `size` bytes of the file from `offset` on, at `address`, and zeros up to `memory`
    bytes.

    code: executable.
    """

    address: int
    offset: int
    size: int
    memory: int
    code: bool

    @property
    def end(self) -> int:
        return self.address + self.size

    def holds(self, address: int) -> bool:
        return self.address <= address < self.end


@dataclass(frozen=True, slots=True, order=True)
class Symbol:
    """A function or label. size: 0 where the file has none. local: offset of its local entry (ELFv2 ABI, 3.4.1)."""

    address: int
    size: int
    name: str
    local: int = 0


@dataclass(frozen=True)
class Elf:
    """`name` is what messages call it. bits: 32 or 64. pie: it may be loaded anywhere. entry: where it begins to run.

    sections: offset and number of the section headers, size of the file. local_entries: see Kind. page: bytes of
    a page. names: the section with the sections' names. named_by: the file that the symbols are from.
    checks_branches: whether it asks for pages where indirect branches must find landing pads. marks: see Kind.
    """

    name: str
    read: Read
    bits: int
    pie: bool
    entry: int
    segments: tuple[Segment, ...]
    build_id: bytes
    sections: tuple[int, int, int]
    local_entries: bool
    page: int
    names: int = 0
    named_by: Elf | None = None
    checks_branches: bool = False
    marks: bytes = b""

    @staticmethod
    def of(name: str, read: Read, size: int, of: Kind) -> Elf:
        """Read a file. Raises OptprobeError."""
        no_elf = OptprobeError(f"{name} is no program of this machine's (ELF)")
        if size < 64:
            raise no_elf
        ident = read(0, 16)
        layout = _LAYOUTS.get({1: 32, 2: 64}.get(ident[4], 0))
        if ident[:4] != MAGIC or layout is None or ident[5] != LITTLE_ENDIAN:
            raise no_elf
        kind, machine, _, entry, programs, sections, _, _, each, count, section_each, section_count, names = (
            layout.header.unpack(read(16, layout.header.size))
        )
        if kind not in (EXECUTABLE, SHARED) or machine not in of.machines:
            raise no_elf
        if each != layout.program.size or not 0 < count <= MOST_HEADERS:
            raise OptprobeError(f"the program headers of {name} are damaged")
        headers = [
            dict(zip(layout.program_fields, values, strict=True))
            for values in layout.program.iter_unpack(_bounded(read, programs, each * count, size, name))
        ]
        loads = tuple(
            Segment(h["address"], h["offset"], h["size"], h["memory"], bool(h["flags"] & CODE))
            for h in headers
            if h["type"] == LOAD and h["offset"] + h["size"] <= size and h["address"] + h["size"] < 1 << 63
        )
        if not 0 < sum(segment.code for segment in loads) <= MOST_CODE:
            raise OptprobeError(f"{name} has {'too much' if any(segment.code for segment in loads) else 'no'} code")
        notes = islice((h for h in headers if h["type"] == NOTE and h["size"] <= LARGEST_NOTE), MOST_NOTES)
        found = [*chain.from_iterable(_notes(_bounded(read, h["offset"], h["size"], size, name)) for h in notes)]
        table = (sections, section_count if section_each == layout.section.size else 0, size)
        bits = 64 if layout is _LAYOUTS[64] else 32
        build_id = next((data for type_, data in found if type_ == BUILD_ID and data), b"")
        checks = any(_features(data, bits) & CHECKS_BRANCHES for type_, data in found if type_ == PROPERTIES)
        return Elf(
            name, read, bits, kind == SHARED, entry, loads, build_id, table, of.local_entries, of.page, names,
            checks_branches=checks, marks=of.marks,
        )  # fmt: skip

    # where -----------------------------------------------------------------------------------------------------------

    @cached_property
    def code(self) -> tuple[Segment, ...]:
        return tuple(segment for segment in self.segments if segment.code)

    @property
    def first_code(self) -> int:
        """The address of the first executable segment: the kernel's mm->start_code, less its load offset.
        (fs/binfmt_elf.c, load_elf_binary: the lowest p_vaddr with PF_X)
        """
        return min(segment.address for segment in self.code)

    @property
    def filler(self) -> tuple[int, int]:
        """The padding behind the last code: the rest of its last page, mapped executable. It may be empty.
        Bytes that the file has there belong to another segment, which is mapped elsewhere.
        """
        last = max(self.code, key=lambda segment: segment.end)
        end = -(-last.end // self.page) * self.page
        others = (segment for segment in self.segments if segment is not last)
        taken = any(segment.address < end and segment.address + segment.memory > end - self.page for segment in others)
        return (last.end, last.end if taken or last.memory > last.size else end)

    def offset(self, address: int) -> int:
        """Return the offset in the file of the code at `address`. Raises OptprobeError."""
        for segment in self.code:
            if segment.holds(address):
                return address - segment.address + segment.offset
        raise OptprobeError(f"{address:#x} is in no code of {self.name}", self._ranges())

    def address(self, offset: int) -> int:
        """Return the address of the code at an offset in the file. Raises OptprobeError."""
        for segment in self.code:
            if segment.offset <= offset < segment.offset + segment.size:
                return offset - segment.offset + segment.address
        raise OptprobeError(f"offset {offset:#x} of {self.name} is outside its code", self._ranges())

    def text(self, address: int, size: int) -> bytes:
        """Read at most `size` bytes of code, fewer where it ends. Raises OptprobeError."""
        segment = next((segment for segment in self.code if segment.holds(address)), None)
        at = self.offset(address)
        assert segment is not None, "self.offset raises"
        return self.read(at, min(size, segment.end - address))

    def _ranges(self) -> str:
        ranges = ", ".join(f"{s.offset:#x} to {s.offset + s.size:#x}" for s in self.code)
        return f"its code is at offset {ranges}"

    # symbols ---------------------------------------------------------------------------------------------------------

    def resolve(self, location: str) -> int:
        """Return the address of SYMBOL, SYMBOL+OFFSET or an offset in the file. Raises OptprobeError."""
        found = _LOCATION.fullmatch(location.strip())
        if found is None:
            raise OptprobeError(
                f"{location or 'nothing'} is no location in {self.name}",
                "BINARY:SYMBOL, BINARY:SYMBOL+OFFSET or BINARY:OFFSET",
            )
        symbol, more = found["symbol"], int(found["offset"] or "0", 0)
        number = _number(symbol)
        if number is not None:
            return self.address(number + more)
        address = self._named(symbol, to_entry=not more) + more
        if not any(segment.holds(address) for segment in self.code):
            raise OptprobeError(f"{location} is in no code of {self.name}")
        return address

    def entry_of(self, address: int) -> int | None:
        """Return the address at which the function at `address` is entered from the program itself: its local entry."""
        symbol = self._around(address)
        return None if symbol is None else symbol.address + symbol.local

    def _named(self, name: str, to_entry: bool) -> int:
        """Return a symbol's address. to_entry: its local entry, as for a kprobe on a function and in perf."""
        if not self.symbols:
            raise OptprobeError(
                f"{self.name} has no symbols: it is stripped",
                "give the same program with its symbols by -file PATH, or an offset",
            )
        found = {s.address + s.local * to_entry for s in self.symbols if s.name == name}
        if not found:
            raise OptprobeError(f"{self.name} has no function {name}")
        if len(found) > 1:
            offsets = ", ".join(f"{self.offset(address):#x}" for address in sorted(found)[:MOST_TOLD])
            more = ", …" if len(found) > MOST_TOLD else ""
            raise OptprobeError(f"{self.name} has {len(found)} functions {name}", f"give one's offset: {offsets}{more}")
        return found.pop()

    def spell(self, address: int) -> str:
        """Return symbol+0x3; the offset in the file where no symbol is known; the address outside code."""
        symbol = self._around(address)
        if symbol is None:
            inside = any(segment.holds(address) for segment in self.code)
            return f"{self.offset(address):#x}" if inside else f"*{address:#x}"
        return symbol.name + (f"+{address - symbol.address:#x}" if address > symbol.address else "")

    def function(self, address: int) -> tuple[int, int] | None:
        """Return start and end of the function at `address`, by its symbol; None where it has none, or is too large."""
        symbol = self._around(address)
        end = self._end(symbol) if symbol is not None else 0
        return None if symbol is None or end - symbol.address > LARGEST_FUNCTION else (symbol.address, end)

    def _around(self, address: int) -> Symbol | None:
        index = bisect_right(self.symbols, address, key=lambda symbol: symbol.address) - 1
        if index < 0:
            return None
        start = self.symbols[index].address
        same = [symbol for symbol in self.symbols[max(index - 16, 0) : index + 1] if symbol.address == start]
        symbol = max(same, key=lambda symbol: symbol.size)
        return symbol if address < self._end(symbol) else None

    def _end(self, symbol: Symbol) -> int:
        """Return the end of a symbol: by its size, else the next symbol or the end of its segment."""
        if symbol.size:
            return symbol.address + symbol.size
        index = bisect_right(self.symbols, symbol.address, key=lambda symbol: symbol.address)
        ends = [segment.end for segment in self.code if segment.holds(symbol.address)]
        return min(ends + [following.address for following in self.symbols[index : index + 1]])

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """Functions and labels in its code, by address. Raises OptprobeError."""
        if self.named_by is not None:
            return tuple(s for s in self.named_by.symbols if any(code.holds(s.address) for code in self.code))
        layout, size, headers = _LAYOUTS[self.bits], self.sections[2], self._sections()
        found: set[Symbol] = set()
        # A file has one of each (System V ABI, 4.17).
        tables = {kind: header for header in reversed(headers) if (kind := header[1]) in (SYMTAB, DYNSYM)}
        for _, _, _, _, offset, length, link, _, _, each in tables.values():
            if each == layout.symbol.size and link < len(headers):
                strings = _bounded(self.read, headers[link][4], headers[link][5], size, self.name)
                rows = _bounded(self.read, offset, length - length % each, size, self.name)
                found.update(self._functions(layout, rows, strings))
        return tuple(sorted(found))

    @cached_property
    def call_frames(self) -> CallFrames:
        """Its .eh_frame, or that of the file that its symbols are from. Raises OptprobeError."""
        try:
            found = self._own_call_frames()
        except OptprobeError:
            if self.named_by is None:
                raise
            found = CallFrames()
        return found if found.data or self.named_by is None else self.named_by.call_frames

    def _own_call_frames(self) -> CallFrames:
        headers, size = self._sections(), self.sections[2]
        if self.names >= len(headers):
            return CallFrames()
        strings = _bounded(self.read, headers[self.names][4], headers[self.names][5], size, self.name)
        for name, kind, _, address, offset, length, *_ in headers:
            if kind in (PROGBITS, UNWIND) and strings[name : name + len(EH_FRAME)] == EH_FRAME:
                return CallFrames(_bounded(self.read, offset, length, size, self.name), address, self.bits // 8)
        return CallFrames()

    @cached_property
    def debug_info(self) -> DebugInfo:
        """Its debug information, or that of the file that its symbols are from."""
        return DebugInfo(self.name, self._content) if self.named_by is None else self.named_by.debug_info

    def _content(self, wanted: str) -> bytes:
        """Return the content of a section, b"" where the file has none of the name. Raises OptprobeError."""
        headers, size = self._sections(), self.sections[2]
        if self.names >= len(headers):
            return b""
        strings = _bounded(self.read, headers[self.names][4], headers[self.names][5], size, self.name)
        looked_for = wanted.encode() + b"\0"
        for name, kind, flags, _, offset, length, *_ in headers:
            if kind == PROGBITS and strings[name : name + len(looked_for)] == looked_for:
                data = _bounded(self.read, offset, length, size, self.name)
                return self._unpacked(data) if flags & COMPRESSED else data
        return b""

    def _unpacked(self, data: bytes) -> bytes:
        """Return the content of a compressed section (System V ABI, 4.22). Raises OptprobeError."""
        header = 24 if self.bits == 64 else 12
        if int.from_bytes(data[:4], "little") != ZLIB:
            raise OptprobeError(f"{self.name} has sections that are compressed in a way that is not known")
        try:
            found = zlib.decompressobj().decompress(data[header:], LARGEST_TABLE)
        except zlib.error as error:
            raise OptprobeError(f"{self.name} is damaged: {error}") from None
        if len(found) == LARGEST_TABLE:
            raise OptprobeError(f"{self.name} has a section of over {LARGEST_TABLE >> 20} MiB: none is read")
        return found

    def _sections(self) -> list[tuple[int, ...]]:
        layout = _LAYOUTS[self.bits]
        start, count, size = self.sections
        if not start or not 0 < count <= MOST_HEADERS:
            return []
        return [*layout.section.iter_unpack(_bounded(self.read, start, count * layout.section.size, size, self.name))]

    def _functions(self, layout: _Layout, rows: bytes, strings: bytes) -> Iterator[Symbol]:
        budget = Budget(MOST_OF_NAMES * len(strings), f"the symbol table of {self.name}", "bytes of names")
        order = [layout.symbol_fields.index(field) for field in ("name", "value", "size", "info", "other", "section")]
        for values in layout.symbol.iter_unpack(rows):
            name, value, size, info, other, section = map(values.__getitem__, order)
            if info & 15 not in (NOTHING, FUNCTION) or section == UNDEFINED:
                continue
            if self.marks and info & 15 == NOTHING and strings.startswith(self.marks, name):
                continue
            end = strings.find(b"\0", name, name + LONGEST_NAME + 1)
            if end > name and any(segment.holds(value) for segment in self.code):
                budget.spend(end - name)
                yield Symbol(value, size, printable(strings[name:end]), self._local(other))

    def _local(self, other: int) -> int:
        """Return the distance of the local entry, by bits 5 to 7 of st_other: 2 to 6 are its log2 in bytes."""
        return 4 << (other >> 5) - 2 if self.local_entries and 2 <= other >> 5 <= 6 else 0


def _number(text: str) -> int | None:
    try:
        return int(text, 0)
    except ValueError:
        return None


def _bounded(read: Read, offset: int, size: int, end: int, name: str) -> bytes:
    if offset + size > end:
        raise OptprobeError(f"{name} is damaged: it refers to what lies behind its end")
    if size > LARGEST_TABLE:
        raise OptprobeError(f"{name} has a table of {size >> 20} MiB: over {LARGEST_TABLE >> 20} MiB none is read")
    return read(offset, size)


def _notes(notes: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield GNU's notes, as type and description: (name size, size, type), name and description, each padded to four
    bytes.
    """
    at = 0
    while at + 12 <= len(notes):
        name, size, kind = struct.unpack_from("<III", notes, at)
        start = at + 12 + (name + 3) // 4 * 4
        if notes[at + 12 : at + 12 + name] == b"GNU\0":
            yield kind, notes[start : start + size]
        at = start + (size + 3) // 4 * 4


def _features(properties: bytes, bits: int) -> int:
    """Return the word of FEATURES among properties: (type, size), and data padded to words; 0 where it is not there."""
    at, word = 0, bits // 8
    while at + 8 <= len(properties):
        kind, size = struct.unpack_from("<II", properties, at)
        if kind == FEATURES and size == 4:
            return int.from_bytes(properties[at + 8 : at + 12], "little")
        at += 8 + -(-size // word) * word
    return 0
