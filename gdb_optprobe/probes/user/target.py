"""What probes on user programs need of a guest. The debugger's layer fills it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gdb_optprobe.guest.linux.user.programs import Programs
from gdb_optprobe.guest.linux.user_kernel import UserKernel
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.probes.user.program_text import ProgramText


@dataclass(frozen=True, slots=True)
class UserTarget:
    """names: what they mean in a program, by the address, whether it is a function's entry, and the program's bits.

    names_at_return: where a function of a program of so many bits has returned.
    """

    kernel: UserKernel
    names: Callable[[int, bool, int], NamesAt]
    programs: Programs
    texts: ProgramText
    names_at_return: Callable[[int], NamesAt]
