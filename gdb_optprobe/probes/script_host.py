"""What a script asks of the host and of the guest's memory: names of numbers, the time, a file of the guest."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import load_averages
from gdb_optprobe.guest_text import lines, until_zero
from gdb_optprobe.handlers import stack_walk
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.handlers.script.host import HostNames, NoFiles
from gdb_optprobe.handlers.script.types import Stack
from gdb_optprobe.handlers.stack_walk import FRAMES
from gdb_optprobe.probes.script_kernel import ScriptKernel

RETURN_PROBE = "(a return probe)"
"""A frame of a function that returns to a trampoline: its real return address is not on the stack."""
CUT = "(callers unknown)"
"""The last line of a stack that continues where the hit could not follow it."""


class GuestNames(HostNames):
    """Names of numbers of one guest."""

    def __init__(
        self, kernel: ScriptKernel, now: int | Missing, maps: Callable[[], Mapping[str, stack_walk.Numbers]] = dict
    ) -> None:
        """now: the guest's time at this stop. maps: the script's, with the frames of its stacks."""
        super().__init__(None if isinstance(now, Missing) else time.time_ns() - now)
        self._target, self._guest, self._programs = kernel.target, kernel.target.guest, kernel.programs
        self._maps = maps

    def kernel_symbol(self, address: int) -> str:
        """Return the symbol around an address, without an offset."""
        return self._guest.symbol(address).partition("+")[0] or f"{address:#x}"

    def user_symbol(self, address: int, pid: int) -> str:
        """Return the symbol around an address of a program. pid: or its file, see types.Symbol."""
        return self._programs.symbol(address, pid) or f"{address:#x}"

    def user(self, number: int) -> str:
        return "root" if number == 0 else str(number)

    def stack(self, words: Sequence[int], stack: Stack, indent: int) -> str:
        """Return a stack as bpftrace prints it; a line of its own says that callers are missing."""
        blanks = " " * indent
        numbers = self._maps().get(FRAMES.name)
        if numbers is None or not words[0]:
            return "\n"
        found = stack_walk.frames(words[0], numbers)
        if isinstance(found, Missing):
            return f"\n{blanks}({found.message})\n"
        process = words[1] if stack.user else None
        lines = [self._frame(at, address, process, stack.mode, blanks) for at, address in enumerate(found.addresses)]
        return "\n" + "".join(f"{line}\n" for line in (*lines, *(() if found.is_whole else (f"{blanks}{CUT}",))))

    def _frame(self, at: int, address: int, process: int | None, mode: str, blanks: str) -> str:
        """Return a line for a frame. at: its number, the innermost is 0. process: None for the kernel's."""
        if mode == "raw":
            return f"{address:x}"
        where = self._kernel_place(at, address) if process is None else self.user_symbol(address, process)
        if mode != "perf":
            return f"{blanks}{where}"
        return f"\t{address:x} {where}" + (" ([unknown])" if process is not None and where.startswith("0x") else "")

    def _kernel_place(self, at: int, address: int) -> str:
        """Return "vfs_read+19", or the address where no symbol is known."""
        if any(start <= address < end for start, end in self._target.arena_source.code):
            return RETURN_PROBE
        # A call may be the last instruction of its function: the address behind it is another function's.
        symbol, offset = self._guest.symbol(address - 1 if at else address), 1 if at else 0
        # As bpftrace, without the module of a function.
        name, _, distance = symbol.rpartition(":")[2].partition("+")
        return f"{name}+{int(distance or '0', 16) + offset}" if name else f"{address:#x}"


class GuestFiles(NoFiles):
    """The guest's files, of those that follow from its memory; the host's shell."""

    def __init__(self, kernel: ScriptKernel) -> None:
        self._kernel = kernel

    def cat(self, name: str, most: int) -> str:
        address = self._kernel.symbol(load_averages.VARIABLE) if name == load_averages.FILE else None
        if address is None:
            raise OptprobeError("a file of the guest, which is not read from outside")
        return load_averages.shown(self._kernel.target.guest.machine.read(address, load_averages.SIZE))[:most]

    def shell(self, command: str) -> str:
        done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
        return lines("\n".join(until_zero(line) for line in done.stdout.split(b"\n")))
