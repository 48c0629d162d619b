"""Find a running x86-64 kernel and its page tables, by a vCPU's control registers.

    CR3 ─► mappings of the kernel's image ─► text, rodata, data
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.errors import NotBooted, OptprobeError
from gdb_optprobe.guest import kernel_image
from gdb_optprobe.guest.kernel_image import Image, Run
from gdb_optprobe.guest.linux import boot
from gdb_optprobe.guest.linux.arch.x86_64 import paging
from gdb_optprobe.guest.linux.kernel_discovery import Read, View
from gdb_optprobe.guest.machine import Machine, physically
from gdb_optprobe.guest.symbols import SymbolTable

# __START_KERNEL_map up to the modules (arch/x86/include/asm/page_64_types.h).
IMAGE_AREA = (0xFFFF_FFFF_8000_0000, 0xFFFF_FFFF_C000_0000)
PAGING, PROTECTED = 1 << 31, 1 << 0
LONG_MODE_ACTIVE = 1 << 10
FIVE_LEVELS = 1 << 12
LARGEST_NOTES = 1 << 16

CONTROL = ("cr0", "cr3", "cr4", "efer")


@dataclass(frozen=True, slots=True)
class PageTables:
    """A `View` through page tables. root: the physical address of the top one."""

    machine: Machine
    root: int
    la57: bool

    def walk(self, address: int) -> tuple[int, int] | None:
        with physically(self.machine):
            return paging.walk(self.machine.read_physical, self.root, address, la57=self.la57)

    def now(self, address: int) -> int | None:
        for root in _roots(self.machine):
            with physically(self.machine):
                page = paging.translate(self.machine.read_physical, root, address, la57=self.la57)
            if page is not None:
                return page.frame_of(address)
        return None


def find(machine: Machine) -> tuple[Image, View] | None:
    """Return the kernel's image and the page tables that map it. A vCPU in user mode may have tables without the
    kernel. Until the kernel has booted its pages do not show where its text ends: that is known by its symbols.
    """
    control = machine.registers(machine.vcpus()[0], CONTROL)
    check_mode(control)
    la57 = bool(control["cr4"] & FIVE_LEVELS)
    failure: OptprobeError | None = None
    early: tuple[Image, View] | None = None
    for root in _roots(machine):
        try:
            runs = [
                Run(page.address, page.size, page.writable, page.executable)
                for page in paging.mappings(machine.read_physical, root, *IMAGE_AREA, la57=la57)
                if not page.user
            ]
            if runs:
                early = early or _unprotected(runs, PageTables(machine, root, la57))
                return kernel_image.find(_whole_text(runs)), PageTables(machine, root, la57)
        except OptprobeError as error:
            failure = error
    if early is not None:
        return early
    if failure is not None:
        raise failure
    return None


def complete(where: Image, view: View, symbols: SymbolTable) -> tuple[Image, View]:
    """Return the image with its text up to its end, by the kernel's own top page table, which no process frees.
    Data that an earlier session left inside the text (image_padding.py) have another protection. Raises NotBooted.
    """
    assert isinstance(view, PageTables)
    own = symbols.address("init_top_pgt") or symbols.address("swapper_pg_dir")
    page = view.walk(own) if own is not None else None
    if where.rodata == where.text:
        where = _by_symbols(where, view, symbols)
        if page is not None and replace(view, root=page[0]).walk(where.text.start) is None:
            page = None  # the kernel's own tables are not filled yet
    text, end = where.text, symbols.address("_etext") or 0
    where = replace(where, text=replace(text, size=max(text.size, end - text.start)))
    return where, replace(view, root=page[0]) if page is not None else view


def _unprotected(runs: Sequence[Run], view: PageTables) -> tuple[Image, View] | None:
    """Return the image of a kernel that has not protected its text yet: all that is mapped."""
    start, end = runs[0].start, runs[-1].end
    if not any(run.executable and run.writable for run in runs):
        return None
    everything = Run(start, end - start, writable=True, executable=True)
    return Image(everything, everything, everything), view


def _by_symbols(where: Image, view: PageTables, symbols: SymbolTable) -> Image:
    """Return the parts of an image that is not protected yet. Raises NotBooted where it never will be, or they are not
    known.
    """

    def read(address: int, size: int) -> bytes:
        page = view.walk(address)
        return view.machine.read_physical(page[0], size) if page is not None else b""

    text, constants, end = (symbols.address(name) for name in ("_etext", "__start_rodata", "__end_rodata"))
    if text is None or constants is None or end is None or boot.has_ended(symbols, read) is not False:
        raise NotBooted(kernel_image.UNPROTECTED)
    start, last = where.text.start, where.text.end
    return Image(
        Run(start, text - start, writable=False, executable=True),
        Run(constants, end - constants, writable=False, executable=False),
        Run(end, last - end, writable=True, executable=False),
    )


def notes(where: Image, symbols: SymbolTable, read: Read) -> tuple[int, int]:
    start, end = symbols.address("__start_notes"), symbols.address("__stop_notes")
    if start is None or end is None or not 0 < end - start <= LARGEST_NOTES:
        return where.rodata.start, where.rodata.end
    return start, end


def check_mode(control: Mapping[str, int]) -> None:
    """Raise NotBooted unless the CPU runs 64-bit code with paging."""
    if not control["cr0"] & PROTECTED or not control["efer"] & LONG_MODE_ACTIVE:
        raise NotBooted("the guest's CPU is not in 64-bit mode")
    if not control["cr0"] & PAGING:
        raise NotBooted("the guest has not switched paging on yet")


def _whole_text(runs: Sequence[Run]) -> Iterator[Run]:
    """Yield the runs, read-only ones within the text counted as text: an earlier session's data lie in its padding
    (image_padding.py).
    """
    known = list(kernel_image.merged(runs))
    for before, run, behind in zip([None, *known], known, [*known[1:], None], strict=False):
        hole = before is not None and behind is not None and before.end == run.start and run.end == behind.start
        if before is not None and behind is not None and hole and before.executable and behind.executable:
            run = replace(run, executable=run.executable or not run.writable)
        yield run


def _roots(machine: Machine) -> Iterator[int]:
    """Yield candidates: the kernel's half of each vCPU's pair of tables (page-table isolation), then CR3 itself."""
    vcpus = sorted(machine.vcpus(), key=lambda vcpu: vcpu != machine.selected())
    values = []
    for vcpu in vcpus:
        values.append(machine.registers(vcpu, ("cr3",))["cr3"])
        yield values[-1] & paging.ADDRESS
    for value in values:
        yield paging.kernel_cr3(value)
