"""Reader-writer semaphores of a stopped kernel: whether one is held, and by a writer.

    count              bit 0: a writer has it; 1, 2: others wait; from bit 8 on: readers (kernel/locking/rwsem.c)
    rwbase.readers     PREEMPT_RT: bit 31: readers may come; bit 30: a writer has it; below: readers
    readers            (include/linux/rwbase_rt.h); with no `rwbase` in older ones

Any other word is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel

WRITER, WAITING, UNUSED, READER = 0x1, 0x6, 0xF8, 1 << 8
RT_FREE, RT_WRITER, RT_MOST = 1 << 31, 1 << 30, 1 << 22
"""RT_MOST: readers, more than there can be threads (PID_MAX_LIMIT)."""
MEMBERS = ("count", "rwbase.readers", "readers")


@dataclass(frozen=True, slots=True)
class State:
    held: bool
    written: bool


@dataclass(frozen=True, slots=True)
class RwSemaphore:
    """The offset of a semaphore in a structure. preempts: whether it is one of PREEMPT_RT."""

    name: str
    offset: int
    preempts: bool

    @staticmethod
    def of(kernel: Kernel, struct: str, *names: str) -> RwSemaphore:
        """Return the semaphore. names: of the member, as kernels renamed it. Raises OptprobeError."""
        missing: OptprobeError | None = None
        for name in names:
            for member in MEMBERS:
                try:
                    offset = kernel.offset(struct, f"{name}.{member}")
                except OptprobeError as error:
                    missing = missing or error
                    continue
                return RwSemaphore(f"{struct}.{name}", offset, member != MEMBERS[0])
        raise missing or NoSuchKernel(f"struct {struct}: no semaphore asked for")

    def state(self, kernel: Kernel, address: int) -> State:
        """Return the state in the structure at `address`. Raises OptprobeError."""
        at = address + self.offset
        if self.preempts:
            word = int.from_bytes(kernel.memory.read(at, 4), "little")
            known, free, writer = word in (RT_FREE, RT_WRITER) or word & ~RT_FREE < RT_MOST, RT_FREE, RT_WRITER
        else:
            word = kernel.word(at)
            known, free, writer = not word & UNUSED, 0, WRITER
        if not known:
            raise NoSuchKernel(f"{self.name} at {at:#x} is {word:#x}, which no semaphore is")
        return State(word != free, bool(word & writer))
