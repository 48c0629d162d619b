"""Memory for detours on ppc64le: gaps of the kernel's own image, which linker script and boot leave empty.

    _stext ───────── _etext ──────────────────────────────── __init_begin ─── … ── __stop___bug_table ── _edata
    │ text           │ rodata … │ gap: zero, executable      │ init, freed         │ gap: zero, writable │ .bss
                                 └ data ┘ └ code ┘                                  └ data ┘

Code: STRICT_KERNEL_RWX aligns what follows the constants to 16 MiB (vmlinux.lds.S, STRICT_ALIGN_SIZE), and until a
kernel takes the right to execute from its constants, the gap is mapped like text. Whether it is, the kernel's page
tables say; where they cannot be read (hash page tables are the hypervisor's), `kvm_tmp` serves: 64 KiB within .text
that only code of the boot uses (arch/powerpc/kernel/kvm.c), in a guest of a hypervisor without it never.
Data: a page of the same gap, or some where the gap is less than what one leaf maps (data_page.py). Where there are
none: the bug table is the last of the initialised data, and `. = ALIGN(PAGE_SIZE)` follows it; and arrays by CPU have
entries for more CPUs than a machine has (NR_CPUS is 2048).

All of it belongs to the image that memblock reserves at boot, from _stext to _end: only init memory is ever freed.
Memory is taken only if it is all zero, except for what an earlier session left. That is recognised by its detours,
which are never freed while a thread may be inside, and by the counters in them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import percpu, physical_patch
from gdb_optprobe.guest.linux.arch.base import Room
from gdb_optprobe.guest.linux.arch.ppc64le import data_page, derive, kernel_tree, radix, threads
from gdb_optprobe.guest.linux.arch.ppc64le.data_page import DataPage
from gdb_optprobe.guest.linux.arch.ppc64le.find import LINEAR_MAP
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.ppc64le.fields import opcode, ra, rb, rotated, rt, simm, xo

FILL = 0
CODE_SIZE = 1 << 21
"""At most; a multiple of it begins there, so that the page before it can be one of data."""
BEHIND = 1 << 16
"""Left free at the gap's end: a branch from the lowest text reaches 32 MiB less 4."""
PAGES = (1 << 16, 1 << 12)
TOC = 2
MAKES_TOC = ("schedule", "panic")
LINE = 128  # counters share no cache line with the guest's data
LEAST = 1 << 14
DATA_SHARE = 40
"""Percent of a gap that is smaller than a leaf."""
LEAST_PARTS = 1 << 19
JOURNAL, SMALL_JOURNAL = 1 << 18, 3 << 13
"""Bytes at the end of the code, in the image's gap and in `kvm_tmp`; see detours/journal.py."""
LDARX = 84
RLDICR = 4  # the bit in which sldi differs from rotldi
MASK = (1 << 64) - 1
ADVICE = "set optprobe arena code=START-END data=START-END"


class NoPadding(OptprobeError):
    """This kernel's image has no gap that could hold detours."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Memory for code, zero but for what an earlier session left at its start: `left`."""

    start: int
    end: int
    left: bytes


