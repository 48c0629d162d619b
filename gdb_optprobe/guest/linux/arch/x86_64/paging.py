"""Walk a vCPU's page tables through physical memory, and make entries for them.

    address   63      57|56     48|47      39|38      30|29      21|20      12|11        0
             ┌─────────┬─────────┬──────────┬──────────┬──────────┬──────────┬───────────┐
             │ sign    │ PML5    │ PML4     │ PDPT     │ PD       │ PT       │ offset    │
             └─────────┴─────────┴──────────┴──────────┴──────────┴──────────┴───────────┘
    level                5 (la57)  4          3 (1 GiB)  2 (2 MiB)  1 (4 KiB)
    entry     63 NX │ 51..12 physical │ 8 G │ 7 PS │ 6 D │ 5 A │ 2 US │ 1 RW │ 0 P    (SDM volume 3, 4.5)

CR3 holds a process-context identifier in bits 0-11, and what else Linux keeps in bit 63 and, with
page-table isolation, in bits 11 and 12: see `kernel_cr3`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gdb_optprobe.budget import Budget

ReadPhysical = Callable[[int, int], bytes]

PRESENT, WRITABLE, USER, ACCESSED, DIRTY, LARGE, GLOBAL = (1 << bit for bit in (0, 1, 2, 5, 6, 7, 8))
SAVED_DIRTY_BIT = 58
"""Where Linux since 6.6 keeps that a page is dirty while its entry is not writable: hardware takes such an entry for a
shadow stack's (arch/x86/include/asm/pgtable_types.h, _PAGE_BIT_SAVED_DIRTY). Other kernels leave the bit clear there.
"""
KEPT = DIRTY | 1 << SAVED_DIRTY_BIT
"""Set in the entry of a page that was written to since it was read from its file or swapped in."""
NO_EXECUTE = 1 << 63
ADDRESS = 0x000F_FFFF_FFFF_F000
MOST_PAGES = 1 << 17
"""A limit (budget.py), of leaf entries that one range of addresses is mapped by: a kernel's image takes 2,000."""
TABLE_SIZE = 4096
PAGE_SIZE = 4096
ENTRY_SIZE = 8
_MASK = (1 << 64) - 1
# Where page-table isolation keeps the user's tables: the page behind the kernel's.
_USER_TABLES = 1 << 12


@dataclass(frozen=True, slots=True)
class Mapping:
    """A page, or a run of pages that are adjacent in both address spaces and have the same attributes.
    address, physical, size: of the whole page or run, even where only a part was asked for.
    writable, executable, user: as all levels together allow it.
    entry_address, entry, level: the entry that maps the (first) page, and the level of its table.
    """

    address: int
    physical: int
    size: int
    writable: bool
    executable: bool
    user: bool
    is_global: bool
    entry_address: int
    entry: int
    level: int

    @property
    def end(self) -> int:
        return self.address + self.size

    def frame_of(self, address: int) -> int:
        """Return the physical address of what is at `address`, which is inside."""
        return self.physical + address - self.address

    def continues(self, before: Mapping) -> bool:
        return (
            before.end == self.address
            and before.physical + before.size == self.physical
            and (before.writable, before.executable, before.user, before.is_global)
            == (self.writable, self.executable, self.user, self.is_global)
        )


def kernel_cr3(cr3: int) -> int:
    """Return the CR3 of the kernel's page tables, from one that may be the user's of the same task.

    Linux with page-table isolation keeps two top tables in 8 KiB, aligned: the kernel's, then the user's
    (arch/x86/entry/calling.h, PTI_USER_PGTABLE_MASK). Without isolation bit 12 is part of the address:
    ask for this only where the guest has isolation.
    """
    return cr3 & ADDRESS & ~_USER_TABLES


def by_table(read_physical: ReadPhysical) -> ReadPhysical:
    """Return a reader of entries that reads each table once, whole: for many walks of a guest that does not run."""
    tables: dict[int, bytes] = {}

    def read(address: int, size: int) -> bytes:
        first = address & -TABLE_SIZE
        if address + size > first + TABLE_SIZE:
            return read_physical(address, size)
        if first not in tables:
            tables[first] = read_physical(first, TABLE_SIZE)
        return tables[first][address - first :][:size]

    return read


