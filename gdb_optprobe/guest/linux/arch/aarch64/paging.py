"""Walk the kernel's page tables through physical memory (Arm ARM DDI 0487, D8).

    address   63            48|47      39|38      30|29      21|20      12|11        0     granule of 4 KiB, T1SZ = 16
             ┌───────────────┬──────────┬──────────┬──────────┬──────────┬───────────┐
             │ all set       │ level 0  │ level 1  │ level 2  │ level 3  │ offset    │
             └───────────────┴──────────┴──────────┴──────────┴──────────┴───────────┘
    entry     54 UXN │ 53 PXN │ 52 contiguous │ 49..12 physical │ 10 AF │ 7 read-only │ 1 table or page │ 0 valid

TCR_EL1 says how large the granule is and how many bits an address has. With TCR_EL1.DS (LPA2) there is one level more
for 52 bits, with a root of 16 entries, and entries have bits 51 and 50 of the physical address in bits 9 and 8.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from struct import iter_unpack

from gdb_optprobe.budget import Budget

ReadPhysical = Callable[[int, int], bytes]

VALID, TABLE, USER, READ_ONLY, ACCESSED = 1 << 0, 1 << 1, 1 << 6, 1 << 7, 1 << 10
CONTIGUOUS, NO_EXECUTE = 1 << 52, 1 << 53
TABLE_READ_ONLY, TABLE_NO_EXECUTE = 1 << 62, 1 << 59  # APTable[1], PXNTable
GRANULES = {1: 14, 2: 12, 3: 16}
"""Of TCR_EL1.TG1: the bits of an address within a page."""
USER_GRANULES = {0: 12, 1: 16, 2: 14}
"""Of TG0."""
DS = 1 << 59
ENTRY_SIZE = 8
LEAST_BITS, MOST_BITS = 25, 52
MOST_TABLES, MOST_PAGES = 1 << 13, 1 << 16
"""Limits (budget.py), of what one search reads and yields: a kernel with 512 MB has 40 tables, an image 2^15 pages."""
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Page:
    """A page or a block. at: the physical address of its entry; size: of the page, whatever is contiguous with it."""

    address: int
    physical: int
    size: int
    writable: bool
    executable: bool
    entry: int
    at: int

    @property
    def end(self) -> int:
        return self.address + self.size


@dataclass(frozen=True, slots=True)
class Regime:
    """How TTBR1_EL1's tables are read, or TTBR0_EL1's.

    granule: bits of an address within a page. bits: of an address, below those that are all the same. wide: TCR_EL1.DS.
    start: the lowest address.
    """

    granule: int
    bits: int
    wide: bool
    start: int

    @classmethod
    def of(cls, tcr: int) -> Regime | None:
        """Return what TCR_EL1 says of TTBR1_EL1; None where it says nothing that can be walked."""
        granule, bits = GRANULES.get(tcr >> 30 & 3), 64 - (tcr >> 16 & 0x3F)
        if granule is None or not LEAST_BITS <= bits <= MOST_BITS:
            return None
        return cls(granule, bits, bool(tcr & DS), _MASK << bits & _MASK)

    @classmethod
    def of_user(cls, tcr: int) -> Regime | None:
        """Return the same of TTBR0_EL1."""
        granule, bits = USER_GRANULES.get(tcr >> 14 & 3), 64 - (tcr & 0x3F)
        if granule is None or not LEAST_BITS <= bits <= MOST_BITS:
            return None
        return cls(granule, bits, bool(tcr & DS), 0)

    @property
    def shifts(self) -> Sequence[int]:
        """Return what an address is shifted by to be an index, from the root's level down to that of pages."""
        return tuple(range(self.granule, self.bits, self.granule - 3))[::-1]

    def entries(self, level: int) -> int:
        """Return how many entries a table has, of the level that many below the root's."""
        shift = self.shifts[level]
        return 1 << min(self.granule - 3, self.bits - shift)

    def root(self, ttbr: int) -> int:
        """Return the physical address of the root, without the address-space identifier and what else is there."""
        found = ttbr & (1 << 48) - 1
        # Roots are aligned to their size, of 64 bytes at the least: where an address has 52 bits its upper ones follow.
        if self.wide or self.granule == 16:
            found = found & ~0x3F | (ttbr >> 2 & 0xF) << 48
        return found & ~0x3F

    def physical(self, entry: int, shift: int) -> int:
        """Return where an entry leads to. shift: of what it maps; a table is at a page."""
        found = entry & (1 << (50 if self.wide else 48)) - 1 & -(1 << shift)
        if self.wide:
            found |= (entry >> 8 & 3) << 50
        elif self.granule == 16:
            found |= (entry >> 12 & 0xF) << 48
        return found

    def is_leaf(self, entry: int, level: int) -> bool:
        return level == len(self.shifts) - 1 or not entry & TABLE

    def is_valid(self, entry: int, level: int) -> bool:
        """Return whether an entry means anything: on the last level, the bit that else says `table` must be set."""
        return bool(entry & VALID) and (level < len(self.shifts) - 1 or bool(entry & TABLE))


