"""The return hook of one function of the kernel: a table of its active calls, and the trampoline that they return to.

    entry of the function ── detour: the entry's code ──► a slot of the table, return address := trampoline
    return ── trampoline: programs of the kretprobes, in order of creation ──► the call's own return address
Linux calls this a rethook (kernel/trace/rethook.c). All kretprobes of a function share one. When their set changes,
later calls get a new trampoline; the code of the old one is freed when no stack has an address in it, like a detour's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.slots import Alignment, Slot
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.handlers import interpreter, lower_kernel_returns
from gdb_optprobe.handlers.arithmetic import Fault
from gdb_optprobe.handlers.interpreter import Outcome
from gdb_optprobe.handlers.ir import (
    Binary,
    Choose,
    Clock,
    Constant,
    Expr,
    Load,
    Op,
    Put,
    nodes,
)
from gdb_optprobe.handlers.lower_kernel_returns import PadExit, PlacedCallTable, ProbedFunction, Trampoline
from gdb_optprobe.handlers.lower_returns import EntryPart
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.isa.base import Code, Dead, Insn, joined, with_pool
from gdb_optprobe.isa.codegen import EntryState, ProbeReadRoutines
from gdb_optprobe.isa.paths import shortest
from gdb_optprobe.isa.record import Isa, with_own_pool
from gdb_optprobe.maps.call_table import SAVED, WORD, CallCounts, CallSlot, CallTable, CallTableLayout, changes
from gdb_optprobe.probes import kretprobe
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.installed_detour import InstalledDetour
from gdb_optprobe.probes.kretprobe import (
    call_table_layout,
    return_backend,
    stacked_at,
    trampoline_alignment,
)
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.probe_read import install_probe_read
from gdb_optprobe.probes.return_program import entry_parts, may_leave_out, return_handler, slot_word
from gdb_optprobe.probes.return_stops import EntryHit, FindReturn, ReturnStops
from gdb_optprobe.probes.stops import Hit
from gdb_optprobe.probes.target import Target

SLOTS = 508
"""Of a new table, which grows with the number of active calls: it fills two pages, or four."""
MOST_KEPT = 1024
"""Bytes of a probe with hits that are returns, which stay as long as another one of its function: no tables."""
_NO_CALLS = CallCounts()


@dataclass(frozen=True, slots=True)
class Costs:
    """Numbers of instructions. rare: that only an entry without a free slot executes.

    trampoline: in all, without such. least: of the trampoline, where conditions are false.
    """

    rare: int
    trampoline: int
    least: int

    def of_call(self, most: int, least: int) -> tuple[int, int]:
        """Return what a call costs in all, most and least, where its entry's detour adds so many instructions."""
        return most - self.rare + self.trampoline, least + self.least


@dataclass(frozen=True, slots=True)
class ReturnProgram:
    """The program of one probe in a trampoline. start, end: where it is."""

    number: int
    code: Code
    start: int
    end: int


