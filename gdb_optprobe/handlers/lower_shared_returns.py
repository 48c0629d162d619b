"""Lower what thousands of functions with plain return probes share: the code of their entries, and a trampoline.

    function ── stub: its number           ──► shared entry   a slot of the table; the number is kept in it
    return   ── trampoline: finds the slot ──► tally          the number tells which word to count in
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gdb_optprobe.handlers.ir import Clock, Program, Put, Register
from gdb_optprobe.handlers.lower_kernel_returns import PlacedCallTable, ProbedFunction, Trampoline, lower_entry
from gdb_optprobe.handlers.lower_program import LoweringContext, lower
from gdb_optprobe.handlers.lower_returns import EntryPart
from gdb_optprobe.handlers.return_scope import EntryProgram
from gdb_optprobe.isa.base import Code, Dead, joined
from gdb_optprobe.isa.codegen import Address, Backend, EntryState, MemoryValue, RegisterPool
from gdb_optprobe.isa.return_codegen import EntryStubs, ReturnBackend
from gdb_optprobe.maps.call_table import SAVED, WORD


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """What is done for a call of each function besides: at its entry, where it may be left out, and at its return.

    Both find the function's number: in the register of the stubs, and in the slot. around: of both.
    """

    entry: EntryProgram
    program: Program
    around: LoweringContext

    @property
    def part(self) -> EntryPart:
        """Return what is done at the entry beside keeping the number."""
        return EntryPart(self.entry, around=self.around)


NUMBER, TIME = SAVED, SAVED + WORD
"""Offsets in a slot: the function's number; of calls that are timed, when it was entered, at last how long it took."""


@dataclass(frozen=True, slots=True)
class PlacedTallies:
    """A word of each function at `counts`, in the order of their numbers; at `times` another one, or None."""

    counts: int
    times: int | None = None


def saved_words(timed: bool) -> int:
    """Return how many words of a call are saved."""
    return 1 + timed


def lower_shared_entry(
    table: PlacedCallTable,
    function: ProbedFunction,
    dead: Dead,
    timed: bool,
    stubs: EntryStubs,
    displaced: bytes = b"",
    recorded: RecordedCalls | None = None,
) -> Code:
    """Lower what stubs go to. displaced: of each function, what runs before it continues. Raises NotLowered."""
    number, dead = Register(stubs.number), replace(dead, registers=dead.registers - stubs.kept)
    part = EntryPart(EntryProgram(words=(number, Clock()) if timed else (number,)))
    before = EntryState(dead)
    if recorded is not None:
        part = replace(recorded.part, entry=replace(recorded.entry, words=(number, *recorded.entry.words)))
        before = replace(before, per_cpu=recorded.around.per_cpu)
    code = lower_entry(table, function, before, stubs.entry, [part])
    return joined((lambda at: stubs.begin, code, lambda at: stubs.end(displaced, function.pc)))


def lower_tally(tallies: PlacedTallies, made: Trampoline, isa: ReturnBackend) -> Code:
    """Lower a program of a trampoline that adds to the words of the function that has returned."""
    before = EntryState(made.dead, kept=made.kept)
    emit = isa.emitter(before)
    emit.pool = RegisterPool([name for name in isa.order(before) if name in made.dead.registers - {isa.slot}])
    with emit.pool.scratch() as number, emit.pool.scratch() as other:
        emit.load(number, MemoryValue(Address(isa.slot, NUMBER)))
        emit.address(other, Address(offset=tallies.counts, near=True))
        emit.atomic_add(Address(other, index=number), 1)
        if tallies.times is not None:
            emit.address(other, Address(offset=tallies.times, near=True))
            with emit.pool.scratch() as took:
                emit.load(took, MemoryValue(Address(isa.slot, TIME)))
                emit.atomic_add(Address(other, index=number), took)
    return emit.finish


def lower_recorded(
    tallies: PlacedTallies, recorded: RecordedCalls, made: Trampoline, isa: ReturnBackend, machine: Backend
) -> Code:
    """Lower the same for calls that are recorded, with what is done at their return behind it."""
    around = replace(recorded.around, dead=made.dead, kept=made.kept)
    return joined((lower_tally(tallies, made, isa), lower(recorded.program, around, machine)))


def lower_timed(
    tallies: PlacedTallies,
    program: Program,
    around: LoweringContext,
    made: Trampoline,
    isa: ReturnBackend,
    machine: Backend,
) -> Code:
    """Lower the same for calls that are timed, and `program` behind it.

    program: its first action puts how long the call took into the slot.
    """
    measure, *others = program.actions
    assert isinstance(measure, Put)
    around = replace(around, dead=made.dead, kept=made.kept)
    first = lower(Program(None, (measure,)), replace(around, objects=()), machine)
    return joined((first, lower_tally(tallies, made, isa), lower(Program(None, tuple(others)), around, machine)))
