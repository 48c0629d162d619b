"""Memory for detours in the padding of a kernel's text: nothing is allocated, the guest does not run.

The linker aligns the entry text to 2 MiB so that page-table isolation can map it alone, aligns thunks in it, and fills
what lies between with 0xCC (arch/x86/kernel/vmlinux.lds.S, ALIGN_ENTRY_TEXT_BEGIN). No code runs or reads that. A run
of filler is whole pages between two symbols of the text that hold nothing else; Debian has 2 to 4 MiB in 2 or 3 runs.

    … text │ 0xCC 0xCC …                                              │ text │ 0xCC 0xCC … │ text …
           │ code of detours │ journal │ tables │ frames of the data │      │ more code   │
           └─────────────────┴─────────┴────────┴────────────────────┘      └─────────────┘
             executable, read-only       │        │
      level3_kernel_pgt                  │        │      0xffffffff7fe00000, in the unused 2 GiB
      ┌───────────────┐    PMD table    PTE table │      below the kernel (Documentation/x86/x86_64/mm.rst)
      │ 509: ─────────┼──► 511: ───────► 0…n: ────┴──────► data: writable, not executable
      │ 510: kernel   │
      └──────┬────────┘
             └──► PMD of the filler: was one page of 2 MiB, is now a table of 512 entries that differ from it in one
                  bit: frames that became tables and data are not executable there any more (W^X)

All is written through physical memory with every vCPU stopped. A table is complete and has been read back before the
one entry of 8 bytes that leads to it is written. That needs no TLB flush: x86 caches no translation that is not
present, and the split entry translates every address as the large page did; a stale executable entry for a frame of
data has no effect, as nothing jumps there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.x86_64.paging import (
    ACCESSED,
    ADDRESS,
    LARGE,
    NO_EXECUTE,
    Mapping,
    kernel_cr3,
    page_entry,
    table_entry,
    translate,
)
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.physical_patch import PhysicalPatch
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.memory import MUCH
from gdb_optprobe.guest.runs import image

FILL = 0xCC
PAGE = 4096
STRIDE = LEAST = 4 * PAGE
"""Bytes of the smallest run that is looked for: one that holds a multiple of it."""
LARGE_PAGE = 1 << 21
ENTRIES = 512
DATA_AT = 0xFFFFFFFF7FE00000
"""Where the data appears: a whole PMD entry's worth, within 2 GiB of every address of kernel and modules."""
CODE_PAGES = 256
"""At most, of all runs together."""
SIZES = ((192, 64), (152, 64), (96, 32), (48, 16), (16, 8))
"""Pages of data and of the journal (detours/journal.py), the largest that fit. Another GDB looks where each would
be: no half of a journal begins where one of another size's does."""
COUNT = re.compile(rb"\xf0\x48\xff\x05(.{4})", re.DOTALL)  # lock incq disp32(%rip), as isa/x86_64/writer.py has it
TABLES = 3
# The second is a table's bound, which kernels without KALLSYMS_ALL have a symbol of too.
DATA = ("init_task", "__start___bug_table")
LA57, NXE = 1 << 12, 1 << 11
PAT_SMALL, PAT_LARGE = 1 << 7, 1 << 12

ADVICE = "set optprobe arena code=START-END data=START-END"

ReadPhysical = Callable[[int, int], bytes]
Range = tuple[int, int]
Sizes = Sequence[tuple[int, int]]


class NoPadding(OptprobeError):
    """This kernel's text has no filler that can be used."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The kernel's page tables: `roots` (kernel's first, then the user's copy under isolation) and their kind."""

    roots: tuple[int, ...]
    la57: bool
    no_execute: bool


@dataclass(frozen=True, slots=True)
class ImagePadding:
    """What is used for what: virtual ranges (start, end); `tables` are page addresses within the text.

    data_used: bytes at the start of the data that belong to an earlier session. journal: behind the code.
    """

    code: tuple[Range, ...]
    tables: tuple[int, ...]
    frames: Range
    data_used: int = 0
    journal: Range = (0, 0)

    @property
    def data(self) -> Range:
        return DATA_AT + self.data_used, DATA_AT + self.data_used + self.frames[1] - self.frames[0]


