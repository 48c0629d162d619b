"""Lower what thousands of functions with plain return probes share: the code of their entries, and a trampoline.

    function ── stub: a call, a branch back ──► shared entry   a slot of the table; where the stub continues, kept in it
    return   ── trampoline: finds the slot  ──► tally          the stub tells which word to count in
The stubs follow one another, and so do the words: the one is found from the other by a shift.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gdb_optprobe.handlers.ir import Clock, Load, Program, Put, Register
from gdb_optprobe.handlers.lower_kernel_returns import PlacedCallTable, ProbedFunction, Trampoline, lower_entry
from gdb_optprobe.handlers.lower_program import LoweringContext, lower
from gdb_optprobe.handlers.lower_returns import EntryPart
from gdb_optprobe.handlers.return_scope import EntryProgram
from gdb_optprobe.isa.base import Code, Dead, joined
from gdb_optprobe.isa.codegen import Address, Arithmetic, Backend, EntryState, MemoryValue, RegisterPool
from gdb_optprobe.isa.return_codegen import EntryStubs, ReturnBackend
from gdb_optprobe.maps.call_table import SAVED, WORD

STUB, TIME = SAVED, SAVED + WORD
"""Offsets in a slot: where the stub continues; of calls that are timed, when it was entered, at last how long it took.
"""
MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class PlacedStubs:
    """Stubs in the guest, `step` bytes each, and a word of each function at `counts`; at `times` another one, or None.

    behind: from a stub to where it continues.
    """

    address: int
    step: int
    behind: int
    counts: int
    times: int | None = None

    def index(self, word: int) -> int:
        """Return which of the functions has left `word`."""
        return (word - self.behind - self.address) // self.step


def saved_words(timed: bool) -> int:
    """Return how many words of a call are saved."""
    return 1 + timed


def lower_shared_entry(
    table: PlacedCallTable, function: ProbedFunction, dead: Dead, sp: str, timed: bool, stubs: EntryStubs
) -> Code:
    """Lower what stubs call. sp: the stack pointer's name. Raises NotLowered."""
    continues = Load(Register(sp), WORD, signed=False, mapped=True)
    part = EntryPart(EntryProgram(words=(continues, Clock()) if timed else (continues,)))
    code = lower_entry(table, function, EntryState(dead), stubs.entry, [part])
    return joined((code, lambda at: stubs.end))


def lower_tally(stubs: PlacedStubs, made: Trampoline, isa: ReturnBackend) -> Code:
    """Lower a program of a trampoline that adds to the words of the function that has returned."""
    before = EntryState(made.dead, kept=made.kept)
    emit = isa.emitter(before)
    emit.pool = RegisterPool([name for name in isa.order(before) if name in made.dead.registers - {isa.slot}])
    shift = (stubs.step // WORD).bit_length() - 1
    # (first + step * n) >> shift is a constant and WORD * n: `first` need be no multiple of anything.
    first = stubs.address + stubs.behind >> shift
    with emit.pool.scratch() as word, emit.pool.scratch() as other:
        emit.load(word, MemoryValue(Address(isa.slot, STUB)))
        emit.binary(Arithmetic.SHR, word, word, shift, 64, False)
        emit.constant(other, stubs.counts - first & MASK)
        emit.binary(Arithmetic.ADD, word, word, other, 64, False)
        emit.atomic_add(Address(word), 1)
        if stubs.times is not None:
            emit.load(other, MemoryValue(Address(isa.slot, TIME)))
            emit.atomic_add(Address(word, stubs.times - stubs.counts), other)
    return emit.finish


def lower_timed(
    stubs: PlacedStubs, program: Program, around: LoweringContext, made: Trampoline, isa: ReturnBackend, machine: Backend
) -> Code:
    """Lower the same for calls that are timed, and `program` behind it.

    program: its first action puts how long the call took into the slot.
    """
    measure, *others = program.actions
    assert isinstance(measure, Put)
    around = replace(around, dead=made.dead, kept=made.kept)
    first = lower(Program(None, (measure,)), replace(around, objects=()), machine)
    return joined((first, lower_tally(stubs, made, isa), lower(Program(None, tuple(others)), around, machine)))
