"""What a return probe on a program does: at the function's entry, and where it has returned.

Both read registers that a trap has saved, and words of the call's slot: a name of ours stands for its address till it
is known where in the slot they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.handlers import fold, lower_user_returns
from gdb_optprobe.handlers.compile import ProgramLimits, compile_handler
from gdb_optprobe.handlers.ir import And, Expr, Load, Op, Program, Register
from gdb_optprobe.handlers.lower_kernel_returns import EntryPart
from gdb_optprobe.handlers.lower_user_returns import FunctionContext, PlacedUserCallTable
from gdb_optprobe.handlers.return_scope import EntryProgram, ReturnScope, compile_entry
from gdb_optprobe.handlers.trap_frame import TrapFrame, read_from_frame, replace_register
from gdb_optprobe.isa.base import Code
from gdb_optprobe.isa.codegen import EntryState
from gdb_optprobe.isa.user_returns import UserReturning
from gdb_optprobe.maps import call_table
from gdb_optprobe.maps.user_call_table import MOST_SAVED, SAVED, WORD
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.user.target import UserTarget

CALL = "a call's slot"
"""What stands for its address."""


def compile_program(
    spec: Spec, at_entry: NamesAt, at_return: NamesAt, only: Expr | None, saved: TrapFrame, limits: ProgramLimits
) -> tuple[Program, EntryProgram]:
    """only: where the entry is looked at. saved: at the entry. Raises OptprobeError, pointing."""
    scope = ReturnScope(at_return.names, at_entry.names, CALL, at_entry.hertz)
    compile_entry(scope, spec.entry_actions, limits)
    program = compile_handler(spec.condition_part, spec.action_parts, scope, limits)
    entry = scope.entry(spec.entry_condition)
    if only is not None:
        entry = replace(entry, condition=And(only, entry.condition) if entry.condition is not None else only)
    # Where a call has returned, the saved PC is no trap's any more.
    return read_from_frame(program, replace(saved, behind=0), (CALL,)), read_from_frame(entry, saved)


def entry_parts(probes: Sequence[Probe]) -> tuple[EntryPart, ...]:
    """What these return probes of one function do at its entry, with their words one behind the other's.

    Raises OptprobeError where there are too many.
    """
    found: list[EntryPart] = []
    area = SAVED
    for probe in probes:
        handler = probe.handler
        memory = probe.counter.address if probe.counter is not None else 0
        armed = area if len(probes) > 1 and handler.entry.condition is not None else 0
        area += WORD * bool(armed)
        faults = memory + WORD if not handler.is_plain else 0
        around = handler.at_entry(memory) if probe.counter is not None else None
        found.append(EntryPart(handler.entry, area, faults, armed, around=around))
        area += WORD * len(handler.entry.words)
    if (words := (area - SAVED) // WORD) > MOST_SAVED:
        raise OptprobeError(f"{words} values would be kept of each call", f"{MOST_SAVED} can be: save fewer")
    return tuple(found)


def return_handler(handler: Handler, part: EntryPart, isa: UserReturning) -> Handler:
    """What is done where a call has returned, with its words where `part` has them."""

    def word(offset: int) -> Expr:
        return fold.binary(Op.ADD, Register(isa.slot), fold.constant(offset), 64, False)

    program = replace_register(handler.program, CALL, word(part.area - call_table.SAVED))
    if program is not handler.program:
        handler = replace(handler, program=program)
    return handler.only_if(Load(word(part.armed), WORD, signed=False, mapped=True)) if part.armed else handler


def entry_code(
    table: PlacedUserCallTable,
    way: FunctionContext,
    probes: Sequence[Probe],
    user: UserTarget,
    writable: int,
    target: Target,
) -> Code:
    """What runs at a trap on the function's entry. Raises OptprobeError; NotLowered where native code cannot do it."""
    traps, handler = user.kernel.isa, probes[0].handler
    readers = next((probe.readers for probe in probes if probe.readers is not None), None)
    before = EntryState(traps.scratch, per_cpu=handler.per_cpu, readers=readers)
    machine, isa = target.isa.codegen, user.kernel.returning().isa
    return lower_user_returns.lower_call_entered(table, way, entry_parts(probes), before, traps, isa, machine, writable)
