"""Every saved PC of a stopped x86-64 kernel: the words that detours/quiescence.py scans.

    a vCPU is …                   what is alive of its CPU
    ├─ not started                nothing (a CPU that never came up, paging off)
    ├─ in user mode               its registers; its thread's stack is empty
    ├─ on its thread's stack      from SP up
    ├─ on its interrupt stack     from SP up, and the thread's stack from the SP saved in the interrupt stack's top word
    └─ in entry code, or on an    everything there is of that CPU: its interrupt, exception and entry stacks, and the
       exception stack            whole stack of its thread

    a thread that has no CPU      from its saved SP up: return addresses, and the interrupted PC if it was preempted

No thread sleeps on an interrupt, exception or entry stack, so they are in use only while their vCPU is on one. Soft and
hard interrupts share one stack, and neither switches when it is there already; exceptions from user mode leave theirs
for the thread's (arch/x86/include/asm/irq_stack.h, cpu_entry_area.h, entry/entry_64.S). The GS base gives the vCPU's
CPU; `current_task` gives its thread, or `runqueues.curr` during a switch.

Return addresses that the guest's function graph tracer and return probes keep elsewhere are never inside a window or
a detour: no call in a window returns into it (RETURN_INTO_REGION), and a call in a detour pushes the *original* one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.x86_64 import preemption
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.percpu import PerCpu
from gdb_optprobe.guest.linux.tasks import Task, Tasks, TasksOf, thread_size
from gdb_optprobe.guest.machine import Machine, Vcpu
from gdb_optprobe.guest.saved_pcs import SavedWords, Stack
from gdb_optprobe.isa.x86_64 import abi

PAGE = 4096
PAGING = 1 << 31  # CR0.PG
ENTRY_STACK = PAGE
EXCEPTIONS = ("DF", "NMI", "DB", "MCE", "VC", "VC2")
SECURE_GUESTS_ONLY = ("VC", "VC2")  # mapped under SEV-ES alone
# Where entry and exception stacks are seen (CPU_ENTRY_AREA_PGD), and those for 16-bit user stacks (ESPFIX_PGD_ENTRY).
ENTRY_AREAS = (range(-4 << 39, -3 << 39), range(-2 << 39, -1 << 39))
TASKS = TasksOf(
    (("current_task", "", ""), ("pcpu_hot", "pcpu_hot", "current_task")), "thread.sp", preemption.count
)
OF_VCPU = ("rsp", "cpl", "eflags", "gs_base", "k_gs_base", "cr0")


@dataclass(frozen=True, slots=True)
class _OwnStack:
    name: str
    start: int
    end: int


class Stacks:
    """The saved PCs of one kernel."""

    def __init__(self, kernel: Kernel, machine: Machine, registers: Sequence[str]) -> None:
        """Raise OptprobeError where this kernel's stacks cannot be enumerated."""
        self._kernel = kernel
        self._machine = machine
        self._registers = tuple(registers)
        self._tasks = Tasks(kernel, TASKS)
        self._cpus = _CpuStacks(kernel)
        self._thread_size = thread_size(kernel)

    def saved(self) -> Iterator[SavedWords]:
        """Yield all memory that may hold a saved PC now. Raises OptprobeError where some cannot be enumerated now."""
        running: dict[int, dict[str, int]] = {}
        for vcpu in self._machine.vcpus():
            values = self._machine.registers(vcpu, (*self._registers, *OF_VCPU))
            yield SavedWords(f"vCPU {vcpu.number}", 0, array("Q", (values[name] for name in self._registers)))
            if values["cr0"] & PAGING:
                running[self._cpus.number(vcpu, values)] = values
        if unseen := self._cpus.online() - running.keys():
            raise NoSuchKernel(f"CPU {min(unseen)} runs on no vCPU that can be seen")
        masked = {cpu for cpu, values in running.items() if not (values["cpl"] or values["eflags"] & abi.IF)}
        threads = self._tasks.all(masked)
        alive: dict[int, int] = {}
        for cpu, values in running.items():
            yield from self._of_cpu(cpu, values, threads, alive)
        for address, task in threads.items():
            if task.stack:
                yield self._of_thread(task, alive.get(address, task.sp))

    def hides(self) -> bool:
        return self._tasks.hides()

    def _of_cpu(
        self, cpu: int, values: Mapping[str, int], threads: Mapping[int, Task], alive: dict[int, int]
    ) -> Iterator[SavedWords]:
        """Yield what a CPU has on stacks of its own; store in `alive` the SP from which its thread's stack is in use.
        """
        on = self._tasks.on_cpus()[cpu]
        if on.current not in threads or on.next not in threads:
            raise NoSuchKernel(f"CPU {cpu} runs no thread yet")
        if values["cpl"]:
            alive[on.current] = self._end(threads[on.current])
            return
        sp = values["rsp"]
        interrupt = self._cpus.interrupt(cpu)
        if interrupt.start <= sp < interrupt.end:
            yield self._read(interrupt.name, sp, Stack(interrupt.start, interrupt.end))
            sp = self._kernel.word(interrupt.end - 8)
        # A CPU that switches threads is on the stack of either, and the other one's SP is saved.
        for task in (threads[on.current], threads[on.next]):
            if task.stack and task.stack <= sp <= self._end(task):
                alive[task.address] = sp
                return
        if sp >> 63 and not any(sp - (1 << 64) in area for area in ENTRY_AREAS):
            raise NoSuchKernel(f"CPU {cpu} is on a stack at {sp:#x} that is none of its own")
        for stack in (interrupt, *self._cpus.entry(cpu)):
            yield self._read(stack.name, stack.start, Stack(stack.start, stack.end))
        alive.update({address: threads[address].stack for address in (on.current, on.next)})

    def _of_thread(self, task: Task, sp: int) -> SavedWords:
        if not task.stack <= sp <= self._end(task):
            raise NoSuchKernel(f"{task} has its stack pointer {sp:#x} outside its stack at {task.stack:#x}")
        return self._read(str(task), sp, Stack(task.stack, self._end(task), task.pid, task.name))

    def _end(self, task: Task) -> int:
        return task.stack + self._thread_size

    def _read(self, name: str, start: int, stack: Stack) -> SavedWords:
        start &= ~7
        if stack.end % 8:
            raise NoSuchKernel(f"{name} has a stack that ends at {stack.end:#x}")
        words = array("Q")
        words.frombytes(self._kernel.memory.read(start, stack.end - start) if start < stack.end else b"")
        return SavedWords(name, start, words, stack)


