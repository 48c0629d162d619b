"""Backtraces on a kernel without debug information, and through our detours.

    frame 0   in a routine           what reads memory for programs (probes/probe_read.py)
    frame 1   in a detour            its caller is the probed instruction, with the same stack
    frame 2   the probed function    by the kernel's own rules: x86's ORC tables, ppc64le's back chain
    frame 3…  its callers
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import gdb
import gdb.unwinder

from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.base import Unwinder
from gdb_optprobe.isa import machines
from gdb_optprobe.isa.base import Isa, ReadMemory
from gdb_optprobe.probes.kretprobe_hits import key_after
from gdb_optprobe.probes.session import Session

MASK = (1 << 64) - 1
WORD = 8
# Registers of 4 bytes, as GDB has them.
HALVES = ("eflags", "cs", "ss", "cr", "xer")


@dataclass(frozen=True, slots=True)
class FrameId:
    """What frames are told apart by."""

    sp: int
    pc: int


@dataclass(frozen=True, slots=True)
class _GdbFrameId:
    """The same as GDB wants it: values of a pointer's size."""

    sp: gdb.Value
    pc: gdb.Value


@dataclass(frozen=True, slots=True)
class Kernel:
    """What unwinding a kernel's stack needs. function_start: of the function around an address; None outside of any.

    read: memory; raises Unreadable.
    """

    unwinder: Unwinder
    isa: Isa
    function_start: Callable[[int], int | None]
    read: ReadMemory

    def registers(self) -> tuple[str, ...]:
        return tuple(name for name in self.isa.registers if name not in HALVES)


@dataclass(frozen=True, slots=True)
class State:
    """The registers known in a frame. exact: its PC is the instruction that comes next, no return address."""

    registers: Mapping[str, int]
    exact: bool


class KernelUnwinder(gdb.unwinder.Unwinder):
    """From a frame to its caller, for detours and for what the kernel's tables describe.

    The states of outer frames are those that unwinding the inner ones gave: GDB 13 can abort when an unwinder asks it
    for a register of an outer frame.
    """

    def __init__(self, session: Callable[[], Session | None], kernel: Callable[[], Kernel | None]) -> None:
        super().__init__("optprobe")
        self._session = session
        self._kernel = kernel
        self._states: dict[int, State] = {}

    def __call__(self, pending: gdb.PendingFrame) -> gdb.UnwindInfo | None:
        session, kernel, level = self._session(), self._kernel(), pending.level()
        if session is None or kernel is None:
            return None
        if level == 0:
            self._states = {}
            if (gated := _at_program_stop(pending, kernel, session)) is not None:
                return gated
            self._states = _innermost(pending, kernel, session)
        state = self._states.get(level)
        if state is None and (users := _through_programs(pending, kernel, session)) is not None:
            return users
        found = self._caller(state, session, kernel) if state is not None else None
        if found is None:
            return None
        frame, caller = found
        self._states[level + 1] = caller
        return _info(pending, frame, caller.registers)

    def _caller(self, state: State, session: Session, kernel: Kernel) -> tuple[FrameId, State] | None:
        isa = kernel.isa
        pc = state.registers[isa.pc]
        if (resident := session.resident) is not None and session.in_resident(pc):
            return _called(resident, pc, state, kernel)
        detour = session.registry.detour_at(pc)
        if detour is not None and (original := detour.original_pc(pc)) is not None:
            sp = state.registers[isa.sp] + session.pushed_at(detour, pc) & MASK
            registers = _before_call(state.registers, detour, isa)
            return FrameId(sp - WORD, pc), State({**registers, isa.pc: original, isa.sp: sp}, exact=True)
        if (trampoline := session.optimizer.returns.at(pc)) is not None:
            return _returning(trampoline, state, session, kernel)
        try:
            found = kernel.unwinder.caller(state.registers, state.exact)
        except OptprobeError:
            return None
        if found is None:
            # The kernel's stack ends here. No unwinder in Python can say so to GDB; our symbol file does.
            return None
        caller = _through(State(*found), session, kernel)
        return FrameId(caller.registers[isa.sp], kernel.function_start(pc) or pc), caller


def _through(state: State, session: Session, kernel: Kernel) -> State:
    """Where a call returns to a trampoline of ours: to where it returns from there."""
    isa = kernel.isa
    pc, sp = state.registers[isa.pc], state.registers[isa.sp]
    if state.exact or session.optimizer.returns.at(pc) is None:
        return state
    back = session.optimizer.returns.back(pc, key_after(sp, session.target), kernel.read)
    return State({**state.registers, isa.pc: back}, exact=False) if back is not None else state


