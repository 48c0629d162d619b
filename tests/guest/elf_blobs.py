"""A vmlinux of a few sections and symbols, made to measure."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from gdb_optprobe.guest.vmlinux import HEADER, SECTION, SYMBOL

# name, value, section, binding (0 local, 1 global, 2 weak), type (0 none, 1 object, 2 function, 4 file)
Row = tuple[str, int, int, int, int]

TEXT, RODATA, DATA, BSS, NOTES = 1, 2, 3, 4, 5
# type, flags: of the sections with these numbers
_SECTIONS = ((0, 0), (1, 6), (1, 2), (1, 3), (8, 3), (1, 0))
ABSOLUTE = 0xFFF1


def vmlinux(rows: Sequence[Row]) -> bytes:
    strings = bytearray(b"\0")
    symbols = bytearray(SYMBOL.size)
    for name, value, section, binding, type_ in rows:
        symbols += SYMBOL.pack(len(strings), binding << 4 | type_, 0, section, value, 0)
        strings += name.encode() + b"\0"
    at = HEADER.size
    headers = [SECTION.pack(0, type_, flags, 0, 0, 0, 0, 0, 0, 0) for type_, flags in _SECTIONS]
    headers.append(SECTION.pack(0, 2, 0, 0, at, len(symbols), len(_SECTIONS) + 1, 0, 8, SYMBOL.size))
    headers.append(SECTION.pack(0, 3, 0, 0, at + len(symbols), len(strings), 0, 0, 1, 0))
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    table = at + len(symbols) + len(strings)
    header = struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 0, table, 0, 64, 0, 0, SECTION.size, len(headers), 0)
    return ident + header + bytes(symbols) + bytes(strings) + b"".join(headers)
