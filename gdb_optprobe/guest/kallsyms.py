"""Recover a kernel's symbols from its own read-only data, with no file and whatever KASLR did.

scripts/kallsyms.c writes its tables in one of these orders; kernel/kallsyms.c reads them:

    ┌───────────────┐                      ┌───────────────┐                      ┌───────────────┐
    │ offsets       │ s32 for each symbol  │ num_syms      │                      │ num_syms      │
    │ relative_base │ u64, moved by KASLR  │ names         │                      │ names         │
    │ num_syms      │ u32                  │ markers       │                      │ markers       │
    │ names         │ length, tokens       │ token_table   │ ◄── found first: by  │ token_table   │
    │ markers       │ u32: every 256th name│ token_index   │     "0" "1" … "9",   │ token_index   │
    │ (seqs)        │                      │ offsets       │     and proven by    │ offsets       │ s32 for each, from
    │ token_table   │ 256 strings          │ relative_base │     the 256 offsets  │ seqs          │ the place of it
    │ token_index   │ u16: where each is   │ (seqs)        │     of the index     └───────────────┘
    └───────────────┘                      └───────────────┘

Each table is aligned to 8 bytes, or each to 4. From the token table the search goes back over the markers to the names;
their lengths must meet every marker; then to the number before them, and to the offsets on either side, which must
ascend and put the kernel's own boundaries in order, around what was read. All of it is checked: these are a guest's
bytes.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gdb_optprobe.budget import Budget, OverBudget
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.little_endian import little_endian
from gdb_optprobe.guest.symbols import KERNEL_HALF, Symbols
from gdb_optprobe.guest_text import printable

__all__ = ["Found", "NoSymbolTable", "find", "read", "recover"]

ALIGNMENTS = (8, 4)
TOKENS = 256
NAMES_PER_MARKER = 256
# Characters that occur in names keep their own code as token: the digits are in a row (insert_real_symbols_in_table).
DIGITS = b"".join(b"%d\0" % digit for digit in range(10))
LONGEST_NAME = 512
"""KSYM_NAME_LEN, with the type in place of the zero: no token expands to more, nor do all tokens of a name."""
# Limits (budget.py), and what Debian's kernels have at the most.
LARGEST = 1 << 28
"""Bytes that are searched: 17 MB of constants; the whole image of a kernel without bounds of constants."""
MOST_SYMBOLS = 1 << 20
"""186,798."""
MOST_CANDIDATES = 1 << 10
"""Rows of digits: 3."""
MOST_STEPS = 1 << 22
"""Words looked at for markers, places for names, names walked and expanded, in one search: two a symbol."""
LARGEST_EXPANSION = 8
"""Characters of names for each byte that they are compressed to: 2."""
# A name takes at least a length and a token.
SMALLEST_STRIDE, LARGEST_STRIDE = NAMES_PER_MARKER * 2, NAMES_PER_MARKER * (LONGEST_NAME + 2)
# How many markers must ascend before they are taken for such; fewer symbols than this covers no kernel has.
RUN = 4
LARGEST_TOKENS = TOKENS * (LONGEST_NAME + 1) + 2 * TOKENS + 16
"""Bytes of a token table and its index."""
BLOCK, AT_ONCE = 256, 32
"""Words after which the budget is asked; names that are expanded before their lengths are looked at."""
# Read at a time while looking for the token table: so many bytes, or this part of what was read, whichever is more.
PIECE, PIECES = 1 << 20, 8
HINT = "load the kernel's vmlinux into GDB with 'symbol-file'"
# Boundaries that kernels name, in the order of their addresses. Those that a kernel lacks are passed over.
BOUNDARIES = (("_text", "_etext"), ("_stext", "_etext"), ("__start_rodata", "__end_rodata"))
CONSTANTS = ("__start_rodata", "__end_rodata")


class NoSymbolTable(OptprobeError):
    """No symbol table was found, or none that is understood; the same kernel is not searched again."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The token table at `start`, its index ending at `end` (offsets in the data searched).
    alignments: possible alignments of the tables; the first with which all tables are found is used.
    """

    start: int
    end: int
    strings: tuple[str, ...]
    alignments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """The table of names, at `start`: `begins` has where each name's tokens begin, `ends` where they end.

    alignment: of every table.
    """

    start: int
    alignment: int
    begins: array[int]
    ends: array[int]

    @property
    def count(self) -> int:
        return len(self.begins)


@dataclass(frozen=True, slots=True)
class Found:
    """Symbols, and the addresses of the tables that they were read from.

    names: from the number of names to the end of the token index. offsets: with the word behind, the base of most.
    """

    symbols: Symbols
    names: tuple[int, int]
    offsets: tuple[int, int]


def recover(rodata: bytes, at: int = 0) -> Symbols:
    """Return all symbols of the kernel with the read-only data `rodata` at the address `at`. Raises OptprobeError."""
    return read(lambda address, size: rodata[address - at : address - at + size], at, len(rodata))


def read(memory: Callable[[int, int], bytes], start: int, size: int) -> Symbols:
    """Return what `find` returns, without the addresses of the tables."""
    return find(memory, start, size).symbols


def find(memory: Callable[[int, int], bytes], start: int, size: int) -> Found:
    """Return all symbols of the kernel with read-only data at `start`. Only the needed third of it is read."""
    what = "its symbol table (kallsyms)"
    budget = Budget(MOST_STEPS, "the search for its symbol table (kallsyms)", "steps")
    candidates = Budget(MOST_CANDIDATES, "the search for its symbol table (kallsyms)", "candidates")
    try:
        found, seen = _search(memory, start, size, budget, candidates)
    except OverBudget as error:
        raise NoSymbolTable(f"cannot read the guest kernel's symbols: {error.message}", HINT) from None
    if found is not None:
        return found
    what += " is of an unknown layout"
    if not seen:
        what = f"no symbol table (kallsyms) is found in the {-(-size >> 20)} MiB where its read-only data may lie"
        digits = candidates.left < candidates.limit
        what += ", or it is of an unknown layout" if digits else " (is CONFIG_KALLSYMS off?)"
    raise NoSymbolTable(f"cannot read the guest kernel's symbols: {what}", HINT)


def _search(
    memory: Callable[[int, int], bytes], start: int, size: int, budget: Budget, candidates: Budget
) -> tuple[Found | None, bool]:
    """Return the symbols, and whether a token table was seen. Raises OverBudget, also where LARGEST cuts the data."""
    whole, size = size, min(size, LARGEST)
    data = b""
    tried: set[int] = set()
    seen = False
    while len(data) < size:
        # A token table may have ended behind the last piece.
        since = max(0, len(data) - LARGEST_TOKENS)
        # Pieces grow with what was read: all of it is copied with each.
        piece = max(PIECE, len(data) // PIECES)
        data += memory(start + len(data), min(piece, size - len(data)))
        for tokens in _token_tables(data, since, tried, candidates):
            seen = True
            for names in _name_tables(data, tokens, budget):
                after = _aligned(tokens.end, names.alignment) + _aligned(4 * names.count, names.alignment)
                data += memory(start + len(data), max(0, min(size, after + 8) - len(data)))
                found = _symbols(data, tokens, names, start, budget)
                if found is not None:
                    return found, seen
    if size < whole:
        raise OverBudget("its read-only data", LARGEST, "bytes")
    return None, seen


def _token_tables(rodata: bytes, since: int, tried: set[int], candidates: Budget) -> Iterator[Tokens]:
    """Yield token tables after `since`: with the digits in a row as tokens, and an index that agrees with the table.

    tried: addresses that were looked at before with the whole table present.
    """
    for match in re.finditer(re.escape(DIGITS), rodata[since:]):
        zero = since + match.start()
        if zero in tried:
            continue
        candidates.spend()
        end = zero
        for _ in range(TOKENS - ord("0")):
            end = rodata.find(b"\0", end, end + LONGEST_NAME + 1) + 1
            if not end:
                break
        if not end:
            continue
        for index_start in sorted({_aligned(end, alignment) for alignment in ALIGNMENTS}):
            index = _u16s(rodata, index_start, TOKENS)
            if index is None or index[0] or index[ord("0")] > zero:
                continue
            start = zero - index[ord("0")]
            strings = rodata[start : end - 1].split(b"\0")
            alignments = tuple(
                alignment
                for alignment in ALIGNMENTS
                if not start % alignment and index_start == _aligned(end, alignment)
            )
            if alignments and len(strings) == TOKENS and _agree(index, strings):
                tried.add(zero)
                tokens = tuple(printable(string) for string in strings)
                yield Tokens(start, index_start + 2 * TOKENS, tokens, alignments)


def _agree(index: array[int], strings: Sequence[bytes]) -> bool:
    offset = 0
    for expected, string in zip(index, strings, strict=True):
        if expected != offset or len(string) > LONGEST_NAME:
            return False
        offset += len(string) + 1
    return True


def _name_tables(rodata: bytes, tokens: Tokens, budget: Budget) -> Iterator[Names]:
    """Yield the tables of names that end in markers before the token table (kallsyms_seqs_of_names may lie between)."""
    for start, markers in _marker_tables(rodata, tokens.start, budget):
        for alignment in tokens.alignments:
            if not start % alignment:
                yield from _name_tables_before(rodata, start, markers, alignment, budget)


def _name_tables_before(
    rodata: bytes, start: int, markers: array[int], alignment: int, budget: Budget
) -> Iterator[Names]:
    """Yield the tables of names that end where the `markers` start, less alignment."""
    least = (len(markers) - 1) * NAMES_PER_MARKER
    latest = (start - markers[-1] - 2) // alignment * alignment
    for names_start in range(latest, max(alignment, latest - LARGEST_STRIDE), -alignment):
        budget.spend()
        count = int.from_bytes(rodata[names_start - alignment : names_start], "little")
        if least < count <= least + NAMES_PER_MARKER:
            names = _walk(rodata, names_start, count, markers, alignment, budget)
            if names is not None and _aligned(names.ends[-1], alignment) == start:
                yield names


def _marker_tables(rodata: bytes, before: int, budget: Budget) -> Iterator[tuple[int, array[int]]]:
    """Yield runs of ascending numbers that begin with 0, nearest to `before` first."""
    end = before // 4
    first = max(0, end - budget.left)
    words = _u32s(rodata[4 * first : 4 * end])
    at = len(words) - 1
    while at > RUN:
        if not at % BLOCK:
            budget.spend(BLOCK)
        if not SMALLEST_STRIDE <= words[at] - words[at - 1] <= LARGEST_STRIDE or not _strides(words, at):
            at -= 1
            continue
        last = at
        while at and words[at] and SMALLEST_STRIDE <= words[at] - words[at - 1] <= LARGEST_STRIDE:
            at -= 1
        budget.spend(last - at)
        if last - at >= MOST_SYMBOLS // NAMES_PER_MARKER:
            raise OverBudget("its symbol table (kallsyms)", MOST_SYMBOLS, "symbols")
        if not words[at]:
            yield 4 * (first + at), words[at : last + 1]
        at -= 1


def _strides(words: array[int], at: int) -> bool:
    return words[at] < 1 << 28 and all(
        SMALLEST_STRIDE <= words[one + 1] - words[one] <= LARGEST_STRIDE for one in range(at - RUN, at)
    )


def _walk(
    rodata: bytes, start: int, count: int, markers: array[int], alignment: int, budget: Budget
) -> Names | None:
    """Find every name; return None where a length leads past a marker.

    The length is one byte, or two (ULEB128) for a name of 128 tokens or more, since 6.1 (73bbb94466fd).
    """
    begins, ends = array("Q"), array("Q")
    at, last = start, len(rodata) - 2
    for number in range(count):
        if not number % NAMES_PER_MARKER:
            budget.spend(NAMES_PER_MARKER)
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
        if not 0 < length <= LONGEST_NAME:
            return None
    return Names(start, alignment, begins, ends)


def _addresses(rodata: bytes, tokens: Tokens, names: Names, at: int) -> Iterator[tuple[int, array[int]]]:
    """Yield where offsets may be, before the names or after the token index, and the ascending addresses they give.

    at: the address of `rodata`.
    """
    alignment = names.alignment
    size = _aligned(4 * names.count, alignment)
    before, behind = names.start - alignment - 8 - size, _aligned(tokens.end, alignment)
    for offsets in (before, behind):
        words = rodata[max(offsets, 0) : max(offsets, 0) + 4 * names.count]
        if offsets < 0 or len(words) < 4 * names.count:
            continue
        base = int.from_bytes(rodata[offsets + size : offsets + size + 8], "little")
        decoded = [_from_itself(words, at + offsets)] if offsets == behind else []
        if base >= KERNEL_HALF:
            decoded = [_absolute_percpu(words, base), _relative(words, base), *decoded]
        yield from ((offsets, addresses) for addresses in decoded if addresses is not None)


def _from_itself(words: bytes, at: int) -> array[int] | None:
    """Decode offsets relative to their own addresses (offset_to_ptr); the table is at the address `at`."""
    return _ascending([at + 4 * number + offset for number, offset in enumerate(_s32s(words))])


def _absolute_percpu(words: bytes, base: int) -> array[int] | None:
    """Decode with CONFIG_KALLSYMS_ABSOLUTE_PERCPU: a negative offset counts down from base - 1, others are absolute."""
    offsets = _s32s(words)
    if offsets[-1] >= 0:
        return None
    highest = base - 1
    return _ascending([offset if offset >= 0 else highest - offset for offset in offsets])


def _relative(words: bytes, base: int) -> array[int] | None:
    return _ascending([base + offset for offset in _u32s(words)])


def _ascending(addresses: list[int]) -> array[int] | None:
    # kernel/kallsyms.c finds symbols by bisection: scripts/kallsyms.c has sorted them.
    if addresses[0] < 0 or addresses[-1] >= 1 << 64 or addresses != sorted(addresses):
        return None
    return array("Q", addresses)


def _symbols(rodata: bytes, tokens: Tokens, names: Names, at: int, budget: Budget) -> Found | None:
    """Return the symbols; None where one has no name, or where no offsets give symbols that agree with one another."""
    budget.spend(names.count)
    typed = _expanded(rodata, tokens, names)
    if not typed or not all(typed):
        return None
    # A name's first character is its type, compressed together with the name (read_symbol).
    plain, types = [name[1:] for name in typed], "".join([name[0] for name in typed])
    for offsets, addresses in _addresses(rodata, tokens, names, at):
        found = Symbols(addresses, plain, types)
        if _agrees(found, at + offsets):
            end = offsets + _aligned(4 * names.count, names.alignment) + 8
            return Found(found, (at + names.start - names.alignment, at + tokens.end), (at + offsets, at + end))
    return None


def _expanded(rodata: bytes, tokens: Tokens, names: Names) -> list[str]:
    """Return the names with their types; an empty list where one of them, or all together, become too long."""
    expand = tokens.strings.__getitem__
    join = "".join
    found: list[str] = []
    left = LARGEST_EXPANSION * (names.ends[-1] - names.start)
    for first in range(0, names.count, AT_ONCE):
        both = zip(names.begins[first : first + AT_ONCE], names.ends[first : first + AT_ONCE], strict=True)
        some = [join(map(expand, rodata[begin:end])) for begin, end in both]
        left -= sum(map(len, some))
        if left < 0 or max(map(len, some)) > LONGEST_NAME:
            return []
        found += some
    return found


def _agrees(symbols: Symbols, table: int) -> bool:
    """Return whether the kernel's boundaries are in order and around the `table`, and no symbol is in user space.
    All addresses must be in one half, except those of per-CPU symbols, which may count from 0.
    """
    known = {name: symbols.address(name) for name in dict.fromkeys(name for pair in BOUNDARIES for name in pair)}
    for first, last in BOUNDARIES:
        start, end = known[first], known[last]
        if start is not None and end is not None and not KERNEL_HALF <= start < end:
            return False
    start, end = (known[name] for name in CONSTANTS)
    if start is not None and end is not None and not start <= table < end:
        return False
    return symbols.addresses[-1] >= KERNEL_HALF


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _u16s(data: bytes, start: int, count: int) -> array[int] | None:
    if start + 2 * count > len(data):
        return None
    return little_endian(array("H", data[start : start + 2 * count]))


def _u32s(data: bytes) -> array[int]:
    return little_endian(array("I", data))


def _s32s(data: bytes) -> array[int]:
    return little_endian(array("i", data))
