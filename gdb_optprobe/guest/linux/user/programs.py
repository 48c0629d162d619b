"""A kernel's programs: the facts with which they are found and read, derived once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.list_head import members
from gdb_optprobe.guest.linux.user import files, mm, program
from gdb_optprobe.guest.linux.user.files import File
from gdb_optprobe.guest.linux.user.mm import AddressSpace
from gdb_optprobe.guest.linux.user.mmu import Mmu
from gdb_optprobe.guest.linux.user.page_frames import PageFrames
from gdb_optprobe.guest.linux.user.pages import Pages
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.guest.linux.user.vcpus import Vcpus
from gdb_optprobe.guest.machine import Machine, Vcpu


@dataclass(frozen=True, slots=True)
class Programs:
    """vcpus: the kernel's threads on their vCPUs.
    constant: the value of a kernel's enumerator; None where it has none of that name.
    forget: to be called after the guest has run.
    """

    machine: Machine
    kernel: Kernel
    frames: PageFrames
    pages: Pages
    vcpus: Vcpus
    constant: Callable[[str], int | None]
    forget: Callable[[], None]

    @staticmethod
    def of(
        machine: Machine,
        kernel: Kernel,
        mmu: Mmu,
        vcpus: Vcpus,
        constant: Callable[[str], int | None],
        forget: Callable[[], None],
    ) -> Programs:
        frames = PageFrames.of(kernel, mmu)
        return Programs(machine, kernel, frames, Pages(kernel, frames, mmu), vcpus, constant, forget)

    def find(self, path: str, host: Path | None = None) -> Program:
        """See program.find."""
        return program.find(self.kernel, self.frames, path, host)

    def search(self, name: str) -> list[str]:
        """See files.search."""
        return files.search(self.kernel, name)

    def of_process(self, pid: int) -> Program | None:
        """Return the program that a process runs; None where there is no such process. Raises OptprobeError."""
        kernel = self.kernel
        for mm_, process in self._processes():
            if process.pid == pid and mm_ and (file := kernel.word(mm_ + kernel.offset("mm_struct", "exe_file"))):
                return self.known(files.named(kernel, kernel.word(file + kernel.offset("file", "f_path.dentry"))))
        return None

    def _processes(self) -> Iterator[tuple[int, mm.Process]]:
        """Yield each process with its address space; 0 for a kernel thread's."""
        kernel = self.kernel
        tasks, of_task = kernel.offset("task_struct", "tasks"), kernel.offset("task_struct", "mm")
        for task in members(kernel, kernel.address("init_task") + tasks, tasks):
            yield kernel.word(task + of_task), mm.process(kernel, task)

    def check(self) -> None:
        """Read the mappings of the program of process 1: every probe on a program needs what this reads.
        Raises Busy, or OptprobeError where programs cannot be found.
        """
        kernel = self.kernel
        at = kernel.offset("inode", "i_count")
        first = next(filter(None, self._spaces()), 0)
        file = kernel.word(first + kernel.offset("mm_struct", "exe_file")) if first else 0
        if not file:
            raise OptprobeError("no process runs a program yet", "let the guest boot, then try again")
        inode = kernel.word(file + kernel.offset("file", "f_inode"))
        kernel.memory.read(inode + at, 4)
        mapping = kernel.word(inode + kernel.offset("inode", "i_mapping"))
        mm.check(kernel, File("the first program", inode, 0, 0, 0, mapping), self.frames.page)

    def _spaces(self) -> Iterator[int]:
        """Yield the address space of each process; 0 for a kernel thread."""
        kernel = self.kernel
        tasks, of_task = kernel.offset("task_struct", "tasks"), kernel.offset("task_struct", "mm")
        return (kernel.word(task + of_task) for task in members(kernel, kernel.address("init_task") + tasks, tasks))

    def known(self, file: File) -> Program:
        """Return the program of a file that is held, even if its name is gone. Raises OptprobeError."""
        return program.inside(self.kernel, self.frames, file)

    def mapping(self, file: File) -> tuple[AddressSpace, ...]:
        """Return the mappings of the file's code. Raises Busy, OptprobeError."""
        return mm.spaces(self.kernel, file, self.frames.page)

    def current(self, vcpu: Vcpu) -> int:
        """Return the thread on `vcpu`, which is in the kernel."""
        return self.vcpus.current(self.machine, self.kernel, vcpu)

    def hold(self, file: File, by: int) -> None:
        """Take a reference to the inode, as igrab does (by=1), or drop it (by=-1), unless that would free it here."""
        at = file.inode + self.kernel.offset("inode", "i_count")
        count = int.from_bytes(self.kernel.memory.read(at, 4), "little") + by
        if count > 0:
            self.kernel.memory.write(at, count.to_bytes(4, "little"))
