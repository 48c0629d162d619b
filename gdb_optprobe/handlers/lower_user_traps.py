"""The dispatcher of traps in user programs: code that runs before the kernel's handler and continues in a trap's code.

    trap ──► the kernel's entry code ──► here ── of kernel mode, or not in the table ──► the kernel's handler
                                          ├──── in the table ──► the trap's code ──► back: the trap is over
                                          └──── its page is not mapped any more ──► back, to the trap once more

The search and the table are those of traps in the kernel (lower_traps.py). The key is another one: the offset and the
file of the page that the trap is on, looked up first; and registers are those of a C function, not of entry code.
"""

from __future__ import annotations

from gdb_optprobe.handlers.lower_mapped_file import UNKNOWN, FileLookup, FilePageOffsets
from gdb_optprobe.handlers.lower_slot_search import lower_search
from gdb_optprobe.handlers.lower_traps import PlacedTrapTable
from gdb_optprobe.isa.base import Code
from gdb_optprobe.isa.codegen import (
    Address,
    Arithmetic,
    Comparison,
    EntryState,
    Label,
    MemoryValue,
    ProbeReadRoutines,
    RegisterPool,
)
from gdb_optprobe.isa.user import UserEmitter, UserTrapping
from gdb_optprobe.maps.trap_table import WORD


def lower_user_trap_handler(traps: PlacedTrapTable, mapped: FilePageOffsets, kernels: int, isa: UserTrapping) -> Code:
    """Return the code of the dispatcher. kernels: the kernel's handler."""
    emit = _emitter(isa, None)
    found, absent, foreign = (Label() for _ in range(3))
    emit.begin()
    if isa.mode is not None:
        emit.branch_bits(isa.mode, isa.user, False, foreign)
        if isa.far:
            emit.branch_bits(isa.mode, isa.far, True, foreign)
    lookup = FileLookup(emit, isa, mapped, absent, foreign)
    lookup.lower()
    slot, word = emit.pool.allocate(), emit.pool.allocate()
    key = (MemoryValue(Address(slot)), lookup.offset), (MemoryValue(Address(slot, WORD)), lookup.inode)

    def compare() -> None:
        other, unequal = Label(), Label()
        emit.branch_unless(key, unequal)
        emit.bind(found)
        emit.load(word, MemoryValue(Address(slot, traps.layout.value)))
        emit.continue_at(word)
        emit.bind(unequal)
        emit.branch(Comparison.EQ, MemoryValue(Address(slot, WORD)), 0, False, foreign)
        emit.branch(Comparison.NE, lookup.inode, UNKNOWN, False, other)
        emit.branch(Comparison.EQ, MemoryValue(Address(slot)), lookup.offset, False, found)
        emit.bind(other)

    lower_search(emit, traps.slots, lookup.offset, slot, compare)
    lookup.lower_rest()
    emit.bind(foreign)
    emit.kernels(kernels)
    emit.bind(absent)
    if isa.behind:
        emit.load(word, MemoryValue(Address(isa.frame, isa.pc)))
        emit.binary(Arithmetic.SUB, word, word, isa.behind, 64, False)
        emit.store(Address(isa.frame, isa.pc), word)
    emit.back()
    return emit.finish


def lower_removed_trap(kernels: int, readers: ProbeReadRoutines, isa: UserTrapping) -> Code:
    """Return the code of a removed trap: it runs what is there again, or leaves another's trap to the kernel."""
    emit = _emitter(isa, readers)
    foreign, back = Label(), Label()
    pc, word = emit.pool.allocate(), emit.pool.allocate()
    emit.load(pc, MemoryValue(Address(isa.frame, isa.pc)))
    emit.binary(Arithmetic.SUB, pc, pc, isa.behind, 64, False)
    emit.probe_read(word, pc, len(isa.trap), foreign)
    emit.extend(word, word, 8 * len(isa.trap), False)
    emit.branch(Comparison.NE, word, int.from_bytes(isa.trap, "little"), False, back)
    emit.bind(foreign)
    emit.kernels(kernels)
    emit.bind(back)
    emit.store(Address(isa.frame, isa.pc), pc)
    emit.back()
    return emit.finish


def _emitter(isa: UserTrapping, readers: ProbeReadRoutines | None) -> UserEmitter:
    before = EntryState(isa.scratch, frozenset((isa.frame,)), readers=readers)
    emit = isa.emitter(before)
    usable = isa.scratch.registers - {isa.frame}
    emit.pool = RegisterPool([name for name in isa.order(before) if name in usable])
    return emit
