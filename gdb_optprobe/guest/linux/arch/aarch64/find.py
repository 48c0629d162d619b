"""Find a running aarch64 kernel by a vCPU's TTBR1_EL1: its tables map the image anywhere in the upper half.

    _stext ────────── _etext ─────────────── __init_begin ──────── _data ──────────────── _end
    │ text: R X       │ rodata: R            │ freed, unmapped     │ data: RW             │
    └ multiples of 64 KiB each; nothing is mapped before _stext

With page-table isolation a vCPU that runs a program has tables with next to nothing of the kernel, 8 KiB before the
kernel's (vmlinux.lds.S, tramp_pg_dir). A candidate is taken if it maps an image: text, then constants, then data, all
at one distance from their physical addresses. The kernel's tables are never freed, so that the walk lasts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import kernel_image
from gdb_optprobe.guest.kernel_image import Image, Run
from gdb_optprobe.guest.linux.arch.aarch64 import paging
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


def find(machine: Machine) -> tuple[Image, View] | None:
    """Return the kernel's image and the page tables that map it; None where no vCPU has tables of a kernel.
    Raises NotBooted, AtEl2, Guarded.
    """
    failure: OptprobeError | None = None
    for view in _views(machine):
        try:
            if (image := _image(view)) is not None:
                return image, view
        except OptprobeError as error:
            failure = error
    if any(machine.registers(vcpu, (LEVEL,))[LEVEL] == HYPERVISOR for vcpu in machine.vcpus()):
        raise AtEl2("the guest's kernel runs at EL2, which is not supported", "boot it without virtualization=on")
    if failure is not None:
        raise failure
    return None


def complete(where: Image, view: View, symbols: SymbolTable) -> tuple[Image, View]:
    """Return both as they are: all is known without symbols."""
    return where, view


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

    Raises NotBooted where it is not protected yet, Guarded.
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
    return kernel_image.find(_runs(page for page in mapped if page.address - page.physical == slide))


def _runs(pages: Iterable[Page]) -> Iterator[Run]:
    """Yield runs of pages that have the same rights."""
    yield from kernel_image.merged(Run(page.address, page.size, page.writable, page.executable) for page in pages)
