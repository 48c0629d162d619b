"""What probes on user programs need of a guest."""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux.user.programs import Programs
from gdb_optprobe.guest.linux.user_kernel import UserKernel
from gdb_optprobe.probes.user.program_text import ProgramText


@dataclass(frozen=True, slots=True)
class UserTarget:
    """texts: what is written into programs."""

    guest: Guest
    kernel: UserKernel
    programs: Programs
    texts: ProgramText
