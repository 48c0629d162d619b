"""What every probe on a program needs of a guest: `add`, `explain` and `doctor` ask it before anything is changed."""

from __future__ import annotations

import contextlib

from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.base import Reads
from gdb_optprobe.guest.linux.user import writer
from gdb_optprobe.guest.linux.user.mm import Busy
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.user.target import UserTarget


def check_guest(optimizer: Optimizer) -> UserTarget:
    """Return what probes on programs are made with. Raises OptprobeError where anything is missing for all of them."""
    if not optimizer.settings().trap:
        raise Refused(Refusal.TRAP_OFF.because())
    user = optimizer.target.user()
    check_probe_read(user)
    writer.check(user.programs)
    # What is being changed just now is waited for when a probe is added.
    with contextlib.suppress(Busy):
        user.programs.check()
    optimizer.find_arena()
    return user


def check_probe_read(user: UserTarget) -> Reads:
    """Return how memory of programs is read. Raises OptprobeError."""
    found = user.names(0, False, 64).reads
    if isinstance(found, Missing):
        raise OptprobeError(found.message, found.hint)
    return found
