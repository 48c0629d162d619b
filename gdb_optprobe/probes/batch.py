"""Counts at thousands of functions' entries, put in and taken out together (count_block.py).

    addresses ──► tracer's sites that are idle ──► one block, one plan for all ──────┐
            └───► other entries, each planned  ──► a block for each size and cost ───┴─► journal ─► code ─► branches
                  nothing of the user's or of another probe may be in their functions
A site is one instruction that nothing else rewrites: the tracer's nop, or what is at the function's entry before it. So
its plan is known without decoding, and no thread can be inside it. Plans of other entries are kept as long as they hold
(entry_plans.py). A detour counts and calls nothing of the kernel's, so it is safe wherever the kernel may call its own
tracer. With a condition that is the same at every function, all detours of a block call one routine (routine.py). The
journal has each block as one item before the first byte of it is written; code and counters are written and read back
in large pieces, the text by runs (guest/runs.py).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.arena_contents import BlockRecord, block_value
from gdb_optprobe.detours.block import WORD, Block
from gdb_optprobe.detours.detour import Detour, build_count
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.patch import TextChanged
from gdb_optprobe.detours.planner import Plan, may_share_detour
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError, Unreachable, Unreadable
from gdb_optprobe.guest import runs
from gdb_optprobe.guest.text import FtraceSite, IdleSites
from gdb_optprobe.handlers.lower_expressions import NotLowered
from gdb_optprobe.handlers.lower_routine import Callers
from gdb_optprobe.interrupts import held
from gdb_optprobe.isa.base import LONGEST, Code, OutOfReach, Unrelocatable
from gdb_optprobe.probes import quiescence_wait
from gdb_optprobe.probes.branch import Branch, PreservedRegisters, ProgramPart
from gdb_optprobe.probes.collector import Trigger
from gdb_optprobe.probes.count_block import CountBlock, build_call, calls_of
from gdb_optprobe.probes.entry_plans import EntryPlans, Shape
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.installed_detour import InstalledDetour
from gdb_optprobe.probes.journal_records import ProbeRecord, fingerprint, probe_value, write_probe
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.routine import Routine, install_routine, is_same_everywhere, may_be_called, routine_code
from gdb_optprobe.probes.settings import Settings, sizes_of, with_sizes
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target

LEAST = 64
"""Probes that are worth a batch."""
SLOT = 64
"""Bytes of code that most counts do not exceed."""
SAMPLES = 16
"""Members of which one must be planned as it was, for a block of which all are alike."""
_PRESERVED = PreservedRegisters()
Change = tuple[tuple[int, int], bytes, bytes]
"""A place in the text, as (start, end), what it holds before and what it holds after."""


@dataclass(frozen=True)
class Batches:
    """What a session does to many counts at once. compile: see Kprobes.compile.

    routines: in the guest, those of blocks that are gone too, while a member's detour calls them.
    """

    target: Target
    registry: Registry
    optimizer: Optimizer
    settings: Callable[[], Settings]
    compile: Callable[[Spec, Plan, Settings], Handler]
    routines: list[Routine] = field(default_factory=list)
    plans: EntryPlans = field(default_factory=EntryPlans)

    def __post_init__(self) -> None:
        self.registry.unpack = self.unpack

    # into the guest --------------------------------------------------------------------------------------------------

    def add(self, spec: Spec, addresses: Sequence[int]) -> list[CountBlock]:
        """Put a count of `spec` at those of `addresses` where a batch can: all of them, or none.

        Raises OptprobeError, the guest as it was.
        """
        if not self._may_be_together(spec, addresses):
            return []
        sites = self._free(self.target.guest.idle_sites(addresses))
        handler = self._common_handler(spec, sites, self.settings())
        if handler is None:
            return []
        others = self._plans_of(spec, set(addresses).difference(sites.addresses))
        with held():
            self._make_room(len(addresses))
            blocks = [*self._allocate_traced(spec, handler, sites), *self._allocate_others(spec, handler, others)]
            if not blocks:
                return []
            arena = self.optimizer.take_arena()
            try:
                self._write(blocks, arena)
            except BaseException:
                self._forget(blocks, arena)
                raise
            for block in blocks:
                self.registry.add_block(block)
            for address in self._stopped_at(blocks):
                self.target.stops.take_back(address)
        return blocks

    def _make_room(self, counts: int) -> None:
        """Free what no thread is inside, where there may be no room for so many counts."""
        arena = self.optimizer.arena
        if arena is not None and (arena.data.dirty or arena.dirty()) and arena.counts_that_fit(SLOT, WORD) < counts:
            self.optimizer.collector.collect(arena, Trigger.MEMORY)

    @property
    def is_full(self) -> bool:
        """Return whether there is no room for more counts."""
        arena = self.optimizer.arena
        return arena is not None and arena.counts_that_fit(SLOT, WORD) < LEAST

    def stopping(self, spec: Spec, addresses: Collection[int]) -> set[int]:
        """Return those of `addresses` that can be probed only where each hit stops the guest, or not at all."""
        self.plans.of(sorted(addresses), self.target.guest, self.optimizer.limits([spec]), self._planner(spec))
        return {address for address in addresses if self.plans.stops(address)}

    def stops(self, spec: Spec, address: int) -> bool:
        """Return whether `stopping` has an address; from what is known, where that is enough."""
        if not self.plans.has(address):
            return bool(self.stopping(spec, [address]))
        return self.plans.stops(address)

    def _planner(self, spec: Spec) -> Callable[[int], Plan]:
        return lambda address: self.optimizer.plan(address, [spec])

    def _may_be_together(self, spec: Spec, addresses: Sequence[int]) -> bool:
        if not spec.counts_hits or spec.is_return or spec.in_program or spec.has_python_handler:
            return False
        return len(addresses) >= LEAST and may_share_detour(self.optimizer.limits([spec]))

    def _common_handler(self, spec: Spec, sites: IdleSites, settings: Settings) -> Handler | None:
        """Return what a hit does at each function; None where that is not the same at all of them."""
        if spec.is_plain_count:
            return Handler()
        if not is_same_everywhere(spec) or not sites.addresses:
            return None
        if (sample := self._sample(sites.site(sites.addresses[0]), spec)) is None:
            return None
        try:
            found = self.compile(spec, sample, settings).made_bare()
        except (Unreadable, Unreachable):
            raise
        except OptprobeError:  # one by one it is said of which functions, and where in the line
            return None
        return found if found and may_be_called(found, sample.dead, self.target.guest.isa) else None

    def _allocate_traced(self, spec: Spec, handler: Handler, sites: IdleSites) -> Iterator[CountBlock]:
        if len(sites.addresses) < LEAST or (sample := self._sample(sites.site(sites.addresses[0]), spec)) is None:
            return
        isa, arena = self.target.guest.isa, self.optimizer.take_arena()
        try:
            at = arena.free_code(sample.head, isa.branch_reach)
            # The address of the first counter may end in zeros, which takes fewer instructions than the others'.
            second = arena.check_data(2 * WORD, at, isa.data_reach) + WORD
        except Refused:
            return
        size = self._lay_out(sample, handler, at, second).size
        addresses = array("Q", sites.addresses[: arena.counts_that_fit(arena.rounded(size), WORD)])
        if len(addresses) >= LEAST:
            originals = [sample.original] * len(addresses)
            yield from self._allocate(spec, handler, addresses, originals, size, [sample], is_uniform=True)

    def _lay_out(self, plan: Plan, handler: Handler, at: int, counter: int) -> Detour:
        """Return the detour of a member at `at`, with a counter, or a routine, at `counter`.

        Raises Unrelocatable, OutOfReach.
        """
        isa = self.target.guest.isa
        return build_count(plan, isa, at, counter) if handler.is_plain else build_call(plan, isa, at, counter)

    def _allocate_others(self, spec: Spec, handler: Handler, plans: Sequence[Plan]) -> Iterator[CountBlock]:
        """Yield blocks of those of `plans` that no thread is in the way of."""
        if len(plans) < LEAST:
            return
        guest, arena = self.target.guest, self.optimizer.take_arena()
        busy = self._busy(plans)
        shapes: dict[Shape, list[Plan]] = {}
        if not handler.is_plain:
            plans = [plan for plan in plans if calls_of(guest.isa).clobbers <= plan.dead.registers]
        lay_out = build_count if handler.is_plain else build_call
        for plan in plans:
            if plan.head not in busy and (shape := self.plans.shape(plan, guest.isa, arena, lay_out)) is not None:
                shapes.setdefault(shape, []).append(plan)
        for shape, some in shapes.items():
            sites = array("Q", [plan.head for plan in some])
            yield from self._allocate(spec, handler, sites, [plan.original for plan in some], shape.size, some)

    def _busy(self, plans: Sequence[Plan]) -> frozenset[int]:
        """Return the heads of those of `plans` that a thread may be inside of. One scan serves all."""
        waits = [plan for plan in plans if self.optimizer.must_be_quiescent(plan)]
        arena = self.optimizer.arena
        if waits and arena is not None and arena.retired:
            self.optimizer.collector.collect(arena, Trigger.BRANCH)
        found = quiescence_wait.find_busy(waits, (), self.target.guest, arena)
        return frozenset(head for head, why in found.items() if why)

    def _plans_of(self, spec: Spec, addresses: Collection[int]) -> list[Plan]:
        """Return plans for those of `addresses` that have no tracer's site and nothing else in their functions."""
        guest = self.target.guest
        occupied = sorted({*self.target.debugger.breakpoints(), *self._occupied()})

        def is_alone(address: int) -> bool:
            start, end = guest.bounds(address) or (address, address + 1)
            place = bisect_left(occupied, start)
            inside = place < len(occupied) and occupied[place] < end
            return not inside and not any(block.has_within(start, end) for block in self.registry.blocks)

        alone = [address for address in sorted(addresses) if is_alone(address)]
        limits = self.optimizer.limits([spec])
        found = self.plans.of(alone, guest, limits, self._planner(spec))
        for plan in self.plans.trapped(alone):  # they are installed one by one
            self.optimizer.expect_plan(plan, limits)
        return found

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
        isa, insn = self.target.guest.isa, plan.insn
        whole = len(plan.displaced) == 1 and insn.data == site.idle and insn.address == site.address
        alike = plan.ftrace == site or (plan.ftrace is None and isa.moves_as_it_is(insn))
        # What a register holds at one function's entry may not be there at another's; what a tracer may clobber is dead
        # at each.
        dead = isa.dead_at_entry()
        clobbered = dead.registers <= plan.dead.registers and dead.flags <= plan.dead.flags
        same = plan.tier is Tier.OPTIMIZED and whole and alike and clobbered
        return replace(plan, dead=dead, base=None) if same else None

    def _allocate(
        self,
        spec: Spec,
        handler: Handler,
        sites: array[int],
        originals: Sequence[bytes],
        size: int,
        plans: Sequence[Plan],
        is_uniform: bool = False,
    ) -> Iterator[CountBlock]:
        """Yield a block with memory; none where there is none, or its code cannot be laid out there."""
        isa, arena = self.target.guest.isa, self.optimizer.take_arena()
        step = arena.rounded(size)
        bounds = sites[0], sites[-1] + len(originals[-1])
        try:
            code, data = arena.allocate_counts(len(sites), step, WORD, bounds, isa.branch_reach, isa.data_reach)
        except Refused:
            return
        block = CountBlock(
            sites=sites,
            originals=originals,
            code=code,
            data=data,
            step=step,
            traced=plans[0].ftrace is not None,
            is_uniform=is_uniform,
            isa=isa,
            spec=spec,
            sizes=sizes_of(self.settings()),
            first=0,
            plans=plans,
            installed_at=self.target.guest.moment(),
            handler=handler,
        )
        if not arena.claim_block(code, self.target.guest.machine) or not self._has_routine(block, arena):
            arena.free_counts(code, data)
            return
        if not _can_be_laid_out(block):
            arena.free_counts(code, data)
            self.tidy()
            return
        block.first = self.registry.take_numbers(len(sites))
        yield block

    def _has_routine(self, block: CountBlock, arena: Arena) -> bool:
        """Write the routine that a block needs; return whether it has one now, or needs none. Raises OptprobeError."""
        if block.handler.is_plain:
            return True
        try:
            block.routine = install_routine(self._routine_code(block), block.code, self.target.guest, arena)
        except (Refused, NotLowered):
            return False
        self.routines.append(block.routine)
        return True

    def _routine_code(self, block: CountBlock) -> Code:
        """Return the code of a block's routine. Raises NotLowered."""
        callers = Callers(block.code.address, block.step)
        return routine_code(block.handler, callers, block.data.address, block.dead, block.isa)

    def tidy(self) -> None:
        """Release the routines that no detour calls any more which something leads to. Raises OptprobeError."""
        arena = self.optimizer.arena
        used = {id(block.routine) for block in self.registry.blocks}
        for routine in list(self.routines):
            callers = routine.callers
            detours = (one.detour.address for one in (*self.registry.branches(), *self.optimizer.lost_branches()))
            if arena is None or id(routine) in used or any(callers.address <= at < callers.end for at in detours):
                continue
            self.routines.remove(routine)
            routine.release(self.target.guest, arena)

    def routine_at(self, pc: int) -> Routine | None:
        """Return the routine that `pc` is in."""
        return next((routine for routine in self.routines if routine.has(pc)), None)

    def _write(self, blocks: Sequence[CountBlock], arena: Arena) -> None:
        """Write counters, detours, flags and branches. Raises OptprobeError; text and flags are as they were then."""
        machine = self.target.guest.machine
        for block in blocks:
            self._note(block, arena)
        arena.journal.flush()
        for block in blocks:
            machine.write(block.data.address, bytes(block.data.size))
            arena.write_block(block.code.address, block.detours(), block.step, machine)
        self._arm(blocks)

    def _note(self, block: CountBlock, arena: Arena) -> None:
        """Have the journal know the block as it is now."""
        value = probe_value(self._probe(block, 0))
        for name in ("at", "data"):
            value.pop(name, None)
        if block.routine is not None:
            value["routine"] = block.routine.address
        arena.journal.put(Item.BLOCK, block.code.address, block_value(block, block.first, value))

    def _arm(self, blocks: Sequence[CountBlock]) -> None:
        """Lead the text to the detours, which are written. Raises OptprobeError, the text as it was."""
        traced = _traced_sites(blocks)
        self.target.tracer.hold_all(traced)
        try:
            self._exchange(_changes(blocks))
        except BaseException:
            self.target.tracer.release_all(traced)
            raise

    def _disarm(self, blocks: Sequence[CountBlock]) -> None:
        """Take the branches out of the text. Raises OptprobeError, the text as it was."""
        self._exchange((place, new, old) for place, old, new in _changes(blocks))
        self.target.tracer.release_all(_traced_sites(blocks))

    def _exchange(self, changes: Iterable[Change]) -> None:
        """Write the second bytes in place of the first at each place: what lies near each other is written at once."""
        ordered = sorted(changes)
        places, old, new = zip(*ordered, strict=True) if ordered else ((), (), ())
        patch.exchange_in_runs(places, old, new, self.target.guest.machine)

    def _forget(self, blocks: Sequence[CountBlock], arena: Arena) -> None:
        """Free what was allocated, unless a branch leads there: one that could not be undone."""
        machine = self.target.guest.machine
        for block in blocks:
            places = block.places()
            texts = runs.at(places, runs.read(places, machine))
            if any(text == branch for text, branch in zip(texts, block.branches(block.isa), strict=True)):
                continue
            arena.wipe([block.code], machine)
            arena.free_counts(block.code, block.data)
        self.tidy()
        arena.journal.flush()

    def _stopped_at(self, blocks: Sequence[CountBlock]) -> Collection[int]:
        """Return the sites of `blocks` that a vCPU is stopped at."""
        guest = self.target.guest
        found = []
        for vcpu in guest.machine.vcpus():
            with suppress(OptprobeError):
                found.append(guest.machine.registers(vcpu, [guest.isa.pc])[guest.isa.pc])
        return [pc for pc in found if any(block.at(pc) is not None for block in blocks)]

    # one of it -------------------------------------------------------------------------------------------------------

    def _probe(self, block: CountBlock, index: int) -> Probe:
        return Probe(
            block.first + index,
            block.spec,
            block.sites[index],
            block.handler,
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
            called = block.routine.installed.detour if block.routine is not None else None
            parts = (ProgramPart(probe.address, probe.number, start, end, called),)
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
        slot, journal = block.slot(index), arena.journal
        self._carve(block, index, arena)
        journal.code(slot, block.detour(index))
        if site.branch is not None:
            journal.text(site.address, block.originals[index], block.traced)
        else:
            arena.retire(slot, block.detour(index))
        write_probe(probe, journal)
        site.probes.clear()
        self.registry.add(probe, site)
        if site.branch is not None:
            self.registry.add_branch(site.branch)
            self.optimizer.links.add(site.branch, link=False)
        if not len(block):
            self._drop(block, arena)
        return probe

    def _carve(self, block: CountBlock, index: int, arena: Arena) -> None:
        """Give a member's code and counter items of their own, and take it out of the block."""
        slot, counter = block.slot(index), block.counter(index)
        whole_code, whole_data = block.piece(*block.run_of(index))
        arena.journal.put(Item.OUT, slot.address, 1)
        arena.carve_count((whole_code, slot), (whole_data, counter))
        block.take_out(index)

    def _drop(self, block: CountBlock, arena: Arena) -> None:
        """Forget a block: none of its members is in it any more, or its pieces have items of their own."""
        self.registry.remove_block(block)
        arena.journal.drop(Item.BLOCK, block.code.address)
        for index in block.out:
            arena.journal.drop(Item.OUT, block.slot(index).address)

    # all of it -------------------------------------------------------------------------------------------------------

    def remove(self, blocks: Sequence[CountBlock]) -> list[Probe]:
        """Take the probes of `blocks` out of the guest. Return those that others have changed: they leave it instead.

        Raises OptprobeError with all as it was.
        """
        if not blocks:
            return []
        arena = self.optimizer.arena
        assert arena is not None, "the blocks have memory"
        with held():
            alone = [probe for block in blocks for probe in self._unpack_changed(block)]
            blocks = [block for block in blocks if len(block)]
            self._disarm([block for block in blocks if block.enabled])
            for block in blocks:
                # Its code stays, in pieces, until no thread is in them.
                self._drop(block, arena)
                for start, end in block.runs():
                    self._retire_piece(block, start, end, arena)
        return alone

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

    def _retire_piece(self, block: CountBlock, start: int, end: int, arena: Arena) -> None:
        """Release the code and the data of some members, to which nothing leads any more."""
        code, data = block.piece(start, end)
        guest = self.target.guest
        self._note_left(block, block.first, start, end, arena)
        if block.installed_at == guest.moment() and not arena.has_retired_dispatchers:
            arena.wipe([code], guest.machine)
            arena.free_counts(code, data)
        else:
            arena.data.release(data)
            arena.retire(code, block.left_code(start, end, guest.machine.read(code.address, code.size), guest.isa))

    def _note_left(self, block: Block, first: int, start: int, end: int, arena: Arena) -> None:
        """Have the journal know code and data of some members, that are no probes any more."""
        code, data = block.piece(start, end)
        left = Block(
            sites=block.sites[start:end],
            originals=block.originals[start:end],
            code=code,
            data=data,
            step=block.step,
            traced=block.traced,
            is_uniform=block.is_uniform,
        )
        arena.journal.put(Item.BLOCK, code.address, block_value(left, first + start, None))

    def switch(self, blocks: Sequence[CountBlock], on: bool) -> list[Probe]:
        """Enable or disable all members. Return those that must be settled by themselves.

        Raises OptprobeError with all as it was.
        """
        blocks = [block for block in blocks if block.enabled != on]
        if not blocks:
            return []
        arena = self.optimizer.arena
        assert arena is not None, "the blocks have memory"
        with held():
            alone = self._unpack_in_the_way(blocks) if on else [
                probe for block in blocks for probe in self._unpack_changed(block)
            ]
            blocks = [block for block in blocks if len(block)]
            (self._arm if on else self._disarm)(blocks)
            for block in blocks:
                block.enabled = on
                self._note(block, arena)
        for probe in alone:
            probe.enabled = on
        return alone

    def _unpack_in_the_way(self, blocks: Sequence[CountBlock]) -> list[Probe]:
        """Have members leave disabled blocks that cannot be written as they were: something came there meanwhile."""
        for block in blocks:  # they are in their own way
            self.registry.blocks.remove(block)
        ready = self._ready(blocks)
        for block in blocks:
            self.registry.add_block(block)
        return [
            self.unpack(block, index)
            for block in blocks
            for index in list(block.members)
            if block.sites[index] not in ready
        ]

    def _ready(self, blocks: Sequence[CountBlock]) -> frozenset[int]:
        """Return the sites of disabled blocks that can be written as they are."""
        sites = [block.sites[index] for block in blocks if block.is_uniform for index in block.members]
        idle = self._free(self.target.guest.idle_sites(sites)).addresses
        others = [block.sites[index] for block in blocks if not block.is_uniform for index in block.members]
        plans = self._plans_of(blocks[0].spec, others)
        return frozenset([*idle, *(plan.head for plan in plans)]) - self._busy(plans)

    def resettle(self) -> None:
        """Unpack the blocks that settings, or breakpoints of the user, do not let be as they are any more."""
        stops = self.target.debugger.breakpoints()
        for block in list(self.registry.blocks):
            fits = may_share_detour(self.optimizer.limits([block.spec]))
            near = {index for at in stops for index in block.within(at - LONGEST, at + 1)}
            for index in list(block.members) if not fits else sorted(near):
                self.unpack(block, index)

    def is_something_left(self, block: CountBlock) -> bool:
        """Return whether the guest holds the branch or the detour of the first member. Raises Unreadable."""
        machine, index = self.target.guest.machine, block.members[0]
        change, detour = block.patch(index), block.detour(index)
        return machine.read(change.address, len(change.new)) == change.new or (
            machine.read(detour.address, detour.size) == detour.data
        )

    def problems(self) -> list[str]:
        """Return where memory does not hold what was written for blocks, in words."""
        found = []
        guest = self.target.guest
        for routine in self.routines:
            detour = routine.installed.detour
            if guest.machine.read(detour.address, detour.size) != detour.data:
                found.append(f"the program at {detour.address:#x} that many detours call was changed")
        for block in self.registry.blocks:
            places = block.places()
            texts = runs.at(places, runs.read(places, guest.machine))
            for (address, _), text, own in zip(places, texts, block.branches(block.isa), strict=True):
                if block.enabled and text != own:
                    found.append(TextChanged(address, own, text).message)
            for start, end in block.runs():
                piece, _ = block.piece(start, end)
                code, held_now = block.detours(start, end), guest.machine.read(piece.address, piece.size)
                for index in range(start, end) if code != held_now else ():
                    part = slice((index - start) * block.step, (index - start + 1) * block.step)
                    if held_now[part] != code[part]:
                        found.append(f"the detour of {guest.text.spell(block.sites[index])} was changed")
        return found

    # of an earlier GDB -----------------------------------------------------------------------------------------------

    def adopt(self, left: BlockRecord, record: ProbeRecord) -> tuple[CountBlock, list[Probe]]:
        """Take over a block of an earlier GDB, of which the branches were removed, with its code and its counters.

        record: of its first probe. The block is disabled: only when all are taken over, other code may be collected.
        Return it, and members that are probes of their own now: something came to their functions meanwhile.
        Raises OptprobeError where it would not be what it was; its code is left then as retired.
        """
        arena, machine = self.optimizer.take_arena(), self.target.guest.machine
        plans = self._plans_again(left, record.spec)
        alone = [index for index in left.members if left.sites[index] not in plans]
        some_plan = next(iter(plans.values()), None)
        if some_plan is None:
            raise OptprobeError("its functions cannot be probed together any more")
        block = CountBlock(
            sites=left.sites,
            originals=left.originals,
            code=left.code,
            data=left.data,
            step=left.step,
            traced=left.traced,
            is_uniform=left.is_uniform,
            out=sorted([*left.out, *alone]),
            isa=self.target.guest.isa,
            spec=record.spec,
            sizes=record.sizes,
            first=left.first,
            plans=[plans.get(site, some_plan) for site in left.sites],
            enabled=False,
            handler=self._handler_again(record, some_plan),
        )
        if any(left.has(number - left.first) for number in self.registry.numbers()):
            raise OptprobeError("its numbers are those of other probes")
        if record.routine is not None:
            self._adopt_routine(block, record.routine, arena)
        for start, end in block.runs():
            piece, _ = block.piece(start, end)
            if machine.read(piece.address, piece.size) != block.detours(start, end):
                self.tidy()
                raise OptprobeError("its code is not what this version would write")
        own = {index: self.optimizer.plan(left.sites[index], [record.spec]) for index in alone}
        with held():
            for piece, _ in left.pieces():
                arena.readopt(piece)
            block.out = list(left.out)
            probes = [self._adopt_alone(block, index, plan, record.enabled, arena) for index, plan in own.items()]
            self.registry.add_block(block)
            if not len(block):
                self._drop(block, arena)
        return block, probes

    def _handler_again(self, record: ProbeRecord, plan: Plan) -> Handler:
        """Return what a hit of an earlier GDB's block does. Raises OptprobeError where it would be something else."""
        if record.spec.is_plain_count:
            return Handler()
        settings = with_sizes(self.settings(), record.sizes)
        found = self.compile(record.spec, plan, settings).made_bare()
        if found is None or record.routine is None or fingerprint(found) != record.program:
            raise OptprobeError("it would not do here what it did there")
        if not is_same_everywhere(record.spec) or not may_be_called(found, plan.dead, self.target.guest.isa):
            raise OptprobeError("its functions cannot be probed together any more")
        return found

    def _adopt_routine(self, block: CountBlock, address: int, arena: Arena) -> None:
        """Take over the routine of an earlier GDB's block. Raises OptprobeError where it is not what it would be."""
        wanted = self._routine_code(block)(address)
        found = arena.reuse(lambda one: (one.address, one.head, one.data) == (address, address, wanted))
        if found is None:
            raise OptprobeError("its code is not what this version would write")
        block.routine = Routine(InstalledDetour(*found), block.code)
        self.routines.append(block.routine)

    def _adopt_alone(self, block: CountBlock, index: int, plan: Plan, enabled: bool, arena: Arena) -> Probe:
        """Make a member of which the plan is another now a probe of its own, not yet settled. Its code is left."""
        probe, slot = replace(self._probe(block, index), enabled=enabled), block.slot(index)
        left = block.left_code(index, index + 1, self.target.guest.machine.read(slot.address, slot.size), block.isa)
        self._carve(block, index, arena)
        arena.journal.code(slot, left)
        arena.retire(slot, left)
        self.registry.add(probe, Site(probe.address, plan))
        return probe

    def _plans_again(self, left: BlockRecord, spec: Spec) -> dict[int, Plan]:
        """Return the plans of an earlier GDB's block, made anew, by address; none where one is another now."""
        if not left.is_uniform:
            return {plan.head: plan for plan in self._plans_of(spec, [left.sites[index] for index in left.members])}
        # All have the same: whether each can be written is asked when it is.
        for index in left.members[:: max(1, len(left) // SAMPLES)]:
            address, original = left.sites[index], left.originals[index]
            if (sample := self._sample(FtraceSite(address, len(original), False, original), spec)) is not None:
                return dict.fromkeys(left.sites, sample)
        return {}

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


def _can_be_laid_out(block: CountBlock) -> bool:
    """Return whether the code of a block can be where its memory is, and branches can lead there."""
    try:
        code = block.detours()
        block.branches(block.isa)
    except (OutOfReach, Unrelocatable):
        return False
    # All detours at sites are alike: two of them are compared with what the compiler makes.
    for index in (0, len(block.sites) - 1):
        made = block.detour(index).data
        assert code[index * block.step :][: len(made)] == made
    return True


def _changes(blocks: Iterable[CountBlock]) -> Iterator[Change]:
    """Yield the change of the text at each member."""
    for block in blocks:
        yield from zip(block.places(), block.texts(), block.branches(block.isa), strict=True)


def _traced_sites(blocks: Iterable[CountBlock]) -> list[int]:
    return [block.sites[index] for block in blocks if block.traced for index in block.members]
