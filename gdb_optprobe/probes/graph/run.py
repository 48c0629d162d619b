"""Run a call graph in a guest: put its probes in, take the records out at short stops, hand over the trees.

    │ gate │ ring │        one piece of data, of all probes of the graph
    probes in ─► guest runs ⇄ short stops: records ─► trees ─► probes out ─► memory back
                    ▲             └ targets of calls through pointers ─► more probes
                    └──────────────────────────────────────────────────────┘
A tree may lack calls if a function was called in it before it was learned where pointers in that one lead: it is early.
Such trees are withheld for a second at most; later ones are shown with a mark. Where no other tree comes, they are
handed over in the end, with the mark, too. What was learned is kept by the session, for the next graph.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.errors import OptprobeError, Unreachable, Unreadable
from gdb_optprobe.garbage import uncollected
from gdb_optprobe.guest import runs
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.isa.base import Pointer
from gdb_optprobe.maps.ring import START, Record, RingLayout, RingPosition
from gdb_optprobe.probes.adding import LOANS
from gdb_optprobe.probes.batch import BranchesStay
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.follower import Pause
from gdb_optprobe.probes.graph import gate, records
from gdb_optprobe.probes.graph.callees import COLD, ENTRY
from gdb_optprobe.probes.graph.functions import MOST_ARGUMENTS, Functions, Request, Traced
from gdb_optprobe.probes.graph.gate import Gate
from gdb_optprobe.probes.graph.records import Led
from gdb_optprobe.probes.graph.trees import Ending, Tree, Trees
from gdb_optprobe.probes.leftovers import clear_leftovers
from gdb_optprobe.probes.new_records import read_ring
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.shared_records import SharedRecords
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Command

MOST_WITHHELD = 256
LEARNING = 1.0
"""Seconds in which early trees are withheld, from the first one on."""
MOST_BITS, ENOUGH_BITS, LEAST_BITS = 13, 12, 8
"""Of the ring: 8,192 records are 400 KB. Where less than enough fits, the guest's kernel is asked for memory."""
DEATH = "do_task_dead"
"""The function in which a thread ends: kernel/sched/core.c."""
_LEAST = 0.001
"""Seconds that the guest runs at least between two stops."""
_ANY = 0
"""In place of a function."""
_would_stop = partial(OptprobeError, "a hit would stop the guest", "optprobe explain FUNCTION says why")


def _nothing(index: int, site: int) -> None:
    """Note nothing."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Probes of one spec, to be put in together. placed: is called with the index of each that is, and its address."""

    spec: Spec
    places: Sequence[int]
    placed: Callable[[int, int], None] = _nothing


