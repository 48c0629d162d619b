"""A routine in the guest that the detours of one block call: the program of its probes, lowered once.

    block of detours ──call──► routine ──► counters of the block
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.handlers.lexer import Kind, tokens
from gdb_optprobe.handlers.lower_program import LoweringContext
from gdb_optprobe.handlers.lower_routine import Callers, lower_routine
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.isa.base import Code, Dead
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.routines import RoutineCalls
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.installed_detour import InstalledDetour
from gdb_optprobe.probes.spec import Spec


@dataclass(frozen=True)
class Routine:
    """callers: the code of the detours that may call it. calls: how."""

    installed: InstalledDetour
    callers: Slot
    calls: RoutineCalls

    @property
    def address(self) -> int:
        return self.installed.detour.address

    def has(self, pc: int) -> bool:
        return self.address <= pc < self.installed.detour.end

    def release(self, guest: Guest, arena: Arena) -> None:
        """Release it: no detour that calls it is led to any more. Raises OptprobeError."""
        slot, detour = self.installed.slot, self.installed.detour
        if self.installed.installed_at != guest.moment() or arena.has_retired_dispatchers:
            arena.retire(slot, detour, called=True)
            return
        try:
            arena.wipe([slot], guest.machine)
        except OptprobeError:
            arena.code.discard(slot)  # what it holds is not known
            raise
        arena.code.free(slot)


def is_same_everywhere(spec: Spec) -> bool:
    """Return whether condition and actions name nothing that differs by function: a plain name may be a parameter.

    Raises OptprobeError, pointing.
    """
    condition = spec.condition_part
    if condition is not None and any(token.kind is Kind.NAME for token in tokens(condition)):
        return False
    return not any(map(_has_names, spec.action_parts))


def _has_names(action: Fragment) -> bool:
    """Return whether an action has names beside its own and the `by` of its key."""
    _, *others = tokens(action)
    depth, by = 0, 0
    for token in others:
        if token.kind is Kind.PUNCTUATOR:
            depth += (token.text == "(") - (token.text == ")")
        elif token.kind is Kind.NAME:
            if depth or token.text != "by" or by:
                return True
            by += 1
    return False


def may_be_called(handler: Handler, dead: Dead, isa: Isa) -> bool:
    """Return whether a program does in a routine what it does in a detour. dead: at the entry of each function.

    What is dead there, or has another value in a routine, it must not read.
    """
    if not isa.routines or not handler.bare or handler.dereferences:
        return False
    calls = calls_of(isa, dead)
    return not handler.reads & (calls.changed | calls.clobbers | dead.registers | {isa.flags})


def calls_of(isa: Isa, dead: Dead) -> RoutineCalls:
    """Return how a routine is called where this is dead: it may not be possible there."""
    return next((each for each in isa.routines if each.clobbers <= dead.registers), isa.routines[0])


def routine_code(handler: Handler, callers: Callers, counters: int, dead: Dead, isa: Isa) -> Code:
    """Return the code of a routine for detours that count at `counters`. dead: at each of them. Raises NotLowered."""
    around = LoweringContext(
        address=0,
        objects=tuple(handler.addresses(counters)),
        dead=dead,
        per_cpu=handler.per_cpu,
        table_bits=handler.table_bits,
        ring=handler.ring_layout,
        cpu=handler.cpu,
    )
    return lower_routine(handler.program, callers, around, calls_of(isa, dead), isa)


def install_routine(code: Code, callers: Slot, calls: RoutineCalls, guest: Guest, arena: Arena) -> Routine:
    """Write the routine near the detours. Raises Refused, OptprobeError."""
    placed = InstalledDetour.install(callers.address, lambda at: Detour(at, code(at), at, ()), guest, arena)
    return Routine(placed, callers, calls)