def translate(read_physical: ReadPhysical, cr3: int, address: int, *, la57: bool = False) -> Mapping | None:
    """Return the page that maps `address`; None where none does. Raises what `read_physical` raises."""
    top = 5 if la57 else 4
    if not _is_canonical(address, top):
        return None
    table, rights = cr3 & ADDRESS, WRITABLE | USER
    executable = True
    for level in range(top, 0, -1):
        entry_address = table + (address >> _shift(level) & 0x1FF) * 8
        entry = int.from_bytes(read_physical(entry_address, 8), "little")
        if not entry & PRESENT:
            return None
        rights &= entry
        executable = executable and not entry & NO_EXECUTE
        if _is_leaf(entry, level):
            base = address & ~((1 << _shift(level)) - 1)
            return _leaf(base, entry, entry_address, level, rights, executable)
        table = entry & ADDRESS
    raise AssertionError("level 1 is always a leaf")


def walk(read_physical: ReadPhysical, cr3: int, address: int, *, la57: bool = False) -> tuple[int, int] | None:
    """Return where `address` is in physical memory, and for how many bytes what follows it does so there, too: to the
    end of its page, or of what one table maps on behind it. None where nothing maps it. Raises what `read_physical`
    raises.
    """
    page = translate(read_physical, cr3, address, la57=la57)
    if page is None:
        return None
    end, following = page.end, page.entry_address + ENTRY_SIZE
    if page.level <= 2 and following % TABLE_SIZE:
        for (entry,) in struct.iter_unpack("<Q", read_physical(following, -following % TABLE_SIZE)):
            if not entry & PRESENT or not _is_leaf(entry, page.level):
                break
            if entry & ADDRESS & -page.size != page.frame_of(end):
                break
            end += page.size
    return page.frame_of(address), end - address


def mappings(read_physical: ReadPhysical, cr3: int, start: int, end: int, *, la57: bool = False) -> Iterator[Mapping]:
    """Yield the mappings in [start, end), ascending, in runs; pages that overlap the bounds are given whole.
    Each table is read in one go; tables that map nothing of the range are not read.
    """
    first: Mapping | None = None
    last: Mapping | None = None
    budget = Budget(MOST_PAGES, "the kernel's part of the page tables", "pages")
    for page in _pages(read_physical, cr3 & ADDRESS, 5 if la57 else 4, start, end):
        budget.spend()
        if last is None or not page.continues(last):
            if first is not None and last is not None:
                yield replace(first, size=last.end - first.address)
            first = page
        last = page
    if first is not None and last is not None:
        yield replace(first, size=last.end - first.address)


def _pages(
    read_physical: ReadPhysical,
    table: int,
    level: int,
    start: int,
    end: int,
    base: int = 0,
    rights: int = WRITABLE | USER,
    executable: bool = True,
    top: bool = True,
) -> Iterator[Mapping]:
    shift = _shift(level)
    for index, entry in enumerate(struct.unpack("<512Q", read_physical(table, TABLE_SIZE))):
        if not entry & PRESENT:
            continue
        address = base + (index << shift)
        if top and index & 0x100:
            address |= _MASK << (shift + 9) & _MASK
        if address >= end or address + (1 << shift) <= start:
            continue
        both, runs = rights & entry, executable and not entry & NO_EXECUTE
        if _is_leaf(entry, level):
            yield _leaf(address, entry, table + index * 8, level, both, runs)
        else:
            yield from _pages(read_physical, entry & ADDRESS, level - 1, start, end, address, both, runs, False)


def _shift(level: int) -> int:
    return 3 + 9 * level


def _is_leaf(entry: int, level: int) -> bool:
    return level == 1 or (level in (2, 3) and bool(entry & LARGE))


def _is_canonical(address: int, top: int) -> bool:
    sign = address >> (_shift(top) + 8)
    return sign in (0, _MASK >> (_shift(top) + 8))


def _leaf(address: int, entry: int, entry_address: int, level: int, rights: int, executable: bool) -> Mapping:
    size = 1 << _shift(level)
    return Mapping(
        address,
        entry & ADDRESS & ~(size - 1),  # bit 12 of a large page's entry is PAT
        size,
        bool(rights & WRITABLE),
        executable,
        bool(rights & USER),
        bool(entry & GLOBAL),
        entry_address,
        entry,
        level,
    )


def table_entry(physical: int) -> int:
    """Return an entry that points to a table, as Linux makes them for the kernel (_KERNPG_TABLE)."""
    return physical & ADDRESS | PRESENT | WRITABLE | ACCESSED | DIRTY


def page_entry(physical: int, writable: bool, executable: bool) -> int:
    """Return an entry for a kernel's 4 KiB page. Not global, so that any switch of CR3 forgets it.

    Accessed from the start; dirty only where writable: a clean writable entry makes the CPU write to it, and
    a dirty read-only one means a shadow stack to it (SDM volume 3, 4.6).
    """
    entry = physical & ADDRESS | PRESENT | ACCESSED
    if writable:
        entry |= WRITABLE | DIRTY
    return entry if executable else entry | NO_EXECUTE