@dataclass
class GraphRun:
    """A call graph in a guest. show: gets each tree as it ends. clock: of the host, in seconds.

    lost: records that found no room in the ring. withheld: early trees that were not shown.
    learned: how many functions were found while the guest ran.
    is_whole: whether all functions were looked at that are near enough. unwatched: calls through pointers of which it
    is not seen where they lead.
    """

    session: Session
    request: Request
    show: Callable[[Tree], object]
    clock: Callable[[], float] = time.monotonic
    lost: int = 0
    withheld: int = 0
    learned: int = 0
    is_whole: bool = True
    unwatched: int = 0
    trees: Trees = field(init=False)
    _shared: SharedRecords | None = None
    _gate: Gate | None = None
    _numbers: list[int] = field(default_factory=list)
    _position: RingPosition = START
    _waiting: list[Record] = field(default_factory=list)
    _pause: Pause = field(default_factory=Pause)
    _new: list[Traced] = field(default_factory=list)
    _blocks: list[CountBlock] = field(default_factory=list)
    _watched: dict[int, int] = field(default_factory=dict)
    _sites: int = 0
    _led: list[Led] = field(default_factory=list)
    _has_dropped: bool = False
    _latest: int = -1
    _learned_at: dict[int, int] = field(default_factory=dict)
    _learned_from: set[int] = field(default_factory=set)
    _pointers: dict[int, tuple[Pointer, int]] = field(default_factory=dict)
    _early: deque[Tree] = field(default_factory=lambda: deque(maxlen=MOST_WITHHELD))
    _withheld_until: float = math.inf
    _handed_over: int = 0

    def __post_init__(self) -> None:
        self.functions = Functions(self.session.target.guest, self.request, self.session.known_exits)
        self.trees = Trees(self.functions.by_number, self.functions.bound)

    @property
    def hertz(self) -> int:
        """Return the ticks of the clock in a second. Raises OptprobeError."""
        found = self.session.target.guest.names_at(self._new[0].entry).hertz
        if isinstance(found, Missing):
            raise OptprobeError(found.message, found.hint)
        return found

    def prepare(self) -> None:
        """Find the functions of the graph, and put their probes in. Raises OptprobeError, with none in the guest."""
        with uncollected():
            self._prepare()

    def _prepare(self) -> None:
        session, optimizer = self.session, self.session.optimizer
        session.check_alive()
        clear_leftovers(session.target, optimizer, session.uprobes)
        session.target.debugger.guard()
        arena = optimizer.take_arena(borrow=True)
        self._find()
        last = session.last_number
        try:
            self._reserve(arena)
            self._put_in(self._new, self._pointers)
            self.functions.known.keep()
        except BaseException as error:
            self._give_up(error)
            raise
        finally:
            session.last_number = last

    def _give_up(self, error: BaseException) -> None:
        """Take out what was put in before `error`. Raises OptprobeError where that says what else is to be known."""
        try:
            self.take_out()
        except Exception as failure:  # of GDB's own errors too
            if isinstance(error, OptprobeError):  # what it says of the guest is to be read, too
                raise OptprobeError(f"{error}; {failure}") from error
            raise
        if isinstance(error, BranchesStay):  # they are out by now
            raise OptprobeError(error.why) from error

    def run(self, seconds: float | None, guest: str, is_over: Callable[[], bool]) -> str | None:
        """Let the guest run at most so long, until a command in it has ended, or something stops it: return what.

        Then hand over the trees that have not ended.
        """
        command = self.session.target.debugger.begin(guest) if guest else None
        try:
            reason = self._let_run(seconds, command, is_over)
        finally:
            self.functions.known.keep()
            if command is not None:
                command.close()
        if self.request.newest:
            found = sorted((*self._drain(), *self.trees.cut(Ending.OPEN)), key=lambda tree: tree.root.time)
            if self._led_to():
                self._note_learned()
        else:
            found = [*(() if self._handed_over else self._early), *self.trees.cut(Ending.OPEN)]
            self.withheld -= 0 if self._handed_over else len(self._early)
        for tree in found:
            self.show(self._marked(tree))
        return reason

    def _hand_over(self, trees: Iterable[Tree]) -> None:
        """Show trees that have ended, or withhold them."""
        now = self.clock()
        for tree in map(self._marked, trees):
            self._withheld_until = min(self._withheld_until, now + LEARNING)
            if tree.is_early and now < self._withheld_until:
                self._early.append(tree)
                self.withheld += 1
            else:
                self._handed_over += 1
                self.show(tree)

    def _marked(self, tree: Tree) -> Tree:
        """Return a tree with the mark of early ones where it is one."""
        learned, functions = self._learned_at, self.functions.by_number
        any_function = learned.get(_ANY, -1)
        waiting = [tree.root] if learned else []
        while waiting:
            call = waiting.pop()
            if call.time <= max(any_function, learned.get(functions[call.function].start, -1)):
                return replace(tree, is_early=True)
            waiting += call.calls
        return tree

    def _note_learned(self) -> None:
        """Note until when it was not known where calls of functions lead."""
        recorded = {function.start for function in self.functions.by_number.values()}
        for site in self._learned_from:
            place = self.session.target.guest.place(site)
            # Calls of one that is not recorded, as of the cold part of one, may be in any tree.
            start = place.start if place is not None and place.start in recorded else _ANY
            self._learned_at[start] = self._latest
        self._learned_from.clear()

    def take_out(self) -> None:
        """Take the probes out of the guest, and give the memory back. Raises OptprobeError where some are left there.

        The ring stays as long as something leads to them.
        """
        shared, self._shared, self._numbers = self._shared, None, []
        if shared is None:
            return
        session = self.session
        recording = session.registry.recording()
        # Those of an `add` that failed are among them, where it could not be undone.
        numbers = [number for memory, some in recording if memory == shared.memory for number in some]
        try:
            if numbers:
                session.delete(numbers)
        except BaseException:
            session.optimizer.leave_ring(shared.memory)
            raise
        session.optimizer.leave_ring(shared.memory)
        session.optimizer.tidy()

    @property
    def watched(self) -> int:
        """Return at how many calls through pointers it is seen where they lead."""
        return len(self._watched)

    @property
    def missed(self) -> int:
        """Return how many calls found no room in the tables of their functions."""
        session = self.session
        together = sum(session.returns.missed(block) for block in self._blocks)
        members = {number for block in self._blocks for number in block.numbers}
        return together + sum(session.missed(number) for number in self._numbers if number not in members)

    # the probes ------------------------------------------------------------------------------------------------------

    def _find(self) -> None:
        """Find the functions: the root, and what its code calls."""
        target, functions = self.session.target, self.functions
        addresses = target.debugger.resolve(self.request.root, False)
        if len(addresses) != 1:
            raise OptprobeError(f"{self.request.root} has {len(addresses)} addresses", "name one function")
        root = target.guest.text.function(addresses[0])
        if root is None or target.guest.entry(root.start) != addresses[0]:
            raise OptprobeError(f"{self.request.root} is not where a function is entered")
        functions.root = functions.add(root.start, 0)
        assert functions.root is not None, "it is the first"
        self._new = [functions.root, *self._extend({root.start: 0})]
        for glob in self.request.also:
            for address in target.debugger.resolve(glob, True):
                function = target.guest.text.function(address)
                if function is None or COLD in function.name:
                    continue
                if (found := functions.add(function.start, 1)) is not None:
                    self._new.append(found)
        self._find_bounds()

    def _find_bounds(self) -> None:
        """Find what tells interrupts that are handled on the stack of the thread."""
        functions, bounds = self.functions, self.session.target.guest.interrupt_bounds()
        if bounds is not None and all(map(functions.is_callee, bounds)) and {*bounds} <= {*functions.traced(bounds)}:
            functions.bounds = bounds
            self._new += filter(None, (functions.add(start, 1) for start in bounds))

    def _extend(self, starts: dict[int, int]) -> list[Traced]:
        """Return functions that are new in the graph: what those at these depths reach, by their code and by what was
        learned of their calls through pointers.
        """
        functions, learned = self.functions, self.session.learned_calls
        new: list[Traced | None] = []
        before: dict[int, int] = {}
        while starts:
            before |= starts
            reached = functions.below(starts)
            self.is_whole = self.is_whole and reached.is_whole
            new += [functions.add(start, depth) for start, depth in reached.depths.items()]
            for site, (pointer, depth) in reached.pointers.items():
                self._pointers[site] = pointer, min(depth, self._pointers.get(site, (pointer, depth))[1])
            starts = {}
            for site, (_, depth) in reached.pointers.items():
                for target in filter(functions.is_callee, learned.get(site, ())):
                    is_traced = target in functions.traced([target])
                    level = depth if is_traced else depth - 1
                    if level >= min(each.get(target, depth + 1) for each in (before, starts)):
                        continue
                    starts[target] = level
                    if is_traced:
                        new.append(functions.add(target, depth))
        return [each for each in new if each is not None]

    def _reserve(self, arena: Arena) -> None:
        """Have memory for the gate and the ring: what an earlier graph had is free once no thread is in its code."""
        self.session.optimizer.reclaim()
        guest = self.session.target.guest
        words = records.WORDS
        if self.request.arguments:
            words = max(words, 2 + MOST_ARGUMENTS)
        near, reach = self._new[0].entry, guest.isa.data_reach
        layout = self._layout(words, arena)
        if layout.bits < ENOUGH_BITS:
            with suppress(OptprobeError):  # a small ring serves, and says what it has lost
                self.session.optimizer.lend_data(2 * replace(layout, bits=MOST_BITS).size, near, reach)
            layout = self._layout(words, arena)
        size = gate.SIZE + layout.size
        memory = self.session.optimizer.with_memory(lambda: arena.allocate_data(size, near, reach), arena)
        self._shared = SharedRecords(layout, memory, gate.SIZE)
        # What an earlier graph had is mostly as it is needed.
        runs.fill(memory.address, bytes(gate.SIZE) + layout.initial(), guest.machine)
        self._gate = self.functions.gate(memory.address)

    def _layout(self, words: int, arena: Arena) -> RingLayout:
        """Return the largest ring that leaves room for the tables of calls."""
        layout = RingLayout(words, MOST_BITS, self.request.newest, frozenset(records.KINDS))
        while layout.bits > LEAST_BITS and layout.size > arena.data.largest // 2:
            layout = replace(layout, bits=layout.bits - 1)
        return layout

    def _put_in(self, functions: Sequence[Traced], pointers: Mapping[int, tuple[Pointer, int]]) -> None:
        """Put in the probes of functions, and on calls through pointers, by one write as far as they can share code.

        Functions that cannot be recorded without a stop are left out, but the root.
        """
        root = next((function for function in functions if function is self.functions.root), None)
        others = [function for function in functions if function is not root]
        death = self._death()
        parts = [*self._together([function for function in others if function.entry != death])]
        learners = [*self._together_by_pointer(pointers)]
        parts += learners
        if root is not None:
            parts += self._root(root)
            if death is not None and death not in {function.entry for function in functions}:
                parts.append(_Part(replace(self.functions.death(death, *self._recorder), glob=True), [death]))
        planner, known = self.session.batches.planner, self.functions.known
        if learners:
            planner.expect_lone(learners[0].spec, known.lone(pointers))
        taken = self._put_in_together(parts)
        taken |= self._put_in_together([*self._entries([one for one in others if one.entry not in taken], death)])
        singly = [function for function in others if function.entry not in taken]
        if root is not None and root.entry not in taken:
            singly = [root, *singly]
        self._put_in_singly(singly)
        if root is not None and death is not None and death not in taken:
            with suppress(OptprobeError):
                self._added([self.functions.death(death, *self._recorder)])
        self._watch_singly({site: pointer for site, (pointer, _) in pointers.items() if site not in taken})
        known.add_lone(planner.lone(pointers))

    def _together(self, functions: Sequence[Traced]) -> Iterator[_Part]:
        """Yield functions that can share code."""
        if (found := self.functions.together(functions, *self._recorder) if functions else None) is None:
            return
        (first, spec), entries = found, {function.entry: function for function in functions}

        def placed(index: int, site: int) -> None:
            self.functions.by_number[first + index] = entries[site]

        yield _Part(spec, sorted(entries), placed)

    def _entries(self, functions: Sequence[Traced], death: int | None) -> Iterator[_Part]:
        """Yield functions that never return, of which the entry alone is probed, but where threads end: there are two.
        """
        never = [function for function in functions if function.entry != death and self._never_returns(function)]
        if len(never) < 2:
            return
        first, spec = self.functions.entries(never, *self._recorder)
        entries = {function.entry: function for function in never}

        def placed(index: int, site: int) -> None:
            self.functions.by_number[first + index] = entries[site]

        yield _Part(spec, sorted(entries), placed)

    def _never_returns(self, function: Traced) -> bool:
        try:
            return not self.functions.returns(function)
        except Refused:
            return False

    def _root(self, root: Traced) -> Iterator[_Part]:
        """Yield the root, where its code is as shared ones have it."""

        def placed(index: int, site: int) -> None:
            self.functions.by_number[0] = root

        if (spec := self.functions.shared_root(*self._recorder)) is not None:
            yield _Part(spec, [root.entry], placed)

    def _death(self) -> int | None:
        """Return where a thread that ends within the root gives its place back; None where `birth` alone tells threads
        apart.
        """
        with suppress(OptprobeError):
            (entry,) = self.session.target.debugger.resolve(DEATH, False)
            return entry
        return None

    @property
    def _recorder(self) -> tuple[Gate, SharedRecords]:
        assert self._gate is not None and self._shared is not None, "there is memory for them"
        return self._gate, self._shared

    def _together_by_pointer(self, pointers: Mapping[int, tuple[Pointer, int]]) -> Iterator[_Part]:
        """Yield calls through pointers that are in a register, by the pointer."""
        by_pointer: dict[Pointer, list[int]] = {}
        for site in sorted(pointers):
            if (pointer := pointers[site][0]).offset is None:
                by_pointer.setdefault(pointer, []).append(site)
        for pointer, sites in by_pointer.items():
            first = self._take_sites(len(sites))
            if first is None:
                continue

            def placed(index: int, site: int, first: int = first) -> None:
                self._watched[first + index] = site

            yield _Part(self.functions.learners(first, pointer, *self._recorder), sites, placed)

    def _take_sites(self, count: int) -> int | None:
        """Return the first of so many numbers of calls through pointers; None where there are no more."""
        first = self._sites
        if first + count > gate.SITES:
            return None
        self._sites += count
        return first

    def _put_in_together(self, parts: Sequence[_Part]) -> set[int]:
        """Put in what can share code; return where that is.

        In memory that the guest's kernel lends where there is no other. Raises OptprobeError.
        """
        if not parts:
            return set()
        taken: set[int] = set()
        for block in self._add_blocks([(part.spec, part.places) for part in parts]):
            self._numbers += block.numbers
            self._blocks.append(block)
            placed = next(part.placed for part in parts if part.spec is block.spec)
            for index in range(len(block.sites)):
                placed(block.before + index, address := block.address(index))
                taken.add(address)
        return taken

    def _add_blocks(self, wanted: Sequence[tuple[Spec, Sequence[int]]]) -> Sequence[CountBlock]:
        """Put in blocks; where what they need finds no room, LOANS times at most behind a loan."""
        optimizer, batches = self.session.optimizer, self.session.batches
        for _ in range(LOANS):
            optimizer.watch_data()
            try:
                return batches.add_all(wanted, may_lend=False)
            except Refused:
                if (lack := optimizer.lacking()) is None:
                    raise
                optimizer.lend(lack, 0)
        return batches.add_all(wanted, may_lend=False)

    def _put_in_singly(self, functions: Sequence[Traced]) -> None:
        root = self.functions.root
        specs: list[Spec] = []
        for function in functions:
            try:
                specs.append(self._tried(function))
            except (Unreadable, Unreachable):
                raise
            except OptprobeError as error:
                if function is root:
                    raise
                # The frames of its traceback have this run: a cycle, which would not be freed where none is collected.
                error.__cause__ = error.__context__ = None
                self.functions.left_out[function.name] = error.with_traceback(None)
        stopping = [probe for probe in (self._added(specs) if specs else ()) if self._stops(probe)]
        if stopping:
            if root is not None and any(probe.address == root.entry for probe in stopping):
                raise _would_stop()
            guest, numbers = self.session.target.guest, [probe.number for probe in stopping]
            self.functions.left_out |= dict.fromkeys([guest.symbol(probe.address) for probe in stopping], _would_stop())
            self.session.delete(numbers)
            self._numbers = [number for number in self._numbers if number not in numbers]

    def _stops(self, probe: Probe) -> bool:
        """Return whether a hit of a probe stops the guest."""
        site = self.session.registry.site_of(probe)
        return bool((site.tier or site.plan.tier).stops)

    def _tried(self, function: Traced) -> Spec:
        """Return the probe of a function that can be put in. Raises OptprobeError."""
        spec = self.functions.spec(function, *self._recorder)
        kprobes = self.session.kprobes
        plan = kprobes.plan_at(function.entry, spec)
        assert plan is not None, "no glob leaves anything out"
        if plan.tier.stops:
            raise _would_stop()
        return spec

    def _watch_singly(self, pointers: Mapping[int, Pointer]) -> None:
        """Note where calls through pointers go, at those that can be probed without a stop; the others are counted."""
        specs: list[Spec] = []
        for site, pointer in pointers.items():
            number = self._take_sites(1) if pointer.offset is None or self._may_read else None
            if number is None:
                continue
            spec = self.functions.learner(site, number, pointer, *self._recorder)
            with suppress(Refused):
                plan = self.session.kprobes.plan_at(site, spec)
                if plan is not None and not plan.tier.stops:
                    self._watched[number] = site
                    specs.append(spec)
        if specs:
            self._added(specs)
        self.unwatched += len(pointers) - len(specs)

    @property
    def _may_read(self) -> bool:
        """Whether the pointer of a call can be read where it is in memory."""
        return not isinstance(self.session.target.guest.names_at(self._new[0].entry).reads, Missing)

    def _added(self, specs: Sequence[Spec]) -> Sequence[Probe]:
        probes = self.session.put_in(*specs)
        self._numbers += [probe.number for probe in probes]
        return probes

    def _learn(self) -> int:
        """Put in what calls through pointers have led to since the last stop, where it is new.

        Return how many functions are.
        """
        starts = self._led_to()
        if not starts:
            return 0
        traced = self.functions.traced(starts)
        new = [found for start in traced if (found := self.functions.add(start, starts[start])) is not None]
        known = set(self._pointers)
        new += self._extend({start: depth - (start not in traced) for start, depth in starts.items()})
        pointers = {site: each for site, each in self._pointers.items() if site not in known}
        self._put_in(new, pointers)
        if new or pointers:
            self._note_learned()
        self._learned_from.clear()
        self.learned += len(new)
        return len(new)

    def _led_to(self) -> dict[int, int]:
        """Take note of where calls through pointers have led since the last stop.

        Return functions that were not known to be called there, with their depths.
        """
        led, self._led = {(each.site, each.target) for each in self._led}, []
        found: dict[int, int] = {}
        for number, target in sorted(led):
            site = self._watched.get(number, 0)
            function = self.session.target.guest.place(target)
            if site not in self._pointers or function is None or target - function.start >= ENTRY:
                continue
            targets = self.session.learned_calls.setdefault(site, set())
            if function.start not in targets and self.functions.is_callee(function.start):
                targets.add(function.start)
                self._learned_from.add(site)
                depth = self._pointers[site][1]
                found[function.start] = min(depth, found.get(function.start, depth))
        return found

    # records ---------------------------------------------------------------------------------------------------------

    def _let_run(self, seconds: float | None, command: Command | None, is_over: Callable[[], bool]) -> str | None:
        begun = self.clock()
        end = None if seconds is None else begun + seconds
        while not is_over():
            now = self.clock()
            if (end is not None and now >= end) or (command is not None and command.outcome()):
                return None
            left = math.inf if end is None else max(end - now, _LEAST)
            pause = left if self.request.newest else min(max(self._pause.seconds, _LEAST), left)
            reason = self.session.target.debugger.run(pause if pause < math.inf else None, command)
            if self.request.newest:
                if reason is not None:
                    return reason
                continue
            found = [*self._drain()]
            self._learn()
            self._hand_over(found)
            if reason is not None:
                return reason
        return None

    def _drain(self) -> Iterator[Tree]:
        """Yield the trees that have ended since the last stop, and empty the ring."""
        assert self._shared is not None
        machine, layout, at = self.session.target.guest.machine, self._shared.layout, self._shared.address
        found = read_ring(layout, at, self._position, machine)
        if found is None:
            self._pause.look(0)
            return
        machine.write(at, found.header)
        self._position = found.position
        self._pause.look(found.fullness)
        self._latest = max((self._latest, *(record.time for record in found.records)))
        self._waiting = sorted((*self._waiting, *found.records), key=lambda record: record.number)
        # A record that the stop has interrupted comes next time: those behind it wait, as their order matters.
        first = min(found.position.pending, default=1 << 64) if not found.dropped else 1 << 64
        ready = [record for record in self._waiting if record.number < first]
        self._waiting = self._waiting[len(ready) :]
        events = [*records.events(ready)]
        self._led += [event for event in events if isinstance(event, Led)]
        if found.dropped or self._has_dropped:
            self._led += self._led_last()
        self._has_dropped = found.dropped > 0
        yield from self.trees.take(events)
        if found.dropped and not found.overwrites:
            self.lost += found.dropped
            yield from self.trees.cut(Ending.LOST)

    def _led_last(self) -> Iterator[Led]:
        """Yield where each call through a pointer has led last: the record of it may be among those that were dropped.

        A hit that was stopped between its record and this word is found at the next stop.
        """
        assert self._gate is not None
        words = self.session.target.guest.machine.read(self._gate.address + gate.TARGETS, self._sites * records.WORD)
        for number in range(self._sites):
            if target := int.from_bytes(words[number * records.WORD :][: records.WORD], "little"):
                yield Led(number, target)
