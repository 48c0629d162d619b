"""Every address space that has a file's code mapped, by the file's own tree of mappings.

    address_space ─► i_mmap: red-black tree of vm_area_struct (shared.rb) ─► vm_mm ─► processes with this mm

That tree has all mappings, also those of a process that is not yet, or no longer, in the list of tasks
(mm/interval_tree.c), such as a half-made child. The kernel's uprobes find them so too (kernel/events/uprobes.c,
build_map_info). It is read only while i_mmap_rwsem is free: a thread that changes the tree holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.list_head import members
from gdb_optprobe.guest.linux.members import Members
from gdb_optprobe.guest.linux.rw_semaphores import RwSemaphore
from gdb_optprobe.guest.linux.user.files import File
from gdb_optprobe.guest_text import until_zero

WRITE, EXECUTE, MAY_EXECUTE, MAY_SHARE, HUGE = 0x2, 0x4, 0x40, 0x80, 0x400000
MOST_MAPPINGS = 1 << 16
NAME_SIZE = 16
LATER = "let the guest run a little, then try again"


class Busy(OptprobeError):
    """The guest is changing the data to be read. After it has run a little, the data can be read."""


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({self.pid})"


@dataclass(frozen=True, slots=True)
class AddressSpace:
    """One executable mapping of a file: the bytes at `offset` of the file are at `start`.

    mm:        the address space.
    processes: the processes that have it; a child that is being made is not among them yet.
    """

    mm: int
    start: int
    end: int
    offset: int
    processes: tuple[Process, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.processes)) or "a process that is being made"

    def holds(self, offset: int) -> bool:
        return self.offset <= offset < self.offset + self.end - self.start

    def address(self, offset: int) -> int:
        """Return the address of that offset of the file, which is mapped here."""
        return self.start + offset - self.offset


def spaces(kernel: Kernel, file: File, page: int) -> tuple[AddressSpace, ...]:
    """Return every private, executable mapping of `file`, by address space and address. Raises Busy, OptprobeError.

    page: bytes of a page.
    """
    return _Reader(kernel, page).of(file)


def check(kernel: Kernel, file: File, page: int) -> None:
    """Read the mappings of `file` as `spaces` does, without the processes. Raises Busy, OptprobeError."""
    reader = _Reader(kernel, page)
    kernel.offset("task_struct", "tgid"), kernel.offset("task_struct", "comm")
    for area in reader.areas(file):
        reader.lives(area["mm"])


class _Reader:
    def __init__(self, kernel: Kernel, page: int) -> None:
        self._kernel, self._size = kernel, page
        offset = kernel.offset
        self._node = offset("vm_area_struct", "shared.rb")
        self._right, self._left = offset("rb_node", "rb_right"), offset("rb_node", "rb_left")
        self._area = Members.of(
            start=(offset("vm_area_struct", "vm_start"), 8),
            end=(offset("vm_area_struct", "vm_end"), 8),
            mm=(offset("vm_area_struct", "vm_mm"), 8),
            flags=(offset("vm_area_struct", "vm_flags"), 8),
            page=(offset("vm_area_struct", "vm_pgoff"), 8),
        )
        self._users = offset("mm_struct", "mm_users")

    def of(self, file: File) -> tuple[AddressSpace, ...]:
        wanted = self.areas(file)
        processes = self._processes() if wanted else {}
        found = [self._space(area, processes) for area in wanted if self.lives(area["mm"])]
        return tuple(sorted(found, key=lambda space: (space.mm, space.start)))

    def areas(self, file: File) -> list[dict[str, int]]:
        """Return its private, executable mappings. Raises Busy, OptprobeError."""
        kernel = self._kernel
        lock = RwSemaphore.of(kernel, "address_space", "i_mmap_rwsem")
        if lock.state(kernel, file.mapping).written:
            raise Busy(f"mappings of {file.path} are being changed just now", LATER)
        areas = [self._area.read(kernel, area) for area in self._areas(file)]
        return [area for area in areas if _is_private_code(area["flags"])]

    def _areas(self, file: File) -> Iterator[int]:
        """Yield each node of the tree once."""
        kernel = self._kernel
        root = kernel.word(file.mapping + kernel.offset("address_space", "i_mmap"))
        seen: set[int] = set()
        waiting = [root] if root else []
        while waiting:
            node = waiting.pop()
            if node in seen or len(seen) >= MOST_MAPPINGS:
                raise NoSuchKernel(f"the tree of mappings of {file.path} is broken at {node:#x}")
            seen.add(node)
            yield node - self._node
            both = kernel.word(node + self._left), kernel.word(node + self._right)
            waiting += [child for child in both if child]

    def lives(self, mm: int) -> bool:
        """Return whether it has users. Else it is being torn down, and its pages are gone."""
        return int.from_bytes(self._kernel.memory.read(mm + self._users, 4), "little") > 0

    def _space(self, area: dict[str, int], processes: dict[int, list[Process]]) -> AddressSpace:
        if area["start"] % self._size or area["end"] % self._size or not area["start"] < area["end"]:
            raise NoSuchKernel(f"a mapping from {area['start']:#x} to {area['end']:#x} cannot be")
        own = tuple(processes.get(area["mm"], ()))
        return AddressSpace(area["mm"], area["start"], area["end"], area["page"] * self._size, own)

    def _processes(self) -> dict[int, list[Process]]:
        """Return the processes by their address spaces, in the order of the list of tasks."""
        kernel = self._kernel
        tasks = kernel.offset("task_struct", "tasks")
        mm = kernel.offset("task_struct", "mm")
        found: dict[int, list[Process]] = {}
        for task in members(kernel, kernel.address("init_task") + tasks, tasks):
            found.setdefault(kernel.word(task + mm), []).append(process(kernel, task))
        return found


def process(kernel: Kernel, task: int) -> Process:
    """Return the process that a thread belongs to."""
    layout = Members.of(
        pid=(kernel.offset("task_struct", "tgid"), 4), comm=(kernel.offset("task_struct", "comm"), NAME_SIZE)
    )
    values = layout.read(kernel, task)
    name = until_zero(values["comm"].to_bytes(NAME_SIZE, "little"))
    return Process(values["pid"], name)


def _is_private_code(flags: int) -> bool:
    """Return whether it is a mapping of valid_vma (kernel/events/uprobes.c) that is executable now."""
    return bool(flags & EXECUTE) and flags & (MAY_EXECUTE | MAY_SHARE | HUGE | WRITE) == MAY_EXECUTE
