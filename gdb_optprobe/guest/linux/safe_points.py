"""Addresses at which a thread of Linux may be made to call a function that sleeps: it holds no lock there.

A system call's first function is entered before anything is locked, whatever called it. A kernel thread that waits is
at the entry of `schedule_timeout`; workers, and threads that free memory, may hold locks there. The thread's state is
no longer TASK_RUNNING there, of which a kernel with CONFIG_DEBUG_ATOMIC_SLEEP would warn: there only system calls are
used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.current import NAME_SIZE
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.user.vcpus import Vcpus
from gdb_optprobe.guest.machine import Machine, Vcpu
from gdb_optprobe.guest_text import until_zero

SYSTEM_CALLS = ("ksys_read", "ksys_write", "do_sys_openat2", "kernel_wait4", "hrtimer_nanosleep", "do_sys_poll")
IDLE_POINT = "schedule_timeout"
WARNS = "__might_sleep"
"""Of kernels that warn where a thread sleeps while it is not marked as running (CONFIG_DEBUG_ATOMIC_SLEEP)."""
KERNEL_THREAD, WORKER, IO_WORKER, RECLAIMS = 0x00200000, 0x20, 0x10, 0x800
"""PF_KTHREAD, PF_WQ_WORKER, PF_IO_WORKER, PF_MEMALLOC (include/linux/sched.h)."""


@dataclass(frozen=True, slots=True)
class SafePoints:
    """The addresses.

    avoid:   whether something else stops the guest at an address.
    waiting: how the names of the kernel threads begin that may call functions; () for all. A function that waits for a
             grace period must not be called by a thread that ends one.
    """

    machine: Machine
    kernel: Kernel
    vcpus: Vcpus
    avoid: Callable[[int], bool] = lambda address: False
    waiting: tuple[str, ...] = ()

    def points(self) -> tuple[int, ...]:
        names = (*SYSTEM_CALLS, *((IDLE_POINT,) if self._flags() is not None else ()))
        found = map(self._entered, names)
        return tuple(at for at in found if at is not None and not self.avoid(at))

    def may_call(self, vcpu: Vcpu) -> bool:
        """Return whether the thread on `vcpu`, which is at a safe point, may sleep and holds no lock."""
        if not self.vcpus.may_sleep(self.machine, self.kernel, vcpu):
            return False
        pc = self.vcpus.writing.pc
        if self.machine.registers(vcpu, (pc,))[pc] != self._entered(IDLE_POINT):
            return True
        offset = self._flags()
        if offset is None:
            return False
        task = self.vcpus.current(self.machine, self.kernel, vcpu)
        flags = int.from_bytes(self.machine.read(task + offset, 4), "little")
        return bool(flags & KERNEL_THREAD) and not flags & (WORKER | IO_WORKER | RECLAIMS) and self._is_chosen(task)

    def _is_chosen(self, task: int) -> bool:
        """Return whether a kernel thread is one of those that may call functions."""
        if not self.waiting:
            return True
        try:
            name = until_zero(self.machine.read(task + self.kernel.offset("task_struct", "comm"), NAME_SIZE))
        except OptprobeError:
            return False
        return name.startswith(self.waiting)

    def _flags(self) -> int | None:
        """Return the offset of a thread's flags; None where IDLE_POINT is no safe point.
        That is where the kernel would warn, or where the layout of structures is not known: threads cannot be
        distinguished.
        """
        if self.kernel.symbols.address(WARNS) is not None:
            return None
        try:
            return self.kernel.offset("task_struct", "flags")
        except OptprobeError:
            return None

    def _entered(self, name: str) -> int | None:
        """Return the address at which the function of that name is entered."""
        at = self.kernel.symbols.address(name)
        return self.vcpus.entry(self.kernel, at) if at is not None else None
