"""Probes on 64-bit user programs on aarch64: where the kernel handles their traps, and how its threads are reached.

A trap is handled with interrupts off from its first instruction to its last, and no kernel function is called: to the
kernel it is one long user instruction, of which enter_from_user_mode() and exit_to_user_mode() know nothing. Requests
by other CPUs come with an interrupt, which is taken right behind. With context tracking (nohz_full) the kernel assumes
that a CPU in user code reads no page tables and may free them during the walk: such kernels are refused.
Software PAN (CONFIG_ARM64_SW_TTBR0_PAN) takes the program's page tables out of TTBR0_EL1 before the handler runs, and
nothing could be walked: refused too. Its code is nops where all CPUs have PAN.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cache
from struct import iter_unpack

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import trap_calls
from gdb_optprobe.guest.linux.arch.aarch64 import leaf_entry
from gdb_optprobe.guest.linux.arch.aarch64.areas import entry_text
from gdb_optprobe.guest.linux.arch.aarch64.find import PageTables
from gdb_optprobe.guest.linux.arch.aarch64.mmap_hook import lower_mmap_hook
from gdb_optprobe.guest.linux.arch.aarch64.mmu import LinearMmu
from gdb_optprobe.guest.linux.arch.aarch64.page_records import PAGE_SHIFT, PageRecords
from gdb_optprobe.guest.linux.arch.aarch64.program_writer import WRITING
from gdb_optprobe.guest.linux.arch.aarch64.reads import Reads
from gdb_optprobe.guest.linux.arch.aarch64.user_returns import ArmReturning
from gdb_optprobe.guest.linux.arch.aarch64.user_stops import Stopping, have_pan
from gdb_optprobe.guest.linux.arch.aarch64.user_traps import ArmUser
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.trap_calls import Originals
from gdb_optprobe.guest.linux.user import mm_hooks, mmap_hook
from gdb_optprobe.guest.linux.user.program_writer import Writing
from gdb_optprobe.guest.linux.user.vcpus import Vcpus
from gdb_optprobe.guest.linux.user_kernel import ReturnKernel, UserKernel, mapped
from gdb_optprobe.guest.machine import Machine, Vcpu
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import Load, Op, Register
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.aarch64.abi import FLAGS
from gdb_optprobe.isa.aarch64.fields import rd, to_bytes, word_of

HANDLER, CALLER = "el0t_64_sync_handler", "el0t_64_sync"
TRACKING = ("context_tracking_key",)
INTERRUPTS = 1 << 7
"""Of PSTATE: they are masked."""
WRITES_TTBR0, REGISTER = 0xD518_2000, 31
"""msr ttbr0_el1, x…, and the bits that say which register."""
RETURNS = to_bytes(0xD65F_03C0)
FIFTH, SIXTH = 4, 5
RECORDS, FIXED = 6, 1 << 28
"""Of address bits to those of the kernel's records of pages; more bytes than there are fixed mappings below these."""


@dataclass(frozen=True, slots=True)
class _Vcpus:
    """writing: see Vcpus."""

    writing: Writing = WRITING

    def current(self, machine: Machine, kernel: Kernel, vcpu: Vcpu) -> int:
        return machine.registers(vcpu, ("SP_EL0",))["SP_EL0"]

    def may_sleep(self, machine: Machine, kernel: Kernel, vcpu: Vcpu) -> bool:
        registers = machine.registers(vcpu, (FLAGS, "SP_EL0"))
        if registers[FLAGS] & INTERRUPTS:
            return False
        place = registers["SP_EL0"] + kernel.offset("task_struct", "thread_info.preempt_count")
        return kernel.memory.read(place, 4) == bytes(4)

    def numbers(self, kernel: Kernel, function: str) -> tuple[Collection[int], ...]:
        start, code = kernel.body(function)
        words = [word_of(insn.data) for insn in AARCH64.decode(code, start)]
        found = [(rd(word), word >> 5 & 0xFFFF) for word in words if word & 0xFFE0_0000 == 0x5280_0000]  # mov w, #…
        return tuple({value for to, value in found if to == register} for register in (FIFTH, SIXTH))

    def entry(self, kernel: Kernel, function: int) -> int:
        return function


VCPUS: Vcpus = _Vcpus()


def user_kernel(kernel: Kernel, reads: Reads, view: PageTables, originals: Originals) -> UserKernel:
    """Return what probes on programs need. Raises OptprobeError."""
    for name in TRACKING:
        key = kernel.symbols.address(name)
        if key is not None and int.from_bytes(kernel.memory.read(key, 4), "little"):
            raise OptprobeError("this guest's kernel tracks CPUs in user code (nohz_full): its programs are not probed")
    calls = trap_calls.find(kernel, AARCH64, originals, HANDLER, (CALLER,))
    check_page_tables(kernel, originals, calls.ways_in)
    calls = replace(calls, beside=(entry_text(kernel), _fixed(view)))
    mmu = LinearMmu(reads.linear, PageRecords.of(kernel, view))
    walk = leaf_entry.walk(reads.linear, mmu.records(kernel))
    current = kernel.address("runqueues") + kernel.offset("rq", "curr")
    hook = mmap_hook.find(kernel, AARCH64, originals, VCPUS.entry, current, PAGE_SHIFT, lower_mmap_hook)
    text = kernel.address("_stext")
    page = view.page(text)
    if page is None:
        raise OptprobeError(f"nothing is mapped at {text:#x}")
    stopping = Stopping(reads.linear.at(page.physical + text - page.address), have_pan(view.machine))
    isa = ArmUser(calls.handler, stopping, walk)

    @cache  # read the calls once, before our patches change them
    def returning() -> ReturnKernel:
        task = fold.binary(Op.ADD, Register("SP_EL0"), fold.constant(kernel.offset("task_struct", "mm")), 64, False)
        found = (find(kernel, AARCH64, originals, VCPUS.entry) for find in (mm_hooks.copied, mm_hooks.ended))
        return ReturnKernel(ArmReturning(isa), Load(task, 8, False, mapped=True), None, *found)

    return UserKernel(kernel, isa, mapped(kernel, mmu), RETURNS, calls, mmu, VCPUS, hook, returning)


def check_page_tables(kernel: Kernel, originals: Originals, ways_in: Iterable[tuple[int, int]]) -> None:
    """Raise OptprobeError where code on the way to the handler of traps replaces the program's page tables."""
    for start, end in ways_in:
        code = trap_calls.original(kernel, AARCH64, originals, start, end)
        if any(word & ~REGISTER == WRITES_TTBR0 for (word,) in iter_unpack("<I", code[: len(code) & -4])):
            raise OptprobeError(
                "this guest's kernel hides a program's page tables during its traps (software PAN): its programs are"
                " not probed",
                "on a CPU with PAN it does not: boot with -cpu max",
            )


def _fixed(view: PageTables) -> tuple[int, int]:
    """Return what has the addresses of fixed mappings (asm/memory.h, FIXADDR_TOP), those of the vectors that page-table
    isolation has among them. It is above all other code: just below the records of pages, or above them.
    """
    bits = min(view.regime.bits, 48)
    return (1 << 64) - (1 << bits - RECORDS) - FIXED, 1 << 64
