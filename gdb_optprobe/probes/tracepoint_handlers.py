"""Functions of the arena that are registered on tracepoints: the kernel calls them at each event, and they are probed.

    add: reach a thread that may sleep ─► journaled ─► code written ─► tracepoint_probe_register(tp, code, 0)
         a probe is put on the code as on any function; disabled, it leaves code that does nothing
    delete: tracepoint_probe_unregister ─► each grace period of tracepoints ─► no thread inside ─► code freed
The calls are made by a thread of the guest, in code of the arena that returns by itself (guest/native_call.py). GDB may
be killed at any instant: a function that is registered is code that runs on. The next GDB finds it in the journal, and
asks the tracepoint whether it is registered. It is not freed before the grace periods have passed after that: a CPU may
hold its address in a register, where no stack shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.arena_contents import ArenaContents
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.patch import Patch, TextChanged
from gdb_optprobe.detours.refusal import Refusal, Refused, reason_of
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux import event_name
from gdb_optprobe.guest.linux.event_fields import ASSIGNS, EventFormat
from gdb_optprobe.guest.linux.event_name import EventName
from gdb_optprobe.guest.linux.tracepoints import TOO_MANY, Call, HandlerCode, Tracepoint, Tracepoints, too_many
from gdb_optprobe.guest.native_call import LATER, CallFailed, Runner
from gdb_optprobe.isa.base import Code, Flow, Insn, OutOfReach
from gdb_optprobe.isa.calling import Thunk
from gdb_optprobe.maps import validate
from gdb_optprobe.maps.journal_format import Damaged
from gdb_optprobe.probes import hooks
from gdb_optprobe.probes.arena_call import make_call
from gdb_optprobe.probes.collector import Collector, Trigger
from gdb_optprobe.probes.installed_detour import InstalledDetour
from gdb_optprobe.probes.registry import Registry

REACHING, LEAVING = 20.0, 5.0
"""Seconds in which a thread is to be reached: to register; to take a function off."""
CALL = 30.0
TRIAL = 256
"""Bytes between handlers that are only tried."""
WORD = 8
HOLD = 2 * WORD
SHOWN = 3
"""Events that a message names."""
Use = TypeVar("Use")


@dataclass(frozen=True, slots=True)
class EventHandler:
    """A function of the arena on a tracepoint. probed: the address of its instruction that probes are on.

    made:   how the kernel assigns the event's fields in it; None where it has the arguments alone.
    missed: what counts the events that had no room for their fields.
    hooks:  what leads from the assignment to the gates. frame: see HandlerText.add.
    hold:   of a module's tracepoint, two words. The lowest byte of the first says that a reference to the module is
            held. The second has the module while its reference waits for the call that gives it back. The module's
            code is changed only while it is held.
    """

    event: EventName
    tracepoint: Tracepoint
    slot: Slot
    detour: Detour
    probed: int
    made: EventFormat | None = None
    missed: Slot | None = None
    hooks: tuple[Patch, ...] = ()
    frame: int = 0
    hold: Slot | None = None

    @property
    def value(self) -> list[Any]:
        """Return what the journal keeps of it."""
        of_module = [self.tracepoint.module, self.hold.address] if self.hold is not None else []
        missed = self.missed.address if self.missed is not None else 0
        return [self.tracepoint.address, str(self.event), missed, *of_module]

    @property
    def data(self) -> tuple[Slot, ...]:
        return tuple(slot for slot in (self.missed, self.hold) if slot is not None)

    @property
    def uses(self) -> tuple[int, ...]:
        """Return what is used by code that leads to it."""
        return (self.slot.address, *(slot.address for slot in self.data))


@dataclass
class TracepointHandlers:
    """may_stop_at: whether something else may stop the guest at an address."""

    guest: Guest
    registry: Registry
    collector: Collector
    may_stop_at: Callable[[int], bool]
    _known: dict[int, EventHandler] = field(default_factory=dict)
    _gates: list[InstalledDetour] = field(default_factory=list)

    @property
    def memory(self) -> tuple[Slot, ...]:
        """Data of handlers that are there."""
        return tuple(slot for handler in self._known.values() for slot in handler.data)

    def missed(self, address: int) -> int:
        """Return how many events the probes at an address missed: there was no room for their fields."""
        words = self.missed_words(address)
        return sum(int.from_bytes(self.guest.machine.read(word, WORD), "little") for word in words)

    def missed_words(self, address: int) -> tuple[int, ...]:
        """Return where the guest counts these."""
        found = next((handler for handler in self._known.values() if handler.probed == address), None)
        return (found.missed.address,) if found is not None and found.missed is not None else ()

    # added -----------------------------------------------------------------------------------------------------------

    def each(self, event: EventName, has_fields: bool) -> Sequence[EventName]:
        """Return the tracepoints that a name means, and say which of several are left out: their fields are not known.

        Raises OptprobeError where there is none, or there are too many.
        """
        facts = self._facts
        if not (matching := facts.matching(event)):
            raise OptprobeError(f"no tracepoint matches {event}", "optprobe script -l 'tracepoint:*' lists them")
        if why_not := too_many(event, len(matching)):
            raise OptprobeError(why_not, TOO_MANY)
        if not has_fields:
            return matching
        found, left_out = with_known_fields(matching, self._format)
        for one, why in left_out.items():
            facts.say(f"{one} is left out: {why.message}")
        return [*found]

    def addresses(self, event: EventName, handled: EventName) -> tuple[int, ...]:
        """Return where the handler of an event is probed. Raises OptprobeError where there is none."""
        self._facts.find(event)
        if not (found := self.guest.handlers.called(str(handled))):
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
                if handlers.called(str(event)):
                    continue
                facts = self._facts
                facts.find(event)
                made = self._format(event)
                if made is not None:
                    self._calls(made, facts)
                at = arena().free_code(facts.register_at, self.guest.isa.branch_reach) + TRIAL * len(tried)
                code = self._code(made, at, at)
                handlers.add(str(event), at, code.data, at + code.probed, code.frame)
                tried.append(at)
            yield
        finally:
            for at in tried:
                handlers.remove(at)

    def register(self, events: Sequence[EventName], arena: Arena) -> None:
        """Have the kernel call a handler at each of these events, if there is none yet; the guest runs for it.

        Raises OptprobeError where one is not registered, or CallFailed where that is not known yet.
        """
        facts = self._facts
        new = [event for event in dict.fromkeys(events) if not self._has_handler(event, facts)]
        if not new:
            return
        tracepoints = {event: facts.find(event) for event in new}
        if not arena.journal.is_open:
            raise OptprobeError("the journal in the guest is full, or none can be kept: another GDB could not find out")
        facts.say(f"the guest runs until its kernel has registered a handler on {_named(new)}")
        runner = facts.reach(self.may_stop_at, REACHING)
        for event, tracepoint in tracepoints.items():
            self._register(event, tracepoint, runner, facts, arena)

    def _handler(self, event: EventName) -> EventHandler | None:
        return next((handler for handler in self._known.values() if handler.event == event), None)

    def _has_handler(self, event: EventName, facts: Tracepoints) -> bool:
        known = self._handler(event)
        return known is not None and self._is_registered(known, facts)

    def _register(
        self, event: EventName, tracepoint: Tracepoint, runner: Runner, facts: Tracepoints, arena: Arena
    ) -> None:
        known = self._handler(event)
        if known is not None:
            # An earlier call was interrupted: it may be under way.
            self._check_unused(known, arena)
            if known.tracepoint != tracepoint or known.made != self._format(event):
                self._forget(known, arena)  # its module has gone, and was loaded again
                known = None
        made = known or self._place(event, tracepoint, facts, arena)
        try:
            self._hold_module(made, runner, facts, arena)
            if not made.hooks:
                made = self._lead_to_gates(made, facts, arena)
            result = self._call(runner, facts.register(tracepoint, made.slot.address), arena, made)
        except OptprobeError as failed:
            # A module that is held is given back with what is unused.
            if not (isinstance(failed, CallFailed) and failed.unfinished) and not self._holds(made):
                self._forget(made, arena)
            raise
        if not self._is_registered(made, facts):
            if not self._holds(made):
                self._forget(made, arena)
            raise OptprobeError(f"the kernel has registered no handler on {event}: it returned {result:#x}", LATER)

    def _place(self, event: EventName, tracepoint: Tracepoint, facts: Tracepoints, arena: Arena) -> EventHandler:
        """Write the code of a handler, which the journal lists before. Raises OptprobeError with nothing changed."""
        isa, machine, near = self.guest.isa, self.guest.machine, facts.register_at
        made = self._format(event)
        missed = arena.allocate_data(WORD, near, isa.data_reach) if made is not None else None
        at = missed.address if missed is not None else 0
        hold = arena.allocate_data(HOLD, near, isa.data_reach) if tracepoint.module else None
        for data in filter(None, (missed, hold)):
            machine.write(data.address, bytes(data.size))
        size = len(self._code(made, at, near).data)
        while True:
            slot = arena.allocate_code(size, near, isa.branch_reach)
            code = self._code(made, at, slot.address)
            if why := facts.arch.why_not_at(facts.kernel, slot.address):
                arena.code.free(slot)
                raise OptprobeError(why, "set optprobe arena to a range that is nearer")
            try:
                change = arena.code_patch(slot, code.data, machine, isa.breakpoint)
                break
            except TextChanged:
                continue  # the arena has struck that piece off
        detour = Detour(slot.address, code.data, slot.address, ())
        probed = slot.address + code.probed
        handler = EventHandler(event, tracepoint, slot, detour, probed, made, missed, frame=code.frame, hold=hold)
        arena.journal.put(Item.EVENT, slot.address, handler.value)
        arena.journal.code(slot, detour)
        arena.set_references(slot, (at,) if at else ())
        try:
            arena.journal.flush()
            if not arena.journal.is_open:
                raise OptprobeError("the journal in the guest is full")
            patch.apply([change], machine)
        except OptprobeError:
            arena.journal.drop(Item.EVENT, slot.address)
            arena.code.discard(slot)
            raise
        return self._know(handler)

    def _calls(self, made: EventFormat, facts: Tracepoints) -> Sequence[tuple[Insn, int]]:
        """Return the calls in the assignment that are to lead to gates, each with the function that it calls.

        Raises OptprobeError where they are not found.
        """
        function = self.guest.text.function(made.assigns)
        code = function.code.values() if function is not None else ()
        replaced = [target for target, _ in facts.arch.gates(made)]
        led = ((insn, self._called(insn)) for insn in code)
        found = [(insn, to) for insn, to in led if to in replaced]
        if {to for _, to in found} != {*replaced}:
            name = self.guest.symbol(made.assigns)
            why = f"{name} does not call what makes room for an entry, or commits it"
            raise Refused(Refusal.EVENT_FIELDS_MISSING.because(event=name.partition(ASSIGNS)[2], why=why))
        return found

    def _called(self, insn: Insn) -> int:
        """Return the function that a direct branch leads to; 0 of another instruction."""
        arch, read = self.guest.tracepoints.arch, self.guest.machine.read
        return arch.called(insn.target, read) if insn.target is not None and insn.flow is Flow.CALL else 0

    def _code(self, made: EventFormat | None, missed: int, address: int) -> HandlerCode:
        """Return the code of a handler for its address. Raises Refused where it does not reach a module's code."""
        arch = self.guest.tracepoints.arch
        try:
            return arch.handler() if made is None else arch.fields_handler(made, missed, address)
        except OutOfReach as stuck:
            raise self._out_of_reach(stuck.target) from stuck

    def _out_of_reach(self, address: int) -> Refused:
        return Refused(Refusal.ARENA_OUT_OF_REACH.because(address=self.guest.text.spell(address)))

    @property
    def _facts(self) -> Tracepoints:
        """Return the kernel's tracepoints. Raises Refused where no function can be registered on them."""
        try:
            facts = self.guest.tracepoints
            facts.check()
            return facts
        except OptprobeError as error:
            raise Refused(reason_of(error, Refusal.TRACEPOINTS_MISSING)) from error

    def _format(self, event: EventName, tracepoint: Tracepoint | None = None) -> EventFormat | None:
        """Return how the fields of an event are assigned, that of `tracepoint` if given; None where its handler has
        none. Raises Refused.
        """
        if event.is_raw:
            return None
        try:
            return self._facts.event_format(event, tracepoint)
        except Refused:
            raise
        except OptprobeError as error:
            raise Refused(Refusal.EVENT_FIELDS_MISSING.because(event=event, why=error.message)) from error

    def _lead_to_gates(self, handler: EventHandler, facts: Tracepoints, arena: Arena) -> EventHandler:
        """Have the assignment of a handler's fields come to the gates. Raises OptprobeError with nothing led there."""
        if (made := handler.made) is None:
            return handler
        guest, codes = self.guest, dict(facts.arch.gates(made))
        try:
            patches = tuple(
                Patch(insn.address, insn.data, guest.isa.redirect(insn, self._gate(insn, codes[to], arena)))
                for insn, to in self._calls(made, facts)
            )
        except OutOfReach as stuck:
            raise self._out_of_reach(stuck.source) from stuck
        # Events of one class are assigned by one function: another handler may have changed its calls.
        new = tuple(one for one in patches if one not in self.registry.event_hooks)
        hooks.install(new, guest, arena)
        self.registry.event_hooks += new
        self._known[handler.slot.address] = replace(handler, hooks=patches)
        return self._known[handler.slot.address]

    def _gate(self, call: Insn, code: Code, arena: Arena) -> int:
        """Return the address of the gate in place of what a call leads to. Raises Refused.

        Another GDB knows by its head that the call may lead to it instead.
        """
        target, reach = call.target or 0, self.guest.isa.branch_reach
        mine = (one for one in self._gates if one.detour.head == target)
        found = next((one for one in mine if arena.reaches(one.slot, call.address, reach)), None)
        if found is None:
            found = InstalledDetour.install(call.address, partial(_gate, code, target), self.guest, arena, ())
            self._gates.append(found)
        return found.detour.address

    def _know(self, handler: EventHandler) -> EventHandler:
        self._known[handler.slot.address] = handler
        start, data = handler.slot.address, handler.detour.data
        self.guest.handlers.add(str(handler.event), start, data, handler.probed, handler.frame)
        return handler

    # removed ---------------------------------------------------------------------------------------------------------

    def release_unused(self, arena: Arena) -> None:
        """Take handlers without probes off their tracepoints, for which the guest runs, and free their code.

        Raises OptprobeError where one stays: it is registered, does nothing, and is tried again.
        """
        unused = self._unused()
        if not unused:
            return
        facts, names = self.guest.tracepoints, _named([handler.event for handler in unused])
        try:
            facts.say(f"the guest runs until its kernel has taken what was registered off {names}")
            runner = facts.reach(self.may_stop_at, LEAVING)
            for handler in unused:
                self._check_unused(handler, arena)
                if self._is_registered(handler, facts):
                    self._call(runner, facts.unregister(handler.tracepoint, handler.slot.address), arena, handler)
                if self._is_registered(handler, facts):
                    raise CallFailed(f"the kernel has not taken the handler of {handler.event} off", LATER)
            for wait in facts.waits():
                self._call(runner, wait, arena, *unused)
            for handler in unused:
                self._release_module(self._lead_back(handler, arena), runner, facts, arena)
        except OptprobeError as error:
            stays = f"a handler of {names} may stay registered: it does nothing, and goes with the next probe or GDB"
            raise OptprobeError(f"{stays}: {error.message}", error.hint) from error
        finally:
            arena.journal.flush()
        for handler in unused:
            self._forget(handler, arena)
        self.collector.collect(arena, Trigger.COMMIT)

    def _check_unused(self, handler: EventHandler, arena: Arena) -> None:
        """Raise CallFailed where a thread may still be in a call that registers a handler, an earlier GDB's say."""
        self.collector.collect(arena, Trigger.COMMIT)
        if arena.may_use(handler.slot):
            raise CallFailed(f"a thread still registers the handler of {handler.event}", LATER)

    def _unused(self) -> Sequence[EventHandler]:
        used = {probe.address for probe in self.registry.single_probes()}
        return [handler for handler in self._known.values() if handler.probed not in used]

    def _forget(self, handler: EventHandler, arena: Arena) -> None:
        """Free the code of a handler that no CPU calls any more; a thread may still be in what is behind the gates."""
        handler = self._lead_back(handler, arena)
        del self._known[handler.slot.address]
        self.guest.handlers.remove(handler.slot.address)
        if not any(other.made is not None for other in self._known.values()):
            for placed in self._gates:
                placed.release(self.guest, arena, reached=True)
            self._gates.clear()
        arena.journal.drop(Item.EVENT, handler.slot.address)
        arena.retire(handler.slot, handler.detour)
        for data in handler.data:
            arena.data.release(data)
        arena.journal.flush()
        self.collector.collect(arena, Trigger.COMMIT)

    def _lead_back(self, handler: EventHandler, arena: Arena) -> EventHandler:
        """Have the assignment of a handler's fields call what it did, where no other handler's comes to the gates."""
        handler = self._known[handler.slot.address]
        shared = {one for other in self._known.values() if other is not handler for one in other.hooks}
        last = tuple(one for one in handler.hooks if one not in shared)
        hooks.remove(last, self.guest, arena)
        self.registry.event_hooks = tuple(one for one in self.registry.event_hooks if one not in last)
        self._known[handler.slot.address] = replace(handler, hooks=())
        return self._known[handler.slot.address]

    def _is_registered(self, handler: EventHandler, facts: Tracepoints) -> bool:
        if handler.hold is not None and not (self._holds(handler) and facts.is_there(handler.tracepoint)):
            return False  # nothing is registered before the module is held, which its structure goes with
        return any(function == handler.slot.address for function, _ in facts.functions(handler.tracepoint))

    # modules ---------------------------------------------------------------------------------------------------------

    def _holds(self, handler: EventHandler) -> bool:
        """Return whether a reference to the module is held, or is to be given back."""
        if handler.hold is None:
            return False
        held, given_back = (self.guest.machine.read(handler.hold.address + at, WORD) for at in (0, WORD))
        return bool(held[0] or any(given_back))

    def _hold_module(self, handler: EventHandler, runner: Runner, facts: Tracepoints, arena: Arena) -> None:
        """Keep the module of a handler from being unloaded. Raises CallFailed, OptprobeError."""
        if handler.hold is None or self._holds(handler):
            return
        self._call(runner, facts.hold(handler.tracepoint, handler.hold.address), arena, handler)
        if not self._holds(handler):
            raise OptprobeError(f"the module of {handler.event} is about to be unloaded")

    def _release_module(self, handler: EventHandler, runner: Runner, facts: Tracepoints, arena: Arena) -> None:
        """Let the module of a handler be unloaded again. GDB may be killed between any two writes: see EventHandler."""
        if handler.hold is None or not self._holds(handler):
            return
        if facts.is_there(handler.tracepoint):
            write, back = self.guest.machine.write, handler.hold.address + WORD
            write(back, handler.tracepoint.module.to_bytes(WORD, "little"))
            write(handler.hold.address, bytes(WORD))
            self._call(runner, facts.release(back), arena, handler)

    # an earlier GDB's ------------------------------------------------------------------------------------------------

    def adopt(self, left: ArenaContents, arena: Arena) -> None:
        """Know the handlers that an earlier GDB left: their probes may be added anew. Raises OptprobeError."""
        for at, value in left.events.items():
            slot = next(slot for slot in left.detours if slot.address == at)
            handler = self._read(at, value, slot, left)
            held = self.guest.machine.read(at, handler.detour.size)
            if held == handler.detour.data:
                self._know(handler)
                if handler.hold is None or self._holds(handler):
                    self._lead_to_gates(handler, self.guest.tracepoints, arena)
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
            address, name, counter, *of_module = validate.row(value, 3, 5)
            event = event_name.parse(validate.text(name))
            if event is None or event.is_syscall or event.is_glob:
                raise ValueError("an event")
            missed = left.data_at(validate.number(counter)) if not event.is_raw else None
            if not event.is_raw and (missed is None or missed.size != WORD):
                raise ValueError("its counter")
            hold: Slot | None = None
            if of_module:
                module, held = map(validate.number, validate.row(of_module, 2))
                tracepoint, hold = Tracepoint(event.event, validate.number(address), module), left.data_at(held)
                if not module or hold is None or hold.size != HOLD:
                    raise ValueError("what keeps its module")
            elif (tracepoint := facts.find(event)).address != validate.number(address):
                raise ValueError("a tracepoint")
            if hold is not None and not event.is_raw and not facts.is_there(tracepoint):
                # A module that was not held may have gone, and with it what its fields are.
                return EventHandler(event, tracepoint, slot, left.detours[slot], at, missed=missed, hold=hold)
            made = self._format(event, tracepoint)
            code = self._code(made, missed.address if missed is not None else 0, at)
            if slot.size < len(code.data):
                raise ValueError("its size")
        except ValueError as wrong:
            raise Damaged(f"code at {at:#x} is for no tracepoint: {wrong}") from None
        detour, probed = Detour(at, code.data, at, ()), at + code.probed
        return EventHandler(event, tracepoint, slot, detour, probed, made, missed, frame=code.frame, hold=hold)

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
        self._gates.clear()
        self.registry.event_hooks = ()

    # calls -----------------------------------------------------------------------------------------------------------

    def _call(self, runner: Runner, call: Call, arena: Arena, *handlers: EventHandler) -> int:
        """Have the thread that was reached make a call; return its result. Raises CallFailed, OptprobeError."""
        calling = self.guest.tracepoints.arch.calling
        uses = [at for handler in handlers for at in handler.uses]

        def encode(at: int, back: int) -> Thunk:
            return calling.thunk(at, call.function, call.arguments, back, call.takes, call.gives)

        return make_call(runner, encode, CALL, self.guest, arena, uses)


def with_known_fields(
    events: Iterable[EventName], use: Callable[[EventName], Use]
) -> tuple[dict[EventName, Use], dict[EventName, Refused]]:
    """Return what `use` returns for each event, and why it refuses others: their fields are not known.

    Raises Refused where it is all of them, and what else `use` raises.
    """
    found: dict[EventName, Use] = {}
    left_out: dict[EventName, Refused] = {}
    for one in events:
        try:
            found[one] = use(one)
        except Refused as refused:
            if refused.reason.code != Refusal.EVENT_FIELDS_MISSING.code:
                raise
            left_out[one] = refused
    if left_out and not found:
        raise next(iter(left_out.values()))
    return found, left_out


def _named(events: Sequence[EventName]) -> str:
    """Return events in words: all of a few, else how many more there are."""
    shown = ", ".join(map(str, events[:SHOWN]))
    return f"{shown} and {len(events) - SHOWN} more" if len(events) > SHOWN else shown


def _gate(code: Code, function: int, at: int) -> Detour:
    return Detour(at, code(at), function, ())
