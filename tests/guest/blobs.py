"""What a guest kernel holds, made to measure: kallsyms as scripts/kallsyms.c writes it, BTF, notes; and a memory."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.errors import Unreadable

TEXT = 0xFFFF_FFFF_8100_0000
RODATA = 0xFFFF_FFFF_8200_0000
TOKENS = ("read", "write_", "Tsys_", "func", "_lock", "tion", "__", "_t")

# Address, type, name: what nm(1) prints.
NmSymbol = tuple[int, str, str]


@dataclass(frozen=True)
class Layout:
    """One way to write the tables.

    offsets_last: since 6.4 the offsets follow the token index.
    seqs:         kallsyms_seqs_of_names, since 6.2.
    percpu:       CONFIG_KALLSYMS_ABSOLUTE_PERCPU.
    itself:       each offset is from its own address, with no base.
    """

    offsets_last: bool
    seqs: bool
    percpu: bool
    itself: bool = False
    alignment: int = 8


LINUX_5_10 = Layout(offsets_last=False, seqs=False, percpu=True)
LINUX_6_1_PPC = Layout(offsets_last=False, seqs=False, percpu=False)
LINUX_6_2 = Layout(offsets_last=False, seqs=True, percpu=True)
LINUX_6_4 = Layout(offsets_last=True, seqs=True, percpu=True)
LINUX_6_12_PPC = Layout(offsets_last=True, seqs=True, percpu=False)
LINUX_7_2 = Layout(offsets_last=True, seqs=True, percpu=False, itself=True, alignment=4)
LAYOUTS = {
    "5.10": LINUX_5_10,
    "6.1 ppc64le": LINUX_6_1_PPC,
    "6.2": LINUX_6_2,
    "6.4": LINUX_6_4,
    "6.12 ppc64le": LINUX_6_12_PPC,
    "7.2": LINUX_7_2,
    "offsets from themselves, aligned to 8": replace(LINUX_7_2, alignment=8),
    "a base, aligned to 4": replace(LINUX_6_4, alignment=4),
}


def kernel_symbols(count: int, text: int = TEXT, percpu: int = 0) -> list[NmSymbol]:
    """`count` symbols from `text` on after `percpu` per-CPU ones; some have an alias, some a namesake."""
    symbols = [(64 * number, "A", f"per_cpu_{number}") for number in range(percpu)]
    symbols.append((text, "T", "_text"))
    for number in range(count - percpu - 1):
        name = f"static_func.{number % 7}" if number % 100 == 99 else f"Function_{number}_read_lock"
        kind = "t" if number % 3 else "T"
        symbols.append((text + 16 * (number - number % 10 // 9), kind, name))
    return symbols


def kallsyms(
    symbols: Sequence[NmSymbol], layout: Layout, before: bytes = bytes(4096), after: bytes = b"", at: int = RODATA
) -> bytes:
    """The tables, with other data on both sides, the whole to be at the address `at`."""
    table = _token_table(symbols)
    names, markers = _names(symbols, table)
    strings = [token.encode() + b"\0" for token in table]
    index = struct.pack("<256H", *(sum(map(len, strings[:at])) for at in range(256)))
    base = next(address for address, _, _ in symbols if address >> 63)
    offsets = [
        b"".join(struct.pack("<i", _offset(address, base, layout)) for address, _, _ in symbols),
        struct.pack("<Q", base),
    ]
    seqs = [b"".join(struct.pack("<I", 0x5A5A5A + at)[:3] for at in range(len(symbols)))] if layout.seqs else []
    number = struct.pack("<I", len(symbols))
    marked = struct.pack(f"<{len(markers)}I", *markers)
    tokens = [b"".join(strings), index]
    parts = [number, names, marked, *tokens, *offsets, *seqs]
    if layout.itself:
        table = at + len(before) + sum(-(-len(part) // layout.alignment) * layout.alignment for part in parts[:5])
        relative = [address - table - 4 * number for number, (address, _, _) in enumerate(symbols)]
        parts[5:7] = [struct.pack(f"<{len(relative)}i", *relative)]
    elif not layout.offsets_last:
        parts = [*offsets, number, names, marked, *seqs, *tokens]
    return before + b"".join(part + bytes(-len(part) % layout.alignment) for part in parts) + after


def _offset(address: int, base: int, layout: Layout) -> int:
    if layout.percpu:
        return base - address - 1 if address >> 63 else address
    return struct.unpack("<i", struct.pack("<I", address - base))[0]  # type: ignore[no-any-return]


def _token_table(symbols: Sequence[NmSymbol]) -> list[str]:
    """Characters in use at their own code, tokens at others from the end, nothing elsewhere."""
    used = set("0123456789").union(*(kind + name for _, kind, name in symbols))
    table = [chr(code) if chr(code) in used else "" for code in range(256)]
    free = [code for code in range(255, -1, -1) if not table[code]]
    for code, token in zip(free, TOKENS, strict=False):
        table[code] = token
    return table


def _names(symbols: Sequence[NmSymbol], table: Sequence[str]) -> tuple[bytes, list[int]]:
    codes = {token: bytes([code]) for code, token in enumerate(table) if token}
    longest_first = sorted((token for token in codes if len(token) > 1), key=len, reverse=True)
    data = bytearray()
    markers = []
    for number, (_, kind, name) in enumerate(symbols):
        if number % 256 == 0:
            markers.append(len(data))
        text = (kind + name).encode("latin-1")
        for token in longest_first:
            text = text.replace(token.encode(), codes[token])
        # Since 6.1 a length of 128 or more is two bytes of ULEB128.
        data += bytes([len(text)]) if len(text) < 128 else bytes([len(text) & 0x7F | 0x80, len(text) >> 7])
        data += text
    return bytes(data), markers


def note(name: bytes, kind: int, description: bytes) -> bytes:
    """An entry of .notes."""
    padded = [part + bytes(-len(part) % 4) for part in (name, description)]
    return struct.pack("<III", len(name), len(description), kind) + b"".join(padded)


class BtfWriter:
    """BTF, type by type: each method appends one and gives its number."""

    def __init__(self) -> None:
        self._types = bytearray()
        self._strings = bytearray(b"\0")
        self._offsets = {"": 0}
        self._count = 0

    def string(self, text: str) -> int:
        if text not in self._offsets:
            self._offsets[text] = len(self._strings)
            self._strings += text.encode() + b"\0"
        return self._offsets[text]

    def add(self, name: str, kind: int, third: int = 0, *words: int, vlen: int = 0, flag: bool = False) -> int:
        info = vlen | kind << 24 | flag << 31
        packed = [word & 0xFFFF_FFFF for word in (self.string(name), info, third, *words)]
        self._types += struct.pack(f"<{len(packed)}I", *packed)
        self._count += 1
        return self._count

    def integer(self, name: str, size: int, signed: bool = False, bits: int | None = None) -> int:
        return self.add(name, 1, size, signed << 24 | (8 * size if bits is None else bits))

    def struct(self, name: str, size: int, *members: tuple[str, int, int], union: bool = False) -> int:
        """Members as name, type, bit offset."""
        words = [word for member, type_, bit in members for word in (self.string(member), type_, bit)]
        return self.add(name, 5 if union else 4, size, *words, vlen=len(members))

    def bitfields(self, name: str, size: int, *members: tuple[str, int, int, int]) -> int:
        """Members as name, type, bit offset, bit size (0: no bitfield)."""
        words = [
            word for member, type_, bit, bits in members for word in (self.string(member), type_, bits << 24 | bit)
        ]
        return self.add(name, 4, size, *words, vlen=len(members), flag=True)

    def blob(self) -> bytes:
        header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(self._types), len(self._types), len(self._strings))
        return header + self._types + self._strings


class FakeMemory:
    """Memory in pieces, by address; every access is noted."""

    def __init__(self, **pieces: bytes) -> None:
        self.pieces = {int(address, 16): bytearray(data) for address, data in pieces.items()}
        self.accesses: list[tuple[int, int]] = []

    def place(self, address: int, data: bytes) -> None:
        self.pieces[address] = bytearray(data)

    def read(self, address: int, size: int) -> bytes:
        self.accesses.append((address, size))
        start, piece = self._piece(address, size)
        return bytes(piece[address - start : address - start + size])

    def write(self, address: int, data: bytes) -> None:
        self.accesses.append((address, len(data)))
        start, piece = self._piece(address, len(data))
        piece[address - start : address - start + len(data)] = data

    def _piece(self, address: int, size: int) -> tuple[int, bytearray]:
        for start, piece in self.pieces.items():
            if start <= address and address + size <= start + len(piece):
                return start, piece
        raise Unreadable(address, size)
