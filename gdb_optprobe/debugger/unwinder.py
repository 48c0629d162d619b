"""Backtraces on a kernel without debug information, and through our detours.

    frame 0   in probe_read          reads memory for handlers (probes/probe_read.py)
              or in a routine        the program of many detours (probes/routine.py)
    frame 1   in a detour            its caller is the probed instruction, with the same stack
    frame 2   the probed function    by the kernel's own rules: its unwind tables or its frames
    frame 3…  its callers
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

import gdb
import gdb.unwinder

from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.base import Unwinder
from gdb_optprobe.isa.base import ReadMemory
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.probes.return_stops import key_after
from gdb_optprobe.probes.routine import Routine
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.stops import Caller

MASK = (1 << 64) - 1
WORD = 8
MOST = 256
"""Frames of one stack: the deepest of a kernel has some 100."""


@dataclass(frozen=True, slots=True)
class FrameId:
    """The identity of a frame."""

    sp: int
    pc: int


@dataclass(frozen=True, slots=True)
class _GdbFrameId:
    """The same for GDB: values of a pointer's size."""

    sp: gdb.Value
    pc: gdb.Value


@dataclass(frozen=True, slots=True)
class Kernel:
    """What unwinding a kernel's stack needs.

    function_start: from an address to the start of its function; None outside of any.
    read: reads memory; raises Unreadable.
    """

    unwinder: Unwinder
    isa: Isa
    function_start: Callable[[int], int | None]
    read: ReadMemory

    def registers(self) -> tuple[str, ...]:
        return tuple(name for name in self.isa.registers if name not in self.isa.short_registers)


@dataclass(frozen=True, slots=True)
class State:
    """The known registers of a frame. exact: its PC is the next instruction, not a return address.

    hidden: that return address is in a table of calls; the stack has a trampoline's.
    """

    registers: Mapping[str, int]
    exact: bool
    hidden: bool = False


