"""All that is known of one connection to one guest: the verbs behind the commands.

    text ──spec──► add ──► Probe at a Site ──Optimizer──► the guest
                   list, show, explain, report ◄── views ◄──┘
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import islice

from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.errors import OptprobeError, Unreachable, Unreadable
from gdb_optprobe.garbage import uncollected
from gdb_optprobe.guest.live_memory import PROOF, LiveMemory
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.guest.scope import ARGS
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.handlers.types import member_names
from gdb_optprobe.interrupts import held
from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.paths import depth, saved
from gdb_optprobe.maps import aggregate
from gdb_optprobe.probes import deleted_views, evaluate, memory_check, probe_views, save
from gdb_optprobe.probes.adding import LOANS, MANY_RETURNS, Added, Adding
from gdb_optprobe.probes.batch import Batches
from gdb_optprobe.probes.block_adoption import BlockAdoption
from gdb_optprobe.probes.block_members import BlockMembers
from gdb_optprobe.probes.block_planner import BlockPlanner
from gdb_optprobe.probes.block_routines import BlockRoutines
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.event_probes import handled, names_at, names_at_return
from gdb_optprobe.probes.follower import Follower
from gdb_optprobe.probes.graph.kept_exits import KnownExits
from gdb_optprobe.probes.guest_traces import GuestTraces
from gdb_optprobe.probes.kinds import Kinds
from gdb_optprobe.probes.kprobes import Kprobes
from gdb_optprobe.probes.leftovers import clear_leftovers
from gdb_optprobe.probes.module_tracker import ModuleTracker
from gdb_optprobe.probes.new_records import Drained, RecordReader
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.read_results import clear_results, read_results
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.run import Runs
from gdb_optprobe.probes.sampler import Sampler
from gdb_optprobe.probes.session_views import SessionViews
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.shared_returns import SharedReturns
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.user.uprobes import Uprobes
from gdb_optprobe.probes.views import (
    CollectorView,
    ExplainView,
    GatheredView,
    GuestTraceView,
    ProbeView,
    SavedProbes,
    SessionMapView,
    ShowView,
    rows,
)

SOME = 4
"""Pieces of code by which the memory of a guest is known from other memory."""


class Session:
    """The probes of one guest. Every verb needs the guest stopped; errors are OptprobeError, the guest unchanged."""

    def __init__(
        self, target: Target, settings: Callable[[], Settings], registry: Registry | None = None
    ) -> None:
        self.settings = settings
        self.registry = registry if registry is not None else Registry()
        self.last_number: int | None = None
        self.learned_calls: dict[int, set[int]] = {}
        self.gathered: GatheredView | None = None
        self.known_exits = KnownExits()
        self._work_on(target)

    def _work_on(self, target: Target) -> None:
        settings = self.settings
        self.target = target
        self.learned_calls.clear()
        self.gathered = None
        self.known_exits = KnownExits()
        self.optimizer = Optimizer(target, self.registry, settings, self.check_alive)
        self.kprobes = Kprobes(target, self.registry, self.optimizer, settings)
        common = target, self.registry, self.optimizer
        self.returns = SharedReturns(*common, settings, self.kprobes.compile)
        self.block_routines = BlockRoutines(*common, settings, self.kprobes.compile)
        self.block_planner = BlockPlanner(*common, self.returns)
        self.block_members = BlockMembers(self.registry, self.optimizer, self.returns)
        shared = self.returns, self.block_routines
        self.batches = Batches(*common, settings, *shared, self.block_planner, self.block_members)
        self.block_adoption = BlockAdoption(*common, *shared, self.block_planner, self.block_members)
        self.uprobes = Uprobes(target, self.registry, self.optimizer, settings)
        self.kinds = Kinds(self.kprobes, self.uprobes)
        self.guest_traces = GuestTraces(target, self.optimizer.rethooks)
        self.module_tracker = ModuleTracker(
            target, self.registry, self.optimizer, settings, self.kprobes, self.is_same_guest
        )
        self._views = SessionViews(
            target, self.registry, self.kinds, self.returns, self.block_members, lambda: self.optimizer.scripts
        )
        together = self.batches, self.block_planner, self.module_tracker
        self._adding = Adding(
            *common, settings, self.kinds, *together, self._views, self._remove, self.watch_traces
        )
        runs = Runs(*common, self.uprobes, self.hits, self.is_same_guest, self.check_alive)
        self.run, self.watch, self.commit = runs.run, runs.watch, runs.commit

    # a guest that boots ------------------------------------------------------------------------------------------

    def kernel_started(self, target: Target) -> tuple[str, ...]:
        """Put the probes that waited for the guest's kernel into it. Return why some cannot be, in words.

        target: the same guest, of which more is known now. What cannot be in the kernel stays pending.
        """
        waiting, last = self.registry.probes(), self.last_number
        self.module_tracker.abandon()
        self._work_on(target)
        failures = []
        for probe in waiting:
            self.registry.remove(probe)
            self.registry.keep_number(probe.number)
            try:
                views = self.add(probe.spec)
                if not probe.enabled:
                    self.disable([view.number for view in views])
            except OptprobeError as error:
                failures.append(f"probe {probe.number} cannot be in the kernel: {error}")
                self.module_tracker.wait_for_load(probe, error)
            finally:
                self.registry.keep_number(None)
        self.last_number = last
        self.module_tracker.update_load_hook()
        return tuple(failures)

    def kernel_booted(self) -> None:
        """Move the probes up: the kernel is done with the pages of its image. Raises OptprobeError."""
        self.optimizer.release_arena()
        self.resettle()

    # adding and removing -----------------------------------------------------------------------------------------

    def add(self, *specs: Spec) -> Sequence[ProbeView]:
        """Put a probe at every address of each spec's location; none at all where one of them is refused.

        Where the data memory has no room for all, the guest's kernel lends more, and they are put in anew.
        """
        return self._added(specs, is_told=True).views

    def put_in(self, *specs: Spec) -> Sequence[Probe]:
        """Do as `add`, but return the probes, not their views."""
        return self._added(specs, is_told=False).probes

    def _added(self, specs: Sequence[Spec], is_told: bool) -> Added:
        self.check_alive()
        clear_leftovers(self.target, self.optimizer, self.uprobes)
        specs = self._each_event(specs)
        try:
            self._register(specs)
            with uncollected():
                added = self._adding.add(specs, is_told)
            self.last_number = added.last
            return added
        except BaseException:
            if self.optimizer.arena is not None:
                with suppress(OptprobeError):  # one that stays does nothing; why `add` is refused is what to read
                    self.optimizer.tracepoints.release_unused(self.optimizer.arena)
            raise

    def _register(self, specs: Sequence[Spec]) -> None:
        """Have the kernel call a handler where a probe is to be on a tracepoint, unless the probe is refused."""
        some = [(spec, event) for spec in specs if (event := handled(spec)) is not None]
        if not some:
            return
        self.explain(*(spec for spec, _ in some))
        self.target.debugger.guard()
        arena, events = self.optimizer.take_arena(borrow=True), [event for _, event in some]
        arena.forget_lacks()
        try:
            self.optimizer.tracepoints.register(events, arena)
        except Refused:
            if (lack := self.optimizer.lacking()) is None:
                raise
            with held():
                self.optimizer.lend(lack, 0)
            self.optimizer.tracepoints.register(events, arena)

    def _each_event(self, specs: Sequence[Spec]) -> tuple[Spec, ...]:
        """Return the specs, with one for each tracepoint where wildcards name several. Raises OptprobeError."""
        found: list[Spec] = []
        for spec in specs:
            event = spec.event
            if event is None or not event.is_several_handlers:
                found.append(spec)
                continue
            handler = handled(spec)
            each = self.optimizer.tracepoints.each(event, has_fields=handler is not None and not handler.is_raw)
            found += (replace(spec, location=str(one), glob=False) for one in each)
        return tuple(found)

    def delete(self, numbers: Sequence[int] | None = None) -> tuple[int, ...]:
        """Take probes out of the guest and forget them."""
        self.check_alive()
        with self.returns.switched_off():
            blocks, probes = self.registry.split(numbers)
        self.uprobes.check_switch(probes, on=False)
        deleted = _numbers_of(blocks, probes)
        self._remove(probes, blocks)
        if self.optimizer.arena is not None:
            self.optimizer.tracepoints.release_unused(self.optimizer.arena)
        return deleted

    def _remove(self, probes: Sequence[Probe], blocks: Sequence[CountBlock] = ()) -> None:
        with uncollected():
            self._take_out(probes, blocks)

    def _take_out(self, probes: Sequence[Probe], blocks: Sequence[CountBlock]) -> None:
        failure: OptprobeError | None = None
        try:
            probes = [*probes, *self.batches.remove(blocks)]
        except OptprobeError as error:
            failure = error
        for probe in probes:
            probe.enabled = False
        # Where a kprobe stays, uprobes are removed nevertheless: their memory and pads are freed below.
        for remove in (self.kprobes.settle, self.uprobes.remove):
            try:
                remove(probes)
            except OptprobeError as error:
                failure = failure or error
        left = sum(self.kinds.of(probe.spec).is_left(probe) for probe in probes)
        left += sum(len(block) for block in blocks if block in self.registry.blocks)
        number = len(probes) + sum(map(len, blocks))
        for probe in probes:
            self.optimizer.release_counter(probe)
            if probe.is_return:
                self.registry.remove(probe)  # the last one of a function gives its table of calls back
        self.registry.remove_all([probe for probe in probes if self.registry.has(probe)])
        self.returns.end_hooks()
        self.block_routines.tidy()
        self.optimizer.write_records(gone=probes)
        self.optimizer.tidy()
        self.module_tracker.update_load_hook()
        self.watch_traces()
        if failure is not None and left:
            raise OptprobeError(
                f"{left} of {number} probes are left in the guest: {failure.message}", self._next_step(blocks, failure)
            )
        if failure is not None:
            raise failure

    def _next_step(self, blocks: Sequence[CountBlock], failure: OptprobeError) -> str:
        """Return what to do about probes that could not be taken out, in words."""
        if any(block in self.registry.blocks for block in blocks):
            return "they are listed; optprobe delete tries again"
        if not (lost := self.optimizer.lost_branches()):
            return failure.hint
        try:
            why, then = memory_check.in_the_way(lost[-1], self.target.guest)
        except Exception:  # of GDB's own errors too: the connection broke, and the failure tells
            return memory_check.TAKES_OUT
        return f"it is {why}: {then}"

    def enable(self, numbers: Sequence[int] | None = None) -> tuple[int, ...]:
        return self._switch(numbers, True)

    def disable(self, numbers: Sequence[int] | None = None) -> tuple[int, ...]:
        return self._switch(numbers, False)

    def _switch(self, numbers: Sequence[int] | None, on: bool) -> tuple[int, ...]:
        self.check_alive()
        with nullcontext() if on else self.returns.switched_off():
            blocks, probes = self.registry.split(numbers)
        self.uprobes.check_switch(probes, on)
        self.target.debugger.guard()
        if on:
            self._adding.borrow_memory((probe.spec, [probe.address]) for probe in probes if probe.is_in_kernel)
        switched = _numbers_of(blocks, probes)
        probes += self.batches.switch(blocks, on)
        try:
            for probe in probes:
                probe.enabled = on
            self.returns.settle_unpacked()
            self._settle(probes)
            for _ in range(LOANS if on else 0):
                if not self._adding.lend_lacking(probes):
                    break
                self._settle(probes)  # the guest has run
        finally:  # a Ctrl-C comes behind a loan
            self.optimizer.write_records(probes)
            self.module_tracker.update_load_hook()
            self.watch_traces()
        return switched

    def _settle(self, probes: Sequence[Probe]) -> None:
        self.optimizer.watch_data()
        self.kprobes.settle(probes)
        self.uprobes.settle(probes)

    def resettle(self) -> None:
        """Settle every site again: a setting or a breakpoint of the user has changed.

        The guest does not run for it: what needs memory that the kernel is to lend waits for `add` and `enable`.
        """
        self.batches.resettle()
        self.optimizer.settle(self.registry.sites())
        self.uprobes.resettle()

    def move_arena(self) -> None:
        """Use the new place at the next need of memory. Raises OptprobeError while the old one is in use."""
        if not self.optimizer.release_arena():
            why = "the arena stays where it is while probes, or detours that a thread may be inside, use it"
            raise OptprobeError(why, "optprobe delete, optprobe commit, then set it again")

    def settle_around(self, addresses: Iterable[int]) -> None:
        """Settle the sites on the straight-line runs of `addresses`, where a user's breakpoints came or went."""
        self.optimizer.settle_around(addresses)

    def matches(self, prefix: str) -> Sequence[str]:
        """Names of functions that begin with `prefix`, for completion."""
        return self.target.guest.completions(prefix)

    def members(self, spec: Spec, expression: str) -> Sequence[str]:
        """Return the members of the struct that `expression` is, or points to, for completion. Raises OptprobeError.

        Of no expression, the function's parameters.
        """
        guest, (address, *_) = self.target.guest, self.target.debugger.resolve(spec.location, spec.glob)
        if not expression:
            return guest.parameters(address)
        # A return probe saves its parameters at the entry.
        at_return = spec.is_return and expression.startswith(("$retval", ARGS))
        found = names_at_return(spec, address, guest) if at_return else names_at(spec, address, guest)
        return member_names(Fragment.whole(expression), found.names) if found is not None else ()

    def value_of(self, expression: str) -> Sequence[str]:
        """Return the value of an expression in the selected frame, as lines of C. Raises OptprobeError."""
        self.check_alive()
        return evaluate.value_lines(expression, self.target.stops.selected(), self.target.guest)

    def type_of(self, expression: str) -> Sequence[str]:
        """Return a type, or an expression's in the selected frame, as lines of C. Raises OptprobeError."""
        self.check_alive()
        return evaluate.type_lines(expression, self.target.stops.selected().address, self.target.guest)

    # looking -----------------------------------------------------------------------------------------------------

    def views(self, numbers: Sequence[int] | None = None) -> Sequence[ProbeView]:
        """Return the views of probes; without numbers of all, and of deleted return probes with active calls.

        While the guest runs, without these. Then it raises NeedsStop where that has to stop.
        """
        runs = self.target.guest.machine.runs
        if not runs:
            self.check_alive()
        if numbers is not None:
            return self._views.of_numbers(numbers)
        if runs:
            return rows(self._views.of_all())
        deleted = deleted_views.deleted_views(self.optimizer, self.uprobes)
        return rows(self._views.of_all(), deleted)

    def reports(self, numbers: Sequence[int] | None = None) -> Sequence[ProbeView]:
        """Return the views with all results by key. While the guest runs, raises NeedsStop where that has to stop."""
        if not self.target.guest.machine.runs:
            self.check_alive()
            self.reclaim_maps()
        if numbers is not None:
            return self._views.of_numbers(numbers, whole=True)
        return rows(self._views.of_all(whole=True))

    def maps(self, numbers: Sequence[int] | None = None) -> Sequence[SessionMapView]:
        """Return the maps of scripts and blocks: all, or those that these probes use."""
        return self.optimizer.scripts.views(numbers)

    def reclaim_maps(self, names: Collection[str] | None = None) -> None:
        """Free the entries of keys without a value in maps that are half full of them, these or all.

        Not while a thread is in a program that may use them.
        """
        maps = self.optimizer.maps
        half_full = {name: one for name, one in maps.by_name().items() if one.is_half_full}
        filling = {
            name: one
            for name, one in half_full.items()
            if (names is None or name in names) and 2 * len((found := one.contents()).by_key) < found.entries
        }
        probes = self.registry.probes([*maps.users(filling)]) if filling else []
        kernel = [probe for probe in probes if probe.is_in_kernel]
        busy = any(self.optimizer.may_be_busy(self.registry.site_of(probe)) for probe in kernel)
        if filling and not busy and not self.uprobes.may_be_busy(probes):
            for one in filling.values():
                one.reclaim()

    def views_of(self, probes: Sequence[Probe], blocks: Sequence[CountBlock]) -> Sequence[ProbeView]:
        return self._views.of(probes, blocks)

    def sampler(self, pattern: str = "") -> Sampler:
        """Return what reads what probes count while the guest runs: those that a glob names, "" for all."""
        self.check_alive()
        self.returns.settle_unpacked()
        return self._views.sampler(pattern)

    def live_memory(self) -> tuple[LiveMemory | None, str]:
        """Return what reads the data of probes while the guest runs, None where only stops can; and why so.

        Raises OptprobeError where the setting asks for a way that does not work.
        """
        self.target.guest.clock()  # asked for at a stop, it is known while the guest runs
        return self.target.debugger.live_memory(self.data_spans)

    @contextmanager
    def checked(self, live: LiveMemory | None, warn: Callable[[str], object]) -> Iterator[None]:
        """Read by `live` within the block, and close it. The guest is stopped at the end: warn where it holds something
        else than what `live` reads.
        """
        if live is None:
            yield
            return
        try:
            yield
            if self.is_same_guest() and (why := live.difference(self.stopped_memory)):
                warn(f"what was shown may not be what this guest's memory held: {why}")
        finally:
            live.close()

    @property
    def stopped_memory(self) -> Memory:
        """Return the memory of the guest while it is stopped."""
        return self.target.guest.machine

    @property
    def data_spans(self) -> Sequence[tuple[int, int]]:
        """Return where what probes gather is, and some of their code: no other memory has that."""
        arena = self.optimizer.arena
        if arena is None:
            return ()
        code = [(one.detour.address, one.detour.size) for one in islice(self.registry.branches(), 1)]
        code += [(one.code.address, one.code.size) for one in self.registry.blocks[:1]]
        if not code:  # the handlers of probes on programs
            code = [(slot.address, slot.size) for slots in arena.code.slots for slot in slots.used[:SOME]]
        return (*arena.ranges.data, *((at, at + min(size, PROOF)) for at, size in code))

    def show(self, number: int) -> ShowView:
        (probe,) = self.registry.probes([number])
        (view,) = self._views.of_probes([probe])
        return probe_views.show_view(view, self.kinds.of(probe.spec).site_code(probe), self.target.guest)

    def explain(self, *specs: Spec) -> tuple[ExplainView, ...]:
        """Return what an `add` would do at every address of each spec's location; the guest is not touched."""
        self.check_alive()
        specs = self._each_event(specs)
        events = filter(None, map(handled, specs))
        try:
            with self.optimizer.tracepoints.trial(events, self.optimizer.find_arena):
                places = self._adding.resolve(specs)
                views = (self.kinds.of(spec).explain(spec, addresses) for spec, addresses in places)
                return tuple(view for some in views for view in some)
        finally:
            self.returns.settle_unpacked()

    def hits(self, number: int) -> int:
        self.check_alive()
        if (found := self.registry.block_of(number)) is not None:
            counter = found[0].counter(found[1])
            return aggregate.decode(self.target.guest.machine.read(counter.address, counter.size))[0]
        (probe,) = self.registry.probes([number])
        return read_results([probe], self.target.guest)[number].hits

    def missed(self, number: int) -> int:
        if (found := self.registry.block_of(number)) is not None:
            if missed := self.returns.missed(found[0]):
                raise OptprobeError(
                    f"{missed} calls of functions that share a table were missed; of which ones is not known",
                    "add those that matter by name: each has a table of its own then",
                )
            return 0
        (probe,) = self.registry.probes([number])
        return self.kinds.of(probe.spec).missed(probe)

    def collector(self) -> CollectorView | None:
        """Return what the slot collector has done; None where there was nothing to do."""
        return self.optimizer.collector.view(self.optimizer.arena)

    def watch_traces(self) -> None:
        """Have the guest stop as it prints a trace, while so many returns are probed that it is likely to end at one.
        """
        self.guest_traces.watch(self.registry.has_more_returns(MANY_RETURNS))

    def printed_traces(self) -> Sequence[GuestTraceView]:
        """Return the traces that the guest has printed, and that ended where a return is probed."""
        return self.guest_traces.views()

    def clear(self, numbers: Sequence[int] | None = None) -> None:
        """Start counting from zero."""

        def is_inside(one: Probe | CountBlock) -> bool:
            if isinstance(one, CountBlock):
                return self.optimizer.may_be_in_block(one)
            return one.is_in_kernel and self.optimizer.may_be_busy(self.registry.site_of(one))

        blocks, probes = self.registry.split(numbers)
        self.returns.settle_unpacked()
        returns = [probe for probe in probes if probe.is_return and probe.is_in_kernel]
        with self.optimizer.clearing(self.registry.sites(returns)):
            clear_results(probes, blocks, self.target.guest, is_inside)
        self.optimizer.scripts.clear([probe.number for probe in probes])
        for block in blocks:
            self.returns.clear(block)
        if numbers is None:
            self.guest_traces.clear()
            self.watch_traces()
        self.optimizer.write_records(probes)

    def saved(self) -> SavedProbes:
        """Return the probes as commands that make them again in another boot."""
        self.check_alive()
        members = (probe for block in self.registry.blocks for probe in self.block_members.probes(block))
        probes = sorted((*self.registry.single_probes(), *members), key=lambda probe: probe.number)
        return save.commands(probes, self.settings(), self.target, self._takes, self._comes_back)

    def _comes_back(self, probe: Probe) -> bool:
        """Return whether the `add` of its glob has `probe` again. One that stops the guest now may be left out then."""
        # The members of blocks, which are not looked up, never stop it.
        if not self.registry.has(probe) or not self.registry.site_of(probe).plan.tier.stops:
            return True
        spec = probe.spec
        if spec.is_whole_kernel and not spec.is_return:  # whatever stops it is left out
            return False
        return self.kprobes.takes(spec, probe.address)

    def _takes(self, spec: Spec, address: int) -> bool:
        """Return whether `add` of a glob has a probe at `address`."""
        if spec.is_return and self.returns.can_share(spec):
            return self.block_planner.may_share_returns(address)
        if spec.is_whole_kernel:
            return not self.block_planner.stops(spec, address)
        return self.kprobes.takes(spec, address)

    def check(self) -> tuple[str, ...]:
        """Return where the guest's memory does not hold what we wrote, in words."""
        self.check_alive()
        own = memory_check.problems(self.optimizer, self.probe_reads)
        blocks = (*self.block_routines.problems(), *self.batches.problems())
        return (*own, *blocks, *self.uprobes.problems(), *self.optimizer.tracepoints.problems())

    def untraced(self) -> tuple[str, ...]:
        """Return what tracers of the guest's own do not see because of us, in words."""
        return memory_check.untraced_sites(self.target)

    @property
    def probe_reads(self) -> tuple[Detour, ...]:
        """The code in the guest that programs call."""
        arena = self.optimizer.arena
        return tuple(detour for _, detour in arena.probe_reads) if arena is not None else ()

    def probe_read_at(self, pc: int) -> Detour | None:
        """Return that of it which `pc` is in."""
        return next((resident for resident in self.probe_reads if resident.address <= pc < resident.end), None)

    def is_inside(self, pc: int) -> bool:
        """Return whether `pc` is in our code that a hit runs."""
        found = self.registry.detour_at(pc) or self.optimizer.rethooks.trampoline_at(pc)
        return found is not None or self.probe_read_at(pc) is not None or self.block_routines.at(pc) is not None

    def pushed_at(self, detour: Detour, pc: int) -> int:
        """Return the bytes that `detour` has on the stack at `pc` beyond those of the original code."""
        return depth(self._run_before(detour, pc), pc, self.target.guest.isa.pushed)

    def saved_at(self, detour: Detour, pc: int) -> Mapping[str, int]:
        """Return the registers that `detour` has saved at `pc`, by their distance above the stack pointer."""
        isa = self.target.guest.isa
        return saved(self._run_before(detour, pc), pc, isa.pushed, isa.saves)

    def _run_before(self, detour: Detour, pc: int) -> list[Insn]:
        """Return the code of `detour` before `pc`, from the original instruction that it belongs to."""
        begun = max((at for at, _ in detour.origins if at <= pc), default=detour.address)
        return list(self.target.guest.isa.decode(detour.data[begun - detour.address : pc - detour.address], begun))

    # the same guest? -----------------------------------------------------------------------------------------------

    def is_same_guest(self) -> bool:
        """Return whether this is still the guest that was attached to, with what was put there; nothing is changed.

        Modules that were unloaded are not looked for: what was in them may be all that is missing.
        """
        source = self.target.arena_source
        try:
            same = self.target.debugger.is_same_guest()
            if same is None:
                return True
            return same and source.is_in_place() and (source.keeps_journal or self.something_left())
        except (Unreadable, Unreachable):
            return False

    def check_alive(self) -> None:
        """Raises OptprobeError where the guest was rebooted, or is another one; it is forgotten then."""
        number = len(self.registry)
        of = {0: "it", 1: "its 1 probe"}.get(number, f"its {number} probes")
        lost = OptprobeError(
            f"the guest is not the one that was probed (rebooted, or a snapshot?): what was known of {of} is forgotten",
            "optprobe list tells whether it has probes, as a snapshot may: recover those, or add them again"
            if number
            else "give the command again",
        )
        try:
            same = self.target.debugger.is_same_guest()
            if same is None:
                return
            same = same and self.target.arena_source.is_in_place()
            if same:
                self.module_tracker.update()
                same = self.something_left()
        except Unreadable:
            same = False
        if not same:
            self.target.debugger.forget()
            raise lost

    def something_left(self) -> bool:
        """Return whether the guest still holds what we put there, if we put anything there. Raises Unreadable.

        A guest that was reset and came up at the same addresses holds none of it.
        """
        machine = self.target.guest.machine
        branches = list(self.registry.branches())
        blocks = [block for block in self.registry.blocks if block.enabled]
        if not (blocks or branches):
            arena = self.optimizer.arena
            return arena is None or all(bool(machine.read(start, 8)) for start, _ in arena.ranges.data)
        # The guest may have put a kprobe of its own on one of our branches.
        if any(self.batches.is_something_left(block) for block in blocks):
            return True
        return any(machine.read(one.patch.address, len(one.patch.new)) == one.patch.new for one in branches) or any(
            machine.read(one.detour.address, one.detour.size) == self.optimizer.links.detour_bytes(one)
            for one in branches
        )

    def follower(
        self, numbers: Sequence[int] | None, show: Callable[[Sequence[ProbeView]], object]
    ) -> Follower:
        """Return what takes the records of these probes out of the guest. show: gets those that are new, each time.

        While the guest runs, it raises NeedsStop where that has to stop; nothing was shown then.

        Raises OptprobeError where none of the probes keeps any.
        """
        some = self.registry.probes(numbers) if numbers is not None else self.registry.single_probes()
        chosen = {probe.number for probe in some}
        if not any(probe.handler.ring for probe in some):
            raise OptprobeError("no probe keeps records", "optprobe add LOCATION do record(EXPR), or print, or stack")

        reader = RecordReader(self.target.guest.machine)

        def drain() -> Drained:
            guest, scripts, machine = self.target.guest, self.optimizer.scripts, self.target.guest.machine
            if not machine.runs:
                self.check_alive()
            probes = [each for each in self.registry.single_probes() if numbers is None or each.number in chosen]
            found = reader.read(probes)
            shown = []
            for one in found.of_probes:
                site = self.kinds.of(one.probe.spec).site_view(one.probe)
                shown.append(probe_views.probe_view(one.probe, site, one.results, guest, scripts))
            show(shown)
            # They are shown before they are gone: an error in between loses none.
            found.take(machine)
            if not machine.runs:
                self.optimizer.write_records(one.probe for one in found.of_probes if one.ring is not None)
            return found.drained

        return Follower(drain)

    # the end -----------------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Forget what was in the guest, without touching it: the guest is gone, or is another one now."""
        self.uprobes.abandon()
        self.registry.abandon()
        self.optimizer.rethooks.abandon()
        self.guest_traces.abandon()
        self.module_tracker.abandon()
        self.optimizer.traps.dispatcher.abandon()
        self.optimizer.tracepoints.abandon()


def _numbers_of(blocks: Iterable[CountBlock], probes: Iterable[Probe]) -> tuple[int, ...]:
    members = [block.first + index for block in blocks for index in block.members]
    return tuple(sorted([*members, *(probe.number for probe in probes)]))
