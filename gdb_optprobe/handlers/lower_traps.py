"""The dispatcher of traps in the kernel: code that runs before the kernel's trap handler and continues in a detour.

    trap ──► the kernel's entry code ──► here ── not in the table, or of user mode ──► the kernel's handler
                                          └──── in the table: the saved PC := detour ──► back, the trap is over
Where the trap was removed meanwhile, the instruction that is there again is run. (kernel/kprobes/core.c,
kprobe_int3_handler: "the breakpoint instruction was removed right after we hit it")
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.handlers.lower_slot_search import SlotArray, lower_search
from gdb_optprobe.isa.base import Code
from gdb_optprobe.isa.codegen import Address, Arithmetic, Comparison, Label, MemoryValue
from gdb_optprobe.isa.trapping import Entry, Trapping
from gdb_optprobe.maps.trap_table import FACTOR, TrapTableLayout


@dataclass(frozen=True, slots=True)
class PlacedTrapTable:
    """A table of traps in guest memory, at `address`."""

    layout: TrapTableLayout
    address: int

    @property
    def slots(self) -> SlotArray:
        layout = self.layout
        shift = layout.slot_size.bit_length() - 1
        return SlotArray(self.address, self.address + layout.size, layout.slot_size, layout.slots, FACTOR, shift)


def lower_trap_handler(traps: PlacedTrapTable, entry: Entry, isa: Trapping) -> Code:
    """Return the code of the dispatcher."""
    emit = isa.emitter(entry)
    found, foreign, to_detour, back = (Label() for _ in range(4))
    emit.begin(foreign)
    pc, slot, word = emit.trapped_at(), emit.pool.allocate(), emit.pool.allocate()

    def compare() -> None:
        emit.load(word, MemoryValue(Address(slot)))
        emit.branch(Comparison.EQ, word, pc, False, found)
        emit.branch(Comparison.EQ, word, 0, False, foreign)

    lower_search(emit, traps.slots, pc, slot, compare)
    emit.bind(foreign)
    emit.kernels()
    emit.bind(found)
    emit.load(word, MemoryValue(Address(slot, traps.layout.value)))
    emit.branch(Comparison.NE, word, 0, False, to_detour)
    # By now the instruction itself is there again, or a trap that is not optprobe's.
    emit.load(word, MemoryValue(Address(pc), isa.size))
    with emit.pool.scratch() as bits:
        for mask, value in isa.traps:
            emit.binary(Arithmetic.AND, bits, word, mask, 64, False)
            emit.branch(Comparison.EQ, bits, value, False, foreign)
    emit.jump(back)
    emit.bind(to_detour)
    emit.continue_at(word)
    emit.bind(back)
    emit.end()
    return emit.finish
