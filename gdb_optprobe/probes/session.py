"""All that is known of one connection to one guest: the verbs behind the commands.

    text ──spec──► add ──► Probe at a Site ──Optimizer──► the guest
                   list, show, explain, report ◄── views ◄──┘
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace

from gdb_optprobe.detours.arena import Lack
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.refusal import Reason, Refused
from gdb_optprobe.errors import OptprobeError, Unreachable, Unreadable
from gdb_optprobe.garbage import uncollected
from gdb_optprobe.guest.scope import ARGS
from gdb_optprobe.handlers.clauses import check_action
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.handlers.types import member_names
from gdb_optprobe.interrupts import checkpoint, held
from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.paths import depth, saved
from gdb_optprobe.maps import aggregate
from gdb_optprobe.maps.ring import START
from gdb_optprobe.probes import deleted_views, evaluate, memory_check, probe_views, save, site_views
from gdb_optprobe.probes.batch import Batches
from gdb_optprobe.probes.block_adoption import BlockAdoption
from gdb_optprobe.probes.block_members import BlockMembers
from gdb_optprobe.probes.block_planner import BlockPlanner
from gdb_optprobe.probes.block_routines import BlockRoutines
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.event_probes import handled, names_at, names_at_return
from gdb_optprobe.probes.follower import Drained, Follower
from gdb_optprobe.probes.guest_traces import GuestTraces
from gdb_optprobe.probes.kprobes import Kprobes, LeftOut
from gdb_optprobe.probes.leftovers import clear_leftovers
from gdb_optprobe.probes.module_tracker import ModuleTracker
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.quiescence_wait import describe_busy_slots, describe_waits
from gdb_optprobe.probes.read_results import clear_results, empty_ring, read_new_records, read_results
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.results import Results
from gdb_optprobe.probes.return_block import ReturnBlock
from gdb_optprobe.probes.settings import DEFAULT_MAX_PROBES, Settings, sizes_of
from gdb_optprobe.probes.shared_maps import MapsContents, SharedMaps
from gdb_optprobe.probes.shared_returns import SharedReturns
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Command, Target
from gdb_optprobe.probes.user.uprobes import Uprobes
from gdb_optprobe.probes.views import (
    CollectorView,
    CountsView,
    ExplainView,
    GuestTraceView,
    LeftOutView,
    ObjectView,
    ProbeView,
    SavedProbes,
    SessionMapView,
    ShowView,
    rows,
)

# Addresses of one location that are worked on together: the code around them is decoded once.
AT_ONCE = 256

LOANS = 4
"""How often the kernel is asked for more memory by one `add`, at most."""
MANY_RETURNS = 100
A_RETURN = 20_000
"""Bytes of data that a return probe with a table of its own takes, at most, where it counts or gathers times."""
OWN_UNWINDER = (
    "with so many returns probed, the guest's own traces of its stacks (an oops, /proc/PID/stack, lockdep, livepatch) "
    "end where a probed function returns; GDB's do not, and optprobe report has what the guest prints of an oops, whole"
)
OWN_TABLE = OptprobeError("a return probe with a table of calls of its own is for few functions: name them")
SLICE = 0.1
LONGEST_SLICE = 1.0
NO_ROOM = OptprobeError("there is no room for more detours and counters")
WOULD_STOP = OptprobeError("a hit would stop the guest: optprobe explain FUNCTION says why, optprobe add takes each")
NO_CALL = OptprobeError(
    "its detour cannot call what the others share, and for all such functions there is no room: name those that matter"
)
STILL_RUNS = "the command still runs in the guest; another waits until it ends"


class _Lacks(Exception):
    """Data of `add` found no room: `lack`. more: bytes that the other probes of the same `add` need besides."""

    def __init__(self, lack: Lack, more: int) -> None:
        super().__init__()
        self.lack, self.more = lack, more


@dataclass
class _Addition:
    """What one `add` has put in so far.

    may_lend: whether it begins anew, with more memory, where data find no room. left_out: by the number of the first
    probe of a spec. data_before, returns_before: bytes in use, and functions with return probes, when it began.
    """

    may_lend: bool
    data_before: int
    returns_before: int
    probes: list[Probe] = field(default_factory=list)
    blocks: list[CountBlock] = field(default_factory=list)
    left_out: dict[int, tuple[LeftOutView, ...]] = field(default_factory=dict)

    @property
    def with_counters(self) -> int:
        return sum(probe.counter is not None for probe in self.probes)

    @property
    def numbers(self) -> list[int]:
        return [*(probe.number for probe in self.probes), *(block.numbers[-1] for block in self.blocks)]


class Session:
    """The probes of one guest. Every verb needs the guest stopped; errors are OptprobeError, the guest unchanged."""

    def __init__(
        self, target: Target, settings: Callable[[], Settings], registry: Registry | None = None
    ) -> None:
        self.settings = settings
        self.registry = registry if registry is not None else Registry()
        self.last_number: int | None = None
        self._work_on(target)

    def _work_on(self, target: Target) -> None:
        settings = self.settings
        self.target = target
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
        self.guest_traces = GuestTraces(target, self.optimizer.rethooks)
        self.module_tracker = ModuleTracker(
            target, self.registry, self.optimizer, settings, self.kprobes, self.is_same_guest
        )

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
        self.check_alive()
        clear_leftovers(self.target, self.optimizer, self.uprobes)
        try:
            self._register(specs)
            with uncollected():
                return self._add_all(specs)
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
        arena = self.optimizer.take_arena(borrow=True)
        for _, event in some:
            self.optimizer.tracepoints.register(event, arena)

    def _add_all(self, specs: Sequence[Spec]) -> Sequence[ProbeView]:
        places = self._resolve(specs)
        if self._borrow_memory(places):
            places = self._resolve(specs)  # the guest has run
        had_arena, numbering = self.optimizer.arena is not None, self.registry.numbering
        try:
            for _ in range(LOANS):
                try:
                    return self._add(places)
                except _Lacks as lacks:
                    self.registry.renumber(numbering)
                    lent = self._lend(lacks)
                places = self._resolve(specs)  # the guest has run
                if not lent:
                    break
            return self._add(places, may_lend=False)
        except BaseException:
            if not had_arena:
                with suppress(OptprobeError):  # why `add` is refused is what to read; the next one finds the arena
                    self.optimizer.release_arena()
            raise

    def _add(self, places: Sequence[tuple[Spec, Sequence[int]]], may_lend: bool = True) -> Sequence[ProbeView]:
        """may_lend: whether to raise _Lacks, with nothing put in, where data found no room that may be lent."""
        new = _Addition(may_lend, self.optimizer.watch_data(), self._functions_with_returns())
        try:
            for spec, addresses in places:
                self._put_in(spec, addresses, new)
            self.module_tracker.update_load_hook()
            self._check_room(new)
            self.watch_traces()
        except BaseException as error:
            lack = self._lack(new) if isinstance(error, Refused) else None
            others = sum(len(addresses) for _, addresses in places) - (have := new.with_counters)
            more = self.optimizer.data_used_since(new.data_before) // max(have, 1) * max(others - 1, 0)
            self._remove([probe for probe in new.probes if self.registry.has(probe)], new.blocks)
            if lack is not None:
                raise _Lacks(lack, more) from error
            raise
        self.last_number = max(new.numbers)
        return self._told(new)

    def _put_in(self, spec: Spec, addresses: Sequence[int], new: _Addition) -> None:
        """Put in the probes of `spec`: in blocks what can be, the others one by one."""
        self.target.debugger.guard()
        if spec.pending and not addresses:
            new.probes.append(self._add_pending(spec))
            return
        blocks = self._put_in_together(spec, addresses, new) if spec.glob else []
        taken = {address for block in blocks for address in block.sites}
        left_out = self._unwanted(spec, set(addresses) - taken, blocks)
        taken.update(one.address for one in left_out)
        others = [address for address in addresses if address not in taken]
        if others or not blocks:
            maps = next((block.handler.shared for block in blocks), None)
            left_out += self._put_in_singly(spec, others, new, maps)
        mine = [*(probe.number for probe in new.probes if probe.spec is spec), *(block.first for block in blocks)]
        if left_out and not mine:
            raise left_out[0].error
        if others and not mine:
            can_be = spec.tier or "probed"
            raise OptprobeError(f"none of the {len(others)} addresses of {spec.location} can be {can_be}")
        new.left_out[min(mine, default=0)] = self._left_out(left_out)

    def _put_in_together(self, spec: Spec, addresses: Sequence[int], new: _Addition) -> list[CountBlock]:
        """Put in what blocks can have of a glob; where they find no room, it is not tried one by one before a loan."""
        try:
            with held():  # until they are in `new`
                new.blocks += (blocks := self.batches.add(spec, addresses, new.may_lend))
        except Refused as refused:
            if (lack := self._lack(new)) is not None:
                raise _Lacks(lack, 0) from refused
            raise
        if not blocks:
            self._check_room(new)
        return blocks

    def _put_in_singly(
        self, spec: Spec, addresses: Sequence[int], new: _Addition, maps: SharedMaps | None
    ) -> list[LeftOut]:
        """Put in probes one by one. maps: that those in blocks share. Return what is left out."""
        kind, left_out = self._kind(spec), list[LeftOut]()
        maps = maps or kind.share(spec, len(addresses))
        for first in range(0, len(addresses) or 1, AT_ONCE):
            checkpoint()
            probes, without = kind.plan(spec, addresses[first : first + AT_ONCE], maps)
            new.probes += probes
            left_out += without
            self.module_tracker.track(probes)
            for probe in probes:
                kind.reserve(probe)
            if lacking := kind.install(probes):
                self._remove(lacking)
                new.probes = [probe for probe in new.probes if self.registry.has(probe)]
            self.optimizer.write_records(probe for probe in probes if self.registry.has(probe))
            if lacking and spec.is_whole_kernel:  # the others would stop the guest as well
                rest = addresses[first + AT_ONCE :]
                left_out += (LeftOut(at, NO_ROOM) for at in (*(one.address for one in lacking), *rest))
                break
        return left_out

    def _lack(self, new: _Addition) -> Lack | None:
        """Return what has found no room since `new` began, where the kernel may lend some; None where all did."""
        return self.optimizer.lacking() if new.may_lend else None

    def _check_room(self, new: _Addition) -> None:
        """Raises _Lacks where something has found no room."""
        if (lack := self._lack(new)) is not None:
            raise _Lacks(lack, 0)

    def _told(self, new: _Addition) -> Sequence[ProbeView]:
        """Return the views of what was put in, with what is worth knowing."""
        notes = {probe.number: self._note(probe, is_first=probe.number in new.left_out) for probe in new.probes}
        found = rows([*self._views(new.probes), *self._block_views(new.blocks)])
        if new.returns_before <= MANY_RETURNS < self._functions_with_returns():
            number = found[0].number
            notes[number] = "; ".join(filter(None, (notes.get(number, ""), OWN_UNWINDER)))

        def told(view: ProbeView) -> ProbeView:
            number = view.number
            return replace(view, note=notes.get(number, ""), left_out=new.left_out.get(number, ()))

        # A note on the first of a block is not repeated for each.
        parts = (part.first_apart() if isinstance(part, CountsView) else [part] for part in found.parts)
        return rows(told(one) if isinstance(one, ProbeView) else one for part in parts for one in part)

    def _functions_with_returns(self) -> int:
        """Return how many functions have return probes that are enabled."""
        blocks = (len(block) for block in self.registry.blocks if block.enabled and isinstance(block, ReturnBlock))
        return sum(blocks) + sum(bool(site.return_probes) for site in self.registry.sites())

    def _lend(self, lacks: _Lacks) -> bool:
        """Have the guest's kernel lend what is lacking; return whether it did. Raises Refused where it must.

        A probe that works without it, as a breakpoint, is put in without it.
        """
        self.target.debugger.guard()
        try:
            with held():
                self.optimizer.lend(lacks.lack, lacks.more)
        except OptprobeError as error:
            if not isinstance(refused := lacks.__cause__, Refused):
                return False
            reason = refused.reason
            text = f"{reason.text}; its kernel lends no more: {error.message}"
            hint = ", or ".join(filter(None, (reason.hint, error.hint)))
            raise Refused(Reason(reason.code, text, hint)) from None
        return True

    def _unwanted(self, spec: Spec, addresses: Collection[int], blocks: Sequence[CountBlock]) -> list[LeftOut]:
        """Return which of the addresses that are in no block the probes of a glob leave out. blocks: of others."""
        if spec.is_return and (blocks or spec.is_whole_kernel):
            fit = 2 * len(addresses) * A_RETURN <= self.optimizer.take_arena().data.largest
            return [] if fit else [LeftOut(address, OWN_TABLE) for address in sorted(addresses)]
        if not spec.is_whole_kernel:
            return []
        if self.batches.is_full:
            return [LeftOut(address, NO_ROOM) for address in sorted(addresses)]
        stopping = self.block_planner.stopping(spec, addresses)
        rest = [] if self.batches.fit_singly(blocks, len(addresses) - len(stopping)) else {*addresses} - stopping
        why = {**dict.fromkeys(stopping, WOULD_STOP), **dict.fromkeys(rest, NO_CALL)}
        return [LeftOut(address, why[address]) for address in sorted(why)]

    def _note(self, probe: Probe, is_first: bool) -> str:
        """Return what is worth knowing of a new probe. is_first: of its spec; the others have the same handler."""
        bypassed = self.target.guest.why_bypassed(probe.address) if probe.is_in_kernel else ""
        return "; ".join(filter(None, (bypassed, probe.handler.note if is_first else "")))

    def _left_out(self, found: Sequence[LeftOut]) -> tuple[LeftOutView, ...]:
        guest = self.target.guest
        return tuple(LeftOutView(one.address, guest.symbol(one.address), one.error.message) for one in found)

    def _kind(self, spec: Spec) -> Kprobes | Uprobes:
        """Return what carries out the verbs for probes of this kind."""
        return self.uprobes if spec.in_program else self.kprobes

    def _add_pending(self, spec: Spec) -> Probe:
        """Register a probe on a function that is not there yet."""
        probe = Probe(self.registry.next_number(), spec, 0, sizes=sizes_of(self.settings()))
        self.module_tracker.wait_for_load(probe)
        self.optimizer.write_records([probe])
        return probe

    def _resolve(self, specs: Sequence[Spec]) -> list[tuple[Spec, tuple[int, ...]]]:
        """Return the addresses of each spec's location, each once; none of one that waits, or is a program's.

        Raises OptprobeError.
        """
        found: list[tuple[Spec, tuple[int, ...]]] = []
        seen: set[int] = set()
        for spec in specs:
            for action in spec.action_parts:
                check_action(action)
            addresses = self._kind(spec).addresses(spec)
            new = tuple(address for address in addresses if address not in seen)
            seen |= {*new}
            if new or not addresses:
                found.append((spec, new))
        limit = self.settings().max_probes
        whole = limit == DEFAULT_MAX_PROBES and all(spec.is_whole_kernel for spec in specs)
        many = sum(len(block) for block in self.registry.blocks if block.spec.is_whole_kernel)
        if len(self.registry) - many + len(seen) > limit and not whole:
            raise OptprobeError(
                f"{','.join(spec.location for spec in specs)} has {len(seen)} addresses and max-probes is {limit}",
                "set optprobe max-probes N, or name fewer",
            )
        return found

    def _borrow_memory(self, places: Iterable[tuple[Spec, Sequence[int]]]) -> bool:
        """Have the guest's kernel lend memory where there is no other and a probe needs some.

        Return whether the guest has run for it, before anything is planned: a plan expires when it does.
        """
        if not self.optimizer.memory.must_borrow():
            return False
        if not any(self._kind(spec).needs_memory(spec, addresses) for spec, addresses in places):
            return False
        self.target.debugger.guard()
        with suppress(Refused):  # the probes' plans say why there is none
            self.optimizer.take_arena(borrow=True)
        return True

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
        left = sum(self._kind(probe.spec).is_left(probe) for probe in probes)
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
            raise OptprobeError(f"{left} of {number} probes are left in the guest: {failure.message}")
        if failure is not None:
            raise failure

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
            self._borrow_memory((probe.spec, [probe.address]) for probe in probes if probe.is_in_kernel)
        switched = _numbers_of(blocks, probes)
        probes += self.batches.switch(blocks, on)
        for probe in probes:
            probe.enabled = on
        self.returns.settle_unpacked()
        self.kprobes.settle(probes)
        self.uprobes.settle(probes)
        self.optimizer.write_records(probes)
        self.module_tracker.update_load_hook()
        self.watch_traces()
        return switched

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
        """Return the views of probes; without numbers of all, and of deleted return probes with active calls."""
        self.check_alive()
        if numbers is not None:
            return self._views_of(numbers)
        deleted = deleted_views.deleted_views(self.optimizer, self.uprobes)
        return rows(self._views_of_all(), deleted)

    def reports(self, numbers: Sequence[int] | None = None) -> Sequence[ProbeView]:
        """Return the views with all results by key."""
        self.check_alive()
        self.reclaim_maps()
        if numbers is not None:
            return self._views_of(numbers, whole=True)
        return rows(self._views_of_all(whole=True))

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

    def _views_of(self, numbers: Sequence[int], whole: bool = False) -> Sequence[ProbeView]:
        """Return the views of these; returns that share a hook stay in their block."""
        found = {number: self.registry.block_of(number) for number in dict.fromkeys(numbers)}
        shared = {number: at for number, at in found.items() if at is not None and isinstance(at[0], ReturnBlock)}
        probes = self.registry.probes([number for number in numbers if number not in shared])
        parts = {id(at[0]): rows(self._block_views([at[0]], whole=whole)) for at in shared.values()}
        members = {one.number: one for part in parts.values() for one in part if one.number in shared}
        return rows([*self._views(probes, whole), *members.values()])

    def views_of(self, probes: Sequence[Probe], blocks: Sequence[CountBlock]) -> Sequence[ProbeView]:
        return rows([*self._views(probes), *self._block_views(blocks)])

    def _views_of_all(self, whole: bool = False) -> list[ProbeView | CountsView]:
        blocks = self._block_views(self.registry.blocks, whole=whole)
        return [*self._views(self.registry.single_probes(), whole), *blocks]

    def _block_views(self, blocks: Iterable[CountBlock], whole: bool = False) -> Iterator[ProbeView | CountsView]:
        """Yield the views of blocks, one for each run of numbers. whole: with what else than hits was gathered."""
        guest = self.target.guest
        blocks = list(blocks)
        shared = {id(one): one for block in blocks if whole and (one := block.handler.shared) is not None}
        maps = {identity: one.read(guest.machine) for identity, one in shared.items()}
        for block in blocks:
            symbols = block.symbols or guest.symbols(block.sites)
            block.symbols = symbols
            hits = aggregate.decode(guest.machine.read(block.data.address, block.data.size))
            branches = block.isa.branches(block.sites, range(block.code.address, block.code.end, block.step))
            for start, end in block.runs():
                probe, site = self.block_members.member(block, start)
                view = site_views.site_view(probe, site, self.target, lambda _: ())
                found = replace(Results.empty(probe.handler), head=(hits[start],))
                first = replace(probe_views.probe_view(probe, view, found, guest), objects=())
                part = CountsView(
                    first=self.returns.in_block(block, first),
                    addresses=block.sites[start:end],
                    symbols=symbols[start:end],
                    hits=hits[start:end],
                    originals=block.originals[start:end],
                    branches=branches[start:end] if block.enabled else (),
                    step=block.step,
                )
                if whole and block.handler.shared is not None:
                    yield from self._with_maps(block, part, start, maps)
                else:
                    yield from self.returns.with_times(block, part, start) if whole else [part]

    def _with_maps(
        self, block: CountBlock, part: CountsView, start: int, maps: Mapping[int, MapsContents]
    ) -> Iterator[ProbeView | CountsView]:
        """Yield the rows of a part of a block, from index `start` on: those of functions with hits by themselves, with
        what they have in maps.

        maps: by their identities.
        """
        contents, guest = maps[id(block.handler.shared)], self.target.guest

        def gathered(place: int) -> tuple[ObjectView, ...]:
            handler = block.handler_of(start + place)
            results = Results.decode(handler, aggregate.encode((part.hits[place],)), START, contents)
            return probe_views.object_views(handler, results, guest)

        yield from part.with_objects(gathered)

    def _views(self, probes: Sequence[Probe], whole: bool = False) -> tuple[ProbeView, ...]:
        found = read_results(probes, self.target.guest, whole)
        guest, scripts = self.target.guest, self.optimizer.scripts
        return tuple(
            probe_views.probe_view(probe, self._kind(probe.spec).site_view(probe), found[probe.number], guest, scripts)
            for probe in probes
        )

    def show(self, number: int) -> ShowView:
        (probe,) = self.registry.probes([number])
        (view,) = self._views([probe])
        return probe_views.show_view(view, self._kind(probe.spec).site_code(probe), self.target.guest)

    def explain(self, *specs: Spec) -> tuple[ExplainView, ...]:
        """Return what an `add` would do at every address of each spec's location; the guest is not touched."""
        self.check_alive()
        events = filter(None, map(handled, specs))
        try:
            with self.optimizer.tracepoints.trial(events, self.optimizer.find_arena):
                places = self._resolve(specs)
                return tuple(view for spec, addresses in places for view in self._kind(spec).explain(spec, addresses))
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
        return self._kind(probe.spec).missed(probe)

    def collector(self) -> CollectorView | None:
        """Return what the slot collector has done; None where there was nothing to do."""
        return self.optimizer.collector.view(self.optimizer.arena)

    def watch_traces(self) -> None:
        """Have the guest stop as it prints a trace, while so many returns are probed that it is likely to end at one.
        """
        self.guest_traces.watch(self._functions_with_returns() > MANY_RETURNS)

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
        return save.commands(probes, self.settings(), self.target, self._takes)

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
        own = memory_check.problems(self.optimizer, self.probe_read_code)
        blocks = (*self.block_routines.problems(), *self.batches.problems())
        return (*own, *blocks, *self.uprobes.problems(), *self.optimizer.tracepoints.problems())

    def untraced(self) -> tuple[str, ...]:
        """Return what tracers of the guest's own do not see because of us, in words."""
        return memory_check.untraced_sites(self.target)

    @property
    def probe_read_code(self) -> Detour | None:
        """The code in the guest that programs call."""
        arena = self.optimizer.arena
        return arena.probe_read[1] if arena is not None and arena.probe_read is not None else None

    def in_probe_read(self, pc: int) -> bool:
        resident = self.probe_read_code
        return resident is not None and resident.address <= pc < resident.end

    def is_inside(self, pc: int) -> bool:
        """Return whether `pc` is in our code that a hit runs."""
        found = self.registry.detour_at(pc) or self.optimizer.rethooks.trampoline_at(pc)
        return found is not None or self.in_probe_read(pc) or self.block_routines.at(pc) is not None

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
        gone = {0: "what was known of it is forgotten", 1: "its 1 probe is gone"}
        lost = OptprobeError(
            "the guest is not the one that was probed (rebooted, or a snapshot?): "
            + gone.get(number, f"its {number} probes are gone"),
            "add what you want of them again" if number else "give the command again",
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

        Raises OptprobeError where none of the probes keeps any.
        """
        some = self.registry.probes(numbers) if numbers is not None else self.registry.single_probes()
        chosen = {probe.number for probe in some}
        if not any(probe.handler.ring for probe in some):
            raise OptprobeError("no probe keeps records", "optprobe add LOCATION do record(EXPR), or print, or stack")

        def drain() -> Drained:
            self.check_alive()
            guest, scripts = self.target.guest, self.optimizer.scripts
            probes = [each for each in self.registry.single_probes() if numbers is None or each.number in chosen]
            found = [*read_new_records(probes, guest)]
            show(
                [
                    probe_views.probe_view(probe, self._kind(probe.spec).site_view(probe), results, guest, scripts)
                    for probe, results, _ in found
                ]
            )
            # They are shown before they are gone: an error in between loses none.
            for probe, _, ring in found:
                empty_ring(probe, ring, guest)
            self.optimizer.write_records(probe for probe, _, ring in found if ring is not None)
            rings = [ring for _, _, ring in found if ring is not None]
            return Drained(
                records=sum(len(results.records) for _, results, _ in found),
                lost=sum(ring.dropped for ring in rings),
                fullness=max((ring.fullness for ring in rings), default=0),
            )

        return Follower(drain)

    # running -----------------------------------------------------------------------------------------------------

    def run(
        self,
        seconds: float | None = None,
        until_hits: tuple[int, int] | None = None,
        timeout: float | None = None,
        guest: str = "",
        every: float | None = None,
        then: Callable[[], float | None] = bool,
    ) -> str:
        """Let the guest run. Return why it stopped, how long it ran, and the hits.

        then: what is done after `every` seconds, at a stop. It returns when it is done again; None: as long after.
        guest: a command in the guest; the run ends with it.
        Raises OptprobeError when `timeout` seconds pass first.
        """
        if until_hits is not None:
            self.hits(until_hits[0])  # there must be one of this number
        command = self.target.debugger.begin(guest) if guest else None
        try:
            said = self._run(seconds, until_hits, timeout, command, every, then)
            still_runs = command is not None and not command.outcome() and self.is_same_guest()
            return f"{said}\n{STILL_RUNS}" if still_runs else said
        finally:
            if command is not None:
                command.close()

    def _run(
        self,
        seconds: float | None,
        until_hits: tuple[int, int] | None,
        timeout: float | None,
        command: Command | None,
        every: float | None,
        then: Callable[[], float | None],
    ) -> str:
        before, counted, start = self._hits_by_number(), 0, time.monotonic()
        bound = min((limit for limit in (seconds, timeout) if limit is not None), default=None)
        pause, due = SLICE, every
        while True:
            elapsed = time.monotonic() - start
            if until_hits is not None and (hits := self.hits(until_hits[0])) >= until_hits[1]:
                return f"probe {until_hits[0]} has {hits} hits\n{self._ran(elapsed, before, counted)}"
            if command is not None and (outcome := command.outcome()):
                return f"{outcome}\n{self._ran(elapsed, before, counted)}"
            if every is not None and due is not None and elapsed >= due:
                counted += self._hits_since(before)
                pause_until_next = then() or every
                before = self._hits_by_number()
                elapsed = time.monotonic() - start
                due = elapsed + pause_until_next
            left = None if bound is None else bound - elapsed
            if left is not None and left <= 0:
                break
            limits = (left, pause if until_hits is not None else None, due - elapsed if due is not None else None)
            longest = min((limit for limit in limits if limit is not None), default=None)
            reason = self.target.debugger.run(longest, command)
            if reason is not None:
                return f"{reason}\n{self._ran(time.monotonic() - start, before, counted)}"
            pause = min(pause * 2, LONGEST_SLICE)
        if timeout is not None and (seconds is None or timeout < seconds):
            raise OptprobeError(f"nothing stopped the guest within {timeout:g} s{self._hits(before, counted)}")
        return self._ran(seconds or 0, before, counted)

    def _ran(self, seconds: float, before: Mapping[int, int], counted: int) -> str:
        return f"ran for {seconds:.3g} s{self._hits(before, counted)}"

    def _hits(self, before: Mapping[int, int], counted: int) -> str:
        """Return the hits of all probes as text: `counted`, and those since `before`; "" where no probe is left."""
        probes = len(self.registry)
        if not probes or not self.is_same_guest():
            return ""
        hits = counted + self._hits_since(before)
        return f": {hits:,} {'hit' if hits == 1 else 'hits'} of {probes} {'probe' if probes == 1 else 'probes'}"

    def _hits_since(self, before: Mapping[int, int]) -> int:
        # A handler may have cleared a probe's count.
        return sum(max(0, count - before.get(number, 0)) for number, count in self._hits_by_number().items())

    def _hits_by_number(self) -> dict[int, int]:
        found = read_results(self.registry.single_probes(), self.target.guest)
        counted = {number: results.hits for number, results in found.items()}
        for block in self.registry.blocks:
            hits = block.hits(self.target.guest.machine.read(block.data.address, block.data.size))
            counted |= zip([block.first + index for index in block.members], hits, strict=True)
        return counted

    def commit(self, timeout: float = 10.0, tell: Callable[[str], object] = str) -> tuple[str, ...]:
        """Run the guest in slices until nothing waits to be optimized or reclaimed. tell: gets what still waits."""
        self.check_alive()
        deadline, before = time.monotonic() + timeout, (0, 0)
        while True:
            self.uprobes.tidy()
            self.optimizer.retry()
            waiting = [site for site in self.registry.sites() if site.blocked_by]
            dirty = self.optimizer.reclaim()
            if not waiting and not dirty:
                return (
                    "everything is settled", *deleted_views.describe(
                        deleted_views.deleted_views(self.optimizer, self.uprobes)
                    )
                )
            why = "; ".join(describe_waits(waiting, self.target.guest))
            late, changed = time.monotonic() >= deadline, before != (before := (len(waiting), dirty))
            if late or changed:
                why = why or self.optimizer.collector.blocked_by or self._in_slots()
            if late:
                raise OptprobeError(
                    f"after {timeout:g} s {_unsettled(len(waiting), dirty)}: {why}",
                    "this continues at later stops: continue, or commit with a longer -timeout",
                )
            if changed:
                tell(f"{_unsettled(len(waiting), dirty)}: {why}")
            if (reason := self.target.debugger.run(SLICE)) is not None:
                raise OptprobeError(f"the guest was stopped before all was settled: {reason}")

    def _in_slots(self) -> str:
        arena = self.optimizer.arena
        inside = describe_busy_slots(
            self.optimizer.collector.unsettled(arena), self.target.guest
        ) if arena is not None else ""
        return inside or "code that is left may come to them"

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


def _unsettled(waiting: int, dirty: int) -> str:
    parts = [
        "1 address waits" if waiting == 1 else f"{waiting} addresses wait" if waiting else "",
        "1 freed slot is in use" if dirty == 1 else f"{dirty} freed slots are in use" if dirty else "",
    ]
    return ", ".join(filter(None, parts))
