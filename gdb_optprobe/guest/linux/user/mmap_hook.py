"""The kernel's calls that map files into programs (exec and mmap, of any word size), and the hook in their place.

    elf_map ─► vm_mmap ─────────┐
    mmap(2) ─► ksys_mmap_pgoff ─┴─► vm_mmap_pgoff (mm/util.c): takes mmap_lock, maps, releases it
The hook maps, then writes our patches into the mapping:

    call ─► not executable, shared, no file ─► the kernel's own
       └──► the kernel's own ─► each row of the file's, within what was mapped: read, compared, written ─► back
            on a failure, unless the thread was killed, or where the file has other bytes now: counted, and it stops
The thread holds no lock in it and may sleep; nothing that it has mapped has run yet. See maps/mmap_patches.py for the
rows. Each ISA writes the code by hand (arch/<isa>/mmap_hook.py), because the hook calls functions of the kernel by its
calling convention and keeps what it needs in registers that they keep. What the code knows of the kernel is here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.trap_calls import Originals, code_at
from gdb_optprobe.isa.base import Code, Flow, Insn
from gdb_optprobe.isa.record import Isa

MAPS, WRITES = "vm_mmap_pgoff", "access_remote_vm"
WAITS = "schedule_timeout_killable"
"""Returns at once, with time left, if the thread was killed: then nothing is written into its memory (mm/gup.c)."""
CALLERS = ("vm_mmap", "ksys_mmap_pgoff")
EXECUTABLE, WRITABLE, SHARED = 4, 2, 1  # PROT_EXEC, PROT_WRITE; MAP_SHARED and MAP_SHARED_VALIDATE, not MAP_PRIVATE
MOST_ERRORS = 4096
"""An error is a negative number, at most so far from 0 (MAX_ERRNO, include/linux/err.h)."""
WRITE = 1
"""FOLL_WRITE (include/linux/mm_types.h)."""
PATIENCE = 100
"""Ticks of the kernel's clock that a thread waits after a failed write. A killed thread does not wait."""


@dataclass(frozen=True, slots=True)
class MmapKernel:
    """What the hook's code knows of the kernel.

    maps, writes, waits: the entries of MAPS, WRITES and WAITS.
    current: where the running thread is in a CPU's own memory.
    mm:      the offset of its memory in a thread. inode: of the inode in a file.
    bits:    of an address within a page.
    """

    maps: int
    writes: int
    waits: int
    current: int
    mm: int
    inode: int
    bits: int


Lower = Callable[[MmapKernel, int, int], Code]
"""An ISA's part: returns the hook's code, for the address of the table of rows and the flags that make WRITES copy."""


@dataclass(frozen=True, slots=True)
class MmapHook:
    """calls: the instructions that lead to the kernel's function that maps, at `to`; each of the size of a branch.
    code: returns the hook's code, for the address of the table of rows and the flags that make WRITES copy pages.
    """

    calls: tuple[Insn, ...]
    to: int
    code: Callable[[int, int], Code]


def find(
    kernel: Kernel,
    isa: Isa,
    originals: Originals,
    entry: Callable[[Kernel, int], int],
    current: int,
    bits: int,
    lower: Lower,
) -> MmapHook:
    """Return the hook of this kernel. entry: returns where other code calls a function. Raises OptprobeError."""
    maps, writes, waits = (entry(kernel, kernel.address(name)) for name in (MAPS, WRITES, WAITS))
    offsets = kernel.offset("task_struct", "mm"), kernel.offset("file", "f_inode")
    known = MmapKernel(maps, writes, waits, current, *offsets, bits)
    return MmapHook(_calls(kernel, isa, originals, maps), maps, partial(lower, known))


def _calls(kernel: Kernel, isa: Isa, originals: Originals, to: int) -> tuple[Insn, ...]:
    """Return the calls. to: the function's entry. Raises OptprobeError where the kernel maps files in another way."""
    found: list[Insn] = []
    for name in CALLERS:
        code = code_at(kernel, isa, originals, kernel.address(name))
        here = [insn for insn in code if insn.flow in (Flow.CALL, Flow.JUMP) and insn.target == to]
        if not here or any(insn.size != isa.branch_size for insn in here):
            raise OptprobeError(f"{name} does not call {MAPS}", f"optprobe delete probes in {name}, if there are any")
        found += here
    return tuple(found)
