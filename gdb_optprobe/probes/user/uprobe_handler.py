"""What a probe on an instruction of a program does, from what was typed."""

from __future__ import annotations

from dataclasses import replace

from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.detours.stop_pad import StopPad
from gdb_optprobe.handlers.compile import ProgramLimits, compile_handler
from gdb_optprobe.handlers.ir import WORD, And
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.handlers.trap_frame import read_from_frame
from gdb_optprobe.isa.base import Code
from gdb_optprobe.isa.codegen import ProbeReadRoutines
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.user.target import UserTarget
from gdb_optprobe.probes.user.trap_context import TrapSite, dead_at_trap, is_process, saved_registers
from gdb_optprobe.probes.user.uprobe_site import UprobeSite


def compile_uprobe(spec: Spec, point: UprobeSite, user: UserTarget, settings: Settings) -> Handler:
    """Return what a hit does. Raises OptprobeError, pointing at what cannot be done."""
    guest, program = user.guest, point.program
    names = guest.program_names_at(point.insn.address, program.is_entry(point.insn.address), program.bits)
    if spec.is_plain_count and not spec.pid:
        return Handler()
    limits = ProgramLimits(text=settings.string_length, stack=settings.stack_size // WORD)
    compiled = spec.program or compile_handler(spec.condition_part, spec.action_parts, names.names, limits)
    if spec.pid:
        test = is_process(names, spec.pid)
        both = And(test, compiled.condition) if compiled.condition is not None else test
        compiled = replace(compiled, condition=both)
    compiled = read_from_frame(compiled, saved_registers(user.kernel.isa, guest.isa.pc))
    bits = [number.bit_length() - 1 for number in (settings.table_keys, settings.ring_records)]
    return Handler.of(compiled, names.per_cpu, names.cpu, names.reads, *bits, overwrites=spec.overwrite)


def lower_uprobe(probe: Probe, memory: int, user: UserTarget) -> Code:
    """Return the program of `probe`, with its memory at `memory`.

    Raises OptprobeError that points at what native code cannot do.
    """
    near, handler = user.kernel.calls.handler, probe.handler
    readers = None if isinstance(handler.unmapped, Missing) else probe.readers or ProbeReadRoutines(near, near)
    pad = trial_pad(near) if handler.stops else None
    with handler.errors_at_source(probe.spec):
        return handler.code(user.guest.isa, TrapSite(near), dead_at_trap(user.kernel.isa), memory, readers, pad)


def trial_pad(near: int) -> StopPad:
    """For code that is only tried."""
    return StopPad(Slot(near, 0), b"")
