"""Memory that the guest's kernel lends near its image: areas of `vmalloc`, for data or for code.

    text … its tail │ … data │ _end, 2 MiB │ code: 64 MiB, in reach of all text │ data: 1 GiB │
                                             ┌ code of one area ─────┬ journal ┐
A branch reaches 128 MiB, and an address by page and offset 4 GiB: the linear map is too far away. An area is mapped by
the kernel itself, page by page: data as threads' stacks are, writable and not executable. Of code the kernel makes the
pages read-only, those of the linear map too (rodata=full), and then executable; given back, in the reverse order. So no
page table is written from outside, and no mapping is writable and executable. A kernel that leaves the linear map
writable is not asked for code. Where code of modules is out of reach of all this, an area near them serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdb_optprobe.guest.linux import gfp
from gdb_optprobe.guest.linux.arch.aarch64 import find as finding
from gdb_optprobe.guest.linux.arch.aarch64 import paging
from gdb_optprobe.guest.linux.arch.aarch64 import reads as reading
from gdb_optprobe.guest.linux.arch.aarch64.find import PageTables
from gdb_optprobe.guest.linux.arch.aarch64.names import KernelNames
from gdb_optprobe.guest.linux.arch.aarch64.paging import CONTIGUOUS
from gdb_optprobe.guest.linux.arch.aarch64.probe_read import Linear
from gdb_optprobe.guest.linux.arch.aarch64.text import MODULES
from gdb_optprobe.guest.linux.arch.aarch64.user_kernel import VCPUS
from gdb_optprobe.guest.linux.arch.base import NOWHERE, Call
from gdb_optprobe.guest.linux.in_place import InPlace, NoWindow
from gdb_optprobe.guest.linux.kernel import MASK, Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.user.vcpus import Vcpus
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.memory import by_page
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.aarch64.calling import CALLING
from gdb_optprobe.isa.calling import Calling

PAGE = 1 << 12
BLOCK = 1 << 21
CODE_ROOM, DATA_ROOM = 1 << 26, 1 << 30
MARGIN = 1 << 16
"""Bytes by which code is nearer than a branch reaches."""
WHOLE = 9
"""The order of 2 MiB."""
DATA_ORDERS, CODE_ORDERS = range(12, 4, -1), range(11, 5, -1)
JOURNAL = 1 << 18
PLACES = 16
"""Areas that are asked for at once, at most."""
ALLOCATES = ("__vmalloc_node_range", "__vmalloc_node_range_noprof")
PARAMETERS = ("size", "align", "start", "end", "gfp_mask", "prot", "vm_flags", "node", "caller")
FREES = "vfree"
PROTECTS, UNPROTECTS = ("set_memory_ro", "set_memory_x"), ("set_memory_nx", "set_memory_rw")
ADDRESS = (1 << 48) - PAGE
HIGH_ADDRESS = 3 << 8
"""Bits of an entry that are of the physical address; the second ones with TCR_EL1.DS."""

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Vmalloc:
    """See guest.linux.arch.base.Allocator. flags: for the page allocator. rights: of an entry, as data have them."""

    kernel: Kernel
    function: int
    flags: int
    rights: int
    window: NearWindow

    def allocate(self, order: int, low: int, high: int) -> Call:
        start, end = self.window.inside(low, high)
        return Call(self.function, (PAGE << order, PAGE, start, end, self.flags, self.rights, 0, MASK, 0))

    def free(self, order: int) -> Call:
        return Call(self.kernel.address(FREES))


@dataclass(frozen=True, slots=True)
class NearWindow(InPlace):
    """See guest.linux.arch.base.Window. own: where areas are, but those near modules."""

    machine: Machine
    kernel: Kernel
    view: PageTables
    linear: Linear
    is_code: bool
    own: Range
    calling: Calling = CALLING
    vcpus: Vcpus = VCPUS
    flushes: str = ""
    whole: int = WHOLE

    @property
    def range(self) -> Range:
        return self.own if self.is_code else (0, 0)

    @property
    def orders(self) -> Sequence[int]:
        return CODE_ORDERS if self.is_code else DATA_ORDERS

    @property
    def allocator(self) -> Vmalloc:
        kernel = self.kernel
        function = kernel.one_of(ALLOCATES)
        types = kernel.symbols.types if isinstance(kernel.symbols, KernelNames) else None
        described = [types.btf.function(name) for name in ALLOCATES] if types is not None else []
        if not any(one is not None and tuple(each.name for each in one.parameters) == PARAMETERS for one in described):
            raise NoSuchKernel(f"{ALLOCATES[0]} of this kernel takes other arguments than known ones")
        for name in (*PROTECTS, *UNPROTECTS, FREES):
            kernel.address(name)
        return Vmalloc(kernel, function, gfp.may_sleep(kernel), self._rights(), self)

    def _rights(self) -> int:
        """Return an entry's bits but for the address, as the kernel maps a thread's stack. Raises OptprobeError."""
        kernel = self.kernel
        thread = kernel.word(kernel.address("init_task") + kernel.offset("task_struct", "tasks"))
        stack = kernel.word(thread - kernel.offset("task_struct", "tasks") + kernel.offset("task_struct", "stack"))
        page = self.view.page(stack)
        if page is None or page.size != PAGE or not page.writable or page.executable or self.linear.has(stack):
            raise NoSuchKernel("this kernel has threads' stacks in no areas of their own (CONFIG_VMAP_STACK)")
        wide = HIGH_ADDRESS if self.view.regime.wide else 0
        return page.entry & ~(ADDRESS | wide | CONTIGUOUS)

    # places --------------------------------------------------------------------------------------------------------

    def size(self, order: int) -> int:
        return (PAGE << order) - (JOURNAL if self.is_code and order >= WHOLE else 0)

    def journal(self, place: int, order: int) -> Range:
        return place + self.size(order), place + (PAGE << order)

    def inside(self, low: int, high: int) -> Range:
        least = PAGE << self.orders[-1]
        start, end = max(low, self.own[0]), min(high, self.own[1])
        if end - start < least:
            # In the middle of what is in reach, so that it serves modules to either side.
            aside = high - low >> 2
            start, end = max(low + aside, MODULES[0]), min(high - aside, MODULES[1])
        start, end = start + PAGE - 1 & -PAGE, end & -PAGE
        return (start, end) if end - start >= least else (0, 0)

    def places(self, low: int, high: int) -> Sequence[int]:
        start, end = self.inside(low, high)
        return (NOWHERE,) * PLACES if start < end else ()

    def is_place(self, place: int, order: int) -> bool:
        return place == NOWHERE or (MODULES[0] <= place < MODULES[1] and not place % PAGE)

    # used ----------------------------------------------------------------------------------------------------------

    def protects(self, order: int, block: int) -> Sequence[Call]:
        return self._calls(PROTECTS, order, block)

    def unprotects(self, order: int, block: int) -> Sequence[Call]:
        return self._calls(UNPROTECTS, order, block)

    def _calls(self, names: Sequence[str], order: int, block: int) -> Sequence[Call]:
        if not self.is_code:
            return ()
        return [Call(self.kernel.address(name), (block, 1 << order)) for name in names]

    def map(self, place: int, order: int, block: int) -> int:
        if place != NOWHERE:
            raise NoWindow(f"what the kernel lent at {place:#x} is in use already")
        frames = self._check(order, block)
        for at in (block, block + (PAGE << order) - 8):
            word = (at ^ 0x5A5A_5A5A_5A5A_5A5A).to_bytes(8, "little")
            frame = frames[at - block >> 12] + at % PAGE
            for held in (word, bytes(8)):
                self.machine.write_physical(frame, held)
                if self.kernel.memory.read(at, 8) != held:
                    raise NoWindow(f"memory at {at:#x} is not what the kernel lent")
        return block

    def _check(self, order: int, block: int) -> Sequence[int]:
        """Return the physical addresses of an area's pages. Raises NoWindow where they have not the rights they should.
        """
        if not self.is_place(block, order) or self.linear.has(block):
            raise NoWindow(f"the kernel lent no area at {block:#x}")
        view, read = self.view, by_page(self.machine.read_physical)
        rights = not self.is_code, self.is_code
        frames = []
        for at in range(block, block + (PAGE << order), PAGE):
            page = paging.translate(read, view.regime, view.root, at)
            if page is None or (page.writable, page.executable) != rights:
                raise NoWindow(f"the kernel has not mapped {at:#x} as was asked for")
            frames.append(page.physical + at - page.address)
            alias = paging.translate(read, view.regime, view.root, self.linear.at(frames[-1])) if self.is_code else None
            if alias is not None and (alias.writable or alias.executable):
                raise NoWindow("the kernel leaves memory for code writable in its linear map (rodata=on)")
        return frames


def window(machine: Machine, kernel: Kernel, is_code: bool) -> NearWindow:
    """Raises OptprobeError."""
    found = finding.find(machine)
    if found is None or not isinstance(found[1], PageTables):
        raise NoSuchKernel("the kernel's page tables are not found")
    image, view = found[0], found[1]

    def physical(address: int) -> int | None:
        walked = view.walk(address)
        return walked[0] if walked is not None else None

    linear = reading.reads(machine, kernel, physical).linear
    start = (image.data.end + BLOCK - 1 & -BLOCK) + BLOCK
    code = start, min(start + CODE_ROOM, kernel.address("_stext") + AARCH64.branch_reach - MARGIN & -PAGE)
    if code[1] - code[0] < BLOCK:
        raise NoSuchKernel("behind the kernel's image nothing is in reach of all of its text")
    data = code[1], code[1] + DATA_ROOM
    return NearWindow(machine, kernel, view, linear, is_code, code if is_code else data)
