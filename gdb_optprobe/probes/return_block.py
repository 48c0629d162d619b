"""The return probes of one `add` as a block: stubs that share one return hook (shared_rethook.py).

A member that is asked for by itself keeps its stub until its site is settled anew: then it gets a hook of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.handlers.compile import ProgramLimits
from gdb_optprobe.handlers.ir import Cell, Clock, Column, Expr, Form, HashMap, Load, Program, Put, Update
from gdb_optprobe.handlers.lower_maps import layout
from gdb_optprobe.handlers.lower_shared_returns import NUMBER, TIME
from gdb_optprobe.handlers.trap_frame import replace_register
from gdb_optprobe.isa.return_codegen import EntryStubs
from gdb_optprobe.maps import aggregate
from gdb_optprobe.maps.aggregate import Powers
from gdb_optprobe.maps.call_table import SAVED, WORD
from gdb_optprobe.maps.hash_map import HashMapLayout
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.kretprobe import compile_kretprobe, return_backend
from gdb_optprobe.probes.return_program import slot_word
from gdb_optprobe.probes.shared_rethook import SharedRethook, entry_stubs
from gdb_optprobe.probes.spec import Spec

LEAST_BITS, MOST_BITS = 4, 10
"""Of the table of histograms."""


@dataclass(frozen=True, slots=True)
class Times:
    """What a block gathers of its functions' times: a sum of each, and histograms of those that have returned first.

        ┌─────┬─────┬───┬──────────────────────────────────┐
        │ sum │ sum │ … │ hash table: number ─► histogram  │
        └─────┴─────┴───┴──────────────────────────────────┘
    count: of functions. bits: of the table.
    """

    memory: Slot
    count: int
    bits: int

    @property
    def table(self) -> int:
        return self.memory.address + self.count * WORD

    @property
    def layout(self) -> HashMapLayout:
        return layout(HISTOGRAMS, self.bits)

    def initial(self) -> bytes:
        return bytes(self.count * WORD) + self.layout.initial()

    def decode(
        self, data: bytes, before: bytes | None = None
    ) -> tuple[Sequence[int], Mapping[int, tuple[int, ...]], int]:
        """Return the sums, the histograms' words by number, and how many times found no room in the table.

        before: see HashMapLayout.decode.
        """
        behind = self.count * WORD
        earlier = before[behind:] if before is not None else None
        sums, found = aggregate.decode(data[:behind]), self.layout.decode(data[behind:], earlier)
        return sums, {int.from_bytes(key, "little"): words for key, words in found.by_key.items()}, found.overflow


HISTOGRAMS = HashMap("latency", (Column("", Form.UNSIGNED),), Powers(signed=False))


def times_size(count: int, bits: int) -> int:
    return count * WORD + layout(HISTOGRAMS, bits).size


def bits_for(count: int, free: int) -> int:
    """Return the bits of the table of histograms that leaves half of the rest of `free` bytes."""
    most = (free + count * WORD) // 2
    return next((bits for bits in range(MOST_BITS, LEAST_BITS, -1) if times_size(count, bits) <= most), LEAST_BITS)


def timed_program(spec: Spec, address: int, guest: Guest) -> Program:
    """Return what is done at a return, the same for all functions: see lower_shared_returns. Raises OptprobeError."""
    slot = return_backend(guest).slot
    program, _, entry = compile_kretprobe(spec, address, guest, ProgramLimits())
    found = [action for action in program.actions if isinstance(action, Update) and action.value is not None]
    value = found[0].value if len(found) == 1 and isinstance(found[0].target, Cell) else None
    if entry.words != (Clock(),) or value is None:
        raise OptprobeError("this is no plain latency")
    # By itself the program has the time in the first of its words; here it is the second.
    took: Expr = replace_register(value, slot, slot_word(slot, TIME - SAVED))
    number, time = (Load(slot_word(slot, at), WORD, signed=False, mapped=True) for at in (NUMBER, TIME))
    return Program(None, (Put(slot_word(slot, TIME), took), Update(HISTOGRAMS, time, (number,))))


@dataclass(kw_only=True)
class ReturnBlock(CountBlock):
    """rethook: of all members. Their hits are the returns that it counts. times: None where calls are not timed."""

    rethook: SharedRethook
    times: Times | None = None

    @property
    def _stubs(self) -> EntryStubs:
        found = entry_stubs(self.isa)
        assert found is not None, "there would be no block"
        return found

    def detour(self, index: int) -> Detour:
        site, at = self.sites[index], self.slot(index).address
        data = self._stubs.encode(at, self._stubs.size, self.rethook.entry, self._ends(index, index + 1), index)
        # Nothing in a stub is behind its program: the shared code is next, and then the text.
        return Detour(at, data, site, ((at, site),), ((at, at, site),))

    def detours(self, start: int = 0, end: int | None = None) -> bytes:
        """Return what the code of the members from `start` to before `end` is. Raises OutOfReach."""
        first = self.slot(start).address
        return self._stubs.encode(first, self.step, self.rethook.entry, self._ends(start, end), start)

    def _ends(self, start: int, end: int | None) -> list[int]:
        """Return where functions continue."""
        pairs = zip(self.sites[start:end], self.originals[start:end], strict=True)
        return [site + len(original) for site, original in pairs]
