"""Symbols as an object file with nothing else in it, for GDB's add-symbol-file.

    .text    NOBITS, code   functions, with their sizes
    .data    NOBITS         what follows the code up to the last symbol: constants, data, code of initialization
    .percpu  NOBITS         per-CPU offsets, which KASLR leaves alone
    .symtab
    .strtab
    .debug_frame            marks all code as outermost: where our unwinder, which GDB asks first, has no caller
                            (the stack ends there), GDB ends the backtrace instead of guessing

Such a file holds no contents, so GDB reads all memory from the guest. `-o OFFSET` would move the per-CPU offsets too,
and GDB 13 moves absolute symbols like all others: hence three sections, each placed by `-s` (see `load_command`).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gdb_optprobe.guest.btf_dwarf import Dwarf
from gdb_optprobe.guest.symbols import FUNCTION_TYPES, KERNEL_HALF, Symbols
from gdb_optprobe.guest_text import is_plain
from gdb_optprobe.isa.abi import ElfMachine

__all__ = ["ASIDE", "CIE_ID", "frames_file", "load_command", "outermost_file", "quoted", "symbol_file", "types_file"]

EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
SHDR = struct.Struct("<IIQQQQIIQQ")
SYM = struct.Struct("<IBBHQQ")
IDENT = b"\x7fELF\x02\x01\x01"
ET_EXEC = 2
SHT_NULL, SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_NOBITS = 0, 1, 2, 3, 8
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR = 1, 2, 4
STB_LOCAL, STB_GLOBAL = 0, 1 << 4
STT_OBJECT, STT_FUNC = 1, 2
TEXT, DATA, PERCPU = 1, 2, 3
# Not 0, where the offsets begin: to add-symbol-file an address of 0 means that none was given.
PERCPU_START = 16
ASIDE = 8
"""An address at which no section of a kernel is."""

CIE_ID = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class _Section:
    name: bytes
    type: int
    flags: int = 0
    address: int = 0
    size: int = 0
    data: bytes = b""
    link: int = 0
    info: int = 0
    alignment: int = 1
    entry: int = 0


def symbol_file(symbols: Symbols, text: tuple[int, int], machine: ElfMachine, outermost: bool = False) -> bytes:
    """Return an ELF file of `symbols` at their addresses; code is at `text` (start, end).

    GDB prints names as they are, so those that no compiler makes are left out.

    outermost: whether GDB ends a backtrace in code that our unwinders do not know, instead of guessing.
    """
    symbols = _plain(symbols)
    end = max(text[1], symbols.addresses[-1]) + 1 if len(symbols) else text[1]
    names = b"\0" + "\0".join(symbols.names).encode() + b"\0"
    local, other = _entries(symbols, text)
    table = [bytes(SYM.size), *local, *other]
    return _elf(
        machine,
        [
            _Section(b"", SHT_NULL, alignment=0),
            _Section(b".text", SHT_NOBITS, SHF_ALLOC | SHF_EXECINSTR, text[0], text[1] - text[0], alignment=16),
            _Section(b".data", SHT_NOBITS, SHF_ALLOC | SHF_WRITE, text[1], end - text[1], alignment=16),
            _Section(b".percpu", SHT_NOBITS, SHF_ALLOC | SHF_WRITE, PERCPU_START, _percpu_size(symbols), alignment=16),
            _Section(
                b".symtab",
                SHT_SYMTAB,
                data=b"".join(table),
                link=5,
                info=1 + len(local),
                alignment=8,
                entry=SYM.size,
            ),
            _Section(b".strtab", SHT_STRTAB, data=names),
            *([_Section(b".debug_frame", SHT_PROGBITS, data=_frames(text[0], end, machine))] if outermost else []),
        ],
    )


def _plain(symbols: Symbols) -> Symbols:
    if is_plain("".join(symbols.names)):
        return symbols
    kept = [index for index, name in enumerate(symbols.names) if name and is_plain(name)]
    addresses, names, types = symbols.addresses, symbols.names, symbols.types
    some = [names[index] for index in kept]
    return Symbols(array("Q", (addresses[index] for index in kept)), some, "".join(types[index] for index in kept))


def load_command(path: str, text: tuple[int, int], slide: int) -> str:
    """Return the GDB command that loads the file made for code at `text`, for a kernel that lies `slide` bytes higher.
    """
    start, end = text[0] + slide, text[1] + slide
    return f"add-symbol-file {quoted(path)} -s .text {start:#x} -s .data {end:#x} -s .percpu {PERCPU_START:#x}"


def quoted(path: str) -> str:
    """Return a path as one argument of a GDB command, whatever is in it."""
    escaped = path.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


def frames_file(frames: bytes, start: int, size: int, machine: ElfMachine) -> bytes:
    """Return an ELF file with this .debug_frame, of code at `start`, and nothing else."""
    code = _Section(b".text", SHT_NOBITS, SHF_ALLOC | SHF_EXECINSTR, start, size, alignment=16)
    sections = [_Section(b"", SHT_NULL, alignment=0), code, _Section(b".debug_frame", SHT_PROGBITS, data=frames)]
    return _elf(machine, sections)


def outermost_file(code: tuple[int, int], machine: ElfMachine) -> bytes:
    """Return an ELF file that marks `code` (start, end) as outermost; its one section is elsewhere.
    It is used beside a vmlinux: a section at the same addresses would hide the vmlinux's symbols.
    """
    return frames_file(_frames(*code, machine), ASIDE, 1, machine)


def types_file(dwarf: Dwarf, machine: ElfMachine) -> bytes:
    """Return an ELF file with these types. Its one section of code is aside, as that of `outermost_file`."""
    code = _Section(b".text", SHT_NOBITS, SHF_ALLOC | SHF_EXECINSTR, ASIDE, 1, alignment=16)
    parts = {b".debug_info": dwarf.info, b".debug_abbrev": dwarf.abbreviations, b".debug_str": dwarf.strings}
    debug = [_Section(name, SHT_PROGBITS, data=data) for name, data in parts.items()]
    return _elf(machine, [_Section(b"", SHT_NULL, alignment=0), code, *debug])


def _frames(start: int, end: int, machine: ElfMachine) -> bytes:
    """Return call frame information that marks the code from `start` to `end` as outermost."""
    cie = struct.pack("<I", CIE_ID) + machine.outermost
    fde = struct.pack("<IQQ", 0, start, end - start)
    return struct.pack("<I", len(cie)) + cie + struct.pack("<I", len(fde)) + fde


def _percpu_size(symbols: Symbols) -> int:
    count = bisect_left(symbols.addresses, KERNEL_HALF)
    return max(0, symbols.addresses[count - 1] + 1 - PERCPU_START) if count else 0


def _entries(symbols: Symbols, text: tuple[int, int]) -> tuple[list[bytes], list[bytes]]:
    """Return the symbol table's entries, local ones, which must come first, and others."""
    start, end = text
    local: list[bytes] = []
    other: list[bytes] = []
    pack = SYM.pack
    at = 1
    for address, size, name, kind in zip(
        symbols.addresses, _sizes(symbols.addresses), symbols.names, symbols.types, strict=True
    ):
        info = STT_FUNC if kind in FUNCTION_TYPES else STT_OBJECT
        if start <= address < end:
            section = TEXT
        elif address >= end:
            section = DATA
        else:
            section = PERCPU
        if kind.islower():
            local.append(pack(at, STB_LOCAL | info, 0, section, address, size))
        else:
            other.append(pack(at, STB_GLOBAL | info, 0, section, address, size))
        at += len(name.encode()) + 1
    return local, other