def find(kernel: Kernel, sizes: Sizes = SIZES, code_pages: int = CODE_PAGES) -> ImagePadding:
    """Return padding for an arena. Raises NoPadding.
    Tables and frames are checked to the last byte here, each piece of code memory when it is handed out.
    """
    runs = [run for span in spans(kernel) if (run := _filled(kernel, span)) is not None]
    pages = sum((end - start) // PAGE for start, end in runs)
    for data, journal in sizes:
        # As much code as data and journal together, in whatever runs.
        if pages - TABLES < 2 * (data + journal):
            continue
        for run in runs:
            home = _home(run, data, journal)
            if home is None or kernel.read(home.tables[-1], home.frames[1]).strip(bytes([FILL])):
                continue
            return replace(home, code=_capped(_code(runs, run, home.journal[0]), code_pages))
    data, journal = sizes[-1]
    raise NoPadding(
        f"this kernel's text has {pages * PAGE >> 10} KiB of filler in whole pages, in {len(runs)} runs, and "
        f"{(2 * (data + journal) + TABLES) * PAGE >> 10} KiB are needed, {(data + journal + TABLES) * PAGE >> 10} of "
        "them in one run",
        ADVICE,
    )


def left_behind(
    kernel: Kernel, tables: Tables, read_physical: ReadPhysical, sizes: Sizes = SIZES
) -> ImagePadding | None:
    """Return what is free of an arena that an earlier session left mapped with its probes in it; None without one.
    Free are the code behind the last byte of each run that is not fill, and the data behind the last byte that is not
    fill
    and the last counter.
    """
    mapped = translate(read_physical, tables.roots[0], DATA_AT, la57=tables.la57)
    if mapped is None or not mapped.writable or mapped.executable:
        return None
    for found in places(kernel, sizes):
        first = found.frames[0]
        if _physical([first], tables, read_physical)[first] != mapped.frame_of(DATA_AT):
            continue
        free: list[Range] = []
        counters: list[int] = []
        has_code = False
        for start, end in found.code:
            used = kernel.read(start, end).rstrip(bytes([FILL]))
            has_code |= bool(used)
            counters += [start + at.end() + int.from_bytes(at[1], "little", signed=True) for at in COUNT.finditer(used)]
            free.append((-(-(start + len(used)) // PAGE) * PAGE, end))
        # A detour may count in memory that the user named instead: such counters are elsewhere.
        ours = (counter + 8 - DATA_AT for counter in counters if DATA_AT <= counter < found.data[1])
        # Not all data are counters, but a piece is written whole when it is taken. Without code none is in use.
        written = kernel.read(*found.frames).rstrip(bytes([FILL])) if has_code else b""
        beyond = max((-(-len(written) // 8) * 8, *ours))
        if DATA_AT <= DATA_AT + beyond < found.data[1]:
            code = tuple(each for each in free if each[0] < each[1])
            return replace(found, code=code, frames=(found.frames[0] + beyond, found.frames[1]), data_used=beyond)
    return None


def places(kernel: Kernel, sizes: Sizes = SIZES) -> Iterator[ImagePadding]:
    """Yield where an arena may be, whatever is there now; `code` is where its code may be, with what else is there."""
    around = spans(kernel)
    for data, journal in sizes:
        for span in around:
            home = _home(span, data, journal)
            if home is not None:
                yield replace(home, code=tuple(_code(around, span, home.journal[0])))


def as_found(kernel: Kernel, code: Sequence[Range]) -> tuple[Range, ...]:
    """Return the part of the code ranges of `places` that `find` would take if they held no detours."""
    return _capped((run for span in code if (run := _filled(kernel, span)) is not None), CODE_PAGES)


def _home(run: Range, data: int, journal: int) -> ImagePadding | None:
    """Return the ImagePadding with tables, data and journal at the end of `run`; None where the run is too short.
    data, journal: in pages.
    """
    # One large page holds all of them, so that one is split.
    start, end = max(run[0], (run[1] - 1) // LARGE_PAGE * LARGE_PAGE), run[1]
    if (end - start) // PAGE < TABLES + data + journal:
        return None
    frames = end - data * PAGE
    tables = tuple(frames - (n + 1) * PAGE for n in range(TABLES))
    return ImagePadding((), tables, (frames, end), journal=(tables[-1] - journal * PAGE, tables[-1]))


def _code(runs: Sequence[Range], home: Range, end: int) -> Iterator[Range]:
    """Yield what is left for code: `home` up to `end`, then the other runs."""
    if home[0] < end:
        yield home[0], end
    yield from (run for run in runs if run != home)


def _capped(ranges: Iterable[Range], pages: int) -> tuple[Range, ...]:
    """Return `pages` pages at most, from the end of each range."""
    found: list[Range] = []
    for start, end in ranges:
        taken = min((end - start) // PAGE, pages)
        if taken > 0:
            found.append((end - taken * PAGE, end))
            pages -= taken
    return tuple(found)


def spans(kernel: Kernel) -> list[Range]:
    """Return the whole pages of the text that no symbol is in, ascending. The code of the symbol before may reach into
    them.
    """
    found: list[Range] = []
    begin, end = kernel.range("_stext", "_etext")
    for at in range(-(-begin // STRIDE) * STRIDE, end, STRIDE):
        located = kernel.symbols.at(at)
        if located is None or (found and at < found[-1][1]):
            continue
        # A symbol's size reaches to the next one: its own code comes first, the rest is what lies between.
        symbol = at - located.offset
        first, last = -(-(symbol + 1) // PAGE) * PAGE, min(symbol + located.size, end) // PAGE * PAGE
        if last - first >= LEAST:
            found.append((first, last))
    return found


def _filled(kernel: Kernel, span: Range) -> Range | None:
    """Return the end of `span` from its first byte of padding on; None where it has none.
    It is found by bisection, as code comes before padding; what lies between is compared when it is handed out.
    """
    start, end = span
    filled = bytes([FILL]) * PAGE
    memory = (image(start, end, kernel.memory) if end - start >= MUCH else None) or kernel.memory
    low, high = 0, (end - start) // PAGE
    while low < high:
        # Of the pages from `high` on, those looked at are filler; begin with the last one.
        page = high - 1 if high == (end - start) // PAGE else (low + high) // 2
        if memory.read(start + page * PAGE, PAGE) == filled:
            high = page
        else:
            low = page + 1
    return (start + high * PAGE, end) if start + high * PAGE < end else None


def page_tables(machine: Machine, kernel: Kernel) -> Tables:
    """Return the kernel's own page tables, whatever the vCPUs are doing. Raises OptprobeError."""
    data = _data(kernel)
    isolation = kernel.symbols.address("pti_finalize") is not None
    for vcpu in machine.vcpus():
        registers = machine.registers(vcpu, ("cr3", "cr4", "efer"))
        la57, no_execute = bool(registers["cr4"] & LA57), bool(registers["efer"] & NXE)
        candidates = [registers["cr3"] & ADDRESS] + ([kernel_cr3(registers["cr3"])] if isolation else [])
        for root in candidates:
            if translate(machine.read_physical, root, data, la57=la57) is None:
                continue
            return Tables((root, *_users_copy(machine, kernel, root, la57, isolation)), la57, no_execute)
    raise NoPadding("no vCPU's page tables map the kernel")


def _data(kernel: Kernel) -> int:
    """Return the start of the kernel's data, which the user's page tables never map. Raises OptprobeError."""
    found = (kernel.symbols.address(name) for name in DATA)
    return next((at for at in found if at is not None), None) or kernel.address(DATA[0])


def _users_copy(machine: Machine, kernel: Kernel, root: int, la57: bool, isolation: bool) -> tuple[int, ...]:
    """Return the user's top table if page-table isolation is on (arch/x86/mm/pti.c: the page behind swapper's own).

    Without global pages to share, pti_clone_kernel_text copies the large pages of all text there.
    """
    top = kernel.symbols.address("init_top_pgt") if isolation else None
    own = translate(machine.read_physical, root, top, la57=la57) if top is not None else None
    if top is None or own is None:
        return ()
    user = own.frame_of(top) + PAGE
    entry = kernel.symbols.address("__entry_text_start")
    mapped = entry is not None and translate(machine.read_physical, user, entry, la57=la57) is not None
    return (user,) if mapped else ()


def plan_mapping(filler: ImagePadding, tables: Tables, read_physical: ReadPhysical) -> tuple[PhysicalPatch, ...]:
    """Return all writes, in order, that map the data of `filler`. Raises NoPadding."""
    never = NO_EXECUTE if tables.no_execute else 0
    frames = tuple(range(*filler.frames, PAGE))
    physical = _physical((*filler.tables, *frames), tables, read_physical)
    split, middle, last = (physical[page] for page in filler.tables)
    filled = bytes([FILL]) * PAGE
    # A piece is written whole when it is taken, so the frames need not be cleared.
    data = [PhysicalPatch(physical[page], filled, filled, changes=True) for page in frames]
    entries = [page_entry(physical[page], writable=True, executable=not never) for page in frames]
    hole = unused(tables, read_physical)
    return (
        *data,
        PhysicalPatch(last, filled, table_of(dict(enumerate(entries)))),
        *middle_table(middle, last),
        *_no_execute(filler, tables, read_physical, split, never),
        PhysicalPatch(hole, bytes(8), table_entry(middle).to_bytes(8, "little")),
    )


def middle_table(middle: int, last: int) -> tuple[PhysicalPatch, PhysicalPatch]:
    """Return the writes that make `middle` the table with one entry, the last, which leads to `last`.

    The others may change while the arena is there: see data_window.py.
    """
    at = (DATA_AT >> 21 & ENTRIES - 1) * 8
    assert at + 8 == PAGE
    entry = PhysicalPatch(middle + at, bytes([FILL]) * 8, _word(table_entry(last)))
    return PhysicalPatch(middle, bytes([FILL]) * at, bytes(at), changes=True), entry


def unused(tables: Tables, read_physical: ReadPhysical) -> int:
    """Return the physical address of the level-3 entry that covers DATA_AT; it must be zero."""
    table = tables.roots[0]
    for shift in (48, 39) if tables.la57 else (39,):
        entry = int.from_bytes(read_physical(table + (DATA_AT >> shift & 0x1FF) * 8, 8), "little")
        if not entry & 1:
            raise NoPadding("the kernel's page tables are not what they should be")
        table = entry & ADDRESS
    at = table + (DATA_AT >> 30 & 0x1FF) * 8
    if any(read_physical(at, 8)):
        raise NoPadding(f"something is mapped at {DATA_AT:#x} already", ADVICE)
    return at


def _no_execute(
    filler: ImagePadding, tables: Tables, read_physical: ReadPhysical, split: int, never: int
) -> Iterator[PhysicalPatch]:
    """Yield the writes that make the frames of data and tables not executable, wherever the text is mapped."""
    pages = (*filler.tables, *range(*filler.frames, PAGE))
    leaves = [
        (page, leaf)
        for root in tables.roots
        for page, leaf in _leaves(pages, root, tables, read_physical)
        if leaf is not None
    ]
    if not never:
        return
    done: set[int] = set()
    filled = bytes([FILL]) * PAGE
    table: PhysicalPatch | None = None
    for entry_address, group in groupby(sorted(leaves, key=lambda x: x[1].entry_address), lambda x: x[1].entry_address):
        members = list(group)
        leaf = members[0][1]
        if entry_address in done:
            continue
        done.add(entry_address)
        if leaf.level == 1:
            yield PhysicalPatch(entry_address, _word(leaf.entry), _word(leaf.entry | never))
            continue
        new = table_of(_split(leaf, {page for page, _ in members}, never))
        if table is None:
            table = PhysicalPatch(split, filled, new)
            yield table
        elif table.new != new:
            raise NoPadding("the user's copy of the page tables maps the text with other attributes")
        yield PhysicalPatch(entry_address, _word(leaf.entry), _word(table_entry(split) | leaf.entry & NO_EXECUTE))


def _split(leaf: Mapping, pages: set[int], never: int) -> dict[int, int]:
    """Return the 512 small entries that replace a large page's: the same attributes, with the PAT bit moved.
    (SDM volume 3, 4.5)
    """
    if leaf.level != 2:
        raise NoPadding("the kernel's text is mapped by a page of 1 GiB")
    attributes = (leaf.entry & ~ADDRESS & ~LARGE) | ACCESSED
    if leaf.entry & PAT_LARGE:
        attributes |= PAT_SMALL
    return {
        n: leaf.physical + n * PAGE | attributes | (never if leaf.address + n * PAGE in pages else 0)
        for n in range(ENTRIES)
    }


def _physical(pages: Iterable[int], tables: Tables, read_physical: ReadPhysical) -> dict[int, int]:
    """Return the frame of each page. Raises NoPadding."""
    found: dict[int, int] = {}
    for page, leaf in _leaves(pages, tables.roots[0], tables, read_physical):
        if leaf is None:
            raise NoPadding(f"the kernel's text at {page:#x} is not mapped")
        found[page] = leaf.frame_of(page)
    return found


def _leaves(
    pages: Iterable[int], root: int, tables: Tables, read_physical: ReadPhysical
) -> Iterator[tuple[int, Mapping | None]]:
    """Yield each page with what maps it: a large page, for the most part, the same as the page before."""
    leaf: Mapping | None = None
    for page in pages:
        if leaf is None or not leaf.address <= page < leaf.end:
            leaf = translate(read_physical, root, page, la57=tables.la57)
        yield page, leaf


def table_of(entries: dict[int, int]) -> bytes:
    return b"".join(_word(entries.get(n, 0)) for n in range(ENTRIES))


def _word(value: int) -> bytes:
    return value.to_bytes(8, "little")
