"""Recover a kernel's symbols from its own read-only data, with no file and whatever KASLR did.

scripts/kallsyms.c writes eight tables, each aligned to 8 bytes, in one of two orders; kernel/kallsyms.c reads them:

    until 6.3                              since 6.4 (404bad70fcf7)
    ┌───────────────┐                      ┌───────────────┐
    │ offsets       │ s32 for each symbol  │ num_syms      │
    │ relative_base │ u64, moved by KASLR  │ names         │
    │ num_syms      │ u32                  │ markers       │
    │ names         │ length, tokens       │ token_table   │ ◄── found first: by "0" "1" … "9", and
    │ markers       │ u32: every 256th name│ token_index   │ ◄── proven by the 256 offsets here
    │ (seqs)        │ since 6.2            │ offsets       │
    │ token_table   │ 256 strings          │ relative_base │
    │ token_index   │ u16: where each is   │ (seqs)        │
    └───────────────┘                      └───────────────┘

From the token table the way leads back over the markers to the names, whose lengths must meet every marker, and to the
number before them; then to the offsets on either side, which must ascend. Nothing is taken on trust: these are a
guest's bytes.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.symbols import KERNEL_HALF, Symbols

__all__ = ["read", "recover"]

ALIGNMENT = 8
TOKENS = 256
NAMES_PER_MARKER = 256
# Characters that occur in names keep their own code as token: the digits stand in a row (insert_real_symbols_in_table).
DIGITS = b"".join(b"%d\0" % digit for digit in range(10))
# A name takes at least a length and a token; KSYM_NAME_LEN is 512, and a longest name's tokens cannot be more.
SMALLEST_STRIDE, LARGEST_STRIDE = NAMES_PER_MARKER * 2, NAMES_PER_MARKER * 514
# How many markers must ascend before they are taken for such; fewer symbols than this covers no kernel has.
RUN = 4
# Read at a time while looking for the token table.
PIECE = 1 << 20
HINT = "load the kernel's vmlinux into GDB with 'symbol-file'"


@dataclass(frozen=True, slots=True)
class Tokens:
    """The token table at `start`, its index ending at `end` (offsets in the data searched)."""

    start: int
    end: int
    strings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """The table of names, at `start`: `begins` has where each name's tokens begin, `ends` where they end."""

    start: int
    begins: array[int]
    ends: array[int]

    @property
    def count(self) -> int:
        return len(self.begins)


def recover(rodata: bytes) -> Symbols:
    """All symbols of the kernel whose read-only data is `rodata` (which starts at a page). Raises OptprobeError."""
    return read(lambda offset, size: rodata[offset : offset + size], 0, len(rodata))


def read(memory: Callable[[int, int], bytes], start: int, size: int) -> Symbols:
    """All symbols of the kernel whose read-only data is at `start`, reading no more of it than that takes: a third."""
    data = b""
    seen = False
    while len(data) < size:
        data += memory(start + len(data), min(PIECE, size - len(data)))
        for tokens in _token_tables(data):
            seen = True
            for names in _name_tables(data, tokens):
                end = min(size, _aligned(tokens.end) + _aligned(4 * names.count) + 8)
                data += memory(start + len(data), max(0, end - len(data)))
                addresses = _addresses(data, tokens, names)
                if addresses is not None:
                    return _symbols(data, tokens, names, addresses)
    what = "its symbol table (kallsyms) is of an unknown layout" if seen else "it has no symbol table (CONFIG_KALLSYMS)"
    raise OptprobeError(f"cannot read the guest kernel's symbols: {what}", HINT)


def _token_tables(rodata: bytes) -> Iterator[Tokens]:
    """Where digits stand in a row as tokens and the index that follows agrees with the whole table."""
    for match in re.finditer(re.escape(DIGITS), rodata):
        zero = match.start()
        end = zero
        for _ in range(TOKENS - ord("0")):
            end = rodata.find(b"\0", end) + 1
            if not end:
                return
        index_start = _aligned(end)
        index = _u16s(rodata, index_start, TOKENS)
        if index is None or index[0] or index[ord("0")] > zero:
            continue
        start = zero - index[ord("0")]
        strings = rodata[start : end - 1].split(b"\0")
        if start % ALIGNMENT or len(strings) != TOKENS or not _agree(index, strings):
            continue
        yield Tokens(start, index_start + 2 * TOKENS, tuple(string.decode("latin-1") for string in strings))


def _agree(index: array[int], strings: Sequence[bytes]) -> bool:
    offset = 0
    for expected, string in zip(index, strings, strict=True):
        if expected != offset:
            return False
        offset += len(string) + 1
    return True