@dataclass
class Rethook:
    """The table and the trampolines of the function that is entered at `address`.

    memory:           of the table.
    stop_handlers:    how returns stop the guest.
    trampoline:       the return address of calls that are entered now; it runs the probes with these `probe_numbers`.
    retired_trampolines: by address, those that only earlier calls may return to.
    closed:           no call is entered here any more.
    older:            rethooks with tables too small for what is saved now; their calls are counted here.
    earlier_counts:   of older tables that are freed.
    ended:            its probes are deleted: it is counted apart from later rethooks of the function.
    hits:             the counter of a probe that counts each return by itself: the table counts those of trampolines
                      without its program. Nothing else counts there.
    costs, programs:  of `trampoline`.
    """

    address: int
    layout: CallTableLayout
    memory: Slot
    stop_handlers: ReturnStops
    trampoline: InstalledDetour | None = None
    probe_numbers: tuple[int, ...] = ()
    retired_trampolines: dict[int, Detour] = field(default_factory=dict)
    closed: bool = False
    older: list[Rethook] = field(default_factory=list)
    earlier_counts: CallCounts = field(default_factory=CallCounts)
    ended: bool = False
    hits: Slot | None = None
    costs: Costs = field(default_factory=lambda: Costs(0, 0, 0))
    programs: tuple[ReturnProgram, ...] = ()
    parts: tuple[EntryPart, ...] = ()
    _probes: tuple[Probe, ...] = ()
    _readers: ProbeReadRoutines | None = None
    _base: int | None = None
    _arena_code: tuple[int, int] = (0, 0)
    _last_entry: CallSlot | None = None
    _had_room: bool = False

    @classmethod
    def create(
        cls,
        address: int,
        layout: CallTableLayout,
        guest: Guest,
        arena: Arena,
        behind: FindReturn,
        hits: Slot | None = None,
    ) -> Rethook:
        """Return a new one, its table in the guest. behind: see FindReturn. Raises Refused where there is no memory."""
        with arena.new_data(layout.size, address, guest.isa.data_reach, table_alignment(layout)) as memory:
            guest.machine.write(memory.address, layout.initial())
        return cls(address, layout, memory, ReturnStops(address, layout, behind), hits=hits)

    @property
    def table(self) -> PlacedCallTable:
        return PlacedCallTable(self.layout, self.memory.address)

    @property
    def is_aligned(self) -> bool:
        """Return whether the table is where code of this version can find calls in it."""
        return self.table.first % self.layout.aligned == 0

    @property
    def stops(self) -> int:
        """Return how often returns stopped the guest for the user."""
        return self.stop_handlers.stops + sum(rethook.stops for rethook in self.older)

    @classmethod
    def adopted(
        cls,
        address: int,
        layout: CallTableLayout,
        memory: Slot,
        retired: dict[int, Detour],
        arena: Arena,
        before: CallCounts = _NO_CALLS,
        ended: bool = False,
        hits: Slot | None = None,
    ) -> Rethook:
        """Return that of an earlier session, closed. retired: trampolines that its calls may return to."""
        stopping = ReturnStops(address, layout, lambda pc, key: None)  # the session that looked at its flags is gone
        return cls(
            address,
            layout,
            memory,
            stopping,
            retired_trampolines=retired,
            closed=True,
            earlier_counts=before,
            ended=ended,
            hits=hits,
            _arena_code=code_range(arena),
        )

    def reopen(self, behind: FindReturn) -> None:
        """Enter calls here again, beside those of an earlier session."""
        self.stop_handlers = ReturnStops(self.address, self.layout, behind)
        self.closed = False

    def is_arena_code(self, address: int) -> bool:
        """Return whether it may be in the arena's code: such a return address is a trampoline, of this function or of
        another.
        """
        return self._arena_code[0] <= address < self._arena_code[1]

    def trampoline_at(self, pc: int) -> Detour | None:
        """Return the trampoline that `pc` is in."""
        return next((one for one in self.trampolines if one.address <= pc < one.end), None)

    @property
    def trampolines(self) -> tuple[Detour, ...]:
        """Return all that a thread may be inside of."""
        return (*((self.trampoline.detour,) if self.trampoline is not None else ()), *self.retired_trampolines.values())

    @property
    def tables(self) -> Iterator[Rethook]:
        """Yield this rethook and the older ones that are counted with it."""
        yield self
        for rethook in self.older:
            yield from rethook.tables

    def starts_trampoline(self, pc: int) -> bool:
        """Return whether `pc` is the start of a trampoline, which is what calls have as return address."""
        return (found := self.trampoline_at(pc)) is not None and found.address == pc

    def read_calls(self, guest: Guest) -> CallTable:
        """Read the table in the guest, without returns that are the hits of a probe."""
        return self.layout.decode(self._read(guest))

    def is_half_full(self, guest: Guest) -> bool:
        return 2 * len(self.layout.taken_slots(self._read(guest))) > self.layout.slots

    def all_calls(self, guest: Guest) -> CallTable:
        """Read all calls since the first probe of the function, also those in older tables."""
        return all_calls(tuple(self.tables), guest)

    def hits_now(self, guest: Guest) -> int:
        """Return how many returns are hits, since these were cleared."""
        return _read_word(self.hits, guest) if self.hits is not None else 0

    def drop_calls(self, keys: Collection[int], guest: Guest) -> None:
        """Free the slots of calls with these keys, which never return, and count them as dropped."""
        before = self._read(guest)
        after = self.layout.drop(before, keys)
        self._write(before, after, guest)
        self.stop_handlers.keep_only(self.layout.decode(after))

    def close(self, guest: Guest, arena: Arena) -> None:
        """Enter no more calls here: the last probe is gone, or another table is used from now on.

        The memory is freed once all calls have returned.
        """
        self.retire(guest, arena)
        arena.data.release(self.memory)
        self.stop_handlers.release_pad(arena)
        self.closed = True

    def forget_trampolines(self, dirty: Collection[int]) -> None:
        """Forget the retired trampolines that were freed: all but those at `dirty`."""
        for at, detour in [*self.retired_trampolines.items()]:
            if at not in dirty:
                del self.retired_trampolines[at]
                for probe in self.stop_handlers.probes.values():
                    probe.remove_return_breakpoints(detour.address, detour.end)

    # code ----------------------------------------------------------------------------------------------------------

    def install_trampoline(self, probes: Sequence[Probe], plan: Plan, target: Target, arena: Arena) -> None:
        """Have later calls return to programs of `probes`, which have their memory. Raises Refused."""
        wanted = tuple(probe.number for probe in probes)
        if self.trampoline is not None and self.probe_numbers == wanted:
            return
        parts = entry_parts(probes, SAVED, lambda probe: probe.may_stop)
        leaving = self.stop_handlers.reserve_pad(_flags(parts), target, arena)
        made, programs = self._trampoline_code(probes, parts, plan, target.guest, leaving)
        code = with_own_pool(target.guest.isa, made.code(programs))
        readers = self._entry_readers(probes, target.guest, arena)
        new = self._reuse_trampoline(code, parts, arena)
        if new is None:
            uses = self._uses(probes)
            near = arena.trampolines_near(self.address, target.guest.isa.branch_reach)
            new = InstalledDetour.install(
                near,
                lambda at: Detour(at, code(at), self.address, ()),
                target.guest,
                arena,
                uses,
                trampoline_alignment(target.guest.isa),
            )
        self.retire(target.guest, arena)
        self._readers = readers
        self._use(new, probes, parts, made, programs, plan, target.guest, arena)
        for probe, part, program in zip(probes, parts, self.programs, strict=True):
            if probe.spec.return_handler is not None:
                self.stop_handlers.set_return_breakpoint(probe, part, program.start, program.end, target)

    def _entry_readers(self, probes: Sequence[Probe], guest: Guest, arena: Arena) -> ProbeReadRoutines | None:
        """Return what reads memory for the code at the function's entry; None where that reads none. Raises Refused."""
        for probe in probes:
            if probe.readers is not None and not isinstance(probe.handler.unmapped, Missing):
                return install_probe_read(probe.handler.unmapped, self.address, guest, arena)
        return None

    @classmethod
    def tried(cls, probe: Probe, plan: Plan, guest: Guest, arena: Arena) -> Rethook:
        """Return what a function would have with `probe` as its only kretprobe, where memory is free now.

        Nothing is written to the guest, so no call can use it. Raises Refused.
        """
        layout, reach = table_layout(guest.isa, [probe]), guest.isa.branch_reach
        in_reach = guest.isa.data_reach
        memory = Slot(arena.check_room(layout.size, probe.address, in_reach, table_alignment(layout)), layout.size)
        probe.counter = Slot(arena.check_room(probe.handler.size, probe.address, in_reach), probe.handler.size)
        near = arena.trampolines_near(probe.address, reach)
        at = arena.free_code(near, reach, trampoline_alignment(guest.isa))
        probe.readers = None if isinstance(probe.handler.unmapped, Missing) else ProbeReadRoutines(at, at)
        stops, hits = ReturnStops(probe.address, layout, lambda pc, key: None), return_counter(probe)
        found = cls(probe.address, layout, memory, stops, hits=hits)
        if probe.readers is not None:
            here = arena.free_code(probe.address, reach)
            found._readers = ProbeReadRoutines(here, here)
        parts = entry_parts([probe], SAVED, lambda one: one.may_stop)
        leaving = PadExit(flags, at) if (flags := _flags(parts)) else None
        made, programs = found._trampoline_code([probe], parts, plan, guest, leaving)
        code = with_own_pool(guest.isa, made.code(programs))(at)
        placed = InstalledDetour(Slot(at, len(code)), Detour(at, code, probe.address, ()))
        found._use(placed, [probe], parts, made, programs, plan, guest, arena)
        return found

    def _use(
        self,
        new: InstalledDetour,
        probes: Sequence[Probe],
        parts: tuple[EntryPart, ...],
        made: Trampoline,
        programs: Sequence[Code],
        plan: Plan,
        guest: Guest,
        arena: Arena,
    ) -> None:
        """Give calls that are entered from now on the trampoline `new`, which has the programs of `probes`."""
        self.trampoline, self.parts = new, parts
        self.probe_numbers = tuple(probe.number for probe in probes)
        places = made.places(programs, new.detour.address)
        self.programs = tuple(
            ReturnProgram(number, code, start, end)
            for number, code, (start, end) in zip(self.probe_numbers, programs, places, strict=True)
        )
        self._probes = tuple(probes)
        self._base = plan.base
        self._arena_code = code_range(arena)
        self.costs = self._costs(made, new.detour, plan, guest)

    def _reuse_trampoline(self, code: Code, parts: Sequence[EntryPart], arena: Arena) -> InstalledDetour | None:
        """Return a retired trampoline with the same code, unless earlier calls left words there for Python handlers."""
        if any(part.flag or part.data for part in parts):
            return None
        found = arena.reuse(lambda one: one.address in self.retired_trampolines and one.data == code(one.address))
        if found is None:
            return None
        del self.retired_trampolines[found[0].address]
        return InstalledDetour(*found)

    def _uses(self, probes: Sequence[Probe]) -> Iterator[int]:
        """Yield the addresses of what a trampoline with the programs of `probes` uses."""
        yield self.memory.address
        if self.hits is not None:  # read as long as there is the table
            yield self.hits.address
        if self.stop_handlers.pad is not None:
            yield self.stop_handlers.pad.slot.address
        for probe in probes:
            if probe.counter is not None:
                yield probe.counter.address
            if (maps := probe.handler.shared) is not None and maps.memory is not None:
                yield maps.memory.address
            if (records := probe.handler.records) is not None:
                yield records.memory.address
            if probe.readers is not None:
                yield probe.readers.bytes

    def _counts_return(self, probe: Probe) -> bool:
        """Return whether each return is a hit of `probe`, and no table needs to count it."""
        return probe.counter is not None and probe.counter == self.hits

    def retire(self, guest: Guest, arena: Arena) -> None:
        """Give later calls no trampoline; earlier ones may still return to it."""
        if self.trampoline is not None and self.trampoline.release(guest, arena, reached=True):
            self.retired_trampolines[self.trampoline.slot.address] = self.trampoline.detour
        self.trampoline, self.probe_numbers = None, ()

    def entry_code(self, dead: Dead, guest: Guest) -> Code:
        """Return what runs at the function's entry. dead: before it."""
        assert self.trampoline is not None
        at = self.trampoline.detour.address
        handler = self._probes[0].handler
        before = EntryState(dead, per_cpu=handler.per_cpu, base=self._base, readers=self._readers)
        function = ProbedFunction(at, self._arena_code, self.address, guest.hidden_returns)
        return lower_kernel_returns.lower_entry(self.table, function, before, return_backend(guest), self.parts)

    def _costs(self, made: Trampoline, trampoline: Detour, plan: Plan, guest: Guest) -> Costs:
        def insns(code: bytes, at: int) -> list[Insn]:
            return guest.isa.decode(code, at)

        at = trampoline.address
        all_of, begin = insns(trampoline.data, at), insns(made.begin(at), at)
        (entry_code,) = with_pool([self.entry_code(plan.dead, guest)], at)  # as it is in a detour
        entry = insns(entry_code(at), at)
        to_return = all_of[:-1]
        return Costs(
            len(entry) - shortest(entry), len(all_of) - len(begin) + shortest(begin), shortest(to_return) + 1
        )

    def _trampoline_code(
        self,
        probes: Sequence[Probe],
        parts: Sequence[EntryPart],
        plan: Plan,
        guest: Guest,
        leaving: PadExit | None,
    ) -> tuple[Trampoline, Sequence[Code]]:
        isa = return_backend(guest)
        handlers = [self._return_handler(probe, part, isa.slot) for probe, part in zip(probes, parts, strict=True)]
        read = frozenset(name for handler in handlers for name in handler.program.registers)
        before = EntryState(kretprobe.dead_at_return(self.address, guest), read, base=plan.base)
        counted = not any(map(self._counts_return, probes))
        made = lower_kernel_returns.lower_trampoline(self.table, before, isa, leaving, counted)
        self.stop_handlers.has_flag_register = not made.kept.names
        plan = replace(plan, dead=made.dead)
        before = replace(before, dead=made.dead, kept=made.kept)
        programs = []
        for probe, part, handler in zip(probes, parts, handlers, strict=True):
            assert probe.counter is not None, "it was reserved with the rethook"
            code = handler.code(guest.isa, plan, made.dead, probe.counter.address, probe.readers, kept=made.kept)
            looks = probe.spec.return_handler is not None
            look = (lower_kernel_returns.lower_debugger_check(before, isa, part.flag),) if looks else ()
            programs.append(joined((code, *look)))
        return made, programs

    def _return_handler(self, probe: Probe, part: EntryPart, slot: str) -> Handler:
        """Return what the trampoline does for `probe`: where it would stop the guest, a flag is set in the slot."""
        puts = []
        if part.flag:
            puts.append(Put(slot_word(slot, part.flag), Constant(self.stop_handlers.flag(probe))))
        if part.time:
            at = slot_word(slot, part.time)
            since = Load(at, WORD, signed=False, mapped=True)
            puts.append(Put(at, Choose(since, Binary(Op.SUB, Clock(), since, 64, False), Constant(0))))
        return return_handler(probe.handler, part, slot, slot).storing(puts)

    # an entry that stops the guest -----------------------------------------------------------------------------------

    def run_entry(self, hit: Hit, guest: Guest) -> None:
        """Do what the entry's code does, for a vCPU that is stopped there, and call entry handlers of Python.

        Where a program reads the clock the call is missed: the clock continues while GDB looks.
        """
        assert self.trampoline is not None
        isa = return_backend(guest)
        self._last_entry = None
        for probe in self._with_entry_actions:
            probe.add_hit(Outcome(held=False), hit.vcpu)  # so that the hit taken back is this entry's
        wanted = [self._condition_holds(probe, part, hit, guest) for probe, part in self._with_parts]
        if not any(wanted):
            return
        key = isa.key_of(hit.regs[guest.isa.sp])
        back = hit.regs[isa.link] if isa.link else int.from_bytes(hit.read(stacked_at(key, guest), WORD), "little")
        before = self._read(guest)
        new, alive = CallSlot(key, back), self.is_arena_code(back) or back in guest.hidden_returns
        timed = any(Clock() in nodes(node) for part in self.parts for at, node in part.kept if at != part.time)
        after, room = (self.layout.miss(before), False) if timed else self.layout.enter(before, new, alive)
        if room:
            saved = self._saved_words(wanted, hit, guest)
            if saved is None:
                return
            new = replace(new, saved=saved)
            after, _ = self.layout.enter(before, new, alive)
        self._write(before, after, guest)
        if room:
            for probe, part in self._with_parts:
                if probe in self._with_entry_actions and (not part.armed or new.saved[(part.armed - SAVED) // WORD]):
                    probe.add_hit(probe.handler.act_at_entry(hit), hit.vcpu)
            self._set_return_address(self.trampoline.detour.address, key, hit.write, guest)
            self.stop_handlers.keep_only(self.layout.decode(after))
        self._last_entry, self._had_room = new, room

    @property
    def _with_parts(self) -> Iterator[tuple[Probe, EntryPart]]:
        return zip(self._probes, self.parts, strict=True)

    @property
    def _with_entry_actions(self) -> list[Probe]:
        """Return the probes with actions at the entry."""
        return [probe for probe in self._probes if probe.handler.entry.actions]

    def _condition_holds(self, probe: Probe, part: EntryPart, hit: Hit, guest: Guest) -> bool:
        """Return whether a probe looks at the call."""
        test = part.entry.condition
        return test is None or bool(self._evaluate(test, part, probe, hit, guest))

    def _saved_words(self, wanted: Sequence[bool], hit: Hit, guest: Guest) -> tuple[int, ...] | None:
        """Return the words that are saved of a call; None where every probe leaves it out."""
        words = [0] * self.layout.saved
        looked_at = False
        for is_wanted, (probe, part) in zip(wanted, self._with_parts, strict=True):
            number = self._run_entry_handler(probe, hit) if is_wanted else None
            looked_at |= number is not None
            known = {part.armed: int(number is not None), part.data: number or 0, part.time: 0}
            for at, node in part.kept:
                word = known[at] if at in known else self._evaluate(node, part, probe, hit, guest)
                words[(at - SAVED) // WORD] = word
        return tuple(words) if looked_at else None

    def _run_entry_handler(self, probe: Probe, hit: Hit) -> int | None:
        """Return the number of the data that an entry handler of Python has left; None where it leaves the call out."""
        handler = probe.spec.pre_handler
        if handler is None:
            return 0
        data = SimpleNamespace()
        entered = EntryHit(
            address=hit.address,
            vcpu=hit.vcpu,
            regs=hit.regs,
            read=hit.read,
            write=hit.write,
            probe=probe.number,
            stopped_by=hit.stopped_by,
            data=data,
        )
        return None if handler(entered) else self.stop_handlers.keep_data(probe, data)

    def _evaluate(self, node: Expr, part: EntryPart, probe: Probe, hit: Hit, guest: Guest) -> int:
        """Evaluate an expression of the entry; 0 for a fault, which is counted."""
        try:
            return interpreter.evaluate(node, probe.handler.interpreted_hit(hit))
        except Fault:
            count = int.from_bytes(guest.machine.read(part.faults, WORD), "little") + 1
            guest.machine.write(part.faults, count.to_bytes(WORD, "little"))
            return 0

    def _set_return_address(
        self, address: int, key: int, write: Callable[[Mapping[str, int]], None], guest: Guest
    ) -> None:
        """Have a call that is at the entry return to `address`. write: sets registers of its vCPU."""
        isa = return_backend(guest)
        if isa.link is not None:
            write({isa.link: address})
        else:
            guest.machine.write(stacked_at(key, guest), address.to_bytes(WORD, "little"))

    def undo_entry(self, guest: Guest) -> None:
        """Take the last entry back, which will be made again."""
        new, self._last_entry = self._last_entry, None
        if new is None:
            return
        before = self._read(guest)
        if not self._had_room:
            self._write(before, self.layout.miss(before, -1), guest)
            return
        machine = guest.machine
        # GDB may die in between: a call that returns to the trampoline must have a slot.
        self._set_return_address(new.back, new.key, partial(machine.write_registers, machine.selected()), guest)
        self._write(before, self.layout.remove(before, new.key), guest)

    def _write(self, before: bytes, after: bytes, guest: Guest) -> None:
        for offset, word in changes(before, after):
            guest.machine.write(self.memory.address + offset, word)

    def _read(self, guest: Guest) -> bytes:
        return guest.machine.read(self.memory.address, self.layout.size)


def all_calls(rethooks: Collection[Rethook], guest: Guest) -> CallTable:
    """Read all calls of these rethooks, and what was counted before their tables were there."""
    tables = [each.read_calls(guest) for each in rethooks]
    counters = {each.hits for each in rethooks if each.hits is not None}
    hits = CallCounts(sum(_read_word(counter, guest) for counter in counters))
    counts = sum([*tables, *(each.earlier_counts for each in rethooks)], hits)
    active = tuple(call for each in tables for call in each.active)
    return CallTable(counts.returns, counts.missed, counts.dropped, active)


def _read_word(at: Slot, guest: Guest) -> int:
    return int.from_bytes(guest.machine.read(at.address, WORD), "little")


def return_counter(probe: Probe) -> Slot | None:
    """Return the counter of `probe` if each return of a call is one of its hits, and it is small: it may outlive it."""
    counts_all = probe.handler.program.condition is None and not may_leave_out(probe)
    return probe.counter if counts_all and probe.handler.size <= MOST_KEPT else None


def returns_on_stack(guest: Guest) -> bool:
    """Return whether a call's return address is at its stack address from its entry to its return."""
    return return_backend(guest).link is None


def table_alignment(layout: CallTableLayout) -> Alignment:
    return Alignment(layout.aligned, layout.first)


def _flags(parts: Sequence[EntryPart]) -> tuple[int, ...]:
    """Return the words of a slot by which probes stop the guest."""
    return tuple(part.flag for part in parts if part.flag)


def table_layout(isa: Isa, probes: Sequence[Probe], least: int = 0) -> CallTableLayout:
    """Return the layout of a table for all kretprobes of a function, whichever of them are enabled.

    least: how many calls there is room for, if that is more than SLOTS, where not every probe has a bound.
    """
    bounds = [probe.spec.maxactive for probe in probes]
    saved = sum(len(probe.handler.entry.words) + _own_words(probe) for probe in probes)
    return call_table_layout(isa, max(bounds) if all(bounds) else max(least, SLOTS), saved)


def _own_words(probe: Probe) -> int:
    """Return how many words a probe may have before those that it saves, whatever other probes there are."""
    spec = probe.spec
    python = (spec.pre_handler is not None) + (spec.return_handler is not None)
    return may_leave_out(probe) + probe.may_stop + python


def return_address_slot(key: int, guest: Guest) -> int | None:
    """Return where the stack shows the return address of a call; None where that is not known, or not yet."""
    return return_backend(guest).shown_at(key) if key > 1 else None


def code_range(arena: Arena) -> tuple[int, int]:
    """Return the range that all of the arena's code is in: a return address there may be any trampoline's."""
    return arena.code_bounds
