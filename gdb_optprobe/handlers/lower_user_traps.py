"""What runs before the kernel's handler of breakpoint traps: a trap of ours in a user's program has its code run.

    trap ──► the kernel's entry code ──► here ── the kernel's own, or not in the table ──► the kernel's handler
                                          ├──── ours ──► the probe's code ──► back: the trap is over
                                          └──── its page has gone meanwhile ──► back, to the trap once more
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.handlers import lower_mapped_file
from gdb_optprobe.handlers.lower_mapped_file import UNKNOWN, FilePageOffsets, LookupExits
from gdb_optprobe.handlers.lower_slot_search import SlotArray, lower_home, lower_next_slot
from gdb_optprobe.isa.base import Code, joined
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
from gdb_optprobe.maps.trap_table import FACTOR, SHIFT
from gdb_optprobe.maps.user_trap_table import CODE, INODE, OFFSET, SLOT, UserTrapTableLayout


@dataclass(frozen=True, slots=True)
class PlacedUserTrapTable:
    """A table of traps in guest memory, at `address`."""

    layout: UserTrapTableLayout
    address: int

    @property
    def slots(self) -> SlotArray:
        end = self.address + self.layout.size
        return SlotArray(self.address, end, SLOT, self.layout.slots, FACTOR, SHIFT)


def lower_user_trap_handler(
    traps: PlacedUserTrapTable, mapped: FilePageOffsets, leaf: int, kernels: int, isa: UserTrapping
) -> Code:
    """kernels: its own handler. leaf: the routine that looks up a user's page."""
    emit = _emitter(isa, None)
    search, other, found, absent, foreign = (Label() for _ in range(5))
    emit.begin()
    emit.branch_bits(isa.mode, isa.user, False, foreign)
    if isa.far:
        emit.branch_bits(isa.mode, isa.far, True, foreign)
    key, inode = lower_mapped_file.lower_file_lookup(emit, isa, mapped, leaf, LookupExits(absent, foreign))
    slot, word = emit.pool.allocate(), emit.pool.allocate()
    lower_home(emit, traps.slots, key, slot, word)
    emit.bind(search)
    emit.load(word, MemoryValue(Address(slot, INODE)))
    emit.branch(Comparison.EQ, word, 0, False, foreign)
    emit.branch(Comparison.NE, MemoryValue(Address(slot, OFFSET)), key, False, other)
    emit.branch(Comparison.EQ, word, inode, False, found)
    emit.branch(Comparison.EQ, inode, UNKNOWN, False, found)
    emit.bind(other)
    lower_next_slot(emit, traps.slots, slot)
    emit.jump(search)
    emit.bind(foreign)
    emit.kernels(kernels)
    emit.bind(absent)
    emit.load(word, MemoryValue(Address(isa.frame, isa.pc)))
    emit.binary(Arithmetic.SUB, word, word, isa.behind, 64, False)
    emit.store(Address(isa.frame, isa.pc), word)
    emit.back()
    emit.bind(found)
    emit.load(word, MemoryValue(Address(slot, CODE)))
    return joined((emit.finish, lambda at: isa.go_to(word)))


def lower_removed_trap(kernels: int, readers: ProbeReadRoutines, isa: UserTrapping) -> Code:
    """The code of a trap that is taken away: what stands there now is run, or is a trap of somebody else's."""
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
