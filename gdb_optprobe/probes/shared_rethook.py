"""The return hook of thousands of functions: one table of active calls, one trampoline, one code of their entries.

    functions ── stubs ──► shared entry ──► a slot of the table, return address := trampoline
                                                 │ the function's number
    return ── trampoline: the tally ─────────────┘──► the call's own return address
The trampoline and, behind it, the shared entry are one piece of code: it is freed when no thread is in a stub, is in
it, or will return to it, as the trampoline of one function is (kernel_rethooks.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.handlers.ir import Program
from gdb_optprobe.handlers.lower_kernel_returns import ProbedFunction, lower_trampoline
from gdb_optprobe.handlers.lower_program import LoweringContext
from gdb_optprobe.handlers.lower_shared_returns import (
    PlacedTallies,
    RecordedCalls,
    lower_recorded,
    lower_shared_entry,
    lower_tally,
    lower_timed,
)
from gdb_optprobe.isa.base import Code
from gdb_optprobe.isa.codegen import EntryState
from gdb_optprobe.isa.paths import shortest
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.return_codegen import EntryStubs
from gdb_optprobe.maps.call_table import MISSED, WORD
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.installed_detour import InstalledDetour, LayOut
from gdb_optprobe.probes.kretprobe import return_backend
from gdb_optprobe.probes.rethook import Costs, Rethook, code_range, return_address_slot

WINDOW = 64
"""Slots that an entry looks at: a nearly full table is missed in, not searched."""
_FEW, _MANY, _TIMED, _RECORDED = 512, 8192, 4096, 128


def slots_for_recorded(functions: int) -> int:
    """Return the same as `slots_for` where calls are recorded, so those of some threads alone."""
    return max(_RECORDED, 1 << (functions - 1).bit_length())


def slots_for(functions: int, timed: bool) -> int:
    """Return for how many active calls of so many functions there is to be room."""
    return min(max(_FEW, 1 << (functions - 1).bit_length()), _TIMED if timed else _MANY)


def entry_stubs(isa: Isa) -> EntryStubs | None:
    """Return the stubs of an ISA; None where functions cannot share the code of their entries."""
    return isa.returning.stubs if isa.returning is not None else None


@dataclass(frozen=True, slots=True)
class TimedReturns:
    """program: of a return, with the table at `table`, which has 2 ** bits places."""

    program: Program
    table: int
    bits: int


@dataclass
class SharedRethook(Rethook):
    """address: in the text, where no probe can be. tallies: what it counts in. timed: None where
    calls are not timed; else times is the memory of these. recorded: None where calls are not recorded; else
    into: the memory with the ring. entry: of the shared code; 0 before it is written.

    displaced: the instruction of each function that runs behind the shared entry.
    counts: all functions' words. counters: those of them that no probe has any more; calls under way still count there.
    out: the slots of stubs that are detours of single probes by now.
    """

    tallies: PlacedTallies | None = None
    timed: TimedReturns | None = None
    times: Slot | None = None
    recorded: RecordedCalls | None = None
    into: Slot | None = None
    entry: int = 0
    displaced: bytes = b""
    counts: Slot | None = None
    counters: list[Slot] = field(default_factory=list)
    out: set[int] = field(default_factory=set)

    @staticmethod
    def place(sites: Sequence[int]) -> int:
        """Return the address of the hook of functions with these sites: in the first, where no probe can be."""
        return sites[0] + 1

    def share_with(self, block: CountBlock, times: Slot | None, timed: TimedReturns | None) -> None:
        """Have the functions of `block` enter here, and count in its words and in `times`."""
        self.tallies = PlacedTallies(block.data.address, times.address if times is not None else None)
        self.counts = block.data
        self.times, self.timed = times, timed
        self.displaced = b"" if block.traced else block.originals[0]  # a tracer's nop is left out

    def close(self, guest: Guest, arena: Arena) -> None:
        super().close(guest, arena)
        if self.times is not None:
            arena.data.release(self.times)
            self.times = None

    def keep(self, counter: Slot) -> bool:
        """Keep a counter of members that are gone, if calls under way may count in it; return whether they may."""
        if self.counts is None or not self.counts.address <= counter.address < self.counts.end:
            return False
        self.counters.append(counter)
        return True

    def release_counters(self, arena: Arena) -> None:
        """Release what was kept: of this hook no code that counts is left."""
        for counter in self.counters:
            arena.data.release(counter)
        self.counters.clear()

    def install(self, guest: Guest, arena: Arena) -> None:
        """Write the code, for `tallies`. Raises Refused."""
        assert self.tallies is not None
        into = self.into.address if self.into is not None else None
        uses = (self.memory.address, self.tallies.counts, *filter(None, [self.tallies.times, into]))
        code = InstalledDetour.install(self.address, self._lay_out(guest, arena), guest, arena, uses)
        self._use_code(code, guest, arena)

    def take_over(self, entry: int, guest: Guest, arena: Arena) -> None:
        """Use the code of an earlier session, with its shared entry at `entry`. Raises OptprobeError where it differs.
        """
        old = next((one for one in self.retired_trampolines.values() if one.address <= entry < one.end), None)
        if old is None or self._lay_out(guest, arena)(old.address).data != old.data:
            raise OptprobeError("the code of its returns is not what this version would write")
        found = arena.reuse(lambda one: one.address == old.address)
        if found is None:
            raise OptprobeError("the code of its returns is gone")
        del self.retired_trampolines[old.address]
        self._use_code(InstalledDetour(*found), guest, arena)

    def _use_code(self, code: InstalledDetour, guest: Guest, arena: Arena) -> None:
        self.trampoline = code
        self._arena_code = code_range(arena)
        at, data = code.detour.address, code.detour.data
        self.entry = at + len(self._returns(guest)(at))
        returning, entering = (
            guest.isa.decode(part, start)
            for part, start in ((data[: self.entry - at], at), (data[self.entry - at :], self.entry))
        )
        # Of the ways through the entry the shortest is the usual one.
        rare = shortest(entering[:-1]) + 1 - bool(self.displaced)
        self.costs = Costs(rare, len(returning), shortest(returning[:-1]) + 1)

    def _returns(self, guest: Guest) -> Code:
        """Return the trampoline."""
        assert self.tallies is not None
        isa = return_backend(guest)
        reads = self.recorded.program.registers if self.recorded is not None else frozenset[str]()
        made = lower_trampoline(self.table, EntryState(guest.isa.dead_at_return(), reads), isa, counted=False)
        if self.recorded is not None:
            return made.code([lower_recorded(self.tallies, self.recorded, made, isa, guest.isa.codegen)])
        if self.timed is None:
            return made.code([lower_tally(self.tallies, made, isa)])
        around = LoweringContext(self.address, objects=(self.timed.table,), table_bits=self.timed.bits)
        return made.code([lower_timed(self.tallies, self.timed.program, around, made, isa, guest.isa.codegen)])

    def _lay_out(self, guest: Guest, arena: Arena) -> LayOut:
        """Return the code by its address: the trampoline, and the shared entry behind it."""
        stubs, returns = entry_stubs(guest.isa), self._returns(guest)
        assert stubs is not None

        def lay_out(at: int) -> Detour:
            code = returns(at)
            function = ProbedFunction(at, code_range(arena), self.address, guest.hidden_returns)
            dead, is_timed = guest.isa.dead_at_entry(), self.timed is not None
            table, recorded = self.table, self.recorded
            entry = lower_shared_entry(table, function, dead, is_timed, stubs, self.displaced, recorded)
            return Detour(at, code + entry(at + len(code)), self.address, ())

        return lay_out

    def unhook(self, keys: Iterable[int], start: int, guest: Guest) -> None:
        """Give calls with these keys their return addresses back, where the stack shows that they return to `start`.

        The guest is stopped: a thread reads the word when it returns. Should GDB die in between, a slot is left that no
        call has.
        """
        data, machine = self._read(guest), guest.machine
        trampoline = start.to_bytes(WORD, "little")
        for key in keys:
            if (at := return_address_slot(key, guest)) is None or machine.read(at, WORD) != trampoline:
                continue
            backs = [call.back for call in self.layout.find(data, key)]
            number = next((number for number, back in enumerate(backs, 1) if back != start), None)
            if number is None:
                continue
            machine.write(at, backs[number - 1].to_bytes(WORD, "little"))
            after = data
            for _ in range(number):
                after = self.layout.remove(after, key)
            self._write(data, after, guest)
            data = after

    def missed(self, guest: Guest) -> int:
        """Return how many calls found no room: all functions' together."""
        word = guest.machine.read(self.memory.address + MISSED, WORD)
        return int.from_bytes(word, "little") + self.earlier_counts.missed

    def entered_at(self, pc: int) -> Detour | None:
        """Return the shared entry as code of its own where `pc` is in it."""
        found = self.trampoline_at(pc)
        if found is None or self.trampoline is None or not self.entry <= pc < self.trampoline.detour.end:
            return None
        return Detour(self.entry, found.data[self.entry - found.address :], found.head, ())
