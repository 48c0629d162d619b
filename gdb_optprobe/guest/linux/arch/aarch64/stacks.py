"""Every saved PC of a stopped aarch64 kernel: the words that detours/quiescence.py scans.

    a vCPU is …                   what is alive of its CPU
    ├─ not started                nothing (a CPU that never came up)
    ├─ at EL0                     its registers; its thread's stack is empty
    ├─ on its thread's stack      from SP up
    ├─ with interrupts masked     ELR_EL1 besides: it may be in code that has not saved that yet, or has restored it
    └─ on another stack           everything there is of that CPU: its stacks for interrupts and overflows, those of
                                  SDEI, and the whole stack of its thread

    a thread that has no CPU      thread.cpu_context, and from its SP up

No thread sleeps on a CPU's stack. TPIDR_EL1 gives the vCPU's CPU, at EL0 too; runqueues.curr its thread, and SP_EL0 the
one that it runs within a switch. Stacked return addresses may be signed (PAC): the signature is replaced by the bits
that an address has there, so that what a signature hides is found.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.aarch64.vectors import thread_size
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.percpu import PerCpu
from gdb_optprobe.guest.linux.tasks import Task, Tasks, TasksOf
from gdb_optprobe.guest.machine import Machine, Vcpu
from gdb_optprobe.guest.saved_pcs import SavedWords, Stack
from gdb_optprobe.isa.aarch64.abi import FLAGS

KERNEL_HALF = 55
"""The bit that says which half of the address space an address is in, whatever signature or tag is above it."""
SIGNED = (1 << 64) - (1 << 48)
"""Bits that a signature may take: above those of the smallest addresses that a kernel with 4 KiB pages has."""
OVERFLOW = 4096
CONTEXT = 13 * 8
"""struct cpu_context (asm/processor.h): x19 to x28, fp, sp, pc."""
CONTEXT_SP = 11 * 8
SDEI = ("sdei_stack_normal_ptr", "sdei_stack_critical_ptr")
INTERRUPTED = "ELR_EL1"
MASKED = 1 << 7
"""Of PSTATE: interrupts are masked."""
OF_VCPU = ("el", "TPIDR_EL1", "SP_EL0", INTERRUPTED, FLAGS)
PREEMPTS = "preempt_schedule"
IDLE = "cpu_do_idle"


def _preempt_count(kernel: Kernel, base: int) -> int:
    """Return it from the thread of a CPU: asm/preempt.h."""
    task = kernel.word(base + kernel.address("runqueues") + kernel.offset("rq", "curr") & (1 << 64) - 1)
    at = task + kernel.offset("task_struct", "thread_info.preempt_count")
    return int.from_bytes(kernel.memory.read(at, 4), "little")


TASKS = TasksOf((("runqueues", "rq", "curr"),), "thread.cpu_context.sp", _preempt_count)


@dataclass(frozen=True, slots=True)
class _OwnStack:
    name: str
    start: int
    end: int


class Stacks:
    """The saved PCs of one kernel."""

    def __init__(self, kernel: Kernel, machine: Machine | None = None, registers: Sequence[str] = ()) -> None:
        """Raise OptprobeError where this kernel's stacks cannot be enumerated."""
        if kernel.symbols.address(PREEMPTS) is not None:
            raise NoSuchKernel("this kernel preempts threads, and one that ends could not be found")
        self._kernel = kernel
        self._machine = machine
        self._registers = tuple(registers)
        self._tasks = Tasks(kernel, TASKS)
        self._percpu = PerCpu.of(kernel)
        self._size = thread_size(kernel)
        self._context = kernel.offset("task_struct", "thread.cpu_context")
        self._online = kernel.address("__cpu_online_mask")
        idle = kernel.symbols.address(IDLE)
        self._idle = kernel.symbols.function_bounds(idle) or (0, 0) if idle is not None else (0, 0)
        self._interrupt = self._percpu.addresses("irq_stack_ptr")
        self._overflow = self._percpu.addresses("overflow_stack")
        self._events = [self._percpu.addresses(name) for name in SDEI if kernel.symbols.address(name) is not None]

    def saved(self) -> Iterator[SavedWords]:
        """Yield all memory that may hold a saved PC now. Raises OptprobeError where some cannot be enumerated now."""
        assert self._machine is not None, "of a guest"
        running: dict[int, dict[str, int]] = {}
        for vcpu in self._machine.vcpus():
            values = self._machine.registers(vcpu, (*self._registers, *OF_VCPU))
            yield SavedWords(f"vCPU {vcpu.number}", 0, saved_in(values, self._registers, self._idle))
            if (cpu := self._number(vcpu, values)) is not None:
                running[cpu] = values
        if unseen := self._listed() - running.keys():
            raise NoSuchKernel(f"CPU {min(unseen)} runs on no vCPU that can be seen")
        threads = self._tasks.all(())
        alive: dict[int, int] = {}
        for cpu, values in running.items():
            yield from self._of_cpu(cpu, values, threads, alive)
        for address, task in threads.items():
            if task.stack:
                yield self._of_thread(task, alive.get(address, task.sp))
                yield self._read(f"what {task} has saved", address + self._context, address + self._context + CONTEXT)

    def hides(self) -> bool:
        return self._tasks.hides()

    def _of_cpu(
        self, cpu: int, values: Mapping[str, int], threads: Mapping[int, Task], alive: dict[int, int]
    ) -> Iterator[SavedWords]:
        """Yield what a CPU has on stacks of its own; store in `alive` the SP from which its thread's stack is in use.
        """
        on = self._tasks.on_cpus()[cpu]
        if on.current not in threads:
            raise NoSuchKernel(f"CPU {cpu} runs no thread yet")
        if not values["el"]:
            alive[on.current] = self._end(threads[on.current])
            return
        # A CPU that switches threads is on the stack of either, and the other one's SP is saved.
        sp = values["sp"]
        either = [threads[address] for address in {on.current, values["SP_EL0"]} if address in threads]
        for task in either:
            if task.stack and task.stack <= sp <= self._end(task):
                alive[task.address] = sp
                return
        for stack in self._of(cpu):
            yield self._read(stack.name, stack.start, stack.end, Stack(stack.start, stack.end))
        alive.update({task.address: task.stack for task in either})

    def _of(self, cpu: int) -> Iterator[_OwnStack]:
        start = self._kernel.word(self._interrupt[cpu])
        yield _OwnStack(f"an interrupt on CPU {cpu}", start, start + self._size)
        start = self._overflow[cpu]
        yield _OwnStack(f"an overflow on CPU {cpu}", start, start + OVERFLOW)
        for pointers in self._events:
            if start := self._kernel.word(pointers[cpu]):
                yield _OwnStack(f"an event of the firmware on CPU {cpu}", start, start + self._size)

    def _of_thread(self, task: Task, sp: int) -> SavedWords:
        if not task.stack <= sp <= self._end(task):
            raise NoSuchKernel(f"{task} has its stack pointer {sp:#x} outside its stack at {task.stack:#x}")
        return self._read(str(task), sp, self._end(task), Stack(task.stack, self._end(task), task.pid, task.name))

    def _end(self, task: Task) -> int:
        return task.stack + self._size

    def _read(self, name: str, start: int, end: int, stack: Stack | None = None) -> SavedWords:
        start &= ~7
        if end % 8:
            raise NoSuchKernel(f"{name} has a stack that ends at {end:#x}")
        words = array("Q")
        words.frombytes(self._kernel.memory.read(start, end - start) if start < end else b"")
        return SavedWords(name, start, array("Q", map(unsigned, words)), stack)

    def _listed(self) -> set[int]:
        """Return the numbers of the CPUs that run threads."""
        count = len(self._percpu.bases)
        mask = int.from_bytes(self._kernel.memory.read(self._online, (count + 7) // 8), "little")
        return {cpu for cpu in range(count) if mask >> cpu & 1}

    def _number(self, vcpu: Vcpu, values: Mapping[str, int]) -> int | None:
        """Return Linux's number of a vCPU; None of one that Linux has not started."""
        base = values["TPIDR_EL1"]
        return self._percpu.number(vcpu.number, base) if base else None


def saved_in(values: Mapping[str, int], names: Sequence[str], idle: tuple[int, int] = (0, 0)) -> array[int]:
    """Return what may be saved PCs of a vCPU's registers: those of `names`, and what an exception has interrupted.

    idle: the function in which a CPU waits, for long, with interrupts masked; it has no use for ELR_EL1.
    """
    is_masked = values["el"] and values[FLAGS] & MASKED and not idle[0] <= values["pc"] < idle[1]
    interrupted = [INTERRUPTED] if is_masked else []
    return array("Q", (unsigned(values[name]) for name in (*names, *interrupted)))


def unsigned(word: int) -> int:
    """Return a word as the address that it is if it is a signed one of the kernel's."""
    return word | SIGNED if word >> KERNEL_HALF & 1 else word


def missing(kernel: Kernel) -> str:
    """Return why saved PCs cannot be enumerated in this kernel, in words; "" where they can."""
    try:
        Stacks(kernel)
    except OptprobeError as error:
        return error.message
    return ""
