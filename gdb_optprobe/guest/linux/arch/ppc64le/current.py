"""The running thread and CPU: r13 points to the paca, with __current and paca_index (asm/paca.h)."""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.current import STACK_SIZE, Current, plus, room_to
from gdb_optprobe.guest.machine import Machine, Vcpu
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import Frame, Load, Op, Register

FRAME = ("r1", "lr", "r0")
"""What the back chain needs, and what a function that has no frame yet has its return address in. All stacks are
aligned to STACK_SIZE (THREAD_ALIGN), emergency stacks too."""


USER = 1 << 14
"""Of MSR: PR."""


@dataclass(frozen=True, slots=True)
class Paca:
    """Offsets in the paca, current and number, in a thread, pid and comm, and where __per_cpu_offset is."""

    current: int
    number: int
    pid: int
    comm: int
    per_cpu_offset: int


def current(paca: Paca) -> Current:
    """Return the expressions, by offsets that were derived from the kernel's code: no types are needed."""
    number = Load(plus(Register("r13"), paca.number), 2, signed=False, mapped=True)
    scaled = fold.binary(Op.SHL, number, fold.constant(3), 64, False)
    base = Load(plus(scaled, paca.per_cpu_offset), 8, signed=False, mapped=True)
    task = Load(plus(Register("r13"), paca.current), 8, signed=False, mapped=True)
    # tgid follows pid (include/linux/sched.h, struct task_struct).
    members = {"pid": paca.pid, "tgid": paca.pid + 4, "comm": paca.comm}
    return Current(task, number, base, members, Frame((*FRAME,), room_to(Register(FRAME[0]), STACK_SIZE)))


def outside(machine: Machine, vcpu: Vcpu) -> int | None:
    """See LinuxArch.outside: in a program no register has the paca."""
    if machine.registers(vcpu, ("msr",))["msr"] & USER:
        raise OptprobeError(f"vCPU {vcpu.number} runs a program: which CPU of Linux it is is not known")
    return None