def _sizes(addresses: Sequence[int]) -> Iterable[int]:
    """Yield the distance from each address to the next higher one; 0 for the last."""
    sizes = [0] * len(addresses)
    following = last = addresses[-1] if addresses else 0
    for index in range(len(addresses) - 1, -1, -1):
        address = addresses[index]
        if address != last:
            following, last = last, address
        sizes[index] = following - address if address >= KERNEL_HALF else 0
    return sizes


def _elf(machine: ElfMachine, sections: Sequence[_Section]) -> bytes:
    strings = b"\0".join(section.name for section in sections) + b"\0.shstrtab\0"
    sections = [*sections, _Section(b".shstrtab", SHT_STRTAB, data=strings)]
    body = bytearray(EHDR.size)
    headers: list[bytes] = []
    name = 0
    for section in sections:
        body.extend(bytes(-len(body) % 8))
        headers.append(
            SHDR.pack(
                name,
                section.type,
                section.flags,
                section.address,
                len(body) if section.type else 0,
                section.size or len(section.data),
                section.link,
                section.info,
                section.alignment,
                section.entry,
            )
        )
        body.extend(section.data)
        name += len(section.name) + 1
    body.extend(bytes(-len(body) % 8))
    EHDR.pack_into(
        body,
        0,
        IDENT,
        ET_EXEC,
        machine.number,
        1,
        0,
        0,
        len(body),
        machine.flags,
        EHDR.size,
        0,
        0,
        SHDR.size,
        len(headers),
        len(headers) - 1,
    )
    return bytes(body) + b"".join(headers)
