"""Pages that the guest's kernel lends for data serve detours where the kernel has them, in its linear map.

    the kernel's radix tree   image: text R X, data R W │ all other memory: R W, not executable
                                                            └ block ┘
Code here has the whole address of what it writes, so no place has to be near. A block that the kernel gives is mapped
readable and writable already, in every process, and not executable (arch/powerpc/mm/book3s64/radix_pgtable.c): no
entry of a page table is written, and none has to be flushed, for which the processor would have to execute `tlbie`.
Whether a block serves as data is in the journal alone, as its place: the block's address, or NOWHERE.
With hash page tables, which cannot be looked at, that the pages are not executable cannot be seen: nothing is lent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.guest.linux.arch.base import NOWHERE
from gdb_optprobe.guest.linux.arch.ppc64le import derive, image_padding, kernel_tree, radix, reads
from gdb_optprobe.guest.linux.arch.ppc64le.constants import DerivedSymbols
from gdb_optprobe.guest.linux.arch.ppc64le.find import LINEAR_MAP
from gdb_optprobe.guest.linux.arch.ppc64le.structures import CodeStructures, has_types
from gdb_optprobe.guest.linux.arch.ppc64le.user_kernel import PowerVcpus
from gdb_optprobe.guest.linux.in_place import InPlace, NoWindow
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.page_allocator import Pages
from gdb_optprobe.guest.linux.user.vcpus import Vcpus
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.isa.calling import Calling
from gdb_optprobe.isa.ppc64le.calling import CALLING

PLACES = 128
"""Blocks that are asked for at once, at most."""
LEAST, WHOLE, LARGEST = 1 << 17, 1 << 21, 1 << 24
"""Bytes of a block. The kernel's allocator has none larger than 16 MiB."""
HASH = "with hash page tables the kernel does not show whether memory that it lends could be executed"


@dataclass(frozen=True, slots=True)
class LinearWindow(Pages, InPlace):
    """See guest.linux.arch.base.Window. page: bytes of the kernel's pages. root: of its tree, a physical address."""

    machine: Machine
    kernel: Kernel
    page: int
    root: int
    vcpus: Vcpus
    calling: Calling = CALLING
    flushes: str = ""

    @property
    def whole(self) -> int:
        return self._order(WHOLE)

    @property
    def orders(self) -> Sequence[int]:
        return range(self._order(LARGEST), self._order(LEAST) - 1, -1)

    def size(self, order: int) -> int:
        return self.page << order

    def places(self, low: int, high: int) -> Sequence[int]:
        return (NOWHERE,) * PLACES if low <= LINEAR_MAP[0] and LINEAR_MAP[1] <= high else ()

    def is_place(self, place: int, order: int) -> bool:
        start, end = LINEAR_MAP
        return place == NOWHERE or (start < place < end and place % self.size(order) == 0)

    def map(self, place: int, order: int, block: int) -> int:
        if place != NOWHERE:
            raise NoWindow(f"what the kernel lent at {place:#x} is data already")
        self._check(order, block)
        for at in (block, block + self.size(order) - 8):
            word = (at ^ 0x5A5A_5A5A_5A5A_5A5A).to_bytes(8, "little")
            self.machine.write_physical(at - LINEAR_MAP[0], word)
            if self.kernel.memory.read(at, 8) != word:
                raise NoWindow(f"memory at {at:#x} is not what the kernel lent")
        return block

    def _check(self, order: int, block: int) -> None:
        """Raise NoWindow where a block is not memory of the linear map, writable and not executable."""
        end = block + self.size(order)
        if not self.is_place(block, order):
            raise NoWindow(f"the kernel lent no {self.size(order) >> 10} KiB of its linear map at {block:#x}")
        at = block
        while at < end:
            page = radix.translate(self.machine.read_physical, self.root, at)
            if page is None or not page.writable or page.executable or page.physical != page.address - LINEAR_MAP[0]:
                raise NoWindow(f"memory at {at:#x} is not mapped as data of the kernel are")
            at = page.address + page.size

    def _order(self, size: int) -> int:
        return (size // self.page).bit_length() - 1


def window(machine: Machine, kernel: Kernel) -> LinearWindow:
    """Raises OptprobeError."""
    root = kernel_tree.of(machine, kernel)
    if root is None:
        raise NoSuchKernel(HASH)
    current, symbols = derive.derive(kernel).current, kernel.symbols
    if not has_types(kernel):
        assert isinstance(symbols, DerivedSymbols), "of this arch"
        kernel = replace(kernel, structures=CodeStructures(symbols, current))
    vcpus = PowerVcpus(current, reads.soft_mask(kernel))
    return LinearWindow(machine, kernel, image_padding.page_size(kernel), root, vcpus)
