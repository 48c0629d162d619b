"""The program of a return probe, and what it has kept at the entry, from what was typed."""

from __future__ import annotations

from dataclasses import replace

from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.handlers.compile import ProgramLimits, compile_handler
from gdb_optprobe.handlers.ir import Constant, Program, Put, Register
from gdb_optprobe.handlers.lower_kernel_returns import EntryContext, EntryPart, PlacedCallTable, lower_entry
from gdb_optprobe.handlers.return_scope import EntryProgram, ReturnScope, compile_entry
from gdb_optprobe.isa.codegen import EntryState, ProbeReadRoutines
from gdb_optprobe.maps.call_table import CallTableLayout
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target


def compile_kretprobe(
    spec: Spec, address: int, target: Target, limits: ProgramLimits
) -> tuple[Program, NamesAt, EntryProgram]:
    """For a function that is entered at `address`. Raises OptprobeError, pointing."""
    names, isa = target.at_return(address), target.isa.returning
    if names is None or isa is None:
        raise OptprobeError(f"{target.text.spell(address)} is not where a function is entered")
    scope = ReturnScope(names.names, target.scope(address).names, isa.slot, names.hertz)
    compile_entry(scope, spec.entry_actions, limits)
    program = compile_handler(spec.condition_part, spec.action_parts, scope, limits)
    return program, replace(names, names=scope), scope.entry(spec.entry_condition)


def check_entry(handler: Handler, plan: Plan, target: Target, readers: ProbeReadRoutines | None) -> None:
    """Raises NotLowered where native code cannot keep what the handler wants kept."""
    isa = target.isa.returning
    assert isa is not None, "it was compiled"
    before = EntryState(plan.dead, per_cpu=handler.per_cpu, base=plan.base, readers=readers)
    part = EntryPart(handler.entry, around=handler.at_entry(plan.address))
    table = PlacedCallTable(CallTableLayout(1, len(handler.entry.words)), plan.address)
    lower_entry(table, EntryContext(plan.address, (plan.address, plan.end), plan.address), before, isa, [part])


def without_stop(handler: Handler, target: Target) -> Handler:
    """The program that is in the trampoline, which leaves a word instead."""
    isa = target.isa.returning
    assert isa is not None, "it was compiled"
    return handler.storing([Put(Register(isa.slot), Constant(1))] if handler.stops else [])
