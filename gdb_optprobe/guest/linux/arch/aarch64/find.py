"""Find a running aarch64 kernel by a vCPU's TTBR1_EL1: its tables map the image anywhere in the upper half.

    _stext ────────── _etext ─────────────── __init_begin ──────── _data ──────────────── _end
    │ text: R X       │ rodata: R            │ freed, unmapped     │ data: RW             │
    └ multiples of 64 KiB each; nothing is mapped before _stext

Before the kernel has booted its constants can be written to, at first its text too: the parts are known by symbols
then. With page-table isolation a vCPU that runs a program has tables with next to nothing of the kernel, 8 KiB before
the kernel's (vmlinux.lds.S, tramp_pg_dir). A candidate is taken if it maps an image: text, then constants, then data,
all at one distance from their physical addresses. The kernel's tables are never freed, so that the walk lasts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gdb_optprobe.errors import NotBooted, OptprobeError, Unreadable
from gdb_optprobe.guest import kernel_image
from gdb_optprobe.guest.kernel_image import Image, Run
from gdb_optprobe.guest.linux import boot
from gdb_optprobe.guest.linux.arch.aarch64 import paging
from gdb_optprobe.guest.linux.arch.aarch64.names import KernelNames
from gdb_optprobe.guest.linux.arch.aarch64.paging import Page, Regime
from gdb_optprobe.guest.linux.kernel_discovery import Read, View
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.symbols import SymbolTable

TABLES = ("TTBR1_EL1", "TCR_EL1")
ISOLATED = 1 << 13
"""Bytes from the tables of programs to the kernel's: `. += PAGE_SIZE` for tramp_pg_dir and reserved_pg_dir."""
LEVEL, HYPERVISOR = "el", 2
LARGEST_IMAGE = 1 << 27
LEAST_TEXT = 1 << 20
FIRST_READS = ((0xFFFF_FBFF_FDC0_0000, 8), (0xFFFF_FFFF_FF5F_E000, 8))
"""Where the kernel maps the tree of devices, the first that it reads (asm/fixmap.h, FIX_FDT): with addresses of 48 bits
before 6.9, and any since. A boot loader may have put the tree elsewhere in its 2 MiB: probes do not wait then.
"""
HEAD, HEADER, MAGIC = 1 << 16, 0x38, b"ARM\x64"
"""Bytes before the text, in which nothing is but the image's header, and where that has its magic number."""
GUARDED = 1 << 50
"""Of an entry: indirect branches to its page must find landing pads (DDI 0487, GP)."""


class AtEl2(OptprobeError):
    """The kernel is its own hypervisor (VHE): its page tables are those of EL2."""


class Guarded(OptprobeError):
    """A branch in place of a landing pad ends the kernel, and `paciasp` at a function's beginning is one."""


@dataclass(frozen=True, slots=True)
class PageTables:
    """A `View` through the kernel's page tables. root: the physical address of the first one."""

    machine: Machine
    regime: Regime
    root: int

    def page(self, address: int) -> Page | None:
        """Return the page that maps `address` now."""
        return paging.translate(self.machine.read_physical, self.regime, self.root, address)

    def walk(self, address: int) -> tuple[int, int] | None:
        return paging.walk(self.machine.read_physical, self.regime, self.root, address)

    def now(self, address: int) -> int | None:
        for view in _views(self.machine):
            if (found := view.walk(address)) is not None:
                return found[0]
        return None


@dataclass(frozen=True, slots=True)
class _Mapped:
    """Memory as page tables map it. Raises Unreadable."""

    view: PageTables

    def read(self, address: int, size: int) -> bytes:
        data = b""
        while len(data) < size:
            found = self.view.walk(address + len(data))
            if found is None:
                raise Unreadable(address, size)
            data += self.view.machine.read_physical(found[0], min(found[1], size - len(data)))
        return data

    def write(self, address: int, data: bytes) -> None:
        raise Unreadable(address, len(data))


def find(machine: Machine) -> tuple[Image, View] | None:
    """Return the kernel's image and the page tables that map it; None where no vCPU has tables of a kernel.
    Raises AtEl2, Guarded, NotBooted.
    """
    failure: OptprobeError | None = None
    early: tuple[Image, View] | None = None
    for view in _views(machine):
        try:
            if (image := _image(view)) is not None:
                if not is_early(image):
                    return image, view
                early = early or (image, view)
        except OptprobeError as error:
            failure = error
    if any(machine.registers(vcpu, (LEVEL,))[LEVEL] == HYPERVISOR for vcpu in machine.vcpus()):
        raise AtEl2("the guest's kernel runs at EL2, which is not supported", "boot it without virtualization=on")
    if early is not None:
        return early
    if failure is not None:
        raise failure
    return None


