"""What is needed of a kernel to look into its programs: made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gdb_optprobe.guest.linux.kernel import MASK, Kernel
from gdb_optprobe.guest.linux.user import program, spaces
from gdb_optprobe.guest.linux.user.files import File
from gdb_optprobe.guest.linux.user.frames import Frames
from gdb_optprobe.guest.linux.user.pages import Pages
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.guest.linux.user.spaces import Space
from gdb_optprobe.guest.machine import Machine, Vcpu


@dataclass(frozen=True, slots=True)
class Programs:
    """constant: the value of an enumerator of the kernel's; None where it has none of that name.

    forget: the guest has run.
    """

    machine: Machine
    kernel: Kernel
    frames: Frames
    pages: Pages
    constant: Callable[[str], int | None]
    forget: Callable[[], None]

    @staticmethod
    def of(
        machine: Machine,
        kernel: Kernel,
        direct: tuple[int, int],
        la57: bool,
        constant: Callable[[str], int | None],
        forget: Callable[[], None],
    ) -> Programs:
        """direct: where the direct map begins, and its size. la57: whether page tables have five levels."""
        frames = Frames.of(kernel, *direct)
        return Programs(machine, kernel, frames, Pages(kernel, frames, la57), constant, forget)

    def find(self, path: str, host: Path | None = None) -> Program:
        """See program.find."""
        return program.find(self.kernel, self.frames, path, host)

    def known(self, file: File) -> Program:
        """What is in a file that is held, wherever its name has gone. Raises OptprobeError."""
        return program.inside(self.kernel, self.frames, file)

    def mapping(self, file: File) -> tuple[Space, ...]:
        """Where the file's code is mapped. Raises Busy, OptprobeError."""
        return spaces.spaces(self.kernel, file)

    def loaded(self, vcpu: Vcpu, file: File) -> tuple[Space, ...]:
        """Those of the thread on `vcpu`, which has just loaded the program. Raises Busy, OptprobeError."""
        kernel, task = self.kernel, self.current(vcpu)
        mm = kernel.word(task + kernel.offset("task_struct", "mm"))
        return tuple(space for space in self.mapping(file) if space.mm == mm)

    def current(self, vcpu: Vcpu) -> int:
        """The thread on `vcpu`, which is in the kernel."""
        base = self.machine.registers(vcpu, ("gs_base",))["gs_base"]
        variable = self.kernel.symbols.address("current_task")
        if variable is None:
            variable = self.kernel.address("pcpu_hot") + self.kernel.offset("pcpu_hot", "current_task")
        return self.kernel.word(base + variable & MASK)

    def executed(self, binary: int) -> int:
        """The inode that a `struct linux_binprm` is to run."""
        file = self.kernel.word(binary + self.kernel.offset("linux_binprm", "file"))
        return self.kernel.word(file + self.kernel.offset("file", "f_inode")) if file else 0

    def hold(self, file: File, by: int) -> None:
        """Keep the inode in memory, as igrab does (by=1), or no more (by=-1), unless that would have it freed here."""
        at = file.inode + self.kernel.offset("inode", "i_count")
        count = int.from_bytes(self.kernel.memory.read(at, 4), "little") + by
        if count > 0:
            self.kernel.memory.write(at, count.to_bytes(4, "little"))