def _name_tables(rodata: bytes, tokens: Tokens) -> Iterator[Names]:
    """Tables of names that end in markers before the token table (kallsyms_seqs_of_names may lie between)."""
    for start, markers in _marker_tables(rodata, tokens.start):
        least = (len(markers) - 1) * NAMES_PER_MARKER
        # The names of the last marker end where the markers start, but for the alignment.
        latest = (start - markers[-1] - 2) // ALIGNMENT * ALIGNMENT
        for names_start in range(latest, max(ALIGNMENT, latest - LARGEST_STRIDE), -ALIGNMENT):
            count = int.from_bytes(rodata[names_start - ALIGNMENT : names_start], "little")
            if least < count <= least + NAMES_PER_MARKER:
                names = _walk(rodata, names_start, count, markers)
                if names is not None and _aligned(names.ends[-1]) == start:
                    yield names


def _marker_tables(rodata: bytes, before: int) -> Iterator[tuple[int, array[int]]]:
    """Runs of ascending numbers that begin with 0, nearest to `before` first."""
    words = _u32s(rodata[: before // 4 * 4])
    at = len(words) - 1
    while at > RUN:
        if not _strides(words[at - RUN : at + 1]):
            at -= 1
            continue
        last = at
        while at and words[at] and SMALLEST_STRIDE <= words[at] - words[at - 1] <= LARGEST_STRIDE:
            at -= 1
        if not words[at] and at * 4 % ALIGNMENT == 0:
            yield at * 4, words[at : last + 1]
        at -= 1


def _strides(words: array[int]) -> bool:
    # The last comparison first: it is the one that random bytes fail.
    return (
        SMALLEST_STRIDE <= words[-1] - words[-2] <= LARGEST_STRIDE
        and words[-1] < 1 << 28
        and all(SMALLEST_STRIDE <= words[at + 1] - words[at] <= LARGEST_STRIDE for at in range(RUN))
    )


def _walk(rodata: bytes, start: int, count: int, markers: array[int]) -> Names | None:
    """Every name's place, or None where a length leads past a marker.

    The length is one byte, or two (ULEB128) for a name of 128 tokens or more, since 6.1 (73bbb94466fd).
    """
    begins, ends = array("Q"), array("Q")
    at, last = start, len(rodata) - 2
    for number in range(count):
        if at > last or (not number % NAMES_PER_MARKER and at - start != markers[number // NAMES_PER_MARKER]):
            return None
        length = rodata[at]
        at += 1
        if length >= 0x80:
            length = length & 0x7F | rodata[at] << 7
            at += 1
        begins.append(at)
        at += length
        ends.append(at)
        if not length:
            return None
    return Names(start, begins, ends)


def _addresses(rodata: bytes, tokens: Tokens, names: Names) -> array[int] | None:
    """The addresses, from the offsets before the names or after the token index; None where neither place has them."""
    size = _aligned(4 * names.count)
    for offsets, base in (
        (names.start - 2 * ALIGNMENT - size, names.start - 2 * ALIGNMENT),
        (_aligned(tokens.end), _aligned(tokens.end) + size),
    ):
        if offsets < 0 or base + 8 > len(rodata):
            continue
        relative_base = int.from_bytes(rodata[base : base + 8], "little")
        if relative_base >= KERNEL_HALF:
            words = rodata[offsets : offsets + 4 * names.count]
            for decoded in (_absolute_percpu(words, relative_base), _relative(words, relative_base)):
                if decoded is not None:
                    return decoded
    return None


def _absolute_percpu(words: bytes, base: int) -> array[int] | None:
    """CONFIG_KALLSYMS_ABSOLUTE_PERCPU (x86): a negative offset counts down from base - 1, others are absolute."""
    offsets = _s32s(words)
    if offsets[-1] >= 0:
        return None
    highest = base - 1
    return _ascending([offset if offset >= 0 else highest - offset for offset in offsets])


def _relative(words: bytes, base: int) -> array[int] | None:
    return _ascending([base + offset for offset in _u32s(words)])


def _ascending(addresses: list[int]) -> array[int] | None:
    # kernel/kallsyms.c finds symbols by bisection: scripts/kallsyms.c has sorted them.
    if addresses[-1] >= 1 << 64 or addresses != sorted(addresses):
        return None
    return array("Q", addresses)


def _symbols(rodata: bytes, tokens: Tokens, names: Names, addresses: array[int]) -> Symbols:
    expand = tokens.strings.__getitem__
    join = "".join
    # A name's first character is its type, compressed together with the name (read_symbol).
    typed = [join(map(expand, rodata[begin:end])) for begin, end in zip(names.begins, names.ends, strict=True)]
    if not all(typed):
        raise OptprobeError("the guest kernel's symbol table holds a symbol with no name")
    return Symbols(addresses, [name[1:] for name in typed], join([name[0] for name in typed]))


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _u16s(data: bytes, start: int, count: int) -> array[int] | None:
    if start + 2 * count > len(data):
        return None
    return _little_endian(array("H", data[start : start + 2 * count]))


def _u32s(data: bytes) -> array[int]:
    return _little_endian(array("I", data))


def _s32s(data: bytes) -> array[int]:
    return _little_endian(array("i", data))


def _little_endian(values: array[int]) -> array[int]:
    if sys.byteorder == "big":
        values.byteswap()
    return values