class _CpuStacks:
    """The stacks that belong to CPUs. Offsets are looked up once."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._percpu = PerCpu.of(kernel)
        # As large as a thread's, whatever debugging adds to both (arch/x86/include/asm/page_64_types.h).
        self._interrupt_size = thread_size(kernel)
        self._interrupt = self._percpu.addresses_of_either(
            ("hardirq_stack_ptr", "", ""),
            ("pcpu_hot", "pcpu_hot", "hardirq_stack_ptr"),
        )
        self._entry = self._percpu.addresses("entry_stack_storage")
        self._areas = self._percpu.addresses("cea_exception_stacks")
        self._online = kernel.address("__cpu_online_mask")
        area = "cea_exception_stacks"
        first = kernel.offset(area, "DF_stack")
        self._exception_size = kernel.offset(area, "NMI_stack_guard") - first
        self._exceptions = {"DF": first}
        for name in EXCEPTIONS[1:]:
            try:
                self._exceptions[name] = kernel.offset(area, f"{name}_stack")
            except OptprobeError:
                if name not in SECURE_GUESTS_ONLY:
                    raise

    def online(self) -> set[int]:
        """Return the numbers of the CPUs that run threads."""
        count = len(self._percpu.bases)
        mask = int.from_bytes(self._kernel.memory.read(self._online, (count + 7) // 8), "little")
        return {cpu for cpu in range(count) if mask >> cpu & 1}

    def number(self, vcpu: Vcpu, values: Mapping[str, int]) -> int:
        """Return Linux's number of a vCPU. Its GS base is the CPU's, or is swapped out while user mode's is in its
        place.
        """
        own = ("gs_base", "k_gs_base") if not values["cpl"] else ("k_gs_base",)
        for name in own:
            if values[name] in self._percpu.bases:
                return self._percpu.bases.index(values[name])
        raise NoSuchKernel(f"vCPU {vcpu.number} is none of Linux's CPUs just now")

    def interrupt(self, cpu: int) -> _OwnStack:
        # The pointer is to the top word, or just behind it (before 5.12).
        end = -(-self._kernel.word(self._interrupt[cpu]) // PAGE) * PAGE
        if not end:
            raise NoSuchKernel(f"CPU {cpu} has no interrupt stack yet")
        return _OwnStack(f"an interrupt on CPU {cpu}", end - self._interrupt_size, end)

    def entry(self, cpu: int) -> Iterator[_OwnStack]:
        start = self._entry[cpu]
        yield _OwnStack(f"entry code on CPU {cpu}", start, start + ENTRY_STACK)
        area = self._kernel.word(self._areas[cpu])
        for name, offset in self._exceptions.items():
            start = area + offset
            if name not in SECURE_GUESTS_ONLY or self._mapped(start):
                yield _OwnStack(f"an exception ({name}) on CPU {cpu}", start, start + self._exception_size)

    def _mapped(self, address: int) -> bool:
        try:
            self._kernel.word(address)
        except OptprobeError:
            return False
        return True


def missing(kernel: Kernel) -> str:
    """Return why saved PCs cannot be enumerated in this kernel, in words; "" where they can."""
    try:
        thread_size(kernel), _CpuStacks(kernel), Tasks(kernel, TASKS)
    except OptprobeError as error:
        return error.message
    return ""
