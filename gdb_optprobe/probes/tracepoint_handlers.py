"""Functions of ours that are registered on tracepoints, with a place for probes: the kernel calls them at each event.

    add: reach a thread that may sleep ─► journaled ─► code written ─► tracepoint_probe_register(tp, code, 0)
         a probe is put on the code as on any function; disabled, it leaves code that does nothing
    delete: tracepoint_probe_unregister ─► each grace period of tracepoints ─► no thread inside ─► code freed
The calls are made by a thread of the guest, in code of the arena that returns by itself (guest/native_call.py). GDB may
be killed at any instant: what is registered is code that runs on. The next GDB finds it in the journal, and asks the
tracepoint whether it is registered. It is not freed before the grace periods have passed after that: a CPU may hold its
address in a register, where no stack shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.arena_contents import ArenaContents
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.patch import TextChanged
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux import event_name
from gdb_optprobe.guest.linux.event_name import EventName
from gdb_optprobe.guest.linux.tracepoints import Call, Tracepoint, Tracepoints
from gdb_optprobe.guest.native_call import LATER, CallFailed, Runner
from gdb_optprobe.maps import validate
from gdb_optprobe.maps.journal_format import Damaged
from gdb_optprobe.probes.collector import Collector, Trigger
from gdb_optprobe.probes.installed_detour import InstalledDetour
from gdb_optprobe.probes.registry import Registry

REACHING, LEAVING = 20.0, 5.0
"""Seconds in which a thread is to be reached: to register; to take a function off."""
CALL = 30.0
ONE = "name one tracepoint: each is registered by a call in the guest"


@dataclass(frozen=True, slots=True)
class EventHandler:
    """A function of ours on a tracepoint. probed: the address of its instruction that probes are on."""

    event: EventName
    tracepoint: Tracepoint
    slot: Slot
    detour: Detour
    probed: int


@dataclass
class TracepointHandlers:
    """may_stop_at: whether something else may stop the guest at an address."""

    guest: Guest
    registry: Registry
    collector: Collector
    may_stop_at: Callable[[int], bool]
    _known: dict[int, EventHandler] = field(default_factory=dict)

    # added -----------------------------------------------------------------------------------------------------------

    def addresses(self, event: EventName) -> tuple[int, ...]:
        """Return where the event's handler is probed. Raises OptprobeError where there is none."""
        if event.is_glob:
            raise OptprobeError(f"{event} may be several tracepoints", ONE)
        found = self.guest.handlers.called(str(event))
        if not found:
            self.guest.tracepoints.find(event)
            raise OptprobeError(f"no function is registered on {event}", f"optprobe add {event}")
        return found

    @contextmanager
    def trial(self, events: Iterable[EventName], arena: Callable[[], Arena]) -> Iterator[None]:
        """Have a handler of each event that has none, as far as planning is concerned. Raises OptprobeError.

        arena: returns that in which it would be. The guest is not changed.
        """
        handlers, tried = self.guest.handlers, list[int]()
        try:
            for event in events:
                if event.is_glob or handlers.called(str(event)):
                    continue
                facts = self.guest.tracepoints
                facts.find(event)
                code = facts.arch.handler()
                first = arena().free_code(facts.register_at, self.guest.isa.branch_reach)
                at = first + len(tried) * arena().rounded(len(code.data))
                handlers.add(str(event), at, code.data, at + code.probed)
                tried.append(at)
            yield
        finally:
            for at in tried:
                handlers.remove(at)

    def register(self, event: EventName, arena: Arena) -> None:
        """Have the kernel call a handler at each event, if there is none yet; the guest runs for it.

        Raises OptprobeError with nothing registered, or CallFailed where that is not known yet.
        """
        if self.guest.handlers.called(str(event)):
            return
        facts = self.guest.tracepoints
        tracepoint = facts.find(event)
        facts.waits()
        if not arena.journal.is_open:
            raise OptprobeError("the journal in the guest is full, or none can be kept: another GDB could not find out")
        facts.say(f"the guest runs until its kernel has registered a handler on {event}")
        runner = facts.reach(self.may_stop_at, REACHING)
        made = self._place(event, tracepoint, facts, arena)
        try:
            result = self._call(runner, facts.register(tracepoint, made.slot.address), arena, made)
        except CallFailed as failed:
            if not failed.unfinished:
                self._forget(made, arena, was_registered=False)
            raise
        if result & 0xFFFF_FFFF or not self._is_registered(made, facts):
            if not self._is_registered(made, facts):
                self._forget(made, arena, was_registered=False)
            raise OptprobeError(f"the kernel has not registered a handler on {event} (error {-(result - (1 << 64))})")

    def _place(self, event: EventName, tracepoint: Tracepoint, facts: Tracepoints, arena: Arena) -> EventHandler:
        """Write the code of a handler, which the journal lists before. Raises OptprobeError with nothing changed."""
        code, isa, machine = facts.arch.handler(), self.guest.isa, self.guest.machine
        while True:
            slot = arena.allocate_code(len(code.data), facts.register_at, isa.branch_reach)
            if why := facts.arch.why_not_at(facts.kernel, slot.address):
                arena.code.free(slot)
                raise OptprobeError(why, "set optprobe arena to a range that is nearer")
            try:
                change = arena.code_patch(slot, code.data, machine, isa.breakpoint)
                break
            except TextChanged:
                continue  # the arena has struck that piece off
        detour = Detour(slot.address, code.data, slot.address, ())
        arena.journal.put(Item.EVENT, slot.address, [tracepoint.address, str(event)])
        arena.journal.code(slot, detour)
        arena.set_references(slot, ())
        try:
            arena.journal.flush()
            if not arena.journal.is_open:
                raise OptprobeError("the journal in the guest is full")
            patch.apply([change], machine)
        except OptprobeError:
            arena.journal.drop(Item.EVENT, slot.address)
            arena.code.discard(slot)
            raise
        return self._know(EventHandler(event, tracepoint, slot, detour, slot.address + code.probed))

    def _know(self, handler: EventHandler) -> EventHandler:
        self._known[handler.slot.address] = handler
        self.guest.handlers.add(str(handler.event), handler.slot.address, handler.detour.data, handler.probed)
        return handler

    # removed ---------------------------------------------------------------------------------------------------------

    def release_unused(self, arena: Arena) -> None:
        """Take handlers without probes off their tracepoints, for which the guest runs, and free their code.

        Raises OptprobeError where one stays: it is registered, does nothing, and is tried again.
        """
        unused = self._unused()
        if not unused:
            return
        facts, names = self.guest.tracepoints, ", ".join(str(handler.event) for handler in unused)
        try:
            facts.say(f"the guest runs until its kernel has taken what was registered off {names}")
            runner = facts.reach(self.may_stop_at, LEAVING)
            # A call of an earlier GDB may still register one.
            self.collector.collect(arena, Trigger.COMMIT)
            for handler in unused:
                if arena.may_use(handler.slot):
                    raise CallFailed(f"a thread still registers the handler of {handler.event}", LATER)
                if self._is_registered(handler, facts):
                    self._call(runner, facts.unregister(handler.tracepoint, handler.slot.address), arena, handler)
                if self._is_registered(handler, facts):
                    raise CallFailed(f"the kernel has not taken the handler of {handler.event} off", LATER)
            for wait in facts.waits():
                self._call(runner, wait, arena, *unused)
        except OptprobeError as error:
            stays = f"a handler of {names} may stay registered: it does nothing, and goes with the next probe or GDB"
            raise OptprobeError(f"{stays}: {error.message}", error.hint) from error
        finally:
            arena.journal.flush()
        for handler in unused:
            self._forget(handler, arena, was_registered=True)
        self.collector.collect(arena, Trigger.COMMIT)

    def _unused(self) -> Sequence[EventHandler]:
        used = {probe.address for probe in self.registry.single_probes()}
        return [handler for handler in self._known.values() if handler.probed not in used]

    def _forget(self, handler: EventHandler, arena: Arena, was_registered: bool) -> None:
        """Free the code of a handler that no CPU uses as such any more; a thread may still be in it."""
        del self._known[handler.slot.address]
        self.guest.handlers.remove(handler.slot.address)
        arena.journal.drop(Item.EVENT, handler.slot.address)
        arena.retire(handler.slot, handler.detour)
        arena.journal.flush()
        if not was_registered:
            self.collector.collect(arena, Trigger.COMMIT)

    def _is_registered(self, handler: EventHandler, facts: Tracepoints) -> bool:
        return any(function == handler.slot.address for function, _ in facts.functions(handler.tracepoint))

    # an earlier GDB's ------------------------------------------------------------------------------------------------

    def adopt(self, left: ArenaContents, arena: Arena) -> None:
        """Know the handlers that an earlier GDB left: their probes may be added anew. Raises OptprobeError."""
        for at, value in left.events.items():
            slot = next(slot for slot in left.detours if slot.address == at)
            handler = self._read(at, value, slot, left)
            held = self.guest.machine.read(at, handler.detour.size)
            if held == handler.detour.data:
                self._know(handler)
            elif self._is_registered(handler, self.guest.tracepoints):
                raise TextChanged(at, handler.detour.data, held)
            else:
                # It was never written, or is wiped.
                arena.journal.drop(Item.EVENT, at)
                arena.retire(slot, left.detours[slot])

    def _read(self, at: int, value: Any, slot: Slot, left: ArenaContents) -> EventHandler:
        """Return the handler of a journal record. Raises Damaged, OptprobeError."""
        facts = self.guest.tracepoints
        try:
            address, name = validate.row(value, 2)
            event = event_name.parse(validate.text(name))
            if event is None or event.is_syscall or event.is_glob:
                raise ValueError("an event")
            tracepoint = facts.find(event)
            code = facts.arch.handler()
            if validate.number(address) != tracepoint.address or slot.size < len(code.data):
                raise ValueError("a tracepoint")
        except ValueError as wrong:
            raise Damaged(f"code at {at:#x} is for no tracepoint: {wrong}") from None
        detour = Detour(at, code.data, at, ())
        return EventHandler(event, tracepoint, slot, detour, at + code.probed)

    def problems(self) -> Iterator[str]:
        """Yield what is not as it was left, in words."""
        for handler in self._known.values():
            if not self._is_registered(handler, self.guest.tracepoints):
                yield f"the handler of {handler.event} is not registered any more: its probes count nothing"

    def abandon(self) -> None:
        """Forget all: the guest is gone."""
        for start in [*self._known]:
            self.guest.handlers.remove(start)
        self._known.clear()

    # calls -----------------------------------------------------------------------------------------------------------

    def _call(self, runner: Runner, call: Call, arena: Arena, *handlers: EventHandler) -> int:
        """Have the thread that was reached make a call; return its result. Raises CallFailed, OptprobeError."""
        back, calling, guest = runner.back(), self.guest.tracepoints.arch.calling, self.guest

        def lay_out(at: int) -> Detour:
            return Detour(at, calling.thunk(at, call.function, call.arguments, back).data, at, ())

        uses = [handler.slot.address for handler in handlers]
        placed = InstalledDetour.install(back, lay_out, guest, arena, uses)
        thunk = calling.thunk(placed.detour.address, call.function, call.arguments, back)
        try:
            result = runner.run(thunk, CALL)
        except BaseException:
            arena.retire(placed.slot, placed.detour)  # a thread may be in it
            raise
        finally:
            guest.forget()
        placed.release(guest, arena, reached=False)
        return result
