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
from gdb_optprobe.isa.x86_64 import unwind as orc
from gdb_optprobe.probes.session import Session

MASK = (1 << 64) - 1
WORD = 8
# ORC tables speak of these; the others are known behind a pt_regs alone.
FOLLOWED = ("rip", "rsp", "rbp", "r10", "r13", "rdi", "rdx")


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


class DetourUnwinder(gdb.unwinder.Unwinder):
    """From a detour to the instruction it stands for. `exact` learns that this frame's PC is no return address."""

    def __init__(self, session: Callable[[], Session | None], exact: set[FrameId]) -> None:
        super().__init__("optprobe-detour")
        self._session = session
        self._exact = exact

    def __call__(self, pending: gdb.PendingFrame) -> gdb.UnwindInfo | None:
        session = self._session()
        if session is None:
            return None
        isa = session.target.isa
        pc = _register(pending, isa.pc)
        site = session.registry.at(pc)
        if site is None or site.detour is None:
            return None
        original = site.detour.original_pc(pc)
        if original is None:
            return None
        sp = (_register(pending, isa.sp) + session.pushed_at(site, pc)) & MASK
        saved = {name: _register(pending, name) for name in isa.registers if name not in (isa.pc, isa.sp)}
        self._exact.add(FrameId(sp, original))
        return _info(pending, FrameId(sp - WORD, pc), {**saved, isa.pc: original, isa.sp: sp})


@dataclass(frozen=True, slots=True)
class Kernel:
    """What unwinding a kernel's stack needs. function_start: of the function around an address; None outside of any."""

    tables: orc.Tables
    function_start: Callable[[int], int | None]
    read: Callable[[int, int], bytes]


class OrcUnwinder(gdb.unwinder.Unwinder):
    """From a kernel function to its caller. `exact` has the frames whose PC is no return address."""

    def __init__(self, kernel: Callable[[], Kernel | None], exact: set[FrameId]) -> None:
        super().__init__("optprobe-orc")
        self._kernel = kernel
        self._exact = exact

    def __call__(self, pending: gdb.PendingFrame) -> gdb.UnwindInfo | None:
        kernel = self._kernel()
        pc = _known(pending, "rip")
        if kernel is None or pc is None or not kernel.tables.text[0] <= pc < kernel.tables.text[1]:
            return None
        # What a callee has not saved is not known in an outer frame.
        registers = {name: value for name in FOLLOWED if (value := _known(pending, name)) is not None}
        exact = pending.level() == 0 or FrameId(registers["rsp"], pc) in self._exact
        try:
            caller = orc.unwind(orc.State(registers, exact), kernel.tables, kernel.read)
        except OptprobeError:
            return None
        if caller is None:
            # The kernel's stack ends here. No unwinder in Python can say so to GDB; our symbol file does.
            return None
        start = kernel.function_start(pc) or pc
        if caller.exact:
            self._exact.add(FrameId(caller.registers["rsp"], caller.registers["rip"]))
        return _info(pending, FrameId(caller.registers["rsp"], start), caller.registers)


def _info(pending: gdb.PendingFrame, frame: FrameId, registers: Mapping[str, int]) -> gdb.UnwindInfo:
    pointer = pending.read_register("rsp").type
    info = pending.create_unwind_info(
        _GdbFrameId(gdb.Value(frame.sp).cast(pointer), gdb.Value(frame.pc).cast(pointer))
    )
    for name, value in registers.items():
        try:
            kind = pending.read_register(name).type
        except ValueError:  # orig_rax is a word of pt_regs, no register of the machine
            continue
        info.add_saved_register(name, gdb.Value(value & MASK).cast(kind))
    return info


def _register(pending: gdb.PendingFrame, name: str) -> int:
    return int(pending.read_register(name)) & MASK


def _known(pending: gdb.PendingFrame, name: str) -> int | None:
    try:
        value = pending.read_register(name)
        return None if value.is_optimized_out else int(value) & MASK
    except (gdb.error, ValueError):
        return None


def install(session: Callable[[], Session | None], kernel: Callable[[], Kernel | None]) -> None:
    """Register both with GDB; whatever stops the guest makes them forget its frames."""
    exact: set[FrameId] = set()
    gdb.events.stop.connect(lambda _: exact.clear())
    gdb.unwinder.register_unwinder(None, OrcUnwinder(kernel, exact), replace=True)
    gdb.unwinder.register_unwinder(None, DetourUnwinder(session, exact), replace=True)
