"""All return points of a session, those among them that have no probe any more but calls that are still under way.

These may still lead to a retired trampoline:
    a stack with its address as a return address      seen by every scan (detours/quiescence.py)
    a retired detour, before it has written it        so trampolines wait for all retired detours
    a call with its return address hidden by another  tail calls: in our own tables; a tracer of the guest's: our
                                                      table has the call, and its stack does not show us
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from gdb_optprobe.detours import quiescence
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.quiescence import Range
from gdb_optprobe.detours.refusal import Reason, Refusal, Refused
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.saved_pcs import SavedWords
from gdb_optprobe.isa.base import ReadMemory
from gdb_optprobe.maps.call_table import WORD, CallSlot, CallTableLayout
from gdb_optprobe.probes import rethook, rethook_records
from gdb_optprobe.probes.active_calls import ArenaCode, Caller, CallStacks, call_stacks
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.rethook import Rethook, return_address_slot, returns_on_stack, table_layout
from gdb_optprobe.probes.return_stops import FindReturn
from gdb_optprobe.probes.site import Site

GROWTH = 4


@dataclass(frozen=True, slots=True)
class ActiveCall:
    """A call of the function of `point`, and its maker."""

    rethook: Rethook
    call: CallSlot
    caller: Caller


@dataclass
class KernelRethooks:
    """known: the rethooks that have a table in the guest."""

    known: list[Rethook] = field(default_factory=list)

    @property
    def left_trampolines(self) -> frozenset[int]:
        """Return addresses of trampolines to which calls may return at any time: nothing waits for those calls."""
        return frozenset(at for point in self.known for at in point.left_trampolines)

    def awaited(self, guest: Guest) -> frozenset[int]:
        """Return those of them that calls which are active may return to."""
        tables = (point for point in self.known if point.left_trampolines and point.read_calls(guest).active)
        return frozenset(at for point in tables for at in point.left_trampolines)

    def abandon(self) -> None:
        """The guest that held it all is gone."""
        for point in self.known:
            point.stop_handlers.remove_breakpoint()
        self.known = []

    def trampoline_at(self, pc: int) -> Detour | None:
        """The trampoline that `pc` is in."""
        return next((found for point in self.known if (found := point.trampoline_at(pc)) is not None), None)

    def return_address(self, pc: int, key: int, read: ReadMemory) -> int | None:
        """Return where the call with this key and the return address `pc` really returns; None where it is not known.

        By tail calls it may return to another function's trampoline next, or to its own once more.
        """
        passed: dict[int, int] = {}
        while (point := next((point for point in self.known if point.starts_trampoline(pc)), None)) is not None:
            calls = point.layout.find(read(point.memory.address, point.layout.size), key)
            number = passed.get(point.address, 0)
            if number >= len(calls):
                return None
            passed[point.address] = number + 1
            pc = calls[number].back
        return pc

    def reserve(self, site: Site, guest: Guest, arena: Arena) -> None:
        """Memory for the calls of the function that is entered at `site`, and what its probes keep. Raises Refused."""
        has = site.latest_rethook
        probes = [probe for probe in site.probes if probe.is_return]
        wanted = table_layout(probes, max(rethook.SLOTS, has.layout.slots if has is not None else 0))
        if has is None or has.layout.slots != wanted.slots or has.layout.saved < wanted.saved:
            site.next_rethook = self._create(site.address, wanted, guest, arena)

    def adopt(self, site: Site, guest: Guest) -> None:
        """An earlier session's tables of calls of the function that is entered at `site`: its probes are there again.

        One that is large enough serves from now on.
        """
        probes = [probe for probe in site.probes if probe.is_return]
        tables = [point for point in self.known if point.address == site.address and point.closed and not point.ended]
        if not (probes and tables):
            return
        wanted = table_layout(probes, max(rethook.SLOTS, *(point.layout.slots for point in tables)))
        fits = (point for point in tables if point.layout.slots == wanted.slots and point.layout.saved >= wanted.saved)
        if (point := next(fits, None)) is not None:
            point.reopen(self._find_return(guest))
            point.older = [other for other in tables if other is not point]
            site.next_rethook = point

    def end_adopted(self, arena: Arena, tables: Iterable[Rethook] = ()) -> None:
        """Of an earlier session's tables all but these are of probes that are no more."""
        kept = {id(point) for point in tables}
        for point in self.known:
            if point.closed and not point.ended and id(point) not in kept:
                point.ended = True
                rethook_records.write_counts(point, arena)

    def grow(self, site: Site, guest: Guest, arena: Arena) -> bool:
        """A larger table for calls from now on, where this one is half full; whether there is one. Raises Refused."""
        point = site.rethook
        probes = [probe for probe in site.probes if probe.is_return]
        if point is None or site.next_rethook is not None or all(probe.spec.maxactive for probe in probes):
            return False
        if not point.is_half_full(guest):
            return False
        self.active_calls(guest, arena)
        if not point.is_half_full(guest):
            return False
        layout = table_layout(probes, GROWTH * point.layout.slots)
        site.next_rethook = self._create(site.address, layout, guest, arena)
        return True

    def _create(self, address: int, layout: CallTableLayout, guest: Guest, arena: Arena) -> Rethook:
        try:
            point = Rethook.create(address, layout, guest, arena, self._find_return(guest))
        except Refused as refused:
            raise _with_size(layout, refused, arena) from None
        self.known.append(point)
        arena.journal.put(Item.POINT, point.memory.address, [address, layout.slots, layout.saved])
        return point

    def _find_return(self, guest: Guest) -> FindReturn:
        return lambda pc, key: self.return_address(pc, key, guest.machine.read)

    def release(self, site: Site, probe: Probe, guest: Guest, arena: Arena) -> None:
        """`probe`, which is no longer served, goes. With the last one goes the table, once every call has returned."""
        for point in self.known:
            point.stop_handlers.drop_probe(probe)
        if not any(other.is_return for other in site.probes if other is not probe):
            self.close(site, guest, arena)

    def close(self, site: Site, guest: Guest, arena: Arena) -> None:
        """No call is entered at `site` any more."""
        for point in (site.rethook, site.next_rethook):
            if point is not None:
                point.close(guest, arena)
                for table in point.tables:
                    table.ended = True
                    rethook_records.write_counts(table, arena)
        site.rethook = site.next_rethook = None

    def busy_slots(self, slots: Sequence[Range], guest: Guest) -> Collection[Range]:
        """Return those of `slots`, retired by us, that a thread is in or may enter."""
        left, idle = self.left_trampolines, self._idle_trampolines(guest)
        inside = quiescence.busy(slots, chain(guest.saved(), self.hidden_return_addresses(guest)))
        found = {one.where for one in inside if one.pc not in idle}
        trampolines = {where for where in slots if where[0] in left}
        return found | trampolines if found - trampolines else found

    def _idle_trampolines(self, guest: Guest) -> frozenset[int]:
        """Trampolines that no call returns to, wherever a stack still has their addresses.

        Until a call has left its trampoline the table has it, and from before it is given that return address.
        """
        return self.left_trampolines - self.awaited(guest)

    def active_calls(
        self, guest: Guest, arena: Arena, points: Iterable[Rethook] | None = None
    ) -> list[ActiveCall]:
        """Return the active calls and their makers; calls that can never return are dropped.

        points: only their calls; else of all.
        """
        tables = [(point, point.read_calls(guest).active) for point in (self.known if points is None else points)]
        if not any(active for _, active in tables):
            return []
        judged = self._call_stacks(guest, arena)
        found: list[ActiveCall] = []
        for point, active in tables:
            over = {
                call.key for call in active if judged is not None and call.at is not None and judged.is_over(call.at)
            }
            if over:
                point.drop_calls(over, guest)
            for call in active:
                if call.key not in over:
                    caller = judged.caller(call.at) if judged is not None and call.at is not None else Caller()
                    found.append(ActiveCall(point, call, caller))
        return found

    def _call_stacks(self, guest: Guest, arena: Arena) -> CallStacks | None:
        """Return None where not all stacks can be enumerated now."""
        if guest.stacks_missing:
            return None
        try:
            saved, hides = list(guest.saved()), guest.has_hidden_stacks()
        except OptprobeError:
            return None
        read = guest.machine.read
        if not returns_on_stack(guest):
            return CallStacks(saved, read, hides)
        starts = {one.address for point in self.known for one in point.trampolines}
        return call_stacks(saved, read, hides, ArenaCode(arena.ranges.code, starts, guest.isa.branch_reach))

    def hidden_return_addresses(self, guest: Guest) -> Iterator[SavedWords]:
        """Return addresses that no stack shows. Raises OptprobeError."""
        for point in self.known:
            active = point.read_calls(guest).active
            words = [call.back for call in active]
            if any(_is_hidden(call, point, guest) for call in active):
                words += point.left_trampolines
            yield SavedWords(f"a call of {guest.text.spell(point.address)}", 0, array("Q", words))

    def forget_freed(self, guest: Guest, arena: Arena) -> None:
        """What was reclaimed is not ours any more."""
        dirty = {slot.address for slots in arena.code.slots for slot in slots.dirty}
        for point in self.known:
            point.forget_trampolines(dirty)
        kept = {slot for slots in arena.data.slots for slot in slots.dirty}
        gone = [point for point in self.known if point.closed and point.memory not in kept]
        for point in gone:
            point.stop_handlers.remove_breakpoint()
        for newer in self.known:
            # The newer table takes over the counts of a table that is gone, and its older tables.
            while (old := next((each for each in newer.older if each in gone), None)) is not None:
                newer.earlier_counts += old.earlier_counts + old.read_calls(guest)
                newer.older = [*(each for each in newer.older if each is not old), *old.older]
                if newer not in gone:
                    rethook_records.write_counts(newer, arena)
        self.known = [point for point in self.known if point not in gone]


