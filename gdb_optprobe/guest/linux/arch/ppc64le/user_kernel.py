"""Probes on user programs on ppc64le: where the kernel handles their traps, and how its threads are reached.

    program_check_common_virt   andi. r10,r12,16384      whether it came from user mode
                                …
                                beq                      not where it came from the kernel:
                                ld r1,KSAVE(r13)    ◄──  our code runs here: the thread's kernel stack, empty
                                …

(arch/powerpc/kernel/exceptions-64s.S, __GEN_COMMON_BODY.) A trap is handled with interrupts off from its first
instruction to its last, and no kernel function is called: to the kernel it is one long user instruction, and all its
time is accounted to the program. With context tracking (nohz_full) the kernel assumes that a CPU in user code reads no
page tables and may free them during the walk: such kernels are refused.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.ppc64le import derive, leaf_entry, program_check
from gdb_optprobe.guest.linux.arch.ppc64le.constants import DerivedSymbols
from gdb_optprobe.guest.linux.arch.ppc64le.memory import RadixMemory
from gdb_optprobe.guest.linux.arch.ppc64le.mmap_hook import lower_mmap_hook
from gdb_optprobe.guest.linux.arch.ppc64le.mmu import RadixMmu
from gdb_optprobe.guest.linux.arch.ppc64le.program_writer import WRITING
from gdb_optprobe.guest.linux.arch.ppc64le.reads import Reads
from gdb_optprobe.guest.linux.arch.ppc64le.structures import CodeStructures, has_types
from gdb_optprobe.guest.linux.arch.ppc64le.user_returns import PowerReturning
from gdb_optprobe.guest.linux.arch.ppc64le.user_traps import Place, PowerUser
from gdb_optprobe.guest.linux.jump_labels import JumpLabels
from gdb_optprobe.guest.linux.kernel import Kernel, Located, Symbols
from gdb_optprobe.guest.linux.trap_calls import Originals, TrapCalls
from gdb_optprobe.guest.linux.user import mm_hooks, mmap_hook
from gdb_optprobe.guest.linux.user.program_writer import Writing
from gdb_optprobe.guest.linux.user_kernel import ReturnKernel, UserKernel, mapped
from gdb_optprobe.guest.machine import Machine, Vcpu
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import Load, Op, Register
from gdb_optprobe.isa.base import Flow
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.ppc64le.fields import opcode, ra, rt, simm, to_bytes, word_of
from gdb_optprobe.isa.ppc64le.relocator import is_nop
from gdb_optprobe.isa.trapping import Entry

EXTERNAL = 1 << 15
"""MSR: external interrupts are on."""
PREEMPT_COUNT = 0
"""Where a thread has it: struct thread_info is its beginning, and this the first there (asm/thread_info.h)."""
ENTERS, TRACKS = "interrupt_enter_prepare", ("__ct_user_exit", "ct_user_exit", "__context_tracking_exit")
SOME = 64
"""Bytes of code behind a jump label's target that are looked through for a call."""
RETURNS = to_bytes(0x4E80_0020)
ADDI = 14


@dataclass(frozen=True, slots=True)
class _Symbols:
    """The kernel's symbols, and `more` that it has no names for."""

    symbols: Symbols
    more: abc.Mapping[str, int]

    def address(self, name: str) -> int | None:
        return self.more.get(name) or self.symbols.address(name)

    def lookup(self, name: str) -> abc.Sequence[int]:
        return self.symbols.lookup(name)

    def at(self, address: int) -> Located | None:
        return self.symbols.at(address)

    def names_at(self, addresses: abc.Iterable[int]) -> abc.Sequence[str]:
        return self.symbols.names_at(addresses)

    def function_bounds(self, address: int) -> tuple[int, int] | None:
        return self.symbols.function_bounds(address)


