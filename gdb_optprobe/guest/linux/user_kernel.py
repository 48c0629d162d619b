"""The facts about a kernel that probes on user programs need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.trap_calls import TrapCalls
from gdb_optprobe.guest.linux.user.mm_hooks import MmHooks
from gdb_optprobe.guest.linux.user.mmap_hook import MmapHook
from gdb_optprobe.guest.linux.user.mmu import Mmu
from gdb_optprobe.guest.linux.user.pagecache import HEAD, INDEX
from gdb_optprobe.guest.linux.user.vcpus import Vcpus
from gdb_optprobe.handlers.ir import Expr
from gdb_optprobe.handlers.lower_mapped_file import FilePageOffsets
from gdb_optprobe.isa.user import UserTrapping
from gdb_optprobe.isa.user_returns import UserReturning


@dataclass(frozen=True, slots=True)
class ReturnKernel:
    """The facts that return probes on programs need besides. mm: the expression of the running address space.

    shared: code of the routine that finds a word on a stack that forks may share; None where none is looked for.
    copied, ended: the kernel's hooks for a copied address space, and for one that no thread runs in any more.
    """

    isa: UserReturning
    mm: Expr
    shared: bytes | None
    copied: MmHooks
    ended: MmHooks


@dataclass(frozen=True, slots=True)
class UserKernel:
    """Facts about a kernel that uprobes need.
    mapped: offsets with which the file of a trap is found. writable: code of the routine that isa.emulation calls.
    kernel: with the structures that describe programs.
    calls:  the calls of the kernel's handler of the trap.
    mmap_hook: of new mappings.
    returning: raises OptprobeError where returns cannot be probed.
    """

    kernel: Kernel
    isa: UserTrapping
    mapped: FilePageOffsets
    writable: bytes
    calls: TrapCalls
    mmu: Mmu
    vcpus: Vcpus
    mmap_hook: MmapHook
    returning: Callable[[], ReturnKernel]


def mapped(kernel: Kernel, mmu: Mmu) -> FilePageOffsets:
    """Return the offsets with which a page's file is found. Raises OptprobeError."""
    offset = kernel.offset
    return FilePageOffsets(
        bits=mmu.kind.page.bit_length() - 1,
        head=offset("page", *HEAD),
        mapping=offset("page", "mapping"),
        index=offset("page", *INDEX),
        root=offset("anon_vma", "rb_root.rb_root.rb_node"),
        area=offset("anon_vma_chain", "vma") - offset("anon_vma_chain", "rb"),
        file=offset("vm_area_struct", "vm_file"),
        inode=offset("file", "f_inode"),
    )
