"""The kernel's calls of its own uprobes when an address space is copied, and when its last user is gone.

    dup_mmap ─► uprobe_dup_mmap(old, new)      before the new one has its first page (kernel/fork.c)
    __mmput  ─► uprobe_clear_state(mm)         no thread runs in it; an exec's old one too
Both are called where a thread may be preempted, once for each space, whether uprobes are in use or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.trap_calls import Originals, code_at
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.record import Isa

COPIED, COPIERS = "uprobe_dup_mmap", ("dup_mmap", "dup_mm", "copy_mm", "copy_process")
ENDED, ENDERS = "uprobe_clear_state", ("__mmput", "mmput", "mmput_async_fn", "mmput_async")


@dataclass(frozen=True, slots=True)
class MmHooks:
    """Calls of a function. to: the kernel's function. calls: the instructions that lead there, of the size of a branch.
    """

    to: int
    calls: tuple[Insn, ...]


Entry = Callable[[Kernel, int], int]
"""Returns the entry of a kernel function, by its symbol's address."""


def copied(kernel: Kernel, isa: Isa, originals: Originals, entry: Entry) -> MmHooks:
    """Return the hook of copied address spaces. Raises OptprobeError where this kernel has none."""
    return _found(kernel, isa, originals, entry, COPIED, COPIERS)


def ended(kernel: Kernel, isa: Isa, originals: Originals, entry: Entry) -> MmHooks:
    """Return the hook of ended address spaces. Raises OptprobeError where this kernel has none."""
    return _found(kernel, isa, originals, entry, ENDED, ENDERS)


def _found(
    kernel: Kernel, isa: Isa, originals: Originals, entry: Entry, name: str, callers: Sequence[str]
) -> MmHooks:
    symbol = kernel.symbols.address(name)
    to = entry(kernel, symbol) if symbol is not None else None
    calls = tuple(_calls(kernel, isa, originals, to, callers)) if to is not None else ()
    if to is None or not calls:
        raise OptprobeError(f"this guest's kernel does not call {name}: returns in its programs are not probed")
    return MmHooks(to, calls)


def _calls(kernel: Kernel, isa: Isa, originals: Originals, to: int, callers: Sequence[str]) -> Iterator[Insn]:
    for at in (kernel.symbols.address(name) for name in callers):
        code = code_at(kernel, isa, originals, at) if at is not None else ()
        yield from (insn for insn in code if (insn.flow, insn.target, insn.size) == (Flow.CALL, to, isa.branch_size))
