"""What blocks of return probes have beside blocks of counts: a hook that all members share, and their times.

A ReturnBlock (return_block.py) is put in, switched and taken out as any block (batch.py), which calls this where its
functions' returns matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.arena_contents import ArenaContents, BlockRecord
from gdb_optprobe.detours.block import WORD
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.text import IdleSites
from gdb_optprobe.handlers.lower_program import LoweringContext
from gdb_optprobe.handlers.lower_shared_returns import RecordedCalls
from gdb_optprobe.isa.base import Flow
from gdb_optprobe.maps import aggregate
from gdb_optprobe.probes import kretprobe
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.return_block import (
    HISTOGRAMS,
    LEAST_BITS,
    ReturnBlock,
    Times,
    bits_for,
    timed_program,
    times_size,
)
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.shared_records import SharedRecords
from gdb_optprobe.probes.shared_rethook import SharedRethook, TimedReturns, entry_stubs
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.views import NANOSECONDS, CountsView, ObjectView, ProbeView, RowView

RESERVED = 1 << 16
"""Bytes of data that histograms leave to other probes."""


@dataclass
class SharedReturns:
    """compile: see Kprobes.compile. unsettled: returns that have left their blocks, and have no hook of their own yet.
    returning: whether a probe at a site sees its function return.
    """

    target: Target
    registry: Registry
    optimizer: Optimizer
    settings: Callable[[], Settings]
    compile: Callable[[Spec, Plan, Settings], Handler]
    unsettled: list[tuple[Probe, Site]] = field(default_factory=list)
    returning: dict[int, bool] = field(default_factory=dict)
    _off: bool = False

    def __post_init__(self) -> None:
        self.registry.unpacked = self.settle_unpacked
        self.optimizer.recovered = self.end_hooks

    def can_share(self, spec: Spec) -> bool:
        """Return whether returns of `spec` may share a hook."""
        if spec.maxactive or not (spec.is_plain_count or spec.is_plain_latency or spec.records is not None):
            return False
        return entry_stubs(self.target.guest.isa) is not None

    def seen(self, sites: IdleSites) -> IdleSites:
        """Return those of `sites` at which a probe sees its function return."""
        # This never changes: a function is looked at once.
        new = [site for site in sites.addresses if site not in self.returning]
        seen = frozenset(kretprobe.seen_returning(new, self.target.guest))
        self.returning.update((site, site in seen) for site in new)
        return replace(sites, addresses=[site for site in sites.addresses if self.returning[site]])

    @property
    def stub_size(self) -> int:
        stubs = entry_stubs(self.target.guest.isa)
        assert stubs is not None, "they can share"
        return stubs.size

    # the hook --------------------------------------------------------------------------------------------------------

    def with_hook(self, block: CountBlock, arena: Arena) -> ReturnBlock:
        """Return the returns of `block` with memory for what they share. Raises OptprobeError."""
        guest, rethooks = self.target.guest, self.optimizer.rethooks
        if block.spec.records is not None:
            recorded = self._recorded(block, block.spec.records), block.spec.records.memory
            return ReturnBlock(**vars(block), rethook=rethooks.share(block, guest, arena, recorded=recorded))
        if not block.spec.is_plain_latency:
            return ReturnBlock(**vars(block), rethook=rethooks.share(block, guest, arena))
        program, count = timed_program(block.spec, block.sites[0], guest), len(block.sites)
        bits = bits_for(count, arena.data.largest - RESERVED)
        with arena.new_data(times_size(count, bits), block.sites[0], guest.isa.data_reach) as memory:
            times = Times(memory, count, bits)
            guest.machine.write(memory.address, times.initial())
            timed = TimedReturns(program, times.table, bits)
            rethook = rethooks.share(block, guest, arena, memory, timed)
        return ReturnBlock(**vars(block), rethook=rethook, times=times)

    def _recorded(self, block: CountBlock, records: SharedRecords) -> RecordedCalls:
        """Return what is recorded of the calls of a block."""
        spec, names = block.spec, self.target.guest.names_at(block.sites[0])
        assert spec.entry is not None and spec.program is not None, "both were compiled"
        rings = (records.address,) * max(len(spec.entry.objects), len(spec.program.objects))
        around = LoweringContext(
            address=0, objects=rings, per_cpu=names.per_cpu, ring=records.layout, cpu=names.cpu
        )
        return RecordedCalls(spec.entry, spec.program, around)

    def forget(self, block: CountBlock, arena: Arena) -> None:
        """Give back what the functions of a block share: it is not in the guest after all."""
        if isinstance(block, ReturnBlock):
            self.optimizer.rethooks.end(block.rethook, self.target.guest, arena)

    def forget_counts(self, block: CountBlock) -> None:
        """Have no call count in the words of a block: the guest has not run since it was put in."""
        if isinstance(block, ReturnBlock):
            block.rethook.counts = None

    def end_hooks(self) -> None:
        """Enter no more calls by the hooks to which nothing leads any more."""
        arena = self.optimizer.arena
        used = {id(one.rethook) for one in self.registry.blocks if isinstance(one, ReturnBlock)}
        for rethook in list(self.optimizer.rethooks.known):
            if isinstance(rethook, SharedRethook) and not rethook.closed and id(rethook) not in used:
                rethook.out.intersection_update(self.optimizer.detours_in_use())
                if not rethook.out and arena is not None:
                    self.optimizer.rethooks.unhook(rethook, self.target.guest, arena)
                    self.optimizer.rethooks.end(rethook, self.target.guest, arena)

    # members that leave ----------------------------------------------------------------------------------------------

    def leave(self, probe: Probe, site: Site, block: ReturnBlock, index: int) -> None:
        """Give a member that leaves its block a hook of its own, where there is memory for one.

        One with calls that are recorded keeps the block's, which knows how.
        """
        block.rethook.out.add(block.slot(index).address)
        if block.spec.records is not None:
            return
        self.unsettled.append((probe, site))  # then it is used
        if not self._off:
            self._reserve(probe, site)

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """Give none to those that leave meanwhile: they are to be disabled or deleted."""
        self._off = True
        try:
            yield
        finally:
            self._off = False

    def _reserve(self, probe: Probe, site: Site) -> None:
        with suppress(Refused):  # settling it tells where there is no memory
            self.optimizer.reserve(probe, site.plan)

    def take_times(self, probe: Probe, block: ReturnBlock, index: int) -> None:
        """Give a member that leaves its block what was gathered of its times so far, and a program of its own."""
        if block.times is None:
            return
        hits = aggregate.decode(self.target.guest.machine.read(block.counter(index).address, WORD))[0]
        histograms = self.times(block)[1]
        block.rethook.keep(block.counter(index))
        probe.handler, probe.counter = self.compile(block.spec, block.plan(index), self.settings()), None
        probe.clear()
        head = [hits, *probe.seen.head[1:]]
        for cell, place in probe.handler.cell_words():
            if cell.aggregate == HISTOGRAMS.aggregate:
                head[place] = histograms.get(index, head[place])
        probe.seen = replace(probe.seen, head=tuple(head))

    def settle_unpacked(self) -> None:
        """Settle the returns that have left their blocks, where they are enabled: calls from now on are theirs."""
        there = [(probe, site) for probe, site in self.unsettled if self.registry.has(probe)]
        self.unsettled[:] = [(probe, site) for probe, site in there if not probe.enabled]
        ready = [(probe, site) for probe, site in there if probe.enabled]
        for probe, site in ready:
            if site.latest_rethook is None:
                self._reserve(probe, site)
        if ready:
            self.optimizer.settle([site for _, site in ready])

    # results ---------------------------------------------------------------------------------------------------------

    def times(self, block: ReturnBlock) -> tuple[Sequence[int], Mapping[int, tuple[int, ...]], int]:
        """Read what was gathered of times: see Times.decode."""
        assert block.times is not None
        memory, machine = block.times.memory, self.target.guest.machine
        before = machine.read(memory.address, memory.size) if machine.runs else None
        return block.times.decode(machine.read(memory.address, memory.size), before)

    def with_times(self, block: CountBlock, part: CountsView, start: int) -> Iterator[ProbeView | CountsView]:
        """Yield the rows of a part of a block, from index `start` on: those of functions that have returned by
        themselves, with their times.
        """
        if not isinstance(block, ReturnBlock) or block.times is None:
            yield part
            return
        sums, histograms, _ = self.times(block)
        yield from part.with_objects(lambda at: _objects(sums[start + at], histograms.get(start + at)))

    def clear(self, block: CountBlock) -> None:
        """Start gathering times from zero."""
        if isinstance(block, ReturnBlock) and block.times is not None:
            machine, (at, behind) = self.target.guest.machine, (block.times.memory.address, block.times.table)
            held_now = machine.read(behind, block.times.layout.size)
            machine.write(at, bytes(behind - at) + block.times.layout.cleared(held_now))

    def in_block(self, block: CountBlock, view: ProbeView) -> ProbeView:
        """Return the view of a member with what the members have in common: calls that were missed, and what the code
        costs that is not the member's own.
        """
        if not isinstance(block, ReturnBlock):
            return view
        if missed := self.missed(block):
            view = replace(view, missed=None, missed_together=missed)
        if view.detour is None:
            return view
        costs, entered = block.rethook.costs, 1 + view.detour.instructions + block.rethook.costs.rare
        most, least = entered + costs.trampoline, entered + costs.least
        return replace(view, detour=replace(view.detour, added=most, least=least, own=most, own_least=least))

    def missed(self, block: CountBlock) -> int:
        """Return how many calls of the functions of `block` found no room, of return probes."""
        return block.rethook.missed(self.target.guest) if isinstance(block, ReturnBlock) else 0

    # of an earlier GDB -----------------------------------------------------------------------------------------------

    def adopt(self, block: CountBlock, left: BlockRecord, arena: Arena) -> ReturnBlock:
        """Return the returns of a block with what they shared. Raises OptprobeError where that is not what it was."""
        guest, entry, adopt = self.target.guest, self._shared_entry(left), self.optimizer.rethooks.adopt_shared
        times: Times | None = None
        if left.times is None:
            rethook = adopt(entry, block, guest, arena)
        else:
            (at, bits), count = left.times, len(block.sites)
            memory = arena.earlier.data_at(at) if arena.earlier is not None else None
            if memory is None or bits < LEAST_BITS or memory.size < times_size(count, bits):
                raise OptprobeError("the memory of their times is not what this version would have")
            times = Times(memory, count, bits)
            timed = TimedReturns(timed_program(block.spec, block.sites[0], guest), times.table, bits)
            rethook = adopt(entry, block, guest, arena, memory, timed)
        if arena.earlier is not None:
            rethook.counters = sorted(_free_counters(arena.earlier, left))
        return ReturnBlock(**vars(block), rethook=rethook, times=times)

    def memory(self, left: ArenaContents) -> set[Slot]:
        """Return the tables of calls, and the memory of times, that blocks of an earlier GDB share.

        Of a graph none is adopted.
        """
        known, blocks = self.optimizer.rethooks.known, [one for one in left.live_blocks if not one.probe.get("python")]
        entries = {self._shared_entry(one) for one in blocks if one.probe.get("kind") == Kind.KRETPROBE.value}
        found = {one.memory for one in known if any(one.trampoline_at(at) is not None for at in entries)}
        return found.union(*(_memory_beside(left, one) for one in blocks))

    def release_memory(self, left: BlockRecord, arena: Arena) -> None:
        """Release what `memory` has of a block that is not adopted. Counters stay while a call is under way."""
        if arena.earlier is None:
            return
        known, found = self.optimizer.rethooks.known, _memory_beside(arena.earlier, left)
        if left.probe.get("kind") == Kind.KRETPROBE.value and (entry := self._shared_entry(left)):
            found |= {one.memory for one in known if one.closed and one.trampoline_at(entry) is not None}
        for one in known:
            if isinstance(one, SharedRethook):
                found.difference_update(one.counters)
        for memory in found:
            if arena.data.is_used(memory):
                arena.data.release(memory)

    def _shared_entry(self, left: BlockRecord) -> int:
        """Return where the stubs of a block go to; 0 where they are none."""
        at = left.slot(left.members[0]).address
        insns = self.target.guest.isa.decode(self.target.guest.machine.read(at, left.step), at)
        return next((insn.target for insn in insns if insn.flow is Flow.JUMP and insn.target), 0)


def _memory_beside(left: ArenaContents, block: BlockRecord) -> set[Slot]:
    """Return the memory of a block of an earlier GDB beside its members' counters and the table of calls."""
    found = _free_counters(left, block) if block.probe.get("kind") == Kind.KRETPROBE.value else set()
    times = left.data_at(block.times[0]) if block.times is not None else None
    return found if times is None else {*found, times}


def _free_counters(left: ArenaContents, block: BlockRecord) -> set[Slot]:
    """Return the counters of members that have left a block, and that no probe has: calls under way count in them."""
    owned = {value.get("data") for value in (left.probes or {}).values() if isinstance(value, dict)}
    places = {block.counter(index).address for index in block.out} - owned
    return {found for at in places if (found := left.data_at(at)) is not None}


def times_of(block: CountBlock) -> tuple[int, int] | None:
    """Return what the journal keeps of a block's times: where they are, and the bits of the table there."""
    times = block.times if isinstance(block, ReturnBlock) else None
    return (times.memory.address, times.bits) if times is not None else None


def _objects(total: int, words: tuple[int, ...] | None) -> tuple[ObjectView, ...]:
    """Return what `report` shows of a function's times. words: of its histogram; None where it has found no room."""
    found = [ObjectView("sum($elapsed)", aggregate.Sum(signed=False), (RowView((), (total,)),), unit=NANOSECONDS)]
    if words is not None:
        found.append(ObjectView(HISTOGRAMS.name, HISTOGRAMS.aggregate, (RowView((), words),), unit=NANOSECONDS))
    return tuple(found)