class KernelUnwinder(gdb.unwinder.Unwinder):
    """Unwinds from a frame to its caller, in detours and in code that the kernel's tables describe.

    The state of an outer frame is kept from unwinding the inner one: GDB 13 can abort when an unwinder asks it for a
    register of an outer frame.
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
        found = _caller(state, session, kernel) if state is not None else None
        if found is None:
            return None
        frame, caller = found
        self._states[level + 1] = caller
        return _info(pending, frame, caller.registers, kernel.isa.short_registers)


def _caller(state: State, session: Session, kernel: Kernel) -> tuple[FrameId, State] | None:
    """Return the identity of a frame, and its caller's state; None where the kernel's stack ends, or is not known."""
    isa = kernel.isa
    pc = state.registers[isa.pc]
    if (resident := session.probe_read_at(pc)) is not None:
        return _called(resident, pc, state, kernel)
    if (routine := session.block_routines.at(pc)) is not None:
        return _before_routine(routine, state, session, kernel)
    detour = session.registry.detour_at(pc)
    if detour is not None and (original := detour.original_pc(pc)) is not None:
        before = _before_pushes(detour, state, session, kernel)
        registers = {**_before_call(state.registers, detour, isa), **before}
        return FrameId(before[isa.sp] - WORD, pc), State({**registers, isa.pc: original}, exact=True)
    if (entry := session.optimizer.rethooks.shared_entry_at(pc)) is not None:
        return _called_by_stub(entry, state, session, kernel)
    if (trampoline := session.optimizer.rethooks.trampoline_at(pc)) is not None:
        return _returning(trampoline, state, session, kernel)
    try:
        found = kernel.unwinder.caller(state.registers, state.exact)
    except OptprobeError:
        return None
    if found is None:
        # The kernel's stack ends here. A Python unwinder cannot tell GDB so; our symbol file does.
        return None
    caller = _through(State(*found), session, kernel)
    return FrameId(caller.registers[isa.sp], kernel.function_start(pc) or pc), caller


def _through(state: State, session: Session, kernel: Kernel) -> State:
    """Return the state with the real return address where a call returns to a trampoline of a return probe."""
    isa = kernel.isa
    pc, sp = state.registers[isa.pc], state.registers[isa.sp]
    if state.exact or session.optimizer.rethooks.trampoline_at(pc) is None:
        return state
    back = session.optimizer.rethooks.return_address(pc, key_after(sp, session.target.guest), kernel.read)
    return State({**state.registers, isa.pc: back}, exact=False, hidden=True) if back is not None else state


def _returning(trampoline: Detour, state: State, session: Session, kernel: Kernel) -> tuple[FrameId, State]:
    """Unwind from a trampoline to where its call really returns."""
    isa = kernel.isa
    pc = state.registers[isa.pc]
    before = _before_pushes(trampoline, state, session, kernel)
    caller = _through(State({**state.registers, **before, isa.pc: trampoline.address}, False), session, kernel)
    return FrameId(before[isa.sp] - WORD, pc), caller


def _called_by_stub(
    entry: Detour, state: State, session: Session, kernel: Kernel
) -> tuple[FrameId, State] | None:
    """Unwind from the shared entry of functions to the stub that has called it."""
    isa = kernel.isa
    pc = state.registers[isa.pc]
    registers = {**state.registers, **_before_pushes(entry, state, session, kernel)}
    sp = registers[isa.sp]
    assert isa.returning is not None and isa.returning.stubs is not None, "its functions share an entry"
    try:
        back, before = isa.returning.stubs.continues_at(registers, sp, kernel.read)
    except OptprobeError:
        return None
    return FrameId(sp - WORD, pc), State({**registers, isa.pc: back, isa.sp: before}, exact=True)


def _before_pushes(code: Detour, state: State, session: Session, kernel: Kernel) -> Mapping[str, int]:
    """Return the stack pointer before what our code has pushed so far, and the registers that are among that."""
    isa, pc, sp = kernel.isa, state.registers[kernel.isa.pc], state.registers[kernel.isa.sp]
    before = {isa.sp: sp + session.pushed_at(code, pc) & MASK}
    for name, above in session.saved_at(code, pc).items():
        if name in state.registers:
            with suppress(OptprobeError):
                before[name] = int.from_bytes(kernel.read(sp + above & MASK, WORD), "little")
    return before


def _before_call(registers: Mapping[str, int], detour: Detour, isa: Isa) -> Mapping[str, int]:
    """Return registers without the changes that a handler program makes before it calls probe_read."""
    in_program = any(start <= registers[isa.pc] < end for start, end, _ in detour.programs)
    return isa.codegen.resumed(registers) if in_program else registers


def _called(resident: Detour, pc: int, state: State, kernel: Kernel) -> tuple[FrameId, State] | None:
    """Unwind from probe_read to the detour that called it."""
    machine = kernel.isa.codegen
    try:
        registers = machine.caller(resident.data, pc - resident.address, state.registers, kernel.read)
    except OptprobeError:
        return None
    return FrameId(registers[kernel.isa.sp] - 2 * WORD, pc), State(registers, exact=True)


def _before_routine(routine: Routine, state: State, session: Session, kernel: Kernel) -> tuple[FrameId, State] | None:
    """Unwind from the routine of a block to the call in a detour, which has not begun."""
    isa = kernel.isa
    pc = state.registers[isa.pc]
    before = _before_pushes(routine.installed.detour, state, session, kernel)
    try:
        registers = routine.calls.before({**state.registers, **before}, kernel.read)
    except OptprobeError:
        return None
    return FrameId(before[isa.sp] - WORD, pc), State(registers, exact=True)


def callers(registers: Mapping[str, int], session: Session, kernel: Kernel) -> Iterator[Caller]:
    """Yield the callers of the code that is about to run with these registers, the innermost first; at most MOST."""
    isa = kernel.isa
    once = replace(kernel, read=cache(kernel.read))  # a table of calls is read for each of its calls
    state = State({name: registers[name] for name in kernel.registers()}, exact=True)
    for _ in range(MOST):
        found = _caller(state, session, once)
        if found is None:
            return
        _, state = found
        yield Caller(state.registers[isa.pc], state.registers[isa.sp], state.exact, state.hidden)


def _innermost(pending: gdb.PendingFrame, kernel: Kernel, session: Session) -> dict[int, State]:
    """Return the state of frame 0; none where it is neither in the kernel nor in a detour."""
    pc = int(pending.read_register(kernel.isa.pc)) & MASK
    if not kernel.unwinder.knows(pc) and not session.is_inside(pc):
        return {}
    registers = {name: int(pending.read_register(name)) & MASK for name in kernel.registers()}
    return {0: State(registers, exact=True)}


def _through_programs(pending: gdb.PendingFrame, kernel: Kernel, session: Session) -> gdb.UnwindInfo | None:
    """Unwind from the trampoline of a uretprobe to where the program's call really returns."""
    if not session.uprobes.rethooks.functions and not session.uprobes.rethooks.retired:
        return None
    pc, sp = (int(pending.read_register(name)) & MASK for name in (kernel.isa.pc, kernel.isa.sp))
    back = session.uprobes.rethooks.return_address(pc, sp, kernel.read)
    if back is None:
        return None
    registers = {name: int(pending.read_register(name)) & MASK for name in kernel.registers()}
    return _info(pending, FrameId(sp, pc), {**registers, kernel.isa.pc: back}, kernel.isa.short_registers)


def _at_program_stop(pending: gdb.PendingFrame, kernel: Kernel, session: Session) -> gdb.UnwindInfo | None:
    """Unwind from the stop pad in trap code to the gate; the next frame is the program (guest/trap_frames.py)."""
    pc = int(pending.read_register(kernel.isa.pc)) & MASK
    gate = session.uprobes.stops.gate_at(pc)
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
    """Return a register; None where the stub does not have it of this vCPU."""
    try:
        return pending.read_register(name)
    except gdb.error:
        return None


def _info(
    pending: gdb.PendingFrame, frame: FrameId, registers: Mapping[str, int], short: Collection[str]
) -> gdb.UnwindInfo:
    """Return the unwind information of a frame. short: registers of 4 bytes."""
    word, half = _unsigned(64), _unsigned(32)
    info = pending.create_unwind_info(_GdbFrameId(gdb.Value(frame.sp).cast(word), gdb.Value(frame.pc).cast(word)))
    for name, value in registers.items():
        if not name.startswith("orig_"):  # a word of pt_regs, not a register of the CPU
            info.add_saved_register(name, gdb.Value(value & MASK).cast(half if name in short else word))
    return info


def _unsigned(bits: int) -> gdb.Type:
    """Return the unsigned integer type of some bits. C's names are unknown in other languages, such as Rust."""
    return gdb.selected_inferior().architecture().integer_type(bits, False)


def install(session: Callable[[], Session | None], kernel: Callable[[], Kernel | None]) -> None:
    """Register the unwinder with GDB."""
    gdb.unwinder.register_unwinder(None, KernelUnwinder(session, kernel), replace=True)