def is_early(image: Image) -> bool:
    """Return whether it is that of a kernel of which the constants are not protected: all of it, in one piece."""
    return image.rodata == image.text


def complete(where: Image, view: View, symbols: SymbolTable) -> tuple[Image, View]:
    """Return both, the image with its parts where it is not protected yet. Raises NotBooted where it never will be, or
    they are not known.
    """
    if not is_early(where):
        return where, view
    symbols.text = ((where.text.start, where.text.end),)
    assert isinstance(view, PageTables)
    memory = _Mapped(view)
    parts = [symbols.address(name) for name in ("_stext", "_etext", "_sinittext", "_einittext")]
    start, end, init, init_end = (at or 0 for at in parts)
    is_known = where.text.start == start < end < init <= init_end < where.text.end
    if not is_known or boot.has_ended(KernelNames(symbols, memory), memory.read) is not False:
        raise NotBooted(kernel_image.UNPROTECTED)
    constants, data = Run(end, (init & -HEAD) - end, False, False), init_end + HEAD - 1 & -HEAD
    text = Run(start, end - start, writable=False, executable=True)
    return Image(text, constants, Run(data, where.text.end - data, writable=True, executable=False)), view


def notes(where: Image, symbols: SymbolTable, read: Read) -> tuple[int, int]:
    """Return the read-only data: kallsyms has no names for ELF notes."""
    return where.rodata.start, where.rodata.end


def _views(machine: Machine) -> Iterator[PageTables]:
    """Yield candidates: each vCPU's tables, the selected one's first, then those that isolation has beside them."""
    vcpus = sorted(machine.vcpus(), key=lambda vcpu: vcpu != machine.selected())
    seen: dict[PageTables, None] = {}
    for vcpu in vcpus:
        values = machine.registers(vcpu, TABLES)
        regime = Regime.of(values["TCR_EL1"])
        if regime is not None and (root := regime.root(values["TTBR1_EL1"])):
            seen[PageTables(machine, regime, root)] = None
    yield from seen
    yield from (PageTables(machine, view.regime, view.root + ISOLATED) for view in seen)


def _image(view: PageTables) -> Image | None:
    """Return the image; None where the tables map no large code.

    Raises Guarded.
    """
    read, regime = view.machine.read_physical, view.regime
    # Below the middle is the linear map, where nothing is executable.
    middle = regime.start + (1 << regime.bits - 1)
    code = _runs(paging.pages(read, regime, view.root, middle, 1 << 64, without=paging.NO_EXECUTE))
    large = [run for run in code if run.executable and run.size >= LEAST_TEXT]
    if not large:
        return None
    text = max(large, key=lambda run: run.size)
    mapped = list(paging.pages(read, regime, view.root, text.start, text.start + LARGEST_IMAGE))
    if mapped[0].entry & GUARDED:
        reason = "the CPUs check indirect branches of the guest's kernel (CONFIG_ARM64_BTI_KERNEL): it is not supported"
        raise Guarded(reason, "boot it on a CPU without BTI, neoverse-n1 say")
    slide = mapped[0].address - mapped[0].physical
    runs = [*_runs(page for page in mapped if page.address - page.physical == slide)]
    try:
        return kernel_image.find(runs)
    except NotBooted:
        return _early(view, text, runs[-1].end)


def _early(view: PageTables, text: Run, end: int) -> Image:
    """Return the image of a kernel that has not protected its constants yet. Raises NotBooted."""
    start = text.start
    if text.writable:
        # The image is mapped in one piece, from its header on.
        header = view.walk(start)
        if header is None or view.machine.read_physical(header[0] + HEADER, len(MAGIC)) != MAGIC:
            raise NotBooted(kernel_image.UNPROTECTED)
        start += HEAD
    everything = Run(start, end - start, writable=True, executable=True)
    return Image(everything, everything, everything)


def _runs(pages: Iterable[Page]) -> Iterator[Run]:
    """Yield runs of pages that have the same rights."""
    yield from kernel_image.merged(Run(page.address, page.size, page.writable, page.executable) for page in pages)
