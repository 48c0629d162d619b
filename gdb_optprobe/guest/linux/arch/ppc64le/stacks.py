"""Every saved PC of a stopped ppc64le kernel.

    a vCPU is …                  what is alive of its CPU
    ├─ not started               nothing (every CPU that runs threads has a vCPU)
    ├─ in user mode              its registers; its thread's stack is empty
    ├─ on an interrupt stack     from below SP up, then where its back chain leads
    ├─ on a thread's stack       from below SP up: leaf functions use 288 bytes there (ELFv2 ABI, 2.2.3.4)
    ├─ on an emergency stack     all its stacks, its paca, its thread's whole stack
    └─ in entry code             besides SRR0, its paca, and the frame that was left just now, below SP

    a thread without a CPU       from its saved SP up: return addresses, and the interrupted PC if it was preempted

r13 is the paca's address from the first instructions of entry code to the last ones (asm/paca.h). An interrupt
continues on the interrupted stack, and switches to hardirq_ctx or softirq_ctx by a frame that leads back
(kernel/irq.c). During a switch the CPU is on either thread's stack, and the other one's SP is saved (`_switch`). QEMU
7.2's stub gives SRR0 of its first vCPU alone: where SRR0 is needed and not given, the scan is refused.
Return addresses that the guest's tracer keeps elsewhere are never in a window or a detour (../x86_64/stacks.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.linux.arch.ppc64le import areas
from gdb_optprobe.guest.linux.arch.ppc64le.threads import Cpu, Layout, Stack, Thread, Threads, cpus, online
from gdb_optprobe.guest.linux.exiting import Listed, Unneeded, exiting
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.percpu import PerCpu
from gdb_optprobe.guest.machine import Machine, Vcpu
from gdb_optprobe.guest.saved_pcs import SavedWords
from gdb_optprobe.guest.saved_pcs import Stack as Whole
from gdb_optprobe.isa.ppc64le.abi import RED_ZONE

USER, TRANSLATED = 1 << 14, 1 << 5  # MSR.PR, MSR.IR
KERNEL_HALF = 1 << 63
PACA_SIZE = 1 << 12
PAGE = 1 << 12
INTERRUPT_FRAME = 1 << 10  # more than INT_FRAME_SIZE
OF_VCPU = ("r1", "r13", "pc", "msr")
IN_ENTRY = ("srr0",)


class Stacks:
    """The saved PCs of one kernel."""

    def __init__(self, kernel: Kernel, machine: Machine, registers: Sequence[str], layout: Layout) -> None:
        self._kernel = kernel
        self._machine = machine
        self._registers = tuple(registers)
        self._layout = layout
        self._threads = Threads(kernel, layout)
        self._exiting = exiting_of(kernel)
        self._entry = areas.entry_text(kernel)

    def saved(self) -> Iterator[SavedWords]:
        """Yield all memory that may hold a saved PC now. Raises OptprobeError where some cannot be enumerated now."""
        known = cpus(self._kernel, self._layout)
        by_paca = {cpu.paca: cpu for cpu in known}
        running: dict[Cpu, tuple[int, int]] = {}
        in_user_mode = 0
        for vcpu in self._machine.vcpus():
            values = self._registers_of(vcpu, (*self._registers, *OF_VCPU))
            yield SavedWords(f"vCPU {vcpu.number}", 0, array("Q", (values[name] for name in self._registers)))
            cpu = by_paca.get(values["r13"])
            if self._comes_from_user_mode(values, cpu):
                in_user_mode += 1
            elif cpu is not None:
                if cpu in running:
                    raise NoSuchKernel(f"two vCPUs seem to be CPU {cpu.number}")
                running[cpu] = values["r1"], RED_ZONE
                if self._is_entering(values):
                    yield self._of_paca(f"an interrupt on CPU {cpu.number}", cpu)
                    interrupted = self._registers_of(vcpu, IN_ENTRY)
                    yield SavedWords(f"an interrupt on CPU {cpu.number}", 0, array("Q", interrupted.values()))
                    running[cpu] = values["r1"], RED_ZONE + INTERRUPT_FRAME
        up = online(self._kernel, self._layout, len(known))
        unseen = [cpu for cpu in known if cpu.number in up and cpu not in running]
        if len(unseen) != in_user_mode:
            raise NoSuchKernel(f"{len(unseen)} CPUs are not in the kernel, but {in_user_mode} vCPUs are in user mode")
        current = {cpu: self._kernel.word(cpu.paca + self._layout.current) for cpu in known}
        # A CPU that never came up has no current thread.
        others = (*(cpu.idle for cpu in known), *self._exiting.unlisted())
        threads = self._threads.all((*filter(None, current.values()), *others))
        alive = {current[cpu]: self._end(threads[current[cpu]]) for cpu in unseen}
        for cpu, (sp, below) in running.items():
            yield from self._of_cpu(cpu, sp, below, current[cpu], threads, alive)
        for address, thread in threads.items():
            if thread.stack:
                yield self._of_thread(thread, alive.get(address, thread.sp))

    def hides(self) -> bool:
        return self._exiting.hides()

    def _comes_from_user_mode(self, values: Mapping[str, int], cpu: Cpu | None) -> bool:
        """Return whether it is in user mode, or in entry code that still, or again, has the user's registers."""
        if values["msr"] & USER:
            return True
        if not values["msr"] & TRANSLATED:
            return False
        return self._is_entering(values) and (cpu is None or values["r1"] < KERNEL_HALF)

    def _is_entering(self, values: Mapping[str, int]) -> bool:
        """Return whether it is in entry code or in firmware."""
        return self._entry[0] <= values["pc"] < self._entry[1] or not values["msr"] & TRANSLATED

    def _registers_of(self, vcpu: Vcpu, names: Sequence[str]) -> dict[str, int]:
        try:
            return self._machine.registers(vcpu, names)
        except RuntimeError as error:  # GDB's own: it has no better class
            raise NoSuchKernel(f"the registers of vCPU {vcpu.number} cannot be read: {error}") from None

    def _of_cpu(
        self, cpu: Cpu, sp: int, below: int, current: int, threads: Mapping[int, Thread], alive: dict[int, int]
    ) -> Iterator[SavedWords]:
        """Yield what a CPU has on stacks of its own; store in `alive` the SP from which its thread's stack is in use.
        """
        left = list(cpu.interrupt)
        while stack := next((stack for stack in left if stack.start <= sp < stack.end), None):
            left.remove(stack)
            yield self._read(stack.name, max(stack.start, sp - below), Whole(stack.start, stack.end))
            sp = self._out_of(stack, sp)
        if current not in threads:
            raise NoSuchKernel(f"CPU {cpu.number} runs no thread yet")
        own = next((thread for thread in threads.values() if thread.stack <= sp < self._end(thread)), None)
        if own is not None and (own.address == current or own.sp == sp):
            alive[own.address] = max(own.stack, sp - below)
            return
        if not any(stack.start <= sp < stack.end for stack in cpu.emergency):
            raise NoSuchKernel(f"CPU {cpu.number} is on a stack at {sp:#x} that is none of its own")
        for stack in cpu.stacks:
            yield self._read(stack.name, stack.start, Whole(stack.start, stack.end))
        yield self._of_paca(f"an emergency on CPU {cpu.number}", cpu)
        alive[current] = threads[current].stack

    def _out_of(self, stack: Stack, sp: int) -> int:
        """Return where the back chain from `sp` leaves an interrupt stack."""
        at = sp
        while stack.start <= at < stack.end:
            following = self._kernel.word(at)
            if at < following < stack.end or not stack.start <= following < stack.end:
                at = following
            else:
                raise NoSuchKernel(f"the frames of {stack.name} are broken at {at:#x}")
        return at

    def _of_thread(self, thread: Thread, sp: int) -> SavedWords:
        if not thread.stack <= sp <= self._end(thread):
            raise NoSuchKernel(f"{thread} has its stack pointer {sp:#x} outside its stack at {thread.stack:#x}")
        return self._read(str(thread), sp, Whole(thread.stack, self._end(thread), thread.pid, thread.name))

    def _end(self, thread: Thread) -> int:
        return thread.stack + self._layout.thread_size

    def _of_paca(self, name: str, cpu: Cpu) -> SavedWords:
        """Read a paca, which is shorter than what is read of it and may be the last thing in memory."""
        end = cpu.paca + PACA_SIZE
        try:
            return self._read(name, cpu.paca, Whole(cpu.paca, end))
        except Unreadable:
            return self._read(name, cpu.paca, Whole(cpu.paca, end & -PAGE))

    def _read(self, name: str, start: int, stack: Whole) -> SavedWords:
        start &= ~7
        words = array("Q")
        words.frombytes(self._kernel.memory.read(start, stack.end - start) if start < stack.end else b"")
        return SavedWords(name, start, words, stack)


def exiting_of(kernel: Kernel) -> Listed | Unneeded:
    """Return how this kernel keeps track of threads that exit. Raises NoSuchKernel for one that could hide some."""
    if kernel.symbols.address("preempt_schedule") is None:
        return Unneeded()
    found = exiting(kernel, PerCpu.of(kernel))
    if not isinstance(found, Listed):
        raise NoSuchKernel("this kernel preempts threads, and only counts those that end")
    return found