def _is_hidden(call: CallSlot, point: Rethook, guest: Guest) -> bool:
    """Whether a call that is under way does not show on its stack that it returns to us."""
    at = return_address_slot(call.key, guest)
    if at is None:
        return True
    try:
        word = int.from_bytes(guest.machine.read(at, WORD), "little")
    except OptprobeError:
        return False  # its stack is gone
    return not point.is_arena_code(word)


def check_memory(probe: Probe, guest: Guest, arena: Arena) -> None:
    """Raises Refused where there is no memory for calls of the function that `probe` is the first return probe of."""
    layout = table_layout([probe], rethook.SLOTS)
    try:
        arena.check_data(layout.size, probe.address, guest.isa.data_reach)
    except Refused as refused:
        raise _with_size(layout, refused, arena) from None


def _with_size(layout: CallTableLayout, refused: Refused, arena: Arena) -> Refused:
    """Return the refusal of a table, with what would fit."""
    if refused.reason.code != Refusal.ARENA_FULL.code:
        return refused
    room = f"a table with room for {layout.slots} calls of a function at once takes {layout.size} bytes"
    text = f"{refused.reason.text}: {room}, and {arena.data.largest} are free in one piece"
    hint = f"-maxactive N, with fewer calls, or {refused.reason.hint}"
    return Refused(Reason(refused.reason.code, text, hint))
