"""Counts at thousands of tracer's sites, put in and taken out together (count_block.py).

    addresses ──► sites that are idle ──► a block of detours, a block of counters ──► flags ──► branches
                  one plan for all         written and read back in large pieces        by runs (guest/runs.py)
A site is a nop of one instruction that nothing else rewrites, so its plan is known without decoding, and no thread can
be inside it. A detour counts and calls nothing, so it is safe wherever the kernel may call its own tracer. The journal
has the whole block as one item before the first byte is written.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.arena_contents import ArenaContents, BlockRecord, block_value
from gdb_optprobe.detours.block import WORD, Block
from gdb_optprobe.detours.detour import build_count
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.patch import TextChanged
from gdb_optprobe.detours.planner import Plan, may_share_detour
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import runs
from gdb_optprobe.guest.text import FtraceSite, IdleSites
from gdb_optprobe.interrupts import held
from gdb_optprobe.isa.base import LONGEST, Flow, OutOfReach
from gdb_optprobe.maps import aggregate
from gdb_optprobe.probes import kretprobe
from gdb_optprobe.probes.branch import Branch, PreservedRegisters, ProgramPart
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.installed_detour import InstalledDetour
from gdb_optprobe.probes.journal_records import ProbeRecord, probe_value, write_probe
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
from gdb_optprobe.probes.settings import Settings, sizes_of
from gdb_optprobe.probes.shared_rethook import SharedRethook, TimedReturns, entry_stubs
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.site_views import COUNTER_DISTANCE
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.views import NANOSECONDS, CountsView, ObjectView, ProbeView, RowView

LEAST = 64
"""Probes that are worth a batch."""
RESERVED = 1 << 16
"""Bytes of data that histograms leave to other probes."""
_PRESERVED = PreservedRegisters()


@dataclass(frozen=True)
class Batches:
    """What a session does to many counts at once.

    compile: see Kprobes.compile. unsettled: sites of returns that have left their blocks.
    returning: whether a probe at a site sees its function return.
    """

    target: Target
    registry: Registry
    optimizer: Optimizer
    settings: Callable[[], Settings]
    compile: Callable[[Spec, Plan, Settings], Handler]
    unsettled: list[Site] = field(default_factory=list)
    returning: dict[int, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.registry.unpack, self.registry.unpacked = self.unpack, self.settle_unpacked

    # into the guest --------------------------------------------------------------------------------------------------

    def add(self, spec: Spec, addresses: Sequence[int]) -> CountBlock | None:
        """Put a count of `spec` at those of `addresses` where a batch can: all of them, or none.

        Raises OptprobeError, the guest as it was.
        """
        sites = self._sites(spec, addresses)
        if len(sites.addresses) < LEAST or (sample := self._sample(sites.site(sites.addresses[0]), spec)) is None:
            return None
        with held():
            starts, arena = array("Q", sites.addresses), self.optimizer.take_arena()
            try:
                block = self.optimizer.with_memory(lambda: self._allocate(spec, starts, sample), arena)
            except Refused:
                if spec.is_return:  # each by itself takes far more memory
                    raise
                return None
            if block is None:
                return None
            arena = self.optimizer.take_arena()
            try:
                self._write(block, arena)
            except BaseException:
                self._forget(block, arena)
                raise
            self.registry.add_block(block)
            for address in self._stopped_at(block):
                self.target.stops.take_back(address)
        return block

    def _sites(self, spec: Spec, addresses: Sequence[int]) -> IdleSites:
        """Return the sites among `addresses` that are idle and on which nothing else is."""
        if spec.in_program or spec.has_python_handler or spec.maxactive:
            return IdleSites()
        if not (spec.is_plain_count or spec.is_plain_latency):
            return IdleSites()
        limits = self.optimizer.limits([spec])
        if len(addresses) < LEAST or not may_share_detour(limits):
            return IdleSites()
        if spec.is_return and entry_stubs(self.target.guest.isa) is None:
            return IdleSites()
        found = self._free(self.target.guest.idle_sites(addresses))
        if not spec.is_return:
            return found
        # This never changes: a function is looked at once.
        new = [site for site in found.addresses if site not in self.returning]
        seen = frozenset(kretprobe.seen_returning(new, self.target.guest))
        self.returning.update((site, site in seen) for site in new)
        return replace(found, addresses=[site for site in found.addresses if self.returning[site]])

    def _free(self, sites: IdleSites) -> IdleSites:
        """Return those of `sites` on and around which nothing of the user's or of other probes is."""
        starts, taken = sites.addresses, set[int]()
        around = [(at - LONGEST, at + LONGEST) for at in (*self.target.debugger.breakpoints(), *self._occupied())]
        # A program there would have to leave alone what a probe of the function reads.
        for first, behind in (*around, *self.optimizer.read_registers.functions()):
            taken.update(starts[bisect_left(starts, first) : bisect_left(starts, behind)])
        for block in self.registry.blocks:
            taken.update(block.sites[index] for index in block.members)
        return replace(sites, addresses=[start for start in starts if start not in taken]) if taken else sites

    def _occupied(self) -> Iterator[int]:
        """Yield where probes and patches are that are in no block."""
        yield from self.registry.addresses()
        yield from self.optimizer.lost_heads()

    def _sample(self, site: FtraceSite, spec: Spec) -> Plan | None:
        """Return the plan of a site as the planner makes it; None where it is not what the others' is taken for."""
        try:
            plan = self.optimizer.plan(site.address, [spec])
        except Refused:
            return None
        whole = len(plan.displaced) == 1 and plan.insn.data == site.idle and plan.insn.address == site.address
        # What a register holds at one function's entry may not be there at another's.
        alike = plan.ftrace is not None and plan.base is None and whole
        return plan if plan.tier is Tier.OPTIMIZED and alike else None

    def _allocate(self, spec: Spec, sites: array[int], sample: Plan) -> CountBlock | None:
        """Return a block with memory; None where the code memory holds something. Raises Refused."""
        isa = self.target.guest.isa
        arena = self.optimizer.take_arena()
        at = arena.free_code(sample.head, isa.branch_reach)
        size = build_count(sample, isa, at, at + COUNTER_DISTANCE).size
        if spec.is_return and (stubs := entry_stubs(isa)) is not None:
            size = stubs.size
        step = -(-size // arena.code_step) * arena.code_step
        bounds = sites[0], sites[-1] + len(sample.original)
        code, data = arena.allocate_counts(len(sites), step, WORD, bounds, isa.branch_reach, isa.data_reach)
        if not arena.claim_block(code, self.target.guest.machine):
            arena.free_counts(code, data)
            return None
        block = CountBlock(
            sites=sites,
            original=sample.original,
            code=code,
            data=data,
            step=step,
            isa=isa,
            spec=spec,
            sizes=sizes_of(self.settings()),
            first=self.registry.take_numbers(len(sites)),
            model=sample,
            installed_at=self.target.guest.moment(),
        )
        if not spec.is_return:
            return block
        try:
            return self._with_hook(block, arena)
        except BaseException:
            arena.free_counts(code, data)
            raise

    def _with_hook(self, block: CountBlock, arena: Arena) -> ReturnBlock:
        """Return the returns of `block` with memory for what they share. Raises OptprobeError."""
        guest, rethooks = self.target.guest, self.optimizer.rethooks
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

    def _write(self, block: CountBlock, arena: Arena) -> None:
        """Write counters, detours, flags and branches. Raises OptprobeError; text and flags are as they were then."""
        machine = self.target.guest.machine
        try:
            code = block.detours()
        except OutOfReach:
            raise Refused(Refusal.ARENA_OUT_OF_REACH.because(address=f"{block.sites[0]:#x}")) from None
        # All detours are alike: two of them are compared with what the compiler makes.
        for index in (0, len(block.sites) - 1):
            made = block.detour(index).data
            assert code[index * block.step :][: len(made)] == made
        self._note(block, arena)
        arena.journal.flush()
        machine.write(block.data.address, bytes(block.data.size))
        arena.write_block(block.code.address, code, block.step, machine)
        self._arm(block)

    def _note(self, block: CountBlock, arena: Arena) -> None:
        """Have the journal know the block as it is now."""
        value = probe_value(self._probe(block, 0))
        for name in ("at", "data"):
            value.pop(name, None)
        times = block.times if isinstance(block, ReturnBlock) else None
        of_times = (times.memory.address, times.bits) if times is not None else None
        arena.journal.put(Item.BLOCK, block.code.address, block_value(block, block.first, value, of_times))

    def _arm(self, block: CountBlock) -> None:
        """Lead the text to the detours, which are written. Raises OptprobeError, the text as it was."""
        places = block.places()
        addresses = [start for start, _ in places]
        self.target.tracer.hold_all(addresses)
        try:
            patch.exchange_in_runs(places, block.original, block.branches(block.isa), self.target.guest.machine)
        except BaseException:
            self.target.tracer.release_all(addresses)
            raise

    def _forget(self, block: CountBlock, arena: Arena) -> None:
        """Free what was allocated, unless a branch leads there: one that could not be undone."""
        machine, places = self.target.guest.machine, block.places()
        texts = runs.at(places, runs.read(places, machine))
        if any(text == branch for text, branch in zip(texts, block.branches(block.isa), strict=True)):
            return
        arena.wipe([block.code], machine)
        arena.free_counts(block.code, block.data)
        if isinstance(block, ReturnBlock):
            self.optimizer.rethooks.end(block.rethook, self.target.guest, arena)
        arena.journal.flush()

    def _stopped_at(self, block: CountBlock) -> Collection[int]:
        """Return the sites of `block` that a vCPU is stopped at."""
        guest = self.target.guest
        found = []
        for vcpu in guest.machine.vcpus():
            with suppress(OptprobeError):
                found.append(guest.machine.registers(vcpu, [guest.isa.pc])[guest.isa.pc])
        return [pc for pc in found if block.at(pc) is not None]

    # one of it -------------------------------------------------------------------------------------------------------

    def _probe(self, block: CountBlock, index: int) -> Probe:
        return Probe(
            block.first + index,
            block.spec,
            block.sites[index],
            Handler(),
            block.sizes,
            enabled=block.enabled,
            counter=block.counter(index),
        )

    def probes(self, block: CountBlock) -> list[Probe]:
        """Return the members as probes, to look at: they stay in the block."""
        return [self._probe(block, index) for index in block.members]

    def member(self, block: CountBlock, index: int) -> tuple[Probe, Site]:
        """Return a member as a probe at a site of its own, to look at: it stays in the block."""
        probe, plan = self._probe(block, index), block.plan(index)
        site = Site(probe.address, plan, [probe])
        if block.enabled:
            detour = block.detour(index)
            start, end, _ = detour.programs[0]
            parts = (ProgramPart(probe.address, probe.number, start, end),)
            installed = InstalledDetour(block.slot(index), detour, block.installed_at)
            site.adopt_branch(
                Branch(plan, (probe.address,), (probe.number,), block.patch(index), installed, _PRESERVED, parts)
            )
        return probe, site

    def unpack(self, block: CountBlock, index: int) -> Probe:
        """Make a member a probe of its own, with the code and the counter that it has; the guest is as it was."""
        arena = self.optimizer.arena
        assert arena is not None, "the block has memory"
        probe, site = self.member(block, index)
        slot, counter = block.slot(index), block.counter(index)
        if isinstance(block, ReturnBlock):
            block.rethook.out.add(slot.address)
        whole_code, whole_data = block.piece(*block.run_of(index))
        journal = arena.journal
        journal.put(Item.OUT, slot.address, 1)
        arena.carve_count((whole_code, slot), (whole_data, counter))
        block.take_out(index)
        journal.code(slot, block.detour(index))
        if site.branch is not None:
            journal.text(site.address, block.original, True)
        else:
            arena.retire(slot, block.detour(index))
        if isinstance(block, ReturnBlock) and block.times is not None:
            self._take_times(probe, block, index)
        write_probe(probe, journal)
        site.probes.clear()
        self.registry.add(probe, site)
        if site.branch is not None:
            self.registry.add_branch(site.branch)
            self.optimizer.links.add(site.branch, link=False)
        if isinstance(block, ReturnBlock):
            # The next time that the site is settled it gets a hook of its own, where there is memory for one.
            with suppress(Refused):
                self.optimizer.reserve(probe, site.plan)
            self.unsettled.append(site)
        if not len(block):
            self._drop(block, arena)
        return probe

    def _take_times(self, probe: Probe, block: ReturnBlock, index: int) -> None:
        """Give a member that leaves its block what was gathered of its times so far, and a program of its own."""
        hits = aggregate.decode(self.target.guest.machine.read(block.counter(index).address, WORD))[0]
        histograms = self.times(block)[1]
        probe.handler, probe.counter = self.compile(block.spec, block.plan(index), self.settings()), None
        probe.clear()
        head = [hits, *probe.seen.head[1:]]
        for cell, place in probe.handler.cell_words():
            if cell.aggregate == HISTOGRAMS.aggregate:
                head[place] = histograms.get(index, head[place])
        probe.seen = replace(probe.seen, head=tuple(head))

    def times(self, block: ReturnBlock) -> tuple[Sequence[int], Mapping[int, tuple[int, ...]], int]:
        """Read what was gathered of times: see Times.decode."""
        assert block.times is not None
        memory = block.times.memory
        return block.times.decode(self.target.guest.machine.read(memory.address, memory.size))

    def with_times(self, block: ReturnBlock, part: CountsView, start: int) -> Iterator[ProbeView | CountsView]:
        """Yield the rows of a part of a block, from index `start` on: those of functions that have returned by
        themselves, with their times.
        """
        sums, histograms, _ = self.times(block)
        begin = 0
        for place, hits in enumerate(part.hits):
            if hits:
                if begin < place:
                    yield part.between(begin, place)
                yield replace(part[place], objects=_objects(sums[start + place], histograms.get(start + place)))
                begin = place + 1
        if begin < len(part):
            yield part.between(begin, len(part))

    def clear_times(self, block: CountBlock) -> None:
        """Start gathering times from zero."""
        if isinstance(block, ReturnBlock) and block.times is not None:
            machine, (at, behind) = self.target.guest.machine, (block.times.memory.address, block.times.table)
            held_now = machine.read(behind, block.times.layout.size)
            machine.write(at, bytes(behind - at) + block.times.layout.cleared(held_now))

    def settle_unpacked(self) -> None:
        """Settle the returns that have left their blocks: calls that they see from now on are theirs."""
        sites = [site for site in self.unsettled if any(self.registry.has(probe) for probe in site.probes)]
        self.unsettled.clear()
        if sites:
            self.optimizer.settle(sites)

    def _drop(self, block: CountBlock, arena: Arena) -> None:
        """Forget a block: none of its members is in it any more, or its pieces have items of their own."""
        self.registry.remove_block(block)
        arena.journal.drop(Item.BLOCK, block.code.address)
        for index in block.out:
            arena.journal.drop(Item.OUT, block.slot(index).address)

    # all of it -------------------------------------------------------------------------------------------------------

    def remove(self, block: CountBlock) -> list[Probe]:
        """Take the probes of `block` out of the guest. Return those that others have changed: they leave it instead.

        Raises OptprobeError with all as it was.
        """
        arena = self.optimizer.arena
        assert arena is not None, "the block has memory"
        with held():
            alone = self._unpack_changed(block)
            if not len(block):
                return alone
            if block.enabled:
                self._disarm(block)
            # Its code stays, in pieces, until no thread is in them.
            self._drop(block, arena)
            for start, end in block.runs():
                self._retire_piece(block, start, end, arena)
        self.end_hooks()
        return alone

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

    def _unpack_changed(self, block: CountBlock) -> list[Probe]:
        """Have members leave an enabled block where the text is not theirs any more: by themselves they are reported.
        """
        if not block.enabled:
            return []
        places = block.places()
        texts = runs.at(places, runs.read(places, self.target.guest.machine))
        wanted = block.branches(block.isa)
        changed = [index for index, text, own in zip(block.members, texts, wanted, strict=True) if text != own]
        return [self.unpack(block, index) for index in changed]

    def _disarm(self, block: CountBlock) -> None:
        """Take the branches out of the text. Raises OptprobeError, the text as it was."""
        places = block.places()
        patch.exchange_in_runs(places, block.branches(block.isa), block.original, self.target.guest.machine)
        self.target.tracer.release_all([start for start, _ in places])

    def _retire_piece(self, block: CountBlock, start: int, end: int, arena: Arena) -> None:
        """Release the code and the data of some members, to which nothing leads any more."""
        code, data = block.piece(start, end)
        guest = self.target.guest
        self._note_left(block, block.first, start, end, arena)
        arena.data.release(data)
        if block.installed_at == guest.moment() and not arena.has_retired_dispatchers:
            arena.wipe([code], guest.machine)
            arena.code.free(code)
        else:
            arena.retire(code, block.left_code(start, end, guest.machine.read(code.address, code.size)))

    def _note_left(self, block: Block, first: int, start: int, end: int, arena: Arena) -> None:
        """Have the journal know code and data of some members, that are no probes any more."""
        code, data = block.piece(start, end)
        left = Block(sites=block.sites[start:end], original=block.original, code=code, data=data, step=block.step)
        arena.journal.put(Item.BLOCK, code.address, block_value(left, first + start, None))

    def switch(self, block: CountBlock, on: bool) -> list[Probe]:
        """Enable or disable all members. Return those that must be settled by themselves.

        Raises OptprobeError with all as it was.
        """
        arena = self.optimizer.arena
        assert arena is not None, "the block has memory"
        if block.enabled == on:
            return []
        with held():
            alone = self._unpack_in_the_way(block) if on else self._unpack_changed(block)
            if len(block):
                (self._arm if on else self._disarm)(block)
                block.enabled = on
                self._note(block, arena)
        for probe in alone:
            probe.enabled = on
        return alone

    def _unpack_in_the_way(self, block: CountBlock) -> list[Probe]:
        """Have members leave a disabled block that cannot be written as they were: something came there meanwhile."""
        self.registry.blocks.remove(block)  # it is in its own way
        idle = frozenset(self._free(self.target.guest.idle_sites(block.sites)).addresses)
        self.registry.add_block(block)
        return [self.unpack(block, index) for index in list(block.members) if block.sites[index] not in idle]

    def resettle(self) -> None:
        """Unpack the blocks that settings, or breakpoints of the user, do not let be as they are any more."""
        stops = self.target.debugger.breakpoints()
        for block in list(self.registry.blocks):
            fits = may_share_detour(self.optimizer.limits([block.spec]))
            near = {index for at in stops for index in block.within(at - len(block.original) + 1, at + 1)}
            for index in list(block.members) if not fits else sorted(near):
                self.unpack(block, index)

    def is_something_left(self, block: CountBlock) -> bool:
        """Return whether the guest holds the branch or the detour of the first member. Raises Unreadable."""
        machine, index = self.target.guest.machine, block.members[0]
        change, detour = block.patch(index), block.detour(index)
        return machine.read(change.address, len(change.new)) == change.new or (
            machine.read(detour.address, detour.size) == detour.data
        )

    def in_block(self, block: CountBlock, view: ProbeView) -> ProbeView:
        """Return the view of a member with what the members have in common: calls that were missed, and what the code
        costs that is not the member's own.
        """
        if not isinstance(block, ReturnBlock):
            return view
        view = replace(view, missed=self.missed(block))
        if view.detour is None:
            return view
        added = 1 + view.detour.instructions + block.rethook.costs.rare + block.rethook.costs.trampoline
        return replace(view, detour=replace(view.detour, added=added, least=added, own=added, own_least=added))

    def missed(self, block: CountBlock) -> int:
        """Return how many calls of the functions of `block` found no room, of return probes."""
        return block.rethook.missed(self.target.guest) if isinstance(block, ReturnBlock) else 0

    def problems(self) -> list[str]:
        """Return where memory does not hold what was written for blocks, in words."""
        found = []
        guest = self.target.guest
        for block in self.registry.blocks:
            places = block.places()
            texts = runs.at(places, runs.read(places, guest.machine))
            for (address, _), text, own in zip(places, texts, block.branches(block.isa), strict=True):
                if block.enabled and text != own:
                    found.append(TextChanged(address, own, text).message)
            code, held_now = block.detours(), guest.machine.read(block.code.address, block.code.size)
            for index in block.members:
                part = slice(index * block.step, (index + 1) * block.step)
                if held_now[part] != code[part]:
                    found.append(f"the detour of {guest.text.spell(block.sites[index])} was changed")
        return found

    # of an earlier GDB -----------------------------------------------------------------------------------------------

    def adopt(self, left: BlockRecord, record: ProbeRecord) -> tuple[CountBlock, list[Probe]]:
        """Take over a block of an earlier GDB, of which the branches were removed, with its code and its counters.

        record: of its first probe. Return it, and the members that must be settled by themselves.
        Raises OptprobeError where it would not be what it was; its code is left then as retired.
        """
        arena = self.optimizer.take_arena()
        site = FtraceSite(left.sites[left.members[0]], len(left.original), False, left.original)
        if (sample := self._sample(site, record.spec)) is None:
            raise OptprobeError("its functions cannot be probed together any more")
        block = CountBlock(
            sites=left.sites,
            original=left.original,
            code=left.code,
            data=left.data,
            step=left.step,
            out=list(left.out),
            isa=self.target.guest.isa,
            spec=record.spec,
            sizes=record.sizes,
            first=left.first,
            model=sample,
            enabled=False,
        )
        if record.spec.is_return:
            block = self._adopt_hook(block, left, arena)
        try:
            return self._adopt_code(block, record.enabled, arena)
        except BaseException:
            if isinstance(block, ReturnBlock):
                self.optimizer.rethooks.end(block.rethook, self.target.guest, arena)
            raise

    def _adopt_hook(self, block: CountBlock, left: BlockRecord, arena: Arena) -> ReturnBlock:
        """Return the returns of a block with what they shared. Raises OptprobeError where that is not what it was."""
        guest, entry, adopt = self.target.guest, self._shared_entry(left), self.optimizer.rethooks.adopt_shared
        if left.times is None:
            return ReturnBlock(**vars(block), rethook=adopt(entry, block, guest, arena))
        (at, bits), count = left.times, len(block.sites)
        memory = arena.earlier.data_at(at) if arena.earlier is not None else None
        if memory is None or bits < LEAST_BITS or memory.size < times_size(count, bits):
            raise OptprobeError("the memory of their times is not what this version would have")
        times = Times(memory, count, bits)
        timed = TimedReturns(timed_program(block.spec, block.sites[0], guest), times.table, bits)
        return ReturnBlock(**vars(block), rethook=adopt(entry, block, guest, arena, memory, timed), times=times)

    def shared_memory(self, left: ArenaContents) -> set[Slot]:
        """Return the tables of calls, and the memory of times, that blocks of an earlier GDB share."""
        known, blocks = self.optimizer.rethooks.known, left.live_blocks
        entries = {self._shared_entry(one) for one in blocks if one.probe.get("kind") == Kind.KRETPROBE.value}
        found = {one.memory for one in known if any(one.trampoline_at(at) is not None for at in entries)}
        return found.union(filter(None, (left.data_at(one.times[0]) for one in blocks if one.times is not None)))

    def _shared_entry(self, left: BlockRecord) -> int:
        """Return where the stubs of a block go to; 0 where they are none."""
        at = left.slot(left.members[0]).address
        insns = self.target.guest.isa.decode(self.target.guest.machine.read(at, left.step), at)
        return next((insn.target for insn in insns if insn.flow is Flow.JUMP and insn.target), 0)

    def _adopt_code(self, block: CountBlock, enabled: bool, arena: Arena) -> tuple[CountBlock, list[Probe]]:
        machine = self.target.guest.machine
        if any(block.with_number(number) is not None for number in self.registry.numbers()):
            raise OptprobeError("its numbers are those of other probes")
        code = block.detours()
        for piece, _ in block.pieces():
            start = piece.address - block.code.address
            if machine.read(piece.address, piece.size) != code[start : start + piece.size]:
                raise OptprobeError("its code is not what this version would write")
        with held():
            for piece, _ in block.pieces():
                arena.readopt(piece)
            self.registry.add_block(block)
            return block, self.switch(block, True) if enabled else []

    def leave(self, left: BlockRecord, release: bool = True) -> None:
        """Have the journal know that a block of an earlier GDB has no probes any more, but code that may be run yet.

        release: its data too, as far as nothing else has done so.
        """
        arena = self.optimizer.take_arena()
        arena.journal.drop(Item.BLOCK, left.code.address)
        for index in left.out:
            arena.journal.drop(Item.OUT, left.slot(index).address)
        for start, end in left.runs():
            self._note_left(left, left.first, start, end, arena)
            if release:
                arena.data.release(left.piece(start, end)[1])


def _objects(total: int, words: tuple[int, ...] | None) -> tuple[ObjectView, ...]:
    """Return what `report` shows of a function's times. words: of its histogram; None where it has found no room."""
    found = [ObjectView("sum($elapsed)", aggregate.Sum(signed=False), (RowView((), (total,)),), unit=NANOSECONDS)]
    if words is not None:
        found.append(ObjectView(HISTOGRAMS.name, HISTOGRAMS.aggregate, (RowView((), words),), unit=NANOSECONDS))
    return tuple(found)