def find(machine: Machine, kernel: Kernel) -> Room:
    """Return the memory. Raises NoPadding."""
    root = kernel_tree.of(machine, kernel)
    gap, page = _gaps(machine, kernel, root)
    data = (page.start, page.end) if page is not None else _data(kernel)
    if data is None:
        raise NoPadding("this kernel's data have no gap", ADVICE)
    switch = page.switch if page is not None else ()

    def is_in_place() -> bool:
        return physical_patch.are_in_place(switch, machine)

    if not gap.left:
        end = gap.end - (JOURNAL if page is not None else SMALL_JOURNAL)
        fresh = _fresh(machine, kernel, (gap.start, end), data, page)
        return replace(fresh, is_in_place=is_in_place, mapping=switch, journal=(end, gap.end))
    theirs = (counter + 8 for counter in counters(gap.left, _toc(kernel)) if data[0] <= counter < data[1])
    # The words of programs' memory end in one that is not 0 (probes/handler.py); a count that is still 0 may be last.
    used = max((data[0] + -(-len(kernel.read(*data).rstrip(b"\0")) // 8) * 8, *theirs))
    free = gap.start + -(-len(gap.left) // LINE) * LINE
    if gap.end - free < LEAST or data[1] - used < LINE:
        raise NoPadding("earlier sessions have left no room for detours", ADVICE)
    return Room(((free, gap.end),), (used, data[1]), FILL, is_in_place=is_in_place)


def places(machine: Machine, kernel: Kernel) -> Iterator[Room]:
    """Yield every place where `find` may have found memory with a journal before, whatever it holds now."""
    root = kernel_tree.of(machine, kernel)
    start, end = _image_gap(kernel)
    if root is not None:
        was = data_page.was_split(start, end, machine.read_physical, root)
        if was is not None and was.end < end - JOURNAL:
            yield Room(((was.end, end - JOURNAL),), (was.start, was.end), FILL, journal=(end - JOURNAL, end))
        page = data_page.below(start, kernel.address("_etext"), machine.read_physical, root)
        if was is None and page is not None and _executable(machine, root, start, end):
            yield Room(((start, end - JOURNAL),), (page.start, page.end), FILL, journal=(end - JOURNAL, end))
    start, end = _template(kernel)
    data = _data(kernel)
    if end - start > SMALL_JOURNAL and data is not None:
        yield Room(((start, end - SMALL_JOURNAL),), data, FILL, journal=(end - SMALL_JOURNAL, end))


def _template(kernel: Kernel) -> tuple[int, int]:
    start, end = kernel.range("kvm_tmp", "kvm_template_end")
    return -(-start // LINE) * LINE, end & -LINE


def _image_gap(kernel: Kernel) -> tuple[int, int]:
    end = kernel.address("__init_begin") - BEHIND
    return (end - 1) & -CODE_SIZE, end


def _fresh(
    machine: Machine, kernel: Kernel, code: tuple[int, int], data: tuple[int, int], page: DataPage | None
) -> Room:
    """Return memory that no detour is in. A page that is data already may hold counters that no code uses now."""
    if page is None and not _is_zero(kernel, *data):
        raise NoPadding("what should be a gap of this kernel's image holds something", ADVICE)
    switch = page.switch if page is not None else ()

    def take() -> None:
        if page is not None and page.is_data and physical_patch.are_in_place(switch, machine):
            _clear(kernel, *data)
        else:
            physical_patch.apply(switch, machine)

    def give_back() -> None:
        _clear(kernel, *data)
        physical_patch.undo(switch, machine)

    return Room((code,), data, FILL, take, give_back)


def counters(code: bytes, toc: int | None = None) -> Iterator[int]:
    """Yield the counters of `code`, made of detours: see isa/ppc64le/writer.py, `count`. toc: r2 in the kernel."""
    known: dict[int, int] = {}
    for (word,) in struct.iter_unpack("<I", code[: len(code) & ~3]):
        match opcode(word):
            case 14 | 15 if not ra(word):  # li, lis
                known[rt(word)] = simm(word) << (16 if opcode(word) == 15 else 0)
            case 24 | 25 if ra(word) == rt(word) in known:  # ori, oris
                known[rt(word)] |= (word & 0xFFFF) << (16 if opcode(word) == 25 else 0)
            case 30 if ra(word) == rt(word) in known:  # sldi by 32, rotldi by 62
                known[rt(word)] = known[rt(word)] << 32 if word & RLDICR else rotated(known[rt(word)], 62)
            case 31 if xo(word) == LDARX and rb(word) in known and not ra(word):
                yield known[rb(word)] & MASK
            case 31 if xo(word) == LDARX and rb(word) in known and ra(word) == TOC and toc is not None:
                yield toc + known[rb(word)] & MASK


def _toc(kernel: Kernel) -> int | None:
    """Return r2 of the kernel's functions, as one of them sets it."""
    for name in MAKES_TOC:
        start = kernel.symbols.address(name)
        if start is not None:
            insns = PPC64LE.decode(kernel.read(start, start + 8), start)
            return PPC64LE.toc(start, {insn.address: insn for insn in insns})
    return None


def _page(machine: Machine, kernel: Kernel, root: int | None, code: int) -> DataPage | None:
    """Return memory for data below `code`, in the gap that is mapped like text; None for code elsewhere."""
    bottom, end = kernel.address("_etext"), kernel.address("__init_begin")
    if root is None or not bottom < code < end:
        return None
    page = data_page.below(code, bottom, machine.read_physical, root)
    # Memory between the page and the code must belong to the gap: below the gap are constants.
    if page is None or not _is_zero(kernel, page.end, code):
        return None
    return page if page.is_data or _is_zero(kernel, page.start, page.end) else None


def _gaps(machine: Machine, kernel: Kernel, root: int | None) -> tuple[Gap, DataPage | None]:
    """Return memory for code, and the page or pages beside it for data. Raises NoPadding."""
    start, end = _image_gap(kernel)
    if kernel.address("_etext") < start - LEAST and _executable(machine, root, start, end):
        gap = _gap(kernel, start, end)
        if gap is not None:
            return gap, _page(machine, kernel, root, gap.start)
    if root is not None and (found := _parts(machine, kernel, root, start, end)) is not None:
        return found
    start, end = _template(kernel)
    gap = _gap(kernel, start, end) if start else None
    if gap is None:
        raise NoPadding("this kernel's image has no gap that could hold detours", ADVICE)
    return gap, None


def _parts(machine: Machine, kernel: Kernel, root: int, start: int, end: int) -> tuple[Gap, DataPage] | None:
    """Return parts of the zero memory before `end` and behind constants, where that is smaller than a leaf."""
    size = page_size(kernel)
    page = data_page.was_split(start, end, machine.read_physical, root)
    if page is None:
        if not machine.translates_pages() or not _executable(machine, root, start, end + BEHIND):
            return None
        first = -(-(start + len(kernel.read(start, end + BEHIND).rstrip(b"\0"))) // size) * size
        middle = first + (end - first) * DATA_SHARE // 100 // size * size
        if not start <= first < middle < end - LEAST_PARTS:
            return None
        page = data_page.split(first, middle, end, size, machine.read_physical, root)
    gap = _gap(kernel, page.end, end) if page is not None else None
    return (gap, page) if gap is not None and page is not None else None


def _gap(kernel: Kernel, start: int, end: int) -> Gap | None:
    """Return the range if it is zero, or has detours in its first half alone; some of them may have been freed."""
    left = kernel.read(start, end).rstrip(bytes([FILL]))
    ours = len(left) <= (end - start) // 2 and next(counters(left, _toc(kernel)), None) is not None
    return Gap(start, end, left) if ours or not left else None


def _data(kernel: Kernel) -> tuple[int, int] | None:
    """Return the largest of the memory behind the initialised data, and behind the last CPU of arrays.
    The choice does not depend on what they hold now, so it is the same as long as the guest runs.
    """
    found = [(start, end) for start, end in (*_behind_data(kernel), *_behind_cpus(kernel)) if end - start >= LINE]
    return max(found, key=lambda each: each[1] - each[0], default=None)


def _behind_data(kernel: Kernel) -> Iterator[tuple[int, int]]:
    """Yield the memory behind the initialised data up to the page's end."""
    last = kernel.symbols.address("__stop___bug_table")
    if last is not None:
        size = page_size(kernel)
        yield -(-last // LINE) * LINE, -(-last // size) * size


def _behind_cpus(kernel: Kernel) -> Iterator[tuple[int, int]]:
    """Yield the unused part of arrays with a pointer for every CPU that a kernel is built for (NR_CPUS).
    The two arrays of interrupt stacks are adjacent and have the same size (kernel/irq.c).
    """
    try:
        layout = derive.derive(kernel)
        count = len(threads.cpus(kernel, layout))
    except OptprobeError:
        return
    low, high = sorted(layout.interrupt_stacks)
    size = high - low
    if size & size - 1 or not 8 * count < size <= 8 * percpu.MOST_CPUS:
        return
    for array in (low, high):
        start, end = -(-(array + 8 * count) // LINE) * LINE, (array + size) & -LINE
        yield start, end


def page_size(kernel: Kernel) -> int:
    """Return the kernel's page size: the linker aligns these symbols to pages.
    That all of them are multiples of a larger size by chance is very unlikely.
    """
    aligned = [kernel.address(name) for name in ("_etext", "_sinittext", "_einittext")]
    return next((size for size in PAGES if not any(address % size for address in aligned)), PAGES[-1])


def _clear(kernel: Kernel, start: int, end: int) -> None:
    """Zero the memory once nothing is in use: detours are wiped as they are freed, counters are not."""
    used = kernel.read(start, end).rstrip(b"\0")
    kernel.memory.write(start, bytes(len(used)))


def _is_zero(kernel: Kernel, start: int, end: int) -> bool:
    return not kernel.read(start, end).strip(b"\0")


def _executable(machine: Machine, root: int | None, start: int, end: int) -> bool:
    """Return whether the kernel's radix tree maps the range where the linear map has it, with the right to execute."""
    at = start
    while root is not None and at < end:
        page = radix.translate(machine.read_physical, root, at)
        if page is None or not page.executable or page.physical != page.address - LINEAR_MAP[0]:
            return False
        at = page.address + page.size
    return root is not None