def _returning(trampoline: Detour, state: State, session: Session, kernel: Kernel) -> tuple[FrameId, State]:
    """From within a trampoline to where the call returns that has returned there."""
    isa = kernel.isa
    pc = state.registers[isa.pc]
    sp = state.registers[isa.sp] + session.pushed_at(trampoline, pc) & MASK
    caller = _through(State({**state.registers, isa.pc: trampoline.address, isa.sp: sp}, False), session, kernel)
    return FrameId(sp - WORD, pc), caller


def _before_call(registers: Mapping[str, int], detour: Detour, isa: Isa) -> Mapping[str, int]:
    """Without what a call of a program's own has changed."""
    in_program = any(start <= registers[isa.pc] < end for start, end, _ in detour.programs)
    return machines.of(isa.name).resumed(registers) if in_program else registers


def _called(resident: Detour, pc: int, state: State, kernel: Kernel) -> tuple[FrameId, State] | None:
    """From within what programs call to its caller."""
    machine = machines.of(kernel.isa.name)
    try:
        registers = machine.caller(resident.data, pc - resident.address, state.registers, kernel.read)
    except OptprobeError:
        return None
    return FrameId(registers[kernel.isa.sp] - 2 * WORD, pc), State(registers, exact=True)


def _innermost(pending: gdb.PendingFrame, kernel: Kernel, session: Session) -> dict[int, State]:
    """The state of frame 0; nothing where it is neither in the kernel nor in a detour."""
    pc = int(pending.read_register(kernel.isa.pc)) & MASK
    if not kernel.unwinder.knows(pc) and not session.is_inside(pc):
        return {}
    registers = {name: int(pending.read_register(name)) & MASK for name in kernel.registers()}
    return {0: State(registers, exact=True)}


def _through_programs(pending: gdb.PendingFrame, kernel: Kernel, session: Session) -> gdb.UnwindInfo | None:
    """From where a program's call has returned to us, as its stack says, to where it returns from there."""
    if not session.users.calls.functions and not session.users.calls.left:
        return None
    pc, sp = (int(pending.read_register(name)) & MASK for name in (kernel.isa.pc, kernel.isa.sp))
    back = session.users.calls.back(pc, sp, kernel.read)
    if back is None:
        return None
    registers = {name: int(pending.read_register(name)) & MASK for name in kernel.registers()}
    return _info(pending, FrameId(sp, pc), {**registers, kernel.isa.pc: back})


def _at_program_stop(pending: gdb.PendingFrame, kernel: Kernel, session: Session) -> gdb.UnwindInfo | None:
    """From where code at a program's trap stops to the gate, beyond which is the program: guest/trap_frames.py."""
    pc = int(pending.read_register(kernel.isa.pc)) & MASK
    gate = session.users.stops.gate_at(pc)
    if gate is None:
        return None
    word = _unsigned(64)
    sp = int(pending.read_register(kernel.isa.sp)) & MASK
    info = pending.create_unwind_info(_GdbFrameId(gdb.Value(sp).cast(word), gdb.Value(pc).cast(word)))
    for register in pending.architecture().registers("save"):
        if register.name != kernel.isa.pc:
            held_in = gate.swapped.get(register.name, register.name)
            if held_in and (value := _read(pending, held_in)) is not None:
                info.add_saved_register(register.name, value)
    info.add_saved_register(kernel.isa.pc, gdb.Value(gate.address).cast(word))
    return info


def _read(pending: gdb.PendingFrame, name: str) -> gdb.Value | None:
    """None where the stub does not tell it of this vCPU."""
    try:
        return pending.read_register(name)
    except gdb.error:
        return None


def _info(pending: gdb.PendingFrame, frame: FrameId, registers: Mapping[str, int]) -> gdb.UnwindInfo:
    word, half = _unsigned(64), _unsigned(32)
    info = pending.create_unwind_info(_GdbFrameId(gdb.Value(frame.sp).cast(word), gdb.Value(frame.pc).cast(word)))
    for name, value in registers.items():
        if not name.startswith("orig_"):  # a word of pt_regs, no register of the machine
            info.add_saved_register(name, gdb.Value(value & MASK).cast(half if name in HALVES else word))
    return info


def _unsigned(bits: int) -> gdb.Type:
    """Return the type of so many bits. C's names for it are none in other languages, such as Rust."""
    return gdb.selected_inferior().architecture().integer_type(bits, False)


def install(session: Callable[[], Session | None], kernel: Callable[[], Kernel | None]) -> None:
    """Register it with GDB."""
    gdb.unwinder.register_unwinder(None, KernelUnwinder(session, kernel), replace=True)