def translate(read_physical: ReadPhysical, regime: Regime, root: int, address: int) -> Page | None:
    """Return the page that maps `address`; None where none does. Raises what `read_physical` raises."""
    if not regime.start <= address < regime.start + (1 << regime.bits):
        return None
    table, above = root, 0
    for level, shift in enumerate(regime.shifts):
        at = table + ENTRY_SIZE * (address >> shift & regime.entries(level) - 1)
        entry = int.from_bytes(read_physical(at, ENTRY_SIZE), "little")
        if not regime.is_valid(entry, level):
            return None
        if regime.is_leaf(entry, level):
            return _page(regime, entry, at, address & -(1 << shift), shift, above)
        table, above = regime.physical(entry, regime.granule), above | entry
    return None


def walk(read_physical: ReadPhysical, regime: Regime, root: int, address: int) -> tuple[int, int] | None:
    """Return where `address` is in physical memory, and for how many bytes what follows it does so there, too: to the
    end of its block, or of the pages of one table. None where nothing maps it. Raises what `read_physical` raises.
    """
    page = translate(read_physical, regime, root, address)
    if page is None:
        return None
    size, last = 1 << regime.granule, len(regime.shifts) - 1
    end, following = page.size, page.at + ENTRY_SIZE
    if page.size == size and following % size:
        for (entry,) in iter_unpack("<Q", read_physical(following, -following % size)):
            if not regime.is_valid(entry, last) or regime.physical(entry, regime.granule) != page.physical + end:
                break
            end += size
    into = address - page.address
    return page.physical + into, end - into


def pages(
    read_physical: ReadPhysical, regime: Regime, root: int, start: int, end: int, without: int = 0
) -> Iterator[Page]:
    """Yield all pages in [start, end), ascending, but for those of which the entry has one of the bits `without`. Each
    table is read whole; those that map nothing there are not read. Raises OverBudget.
    """
    walk = _Walk(read_physical, regime, (max(start, regime.start), end), without)
    for found in walk.below(root, 0, regime.start, 0):
        walk.pages.spend()
        yield found


class _Walk:
    """A search of all pages in `span`. It may be of a guest that lies: millions of entries, each leading to any table.
    """

    def __init__(self, read: ReadPhysical, regime: Regime, span: tuple[int, int], without: int) -> None:
        self._read, self._regime, self._span, self._without = read, regime, span, without
        self._tables = Budget(MOST_TABLES, "the kernel's page tables", "tables")
        self.pages = Budget(MOST_PAGES, "what is searched of the kernel's page tables", "pages")

    def below(self, table: int, level: int, base: int, above: int) -> Iterator[Page]:
        """Yield the pages that a table leads to. base: the address of its first entry's. above: see `_page`."""
        self._tables.spend()
        regime, start, end = self._regime, *self._span
        shift, count = regime.shifts[level], regime.entries(level)
        size = 1 << shift
        first = max(0, start - base >> shift)
        last = min(count, -(-(end - base) >> shift))
        if first >= last:
            return
        at = table + ENTRY_SIZE * first
        entries = array("Q", self._read(at, ENTRY_SIZE * (last - first)))
        for number in self._used(entries, is_last=level == len(regime.shifts) - 1):
            entry, address = entries[number], base + (first + number) * size
            if regime.is_leaf(entry, level):
                yield _page(regime, entry, at + ENTRY_SIZE * number, address, shift, above)
            else:
                yield from self.below(regime.physical(entry, regime.granule), level + 1, address, above | entry)

    def _used(self, entries: Sequence[int], *, is_last: bool) -> Sequence[int]:
        """Return the indexes of entries that mean anything: valid, and no page that is not looked for."""
        without = self._without
        if is_last:
            valid = VALID | TABLE
            return [at for at, entry in enumerate(entries) if entry & valid == valid and not entry & without]
        return [at for at, entry in enumerate(entries) if entry & VALID and (entry & TABLE or not entry & without)]


def _page(regime: Regime, entry: int, at: int, address: int, shift: int, above: int) -> Page:
    """Return the page of an entry. above: the bits set in any of the entries that lead to its table."""
    writable = not entry & READ_ONLY and not above & TABLE_READ_ONLY
    executable = not entry & NO_EXECUTE and not above & TABLE_NO_EXECUTE
    return Page(address, regime.physical(entry, shift), 1 << shift, writable, executable, entry, at)
