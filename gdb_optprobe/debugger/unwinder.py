"""Backtraces on a kernel without debug information, and through our detours.

    frame 0   in a detour            its caller is the probed instruction, with the same stack
    frame 1   the probed function    from the kernel's own ORC tables
    frame 2…  its callers
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import gdb
import gdb.unwinder

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.isa.x86_64 import abi
from gdb_optprobe.isa.x86_64 import unwind as orc
from gdb_optprobe.probes.session import Session

MASK = (1 << 64) - 1
WORD = 8
# Registers of 4 bytes, as GDB has them.
HALVES = ("eflags", "cs", "ss")
REGISTERS = tuple(name for name in abi.REGISTERS if name not in HALVES)


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
    """What unwinding a kernel's stack needs. function_start: of the function around an address; None outside of any."""

    tables: orc.Tables
    function_start: Callable[[int], int | None]
    read: Callable[[int, int], bytes]


class KernelUnwinder(gdb.unwinder.Unwinder):
    """From a frame to its caller, for detours and for what the kernel's tables describe.

    The states of outer frames are those that unwinding the inner ones gave: GDB 13 can abort when an unwinder asks it
    for a register of an outer frame.
    """

    def __init__(self, session: Callable[[], Session | None], kernel: Callable[[], Kernel | None]) -> None:
        super().__init__("optprobe")
        self._session = session
        self._kernel = kernel
        self._states: dict[int, orc.State] = {}

    def __call__(self, pending: gdb.PendingFrame) -> gdb.UnwindInfo | None:
        session, kernel, level = self._session(), self._kernel(), pending.level()
        if session is None or kernel is None:
            return None
        if level == 0:
            self._states = _innermost(pending, kernel)
        state = self._states.get(level)
        found = self._caller(state, session, kernel) if state is not None else None
        if found is None:
            return None
        frame, caller = found
        self._states[level + 1] = caller
        return _info(pending, frame, caller.registers)

    def _caller(self, state: orc.State, session: Session, kernel: Kernel) -> tuple[FrameId, orc.State] | None:
        pc = state.registers["rip"]
        detour = session.registry.detour_at(pc)
        if detour is not None and (original := detour.original_pc(pc)) is not None:
            sp = state.registers["rsp"] + session.pushed_at(detour, pc) & MASK
            return FrameId(sp - WORD, pc), orc.State({**state.registers, "rip": original, "rsp": sp}, exact=True)
        try:
            caller = orc.unwind(state, kernel.tables, kernel.read)
        except OptprobeError:
            return None
        if caller is None:
            # The kernel's stack ends here. No unwinder in Python can say so to GDB; our symbol file does.
            return None
        return FrameId(caller.registers["rsp"], kernel.function_start(pc) or pc), caller


def _innermost(pending: gdb.PendingFrame, kernel: Kernel) -> dict[int, orc.State]:
    """The state of frame 0; nothing where it is not in the kernel."""
    pc = int(pending.read_register("rip")) & MASK
    if not kernel.tables.text[0] <= pc < kernel.tables.text[1]:
        return {}
    registers = {name: int(pending.read_register(name)) & MASK for name in REGISTERS}
    return {0: orc.State(registers, exact=True)}


def _info(pending: gdb.PendingFrame, frame: FrameId, registers: Mapping[str, int]) -> gdb.UnwindInfo:
    word, half = gdb.lookup_type("unsigned long long"), gdb.lookup_type("unsigned int")
    info = pending.create_unwind_info(_GdbFrameId(gdb.Value(frame.sp).cast(word), gdb.Value(frame.pc).cast(word)))
    for name, value in registers.items():
        if name != "orig_rax":  # a word of pt_regs, no register of the machine
            info.add_saved_register(name, gdb.Value(value & MASK).cast(half if name in HALVES else word))
    return info


def install(session: Callable[[], Session | None], kernel: Callable[[], Kernel | None]) -> None:
    """Register it with GDB."""
    gdb.unwinder.register_unwinder(None, KernelUnwinder(session, kernel), replace=True)
