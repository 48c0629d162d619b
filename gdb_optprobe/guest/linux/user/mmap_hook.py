"""The kernel's calls that map files into programs (exec and mmap, of any word size), which the mmap hook intercepts.

    elf_map ─► vm_mmap ─────────┐
    mmap(2) ─► ksys_mmap_pgoff ─┴─► vm_mmap_pgoff (mm/util.c): takes mmap_lock, maps, releases it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.trap_calls import Originals, code_at
from gdb_optprobe.isa.base import Code, Flow, Insn
from gdb_optprobe.isa.record import Isa

MAPS, WRITES = "vm_mmap_pgoff", "access_remote_vm"
WAITS = "schedule_timeout_killable"
"""Returns at once, with time left, if the thread was killed: then nothing is written into its memory (mm/gup.c)."""
CALLERS = ("vm_mmap", "ksys_mmap_pgoff")


@dataclass(frozen=True, slots=True)
class MmapHook:
    """calls: the instructions that lead to the kernel's function that maps, at `to`; each of the size of a branch.
    code: returns the hook's code, for the address of the table of rows and the flags that make WRITES copy pages.
    """

    calls: tuple[Insn, ...]
    to: int
    code: Callable[[int, int], Code]


def calls(kernel: Kernel, isa: Isa, originals: Originals, to: int) -> tuple[Insn, ...]:
    """Return the calls. to: the function's entry. Raises OptprobeError where the kernel maps files in another way."""
    found: list[Insn] = []
    for name in CALLERS:
        code = code_at(kernel, isa, originals, kernel.address(name))
        here = [insn for insn in code if insn.flow in (Flow.CALL, Flow.JUMP) and insn.target == to]
        if not here or any(insn.size != isa.branch_size for insn in here):
            raise OptprobeError(f"{name} does not call {MAPS}", f"optprobe delete probes in {name}, if there are any")
        found += here
    return tuple(found)
