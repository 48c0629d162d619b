"""Every saved PC of a stopped x86-64 kernel: the words that detours/quiescence.py scans.

    a vCPU's SP is in …          what is alive
    ├─ user mode                 its registers; its thread's stack is empty
    ├─ a thread's stack          from SP up
    ├─ the interrupt stack       from SP up, and the thread's stack from the SP saved in the interrupt stack's top word
    └─ anything else             (entry code, an IST stack, an SP being switched) everything there is: all CPUs'
                                 interrupt, exception and entry stacks, and whole stacks of threads that run

    a thread that has no CPU     from its saved SP up

Nobody sleeps on an interrupt, exception or entry stack, so they live only while a vCPU is on one (arch/x86/include/
asm/irq_stack.h, cpu_entry_area.h). A hard interrupt over a soft one is saved on the interrupt stack alone.

The function graph tracer and return probes of the guest keep return addresses elsewhere. Those are never inside a
window or a detour: no call in a window returns into it (RETURN_INTO_REGION), and a call in a detour pushes the
*original* return address.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import tasks
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.percpu import PerCpu
from gdb_optprobe.guest.linux.tasks import Task, Tasks
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.saved import Saved
from gdb_optprobe.isa.x86_64.abi import REGISTERS

PAGE = 4096
INTERRUPT_STACK = 4 * PAGE  # IRQ_STACK_SIZE
ENTRY_STACK = PAGE
EXCEPTIONS = ("DF", "NMI", "DB", "MCE", "VC", "VC2")
PLAUSIBLE = (1 << 13, 1 << 14, 1 << 15, 1 << 16)


@dataclass(frozen=True, slots=True)
class _Stack:
    who: str
    start: int
    end: int

    def __contains__(self, sp: int) -> bool:
        # An empty stack's SP is its end.
        return self.start <= sp <= self.end


class Stacks:
    """Enumerates the saved PCs of one kernel. Raises OptprobeError where this kernel cannot be read so."""

    def __init__(self, kernel: Kernel, machine: Machine, registers: Sequence[str]) -> None:
        self._kernel = kernel
        self._machine = machine
        self._registers = tuple(registers)
        self._tasks = Tasks(kernel)
        self._percpu = PerCpu.of(kernel)
        self._thread_size = _thread_size(kernel)

    def saved(self) -> Iterator[Saved]:
        """Everything that may hold a saved PC now. Raises OptprobeError where something cannot be enumerated now."""
        threads = self._tasks.all()
        interrupt = self._interrupt_stacks()
        by_stack = {task.stack: task for task in threads if task.stack}
        sps: dict[int, int] = {}
        in_user_mode, lost = 0, False
        for vcpu in self._machine.vcpus():
            values = self._machine.registers(vcpu, (*self._registers, "rsp", "cpl"))
            yield Saved(f"vCPU {vcpu.number}", 0, array("Q", (values[name] for name in self._registers)))
            if values["cpl"]:
                in_user_mode += 1
                continue
            sp = values["rsp"]
            for stack in interrupt:
                if sp in stack:
                    yield self._read(stack.who, sp, stack.end)
                    sp = self._kernel.word(stack.end - 8)
                    break
            owner = self._owner(sp, by_stack)
            if owner is None:
                lost = True
            else:
                sps[owner.address] = min(sp, sps.get(owner.address, sp))
        if lost:
            yield from self._everything(interrupt)
        yield from self._threads(threads, sps, in_user_mode, lost)

    def _threads(self, threads: Sequence[Task], sps: dict[int, int], in_user_mode: int, lost: bool) -> Iterator[Saved]:
        # Threads that run, but where no vCPU is known to be: as many as vCPUs in user mode, and those are they.
        # One that just loses its CPU runs too, and has saved its SP already; then there are more, and none is left out.
        elsewhere = [task for task in threads if task.running and task.address not in sps]
        skip = {task.address for task in elsewhere} if not lost and len(elsewhere) == in_user_mode else set()
        for task in threads:
            if not task.stack or task.address in skip:
                continue
            end = task.stack + self._thread_size
            sp = sps.get(task.address, task.stack if lost and task.running else task.sp)
            if not task.stack <= sp <= end:
                raise NoSuchKernel(f"{task} has its stack pointer {sp:#x} outside its stack at {task.stack:#x}")
            yield self._read(str(task), sp, end)

    def _owner(self, sp: int, by_stack: dict[int, Task]) -> Task | None:
        # Stacks are aligned to their size (CONFIG_VMAP_STACK), but for init's own and those of old kernels.
        found = by_stack.get(sp & ~(self._thread_size - 1))
        if found is not None:
            return found
        return next((task for stack, task in by_stack.items() if stack <= sp < stack + self._thread_size), None)

    def _interrupt_stacks(self) -> list[_Stack]:
        tops = self._percpu.words_of_either(
            ("hardirq_stack_ptr", "", ""),
            ("pcpu_hot", "pcpu_hot", "hardirq_stack_ptr"),
        )
        found = []
        for cpu, top in enumerate(tops):
            end = -(-top // PAGE) * PAGE  # the pointer is to the top word, or just behind it (before 5.12)
            if top:
                found.append(_Stack(f"an interrupt on CPU {cpu}", end - INTERRUPT_STACK, end))
        return found

    def _everything(self, interrupt: Sequence[_Stack]) -> Iterator[Saved]:
        for stack in interrupt:
            yield self._read(stack.who, stack.start, stack.end)
        for cpu, start in enumerate(self._percpu.addresses("entry_stack_storage")):
            yield self._read(f"entry code on CPU {cpu}", start, start + ENTRY_STACK)
        first = self._kernel.offset("cea_exception_stacks", "DF_stack")
        size = self._kernel.offset("cea_exception_stacks", "NMI_stack_guard") - first
        for cpu, area in enumerate(self._percpu.words("cea_exception_stacks")):
            for name in EXCEPTIONS if area else ():
                try:
                    start = area + self._kernel.offset("cea_exception_stacks", f"{name}_stack")
                    yield self._read(f"an exception ({name}) on CPU {cpu}", start, start + size)
                except OptprobeError:
                    # The VC stacks are mapped in SEV-ES guests alone.
                    if not name.startswith("VC"):
                        raise

    def _read(self, who: str, start: int, end: int) -> Saved:
        start &= ~7
        words = array("Q")
        words.frombytes(self._kernel.memory.read(start, end - start) if start < end else b"")
        return Saved(who, start, words)


def _thread_size(kernel: Kernel) -> int:
    """THREAD_SIZE, from the room that the linker left for init's stack (include/asm-generic/vmlinux.lds.h)."""
    start = kernel.word(kernel.address("init_task") + kernel.offset("task_struct", "stack"))
    for name in ("__end_init_stack", "__end_init_task"):
        end = kernel.symbols.address(name)
        if end is not None and end - start in PLAUSIBLE:
            return end - start
    raise NoSuchKernel("the size of a thread's stack is not known")


def saved(machine: Machine, kernel: Kernel) -> Iterator[Saved]:
    """Everything that may hold a saved PC now. Raises OptprobeError where something cannot be enumerated."""
    return Stacks(kernel, machine, REGISTERS).saved()


def missing(kernel: Kernel) -> str:
    """Why saved PCs cannot be enumerated in this kernel, in words; empty where they can."""
    try:
        _thread_size(kernel)
        if kernel.symbols.address("hardirq_stack_ptr") is None:
            kernel.offset("pcpu_hot", "hardirq_stack_ptr")
        kernel.address("entry_stack_storage")
        kernel.address("cea_exception_stacks")
        kernel.offset("cea_exception_stacks", "DF_stack")
    except OptprobeError as error:
        return error.message
    return tasks.missing(kernel)