@dataclass(frozen=True, slots=True)
class PowerVcpus:
    """of_paca: the paca's offset of the running thread. soft_mask: its offset of the soft mask of interrupts."""

    of_paca: int
    soft_mask: int
    writing: Writing = WRITING

    def current(self, machine: Machine, kernel: Kernel, vcpu: Vcpu) -> int:
        return kernel.word(machine.registers(vcpu, ("r13",))["r13"] + self.of_paca)

    def may_sleep(self, machine: Machine, kernel: Kernel, vcpu: Vcpu) -> bool:
        registers = machine.registers(vcpu, ("msr", "r13"))
        if not registers["msr"] & EXTERNAL or kernel.memory.read(registers["r13"] + self.soft_mask, 1) != b"\0":
            return False
        task = self.current(machine, kernel, vcpu)
        return kernel.memory.read(task + PREEMPT_COUNT, 4) == bytes(4)

    def numbers(self, kernel: Kernel, function: str) -> tuple[Collection[int], ...]:
        start, code = kernel.body(function)
        words = [word_of(insn.data) for insn in PPC64LE.decode(code, start) if len(insn.data) == 4]
        # li r7 and li r8: addi of no register
        found = [(rt(word), simm(word)) for word in words if opcode(word) == ADDI and not ra(word)]
        return tuple({value for to, value in found if to == register} for register in (7, 8))

    def entry(self, kernel: Kernel, function: int) -> int:
        """Return the local entry: see LinuxArch.entry."""
        code = PPC64LE.decode(kernel.memory.read(function, 8), function)
        return PPC64LE.entry(function, {insn.address: insn for insn in code})


def user_kernel(kernel: Kernel, reads: Reads, originals: Originals) -> UserKernel:
    """Return what probes on programs need. Raises OptprobeError."""
    if _is_tracked(kernel):
        raise OptprobeError("this guest's kernel tracks CPUs in user code (nohz_full): its programs are not probed")
    symbols = kernel.symbols
    assert isinstance(symbols, DerivedSymbols), "of this arch"
    paca = derive.derive(kernel)
    known = {
        "task_struct.tasks": paca.tasks,
        "task_struct.pid": paca.pid,
        "task_struct.tgid": paca.pid + 4,  # see guest/linux/current.py
        "task_struct.comm": paca.comm,
    }
    structures = kernel.structures if has_types(kernel) else CodeStructures(symbols, paca.current, known)
    names = _Symbols(symbols, {"init_task": paca.init_task})
    kernel = Kernel(RadixMemory(kernel.memory, reads.linear.root), names, structures)
    common, stack = program_check.of_users(kernel, originals)
    mmu = RadixMmu(reads.linear.page)
    records = mmu.records(kernel)
    place = Place(stack, common.frame, common.saved, common.priority)
    isa = PowerUser(place, leaf_entry.walk(reads.linear, records))
    ways_in = tuple(program_check.ways_in(kernel, stack))
    vectors = kernel.range("_stext", "__end_interrupts")  # what flushes caches on the way in is there
    calls = TrapCalls(stack.address, (stack,), Entry(stack.end, stack), ways_in, (vectors,))
    page = leaf_entry.routine(reads.linear, records)
    vcpus = PowerVcpus(paca.current, reads.linear.soft_mask)
    bits = reads.linear.page.bit_length() - 1
    hook = mmap_hook.find(kernel, PPC64LE, originals, vcpus.entry, vcpus.of_paca, bits, lower_mmap_hook)

    @cache  # read the calls once, before our patches change them
    def returning() -> ReturnKernel:
        task = Load(fold.binary(Op.ADD, Register("r13"), fold.constant(paca.current), 64, False), 8, False, mapped=True)
        place = fold.binary(Op.ADD, task, fold.constant(kernel.offset("task_struct", "mm")), 64, False)
        found = (find(kernel, PPC64LE, originals, vcpus.entry) for find in (mm_hooks.copied, mm_hooks.ended))
        return ReturnKernel(PowerReturning(isa, mmu.page), Load(place, 8, False, mapped=True), page, *found)

    return UserKernel(kernel, isa, mapped(kernel, mmu), RETURNS, calls, mmu, vcpus, hook, returning)


def _is_tracked(kernel: Kernel) -> bool:
    """Return whether the kernel's exit from user mode jumps to context tracking; a nop there means that it does not."""
    start, end = kernel.symbols.function_bounds(kernel.symbols.address(ENTERS) or 0) or (0, 0)
    notes = {at for name in TRACKS if (at := kernel.symbols.address(name)) is not None}
    notes |= {at + 8 for at in notes}
    for at, target in JumpLabels(kernel).within(start, end):
        code = PPC64LE.decode(kernel.memory.read(target, SOME), target)
        calls = any(insn.flow is Flow.CALL and insn.target in notes for insn in code)
        if calls and not is_nop(kernel.memory.read(at, 4)):
            return True
    return False
