"""The kernel's threads on their vCPUs: the facts that writing into programs needs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.user.program_writer import Writing
from gdb_optprobe.guest.machine import Machine, Vcpu


class Vcpus(Protocol):
    """writing: the instruction set's part."""

    @property
    def writing(self) -> Writing: ...

    def current(self, machine: Machine, kernel: Kernel, vcpu: Vcpu) -> int:
        """Return the thread on `vcpu`, which is in the kernel."""

    def may_sleep(self, machine: Machine, kernel: Kernel, vcpu: Vcpu) -> bool:
        """Return whether that thread, at a function's first instruction, has neither interrupts nor preemption off."""

    def numbers(self, kernel: Kernel, function: str) -> tuple[Collection[int], ...]:
        """Return the numbers that the kernel's `function` puts into the registers of the fifth and sixth argument.

        Empty where the kernel has no function of that name.
        """

    def entry(self, kernel: Kernel, function: int) -> int:
        """Return the address that all calls of the kernel function with its symbol at `function` pass."""
