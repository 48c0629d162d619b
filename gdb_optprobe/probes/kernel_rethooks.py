"""The rethooks of a session's kretprobes, with those that have no probe any more but calls that have not returned.

What may still lead to a retired trampoline:
    a stack with its address as a return address     every scan of stacks finds it (detours/quiescence.py)
    a retired detour that will still write it        so trampolines wait for all retired detours
    a call with a hidden return address              by a tail call: our own tables have it; by a tracer of the guest:
                                                     our table has the call, and its stack does not show a trampoline
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

from gdb_optprobe.detours import quiescence
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.quiescence import Range
from gdb_optprobe.detours.refusal import Reason, Refusal, Refused
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.saved_pcs import SavedWords
from gdb_optprobe.handlers.lower_shared_returns import RecordedCalls, saved_words
from gdb_optprobe.isa.base import ReadMemory
from gdb_optprobe.maps.call_table import WORD, CallCounts, CallSlot, CallTableLayout
from gdb_optprobe.probes import rethook_records
from gdb_optprobe.probes.active_calls import ArenaCode, Caller, CallStacks, call_stacks
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.kretprobe import call_table_layout
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.rethook import (
    Rethook,
    return_address_slot,
    return_counter,
    returns_on_stack,
    table_alignment,
    table_layout,
)
from gdb_optprobe.probes.return_stops import FindReturn
from gdb_optprobe.probes.shared_rethook import WINDOW, SharedRethook, TimedReturns, slots_for, slots_for_recorded
from gdb_optprobe.probes.site import Site

GROWTH = 4


@dataclass(frozen=True, slots=True)
class ActiveCall:
    """A call that has a slot of `rethook`. caller: the thread that makes it."""

    rethook: Rethook
    call: CallSlot
    caller: Caller


@dataclass
class KernelRethooks:
    """known: the rethooks that have a table in the guest. kept: counters of deleted probes that some of them count in.
    """

    known: list[Rethook] = field(default_factory=list)
    kept: set[Slot] = field(default_factory=set)

    @property
    def retired_trampolines(self) -> frozenset[int]:
        """Return the addresses of trampolines that calls may return to at any time: `commit` does not wait for them."""
        return frozenset(at for rethook in self.known for at in rethook.retired_trampolines)

    def awaited(self, guest: Guest) -> frozenset[int]:
        """Return those of them that calls which are active may return to."""
        tables = (rethook for rethook in self.known if rethook.retired_trampolines and rethook.read_calls(guest).active)
        return frozenset(at for rethook in tables for at in rethook.retired_trampolines)

    def abandon(self) -> None:
        """Forget all: the guest that had it is gone."""
        for rethook in self.known:
            rethook.stop_handlers.remove_breakpoint()
        self.known = []
        self.kept = set()

    def shared_entry_at(self, pc: int) -> Detour | None:
        """Return the shared entry of functions that `pc` is in."""
        shared = (rethook for rethook in self.known if isinstance(rethook, SharedRethook))
        return next((found for rethook in shared if (found := rethook.entered_at(pc)) is not None), None)

    def share(
        self,
        block: CountBlock,
        guest: Guest,
        arena: Arena,
        times: Slot | None = None,
        timed: TimedReturns | None = None,
        recorded: tuple[RecordedCalls, Slot] | None = None,
    ) -> SharedRethook:
        """Create the hook of functions that stubs in the code of `block` are to lead to. Raises Refused.

        times: where the functions' times are summed up. recorded: what is recorded, and the memory with the ring.
        """
        address = SharedRethook.place(block.sites)
        is_timed = timed is not None
        count = len(block.sites)
        slots = slots_for(count, is_timed) if recorded is None else slots_for_recorded(count)
        saved = saved_words(is_timed) + (len(recorded[0].entry.words) if recorded is not None else 0)
        layout = call_table_layout(guest.isa, slots, saved, WINDOW)
        rethook = SharedRethook.create(address, layout, guest, arena, self._find_return(guest))
        assert isinstance(rethook, SharedRethook)
        rethook.share_with(block, times, timed)
        if recorded is not None:
            rethook.recorded, rethook.into = recorded
        self._register(rethook, arena)
        try:
            rethook.install(guest, arena)
        except BaseException:
            self.end(rethook, guest, arena)
            raise
        return rethook

    def adopt_shared(
        self,
        entry: int,
        block: CountBlock,
        guest: Guest,
        arena: Arena,
        times: Slot | None = None,
        timed: TimedReturns | None = None,
    ) -> SharedRethook:
        """Enter calls again by the hook of an earlier session, with its shared entry there, for those of `block`.

        Raises OptprobeError where its code is not what this version would write.
        """
        old = next((one for one in self.known if one.closed and one.trampoline_at(entry) is not None), None)
        if old is None:
            raise OptprobeError("the table of their calls is not there")
        new = SharedRethook.adopted(
            old.address, old.layout, old.memory, old.retired_trampolines, arena, old.earlier_counts, old.ended
        )
        assert isinstance(new, SharedRethook)
        new.share_with(block, times, timed)
        new.take_over(entry, guest, arena)
        new.reopen(self._find_return(guest))
        new.ended = False
        self.known[self.known.index(old)] = new
        return new

    def shared_calls(self, guest: Guest) -> Iterator[int]:
        """Yield the stack addresses of the active calls in tables that functions share."""
        for rethook in self.known:
            if isinstance(rethook, SharedRethook):
                yield from (call.at for call in rethook.read_calls(guest).active if call.at is not None)

    def unhook(self, rethook: SharedRethook, guest: Guest, arena: Arena) -> None:
        """Have active calls return to their callers by themselves, those of threads at rest above all: they may last
        for ever. Calls stay that are just entered or left, and those that a tracer of the guest hides.
        """
        starts = {one.address for one in rethook.trampolines}
        if not (starts and returns_on_stack(guest)):
            return
        calls = self.active_calls(guest, arena, [rethook])
        if not calls or (stacks := self._call_stacks(guest, arena)) is None:
            return
        for start in starts:
            places = stacks.at_rest({one.call.at for one in calls if one.call.at is not None}, start)
            rethook.unhook([at + 1 for at in places], start, guest)

    def drop_dead(self, guest: Guest, arena: Arena) -> None:
        """Drop calls that never return where a shared table is half full: it does not grow."""
        for rethook in self.known:
            if isinstance(rethook, SharedRethook) and not rethook.closed and rethook.is_half_full(guest):
                self.active_calls(guest, arena, [rethook])

    def unhook_ended(self, guest: Guest, arena: Arena) -> None:
        """Do so with all hooks that have ended."""
        for rethook in self.known:
            if isinstance(rethook, SharedRethook) and rethook.ended:
                self.unhook(rethook, guest, arena)

    def keep_counter(self, counter: Slot) -> bool:
        """Keep a deleted probe's counter as long as a hook may count in it; return whether one may."""
        if any(rethook.hits == counter for rethook in self.known):
            self.kept.add(counter)
            return True
        return any(isinstance(rethook, SharedRethook) and rethook.keep(counter) for rethook in self.known)

    def keep_adopted(self, counters: Collection[Slot], others: Collection[Slot]) -> Collection[Slot]:
        """Return the counters with hits of hooks, of which those that no probe has are kept from now on.

        counters: those that probes have. others: what else is in use; a hook with its hits there has none.
        """
        taken = {*others, *(one.memory for one in self.known)}
        for rethook in self.known:
            if rethook.hits in taken and rethook.hits not in counters:
                rethook.hits = None
        found = {one.hits for one in self.known if one.hits is not None}
        self.kept |= found.difference(counters)
        return found

    @contextmanager
    def clearing(self, sites: Iterable[Site], guest: Guest, arena: Arena) -> Iterator[None]:
        """Have what is cleared within the block of hits that are returns in the functions' accounts from now on."""
        hooks = {id(one): one for site in sites if (one := site.rethook or site.next_rethook) is not None}
        before = [(one, one.hits_now(guest)) for one in hooks.values() if one.hits is not None]
        try:
            yield
        finally:
            for rethook, hits in before:
                if (cleared := hits - rethook.hits_now(guest)) > 0:
                    rethook.earlier_counts += CallCounts(cleared)
                    rethook_records.write_counts(rethook, arena)

    def end(self, rethook: Rethook, guest: Guest, arena: Arena) -> None:
        """Enter no more calls there: its probes are gone."""
        rethook.close(guest, arena)
        rethook.ended = True
        rethook_records.write_counts(rethook, arena)

    def trampoline_at(self, pc: int) -> Detour | None:
        """Return the trampoline that `pc` is in."""
        return next((found for rethook in self.known if (found := rethook.trampoline_at(pc)) is not None), None)

    def return_address(self, pc: int, key: int, read: ReadMemory) -> int | None:
        """Return the real return address of the call with this key that returns to `pc`; None where it is not known.

        By tail calls it may return to the trampoline of another function next, or to its own again.
        """
        passed: dict[int, int] = {}
        while (rethook := next((rethook for rethook in self.known if rethook.starts_trampoline(pc)), None)) is not None:
            calls = rethook.layout.find(read(rethook.memory.address, rethook.layout.size), key)
            number = passed.get(rethook.address, 0)
            if number >= len(calls):
                return None
            passed[rethook.address] = number + 1
            pc = calls[number].back
        return pc

    def reserve(self, site: Site, guest: Guest, arena: Arena, new: Probe | None = None) -> None:
        """Reserve a table for calls of the function that is entered at `site`. Raises Refused.

        new: with a counter that nothing has counted in yet.
        """
        has = site.latest_rethook
        probes = [probe for probe in site.probes if probe.is_return]
        wanted = table_layout(guest.isa, probes, has.layout.slots if has is not None else 0)
        if has is None or has.layout.slots != wanted.slots or has.layout.saved < wanted.saved:
            first = return_counter(new) if new is not None else None
            hits = has.hits if has is not None else first
            site.next_rethook = self._create(site.address, wanted, guest, arena, hits)

    def adopt(self, site: Site, guest: Guest, arena: Arena) -> None:
        """Adopt an earlier session's tables for the function that is entered at `site`: its probes are there again.

        One that is large enough is used from now on.
        """
        probes = [probe for probe in site.probes if probe.is_return]
        tables = [one for one in self.known if one.address == site.address and one.closed and not one.ended]
        if not (probes and tables):
            return
        wanted = table_layout(guest.isa, probes, max(one.layout.slots for one in tables))
        fits = (
            one
            for one in tables
            if one.layout.slots == wanted.slots and one.layout.saved >= wanted.saved and one.is_aligned
        )
        if (rethook := next(fits, None)) is not None:
            rethook.reopen(self._find_return(guest))
            site.next_rethook = rethook
            self.put_before(rethook, [other for other in tables if other is not rethook], arena)

    def put_before(self, rethook: Rethook, older: Sequence[Rethook], arena: Arena) -> None:
        """Count an earlier session's tables with `rethook`."""
        rethook.older = [*older]
        rethook.hits = next((one.hits for one in rethook.tables if one.hits is not None), None)
        rethook_records.write_hits(rethook, arena)

    def end_adopted(self, arena: Arena, tables: Iterable[Rethook] = ()) -> None:
        """Mark an earlier session's tables as those of deleted probes, but for `tables`."""
        kept = {id(rethook) for rethook in tables}
        for rethook in self.known:
            if rethook.closed and not rethook.ended and id(rethook) not in kept:
                rethook.ended = True
                rethook_records.write_counts(rethook, arena)

    def grow(self, site: Site, guest: Guest, arena: Arena) -> bool:
        """Reserve a larger table where this one is half full; return whether it did. Raises Refused."""
        rethook = site.rethook
        probes = [probe for probe in site.probes if probe.is_return]
        if rethook is None or site.next_rethook is not None or all(probe.spec.maxactive for probe in probes):
            return False
        if not rethook.is_half_full(guest):
            return False
        self.active_calls(guest, arena)
        if not rethook.is_half_full(guest):
            return False
        layout = table_layout(guest.isa, probes, GROWTH * rethook.layout.slots)
        site.next_rethook = self._create(site.address, layout, guest, arena, rethook.hits)
        return True

    def _create(
        self, address: int, layout: CallTableLayout, guest: Guest, arena: Arena, hits: Slot | None
    ) -> Rethook:
        try:
            rethook = Rethook.create(address, layout, guest, arena, self._find_return(guest), hits)
        except Refused as refused:
            raise _with_size(layout, refused, arena) from None
        self._register(rethook, arena)
        return rethook

    def _register(self, rethook: Rethook, arena: Arena) -> None:
        self.known.append(rethook)
        has = rethook.layout
        window = [has.window] if has.window else []
        arena.journal.put(Item.POINT, rethook.memory.address, [rethook.address, has.slots, has.saved, *window])
        rethook_records.write_hits(rethook, arena)

    def _find_return(self, guest: Guest) -> FindReturn:
        return lambda pc, key: self.return_address(pc, key, guest.machine.read)

    def release(self, site: Site, probe: Probe, guest: Guest, arena: Arena) -> None:
        """Forget `probe`, which runs no more. After the last one the table is freed once every call has returned."""
        for rethook in self.known:
            rethook.stop_handlers.drop_probe(probe)
        if not any(other.is_return for other in site.probes if other is not probe):
            self.close(site, guest, arena)

    def close(self, site: Site, guest: Guest, arena: Arena) -> None:
        """Enter no more calls at `site`."""
        for rethook in (site.rethook, site.next_rethook):
            if rethook is not None:
                self.end_tables(rethook, guest, arena)
        site.rethook = site.next_rethook = None

    def end_tables(self, rethook: Rethook, guest: Guest, arena: Arena) -> None:
        """Enter no more calls there: the probes of its function are gone, and the older tables' too."""
        rethook.close(guest, arena)
        for table in rethook.tables:
            table.ended = True
            rethook_records.write_counts(table, arena)

    def of_functions(self, addresses: Collection[int]) -> list[Rethook]:
        """Return the hooks, each of one function entered at one of `addresses`, by which calls are entered."""
        return [
            one
            for one in self.known
            if one.address in addresses and not one.closed and not isinstance(one, SharedRethook)
        ]

    def busy_slots(self, slots: Sequence[Range], guest: Guest) -> Collection[Range]:
        """Return those of `slots`, all of retired code, that a thread is in or may come to."""
        retired, idle = self.retired_trampolines, self._idle_trampolines(guest)
        inside = quiescence.busy(slots, chain(guest.saved(), self.hidden_return_addresses(guest)))
        found = {one.where for one in inside if one.pc not in idle}
        trampolines = {where for where in slots if where[0] in retired}
        return found | trampolines if found - trampolines else found

    def _idle_trampolines(self, guest: Guest) -> frozenset[int]:
        """Return trampolines that no call returns to, even if a stack still has their addresses.

        The table has a call from before it gets the return address until it has left the trampoline.
        """
        return self.retired_trampolines - self.awaited(guest)

    def active_calls(
        self, guest: Guest, arena: Arena, rethooks: Iterable[Rethook] | None = None
    ) -> list[ActiveCall]:
        """Return the active calls, with their callers; drop those that never return.

        rethooks: with the calls that are wanted; None for all.
        """
        looked_at = self.known if rethooks is None else rethooks
        tables = [(rethook, rethook.read_calls(guest).active) for rethook in looked_at]
        if not any(active for _, active in tables):
            return []
        judged = self._call_stacks(guest, arena)
        found: list[ActiveCall] = []
        for rethook, active in tables:
            over = {
                call.key for call in active if judged is not None and call.at is not None and judged.is_over(call.at)
            }
            if over:
                rethook.drop_calls(over, guest)
            for call in active:
                if call.key not in over:
                    caller = judged.caller(call.at) if judged is not None and call.at is not None else Caller()
                    found.append(ActiveCall(rethook, call, caller))
        return found

    def _call_stacks(self, guest: Guest, arena: Arena) -> CallStacks | None:
        """Return all stacks; None where not all can be read now."""
        if guest.stacks_missing:
            return None
        try:
            saved, hides = list(guest.saved()), guest.has_hidden_stacks()
        except OptprobeError:
            return None
        read = guest.machine.read
        if not returns_on_stack(guest):
            return CallStacks(saved, read, hides)
        starts = {one.address for rethook in self.known for one in rethook.trampolines}
        return call_stacks(saved, read, hides, ArenaCode(arena.ranges.code, starts, guest.isa.branch_reach))

    def hidden_return_addresses(self, guest: Guest) -> Iterator[SavedWords]:
        """Yield return addresses that no stack shows. Raises OptprobeError."""
        for rethook in self.known:
            active = rethook.read_calls(guest).active
            words = [call.back for call in active]
            if any(_is_hidden(call, rethook, guest) for call in active):
                words += rethook.retired_trampolines
            yield SavedWords(f"a call of {guest.text.spell(rethook.address)}", 0, array("Q", words))

    def forget_freed(self, guest: Guest, arena: Arena) -> None:
        """Forget trampolines and tables that were freed; older tables of a freed one, and its counts, move on."""
        dirty = {slot.address for slots in arena.code.slots for slot in slots.dirty}
        for rethook in self.known:
            rethook.forget_trampolines(dirty)
        kept = {slot for slots in arena.data.slots for slot in slots.dirty}
        gone = [rethook for rethook in self.known if rethook.closed and rethook.memory not in kept]
        for rethook in gone:
            rethook.stop_handlers.remove_breakpoint()
            if isinstance(rethook, SharedRethook):
                rethook.release_counters(arena)
        for newer in self.known:
            # The newer table takes the counts of one that is freed, and the tables that were older still.
            while (old := next((each for each in newer.older if each in gone), None)) is not None:
                newer.earlier_counts += old.earlier_counts + old.read_calls(guest)
                newer.older = [*(each for each in newer.older if each is not old), *old.older]
                if newer not in gone:
                    rethook_records.write_counts(newer, arena)
        self.known = [rethook for rethook in self.known if rethook not in gone]
        unused = self.kept.difference(rethook.hits for rethook in self.known)
        for counter in unused:
            if any(slots.is_used(counter) for slots in arena.data.slots):
                arena.data.release(counter)
        self.kept -= unused
        if unused or any(isinstance(rethook, SharedRethook) for rethook in gone):
            arena.reclaim_data()


def _is_hidden(call: CallSlot, rethook: Rethook, guest: Guest) -> bool:
    """Return whether the stack of an active call does not show that it returns to a trampoline."""
    at = return_address_slot(call.key, guest)
    if at is None:
        return True
    try:
        word = int.from_bytes(guest.machine.read(at, WORD), "little")
    except OptprobeError:
        return False  # its stack is gone
    return not rethook.is_arena_code(word)


def check_memory(probe: Probe, guest: Guest, arena: Arena) -> None:
    """Raises Refused where there is no memory for a table of the function with `probe` as its only kretprobe."""
    layout = table_layout(guest.isa, [probe])
    try:
        arena.check_room(layout.size, probe.address, guest.isa.data_reach, table_alignment(layout))
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
