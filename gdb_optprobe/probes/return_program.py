"""What a kretprobe and a uretprobe do alike: the program of a return, and what a call's entry keeps for it in a slot.

    words of a slot, of one probe behind the other's:  │ armed │ flag │ data │ time │ saved words │
                                                        each of the first four only where it is needed
The program at the return names its saved words by their offsets from `SAVED`, as if they were the slot's first. Where
they are in fact is known when all return probes of the function are; `return_handler` moves them there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.compile import ProgramLimits, compile_handler
from gdb_optprobe.handlers.ir import MASK, Expr, Load, Op, Program, Register
from gdb_optprobe.handlers.lower_returns import EntryPart
from gdb_optprobe.handlers.return_scope import RETURN_ADDRESS, EntryProgram, ReturnScope, compile_entry
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.handlers.trap_frame import replace_register
from gdb_optprobe.maps.call_table import RETURN, SAVED, WORD
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.spec import Spec

OWN_WORDS = 4
"""The most words that a probe has before those that it saves."""


def compile_return(
    spec: Spec, at_entry: NamesAt, at_return: NamesAt, slot: str, hertz: int | Missing, limits: ProgramLimits
) -> tuple[Program, EntryProgram, ReturnScope]:
    """Compile what a return probe does at the return and at the entry; the scope is that of the program.

    slot: the register that the program has a slot's address in. hertz: ticks of the clock in a second.
    Raises OptprobeError, pointing.
    """
    scope = ReturnScope(at_return.names, at_entry.names, slot, hertz)
    compile_entry(scope, spec.entry_actions, limits)
    program = compile_handler(spec.condition_part, spec.action_parts, scope, limits)
    return program, scope.entry(spec.entry_condition), scope


def entry_parts(
    probes: Sequence[Probe], first: int, has_flag: Callable[[Probe], bool] = lambda probe: False
) -> tuple[EntryPart, ...]:
    """Return what the return probes of one function do at its entry, with their words one behind the other's.

    first:    offset in the slot of the first word that a probe may have.
    has_flag: whether a probe stops the guest by a flag in the slot.
    """
    found: list[EntryPart] = []
    area = first
    for probe in probes:
        handler, places = probe.handler, iter(range(area, area + (OWN_WORDS + 1) * WORD, WORD))
        memory = probe.counter.address if probe.counter is not None else None
        part = EntryPart(
            handler.entry,
            faults=memory + WORD if memory is not None and not handler.is_plain else 0,
            armed=next(places) if len(probes) > 1 and may_leave_out(probe) else 0,
            flag=next(places) if has_flag(probe) else 0,
            data=next(places) if probe.spec.pre_handler is not None else 0,
            time=next(places) if probe.spec.return_handler is not None else 0,
            around=handler.at_entry(memory) if memory is not None else None,
        )
        part = replace(part, area=next(places))
        found.append(part)
        area = part.area + WORD * len(handler.entry.words)
    return tuple(found)


def may_leave_out(probe: Probe) -> bool:
    """Return whether there are calls that the probe does not look at."""
    return probe.handler.entry.condition is not None or probe.spec.pre_handler is not None


def return_handler(handler: Handler, part: EntryPart, slot: str, register: str) -> Handler:
    """Return `handler` with its words where `part` has them, for calls that it looks at alone.

    slot: see compile_return. register: the one that has the slot's address where the code runs.
    """
    if slot != register or part.area != SAVED:
        program = replace_register(handler.program, slot, slot_word(register, part.area - SAVED))
        if program is not handler.program:
            handler = replace(handler, program=program)
    handler = with_return_address(handler, register)
    if not part.armed:
        return handler
    return handler.only_if(Load(slot_word(register, part.armed), WORD, signed=False, mapped=True))


def with_return_address(handler: Handler, register: str) -> Handler:
    """Return `handler` with the call's return address from its slot. register: as of return_handler."""
    if RETURN_ADDRESS not in handler.program.registers:
        return handler
    back = Load(slot_word(register, RETURN), WORD, signed=False, mapped=True)
    return replace(handler, program=replace_register(handler.program, RETURN_ADDRESS, back))


def slot_word(register: str, offset: int) -> Expr:
    """Return the address of a slot's word. register: the one that has the slot's address."""
    return fold.binary(Op.ADD, Register(register), fold.constant(offset & MASK), 64, False)
