"""Probes on user programs on x86-64: how a trap's file is found, and where the kernel handles a trap.

A user's trap is handled with interrupts off from its first instruction to its last, and no kernel function is called:
to the kernel it is one long user instruction. So what the kernel does on its way in and out of C
(kernel/entry/common.c, irqentry_enter_from_user_mode and irqentry_exit_to_user_mode) is not needed: requests by other
CPUs come with an interrupt, which is taken right behind. With context tracking (nohz_full) the kernel assumes that a
CPU in user code reads no page tables and may free them during the walk: such kernels are refused.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import trap_calls
from gdb_optprobe.guest.linux.arch.x86_64 import leaf_entry, page_table_walk, preemption
from gdb_optprobe.guest.linux.arch.x86_64.mmap_hook import lower_mmap_hook
from gdb_optprobe.guest.linux.arch.x86_64.mmu import X86Mmu
from gdb_optprobe.guest.linux.arch.x86_64.paging import PAGE_SIZE
from gdb_optprobe.guest.linux.arch.x86_64.probe_read import Direct
from gdb_optprobe.guest.linux.arch.x86_64.program_writer import WRITING
from gdb_optprobe.guest.linux.arch.x86_64.user_returns import RETURNING
from gdb_optprobe.guest.linux.arch.x86_64.user_traps import X86User
from gdb_optprobe.guest.linux.kernel import MASK, Kernel
from gdb_optprobe.guest.linux.trap_calls import Originals
from gdb_optprobe.guest.linux.user import mm_hooks, mmap_hook
from gdb_optprobe.guest.linux.user.mmap_hook import MmapHook
from gdb_optprobe.guest.linux.user.program_writer import Writing
from gdb_optprobe.guest.linux.user.vcpus import Vcpus
from gdb_optprobe.guest.linux.user_kernel import ReturnKernel, UserKernel, mapped
from gdb_optprobe.guest.machine import Machine, Vcpu
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import Expr, Load, Op
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.isa.x86_64 import X86_64, abi


class _Vcpus:
    writing: Writing = WRITING

    def current(self, machine: Machine, kernel: Kernel, vcpu: Vcpu) -> int:
        base = machine.registers(vcpu, ("gs_base",))["gs_base"]
        variable = kernel.symbols.address("current_task")
        if variable is None:
            variable = kernel.address("pcpu_hot") + kernel.offset("pcpu_hot", "current_task")
        return kernel.word(base + variable & MASK)

    def may_sleep(self, machine: Machine, kernel: Kernel, vcpu: Vcpu) -> bool:
        on = machine.registers(vcpu, ("eflags",))["eflags"] & abi.IF
        return bool(on) and preemption.may_sleep(machine, kernel, vcpu)

    def numbers(self, kernel: Kernel, function: str) -> tuple[Collection[int], ...]:
        start, code = kernel.body(function)
        data = [insn.data for insn in X86_64.decode(code, start)]
        return tuple(
            {int.from_bytes(each[-4:], "little") for each in data if each.startswith(opcode) and len(each) == 6}
            for opcode in (b"\x41\xb8", b"\x41\xb9")  # mov $imm32, %r8d and %r9d
        )

    def entry(self, kernel: Kernel, function: int) -> int:
        return function


VCPUS: Vcpus = _Vcpus()
HANDLER, CALLER = "exc_int3", "asm_exc_int3"
TRACKING = "context_tracking_key"


def user_kernel(kernel: Kernel, task: Expr | Missing, direct: Direct, originals: Originals) -> UserKernel:
    """Return what probes on programs need. Raises OptprobeError. task: the running thread."""
    tracking = kernel.symbols.address(TRACKING)
    if tracking is not None and int.from_bytes(kernel.memory.read(tracking, 4), "little"):
        raise OptprobeError("this guest's kernel tracks CPUs in user code (nohz_full): its programs are not probed")
    mmu = X86Mmu(direct.start, direct.size, direct.la57)
    calls = trap_calls.find(kernel, X86_64, originals, HANDLER, (CALLER,))
    isa = X86User(leaf_entry.walk(direct, mmu.records(kernel)))

    @cache  # read the calls once, before our patches change them
    def returning() -> ReturnKernel:
        if isinstance(task, Missing):
            raise OptprobeError(task.message, task.hint)
        place = fold.binary(Op.ADD, task, fold.constant(kernel.offset("task_struct", "mm")), 64, False)
        finds = mm_hooks.copied, mm_hooks.ended
        copied, ended = (find(kernel, X86_64, originals, VCPUS.entry) for find in finds)
        mm, shared = Load(place, 8, signed=False, mapped=True), page_table_walk.routine(direct, shared=True)
        return ReturnKernel(RETURNING, mm, shared, copied, ended)

    known = kernel, isa, mapped(kernel, mmu), page_table_walk.routine(direct)
    return UserKernel(*known, calls, mmu, VCPUS, _mmap_hook(kernel, originals), returning)


def _mmap_hook(kernel: Kernel, originals: Originals) -> MmapHook:
    current = kernel.symbols.address("current_task")
    if current is None:
        current = kernel.address("pcpu_hot") + kernel.offset("pcpu_hot", "current_task")
    bits = PAGE_SIZE.bit_length() - 1
    return mmap_hook.find(kernel, X86_64, originals, VCPUS.entry, current, bits, lower_mmap_hook)
