"""The user programs of a Linux guest: makes its `probes.user.target.UserTarget`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from gdb_optprobe.guest.linux.linux import LinuxGuest
from gdb_optprobe.guest.linux.user.programs import Programs
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.probes.user.program_text import ProgramText
from gdb_optprobe.probes.user.target import UserTarget


@dataclass(frozen=True)
class LinuxPrograms:
    """What the target is made of.

    run: runs the guest for some seconds.
    is_stopped: see UserTexts.
    """

    linux: LinuxGuest
    run: Callable[[float], object]
    is_stopped: Callable[[], bool]

    def target(self) -> UserTarget:
        """Return the target. Raises OptprobeError where programs cannot be probed."""
        return self._target

    @cached_property
    def _target(self) -> UserTarget:
        kernel, linux = self.linux.user_kernel, self.linux
        programs = Programs.of(
            linux.machine, kernel.kernel, kernel.mmu, kernel.vcpus, linux.constant, linux.forget
        )
        texts = ProgramText(programs, self._run, self.is_stopped)
        return UserTarget(kernel, self._names, programs, texts, self._names_at_return)

    def _names(self, address: int, entry: bool, bits: int) -> NamesAt:
        return self.linux.user_names(address, entry, bits)

    def _names_at_return(self, bits: int) -> NamesAt:
        return self.linux.user_names(0, False, bits, returns=True)

    def _run(self, seconds: float) -> None:
        self.run(seconds)
