"""What runs before the kernel's trap handler: who has trapped at a probe goes on in its detour.

    trap ──► the kernel's entry code ──► here ── not ours, or of user mode ──► the kernel's handler
                                          └──── ours: the saved PC := detour ──► back, the trap is over
A probe whose trap has gone meanwhile: the instruction that is there again is run. (kernel/kprobes/core.c,
kprobe_int3_handler: "the breakpoint instruction was removed right after we hit it")
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.handlers.lower_slot_search import SlotArray, lower_home, lower_next_slot
from gdb_optprobe.isa.base import Code
from gdb_optprobe.isa.codegen import Address, Arithmetic, Comparison, Label, MemoryValue
from gdb_optprobe.isa.trapping import Entry, Trapping
from gdb_optprobe.maps.trap_table import DETOUR, FACTOR, KEY, SHIFT, SLOT, TrapTableLayout


@dataclass(frozen=True, slots=True)
class PlacedTrapTable:
    """A table of traps in guest memory, at `address`."""

    layout: TrapTableLayout
    address: int

    @property
    def slots(self) -> SlotArray:
        end = self.address + self.layout.size
        return SlotArray(self.address, end, SLOT, self.layout.slots, FACTOR, SHIFT)


def lower_trap_handler(traps: PlacedTrapTable, entry: Entry, isa: Trapping) -> Code:
    emit = isa.emitter(entry)
    again, found, foreign, go_on, back = (Label() for _ in range(5))
    emit.begin(foreign)
    pc, slot, word = emit.trapped_at(), emit.pool.allocate(), emit.pool.allocate()
    lower_home(emit, traps.slots, pc, slot, word)
    emit.bind(again)
    emit.load(word, MemoryValue(Address(slot, KEY)))
    emit.branch(Comparison.EQ, word, pc, False, found)
    emit.branch(Comparison.EQ, word, 0, False, foreign)
    lower_next_slot(emit, traps.slots, slot)
    emit.jump(again)
    emit.bind(foreign)
    emit.kernels()
    emit.bind(found)
    emit.load(word, MemoryValue(Address(slot, DETOUR)))
    emit.branch(Comparison.NE, word, 0, False, go_on)
    # What stands there by now is the instruction itself, or somebody's trap.
    emit.load(word, MemoryValue(Address(pc), isa.size))
    with emit.pool.scratch() as bits:
        for mask, value in isa.traps:
            emit.binary(Arithmetic.AND, bits, word, mask, 64, False)
            emit.branch(Comparison.EQ, bits, value, False, foreign)
    emit.jump(back)
    emit.bind(go_on)
    emit.go_on_at(word)
    emit.bind(back)
    emit.end()
    return emit.finish
