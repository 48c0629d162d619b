"""The page cache: the parts of a file that are in the guest's memory.

    address_space ─► i_pages: xarray ─► slots of 64 ─► … ─► struct page ─► frame
                     an entry's low bits: 00 a page, 10 a node, or, below 256, "as in slot N"   (include/linux/xarray.h)

A page is accepted if its own record has the file and the index.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.user.files import File
from gdb_optprobe.guest.linux.user.page_frames import PageFrames

INDEX = ("index", "__folio_index")
"""Of struct page: the index in its file; the second name since page and folio were separated."""
HEAD = ("compound_head", "compound_info")
"""Of struct page: bit 0 says that it is the tail of a large page."""
SLOTS = 64
SLOT_BITS = 6
INTERNAL = 2
LOWEST_NODE = 4096
DEEPEST = 12
LARGEST = 1 << 18
"""Pages that one record may cover: 1 GiB."""


class NotInMemory(OptprobeError):
    """A part of a file is not in the guest's memory just now."""


@dataclass(frozen=True)
class PageCache:
    """Reads the part of `file` that is in memory."""

    kernel: Kernel
    frames: PageFrames
    file: File

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes of the file. Raises NotInMemory; OptprobeError where the file ends before."""
        if offset < 0 or size < 0 or offset + size > self.file.size:
            raise OptprobeError(f"{self.file.path} ends at {self.file.size:#x}, before {offset + size:#x}")
        data, page = bytearray(), self.frames.page
        while len(data) < size:
            at = offset + len(data)
            length = min(size - len(data), page - at % page)
            data += self.frames.read(self._frame(at // page) + at % page, length)
        return bytes(data)

    def _frame(self, index: int) -> int:
        """Return the physical address of page `index` of the file. Raises NotInMemory."""
        found = self._entry(index)
        if not found or found & 3:
            raise NotInMemory(
                f"page {index} of {self.file.path} is not in the guest's memory",
                "run the program in the guest, or give the same file by -file PATH",
            )
        first = self.kernel.word(found + self.kernel.offset("page", *INDEX))
        owner = self.kernel.word(found + self.kernel.offset("page", "mapping"))
        if owner != self.file.mapping or not first <= index < first + LARGEST:
            raise NoSuchKernel(f"page {index} of {self.file.path} is being replaced just now", "try again")
        return self.frames.frame(found) + (index - first) * self.frames.page

    def _entry(self, index: int) -> int:
        kernel = self.kernel
        at = kernel.word(self.file.mapping + kernel.offset("address_space", "i_pages.xa_head"))
        reach = SLOT_BITS * DEEPEST
        if not _is_node(at):
            return at if index == 0 else 0
        rest = index
        while _is_node(at):
            node = at - INTERNAL
            shift = kernel.memory.read(node + kernel.offset("xa_node", "shift"), 1)[0]
            if shift % SLOT_BITS or shift >= reach:
                raise NoSuchKernel(f"the list of pages of {self.file.path} is broken at {node:#x}")
            slot, rest, reach = rest >> shift, rest & (1 << shift) - 1, shift
            if slot >= SLOTS:
                return 0
            slots = node + kernel.offset("xa_node", "slots")
            at = kernel.word(slots + slot * 8)
            if at & 3 == INTERNAL and at >> 2 < SLOTS:
                at = kernel.word(slots + (at >> 2) * 8)
        return at


def _is_node(entry: int) -> bool:
    return entry & 3 == INTERNAL and entry >= LOWEST_NODE
