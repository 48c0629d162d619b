"""Probes at thousands of functions' entries, put in and taken out together (count_block.py).

    places and plans ──► blocks with memory ──► journal ──► code ──► branches        (block_planner.py)
A detour counts and calls nothing of the kernel's, so it is safe wherever the kernel may call its own tracer. With a
condition, or actions, that are the same at every function, all detours of a block call one routine (block_routines.py).
The journal has each block as one item before the first byte of it is written; code and counters are written and read
back in large pieces, the text by runs (guest/runs.py). What concerns one member is in block_members.py; what an earlier
GDB has left, in block_adoption.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.block import WORD
from gdb_optprobe.detours.detour import count_code
from gdb_optprobe.detours.lent_block import joined
from gdb_optprobe.detours.patch import TextChanged
from gdb_optprobe.detours.planner import Plan, may_share_detour
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import runs
from gdb_optprobe.guest.text import IdleSites
from gdb_optprobe.interrupts import held
from gdb_optprobe.isa.base import LONGEST, OutOfReach, Unrelocatable
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.routines import RoutineCalls
from gdb_optprobe.probes.block_members import BlockMembers
from gdb_optprobe.probes.block_planner import LEAST, BlockPlanner, least
from gdb_optprobe.probes.block_routines import BlockRoutines
from gdb_optprobe.probes.block_text import BlockText
from gdb_optprobe.probes.collector import Trigger
from gdb_optprobe.probes.count_block import CountBlock, call_code, call_offset
from gdb_optprobe.probes.entry_plans import Shape
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.routine import calls_of
from gdb_optprobe.probes.settings import Settings, sizes_of
from gdb_optprobe.probes.shared_returns import SharedReturns
from gdb_optprobe.probes.site_views import COUNTER_DISTANCE
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target

SLOT = 64
"""Bytes of code that most counts do not exceed."""


class BranchesStay(OptprobeError):
    """Branches were written, and may be in the text still after an error, which is `why`."""

    def __init__(self, why: str, what: str, blocks: Iterable[CountBlock]) -> None:
        ranges = joined((block.numbers.start, block.numbers.stop) for block in blocks)
        numbers = " ".join(f"{first}-{end - 1}" if end - first > 1 else f"{first}" for first, end in ranges)
        super().__init__(
            f"{why}; {what}",
            f"optprobe check says which of the probes are not there; optprobe delete {numbers} takes all out",
        )
        self.why = why


@dataclass(frozen=True, slots=True)
class _Planned:
    """What is put in of one spec: at tracer's `sites`, which have one plan, and by other `plans`."""

    spec: Spec
    handler: Handler
    sites: IdleSites
    plans: Sequence[Plan]


@dataclass(frozen=True)
class Batches:
    """What a session does to many probes at once."""

    target: Target
    registry: Registry
    optimizer: Optimizer
    settings: Callable[[], Settings]
    returns: SharedReturns
    routines: BlockRoutines
    planner: BlockPlanner
    members: BlockMembers
    text: BlockText = field(default_factory=BlockText)

    # into the guest --------------------------------------------------------------------------------------------------

    def add(self, spec: Spec, addresses: Sequence[int], may_lend: bool = True) -> list[CountBlock]:
        """Put probes of `spec` at those of `addresses` where a batch can: all of them, or none.

        Where branches could not be undone, their blocks are probes all the same.

        may_lend: whether they are put in anew, with more memory, where data find no room.
        Raises OptprobeError, the guest as it was; where returns find no room, too: each by itself takes far more.
        """
        return self.add_all([(spec, addresses)], may_lend)

    def add_all(self, parts: Iterable[tuple[Spec, Sequence[int]]], may_lend: bool = True) -> list[CountBlock]:
        """Do so with several specs, each at addresses of its own, by one write of the text."""
        # What one puts in is in the way of another one's plans: all are made before.
        planned = _apart(self._planned(parts, may_lend))
        if not planned:
            return []
        with held():
            self._make_room(sum(len(each.sites) + len(each.plans) for each in planned))
            blocks: list[CountBlock] = []
            try:
                for block in chain.from_iterable(self._allocated(each, may_lend) for each in planned):
                    blocks.append(block)
                if not blocks:
                    return []
                self._write(blocks, self.optimizer.take_arena())
            except BaseException:
                if blocks:
                    self._forget(blocks, self.optimizer.take_arena())
                raise
            for block in blocks:
                self.registry.add_block(block)
            for address in self._stopped_at(blocks):
                self.target.stops.take_back(address)
        return blocks

    def _planned(self, parts: Iterable[tuple[Spec, Sequence[int]]], may_lend: bool) -> list[_Planned]:
        """Return what blocks can have of these addresses."""
        wanted = [part for part in parts if self.planner.may_be_together(*part) and self.routines.may_share(part[0])]
        found: list[_Planned] = []
        for (spec, addresses), (sites, plans) in zip(wanted, self.planner.places(wanted), strict=True):
            if (handler := self._handler(spec, sites, plans, len(addresses), may_lend)) is not None:
                found.append(_Planned(spec, handler, sites, plans))
        return found

    def _handler(
        self, spec: Spec, sites: IdleSites, plans: Sequence[Plan], count: int, may_lend: bool
    ) -> Handler | None:
        """Return what they have in common; None where they have nothing."""

        def sample() -> Plan | None:
            found = self._sample(spec, sites)
            return found or next(iter(plans), None) if spec.is_recorded else found

        return self.routines.common_handler(spec, sample, count, may_lend)

    def _allocated(self, planned: _Planned, may_lend: bool) -> Iterator[CountBlock]:
        """Yield the blocks of one spec, with memory. Raises Refused where the kernel may lend what is lacking."""
        before = 0
        for block in self._allocate_traced(planned.spec, planned.handler, planned.sites, may_lend):
            before += len(block.sites)
            yield block
        yield from self._allocate_others(planned.spec, planned.handler, planned.plans, before)

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

    def fit_singly(self, blocks: Sequence[CountBlock], functions: int) -> bool:
        """Return whether so many functions more may have the actions of `blocks` each by itself.

        They must leave room for other probes, in the journal too.
        """
        arena = self.optimizer.arena
        routine = next((block.routine for block in blocks if block.handler.shared is not None), None)
        return arena is None or routine is None or 2 * functions * routine.installed.slot.size <= arena.code.largest

    def _sample(self, spec: Spec, sites: IdleSites) -> Plan | None:
        """Return the plan that all tracer's sites have; None where there are none, or none that all can have."""
        return self.planner.sample(sites.site(sites.addresses[0]), spec) if sites.addresses else None

    def _allocate_traced(
        self, spec: Spec, handler: Handler, sites: IdleSites, may_lend: bool
    ) -> Iterator[CountBlock]:
        if len(sites.addresses) < least(spec) or (sample := self._sample(spec, sites)) is None:
            return
        isa, arena = self.target.guest.isa, self.optimizer.take_arena()
        if spec.is_return and not _share_trampoline(arena, sample.head, isa):
            return
        try:
            at = arena.free_code(sample.head, isa.branch_reach)
            # The address of the first counter may end in zeros, which takes fewer instructions than the others'.
            second = arena.check_data(2 * WORD, at, isa.data_reach) + WORD
        except Refused:
            if spec.is_return:
                raise
            return
        lay_out = count_code if handler.is_plain else call_code
        size = self.returns.stub_size if spec.is_return else len(lay_out(sample, isa, at, second))
        step, (first, last) = arena.rounded(size), (sites.addresses[0], sites.addresses[-1] + len(sample.original))
        reaches = isa.branch_reach, isa.data_reach
        lacks = may_lend and arena.lacks_counts(len(sites.addresses), step, WORD, (first, last), *reaches)
        if lacks and self.optimizer.lacking() is not None:
            raise Refused(Refusal.ARENA_FULL.because(used=arena.code.used, size=arena.code.size))
        addresses = array("Q", sites.addresses[: arena.counts_that_fit(step, WORD)])
        if len(addresses) >= least(spec):
            originals = [sample.original] * len(addresses)
            yield from self._allocate(spec, handler, addresses, originals, size, [sample], is_uniform=True)

    def _allocate_others(
        self, spec: Spec, handler: Handler, plans: Sequence[Plan], before: int = 0
    ) -> Iterator[CountBlock]:
        """Yield blocks of those of `plans` that no thread is in the way of. before: members of `spec` elsewhere."""
        if len(plans) < least(spec):
            return
        guest, arena = self.target.guest, self.optimizer.take_arena()
        if spec.is_return and not _share_trampoline(arena, plans[0].head, guest.isa):
            return
        try:
            arena.free_code(plans[0].head, guest.isa.branch_reach)
        except Refused:  # those before have taken all
            if spec.is_return:
                raise
            return
        busy, is_plain = self.planner.busy(plans), handler.is_plain
        shapes: dict[tuple[Shape, RoutineCalls | None, int], list[Plan]] = {}
        lay_out, known = count_code if is_plain else call_code, self.planner.entry_plans
        new = [plan.head for plan in plans if plan.head not in busy and not known.has_shape(plan, lay_out)]
        free = arena.free_code_of_all(min(new), max(new), guest.isa.branch_reach) if new else None
        for plan in plans:
            calls = calls_of(guest.isa, plan.dead) if not is_plain else None
            if calls is not None and not _may_call(calls, plan, guest.isa, spec):
                continue
            if plan.head not in busy and (shape := known.shape(plan, guest.isa, arena, lay_out, free)) is not None:
                offset = 0
                if calls is not None and plan.head != plan.address:
                    at = arena.free_code(plan.head, guest.isa.branch_reach)
                    offset = call_offset(plan, guest.isa, at, at + COUNTER_DISTANCE)
                shapes.setdefault((shape, calls, offset), []).append(plan)
        ahead = runs.Ahead(guest.machine, sum(len(some) * arena.rounded(key[0].size) for key, some in shapes.items()))
        wipes = arena.wipes
        for (shape, _, offset), some in shapes.items():
            if arena.wipes != wipes:  # code was freed: for a block before, or its own where it was given up
                wipes = arena.wipes
                ahead.forget()
            sites = array("Q", [plan.head for plan in some])
            originals = [plan.original for plan in some]
            yield from self._allocate(
                spec, handler, sites, originals, shape.size, some, before=before, offset=offset, read=ahead.read
            )
            before += len(sites)

    def _allocate(
        self,
        spec: Spec,
        handler: Handler,
        sites: array[int],
        originals: Sequence[bytes],
        size: int,
        plans: Sequence[Plan],
        is_uniform: bool = False,
        before: int = 0,
        offset: int = 0,
        read: Callable[[int, int], bytes] | None = None,
    ) -> Iterator[CountBlock]:
        """Yield a block with memory; none where there is none, or its code cannot be laid out there.

        before, offset: see CountBlock. read: reads code that was free in this stop.
        """
        isa, arena = self.target.guest.isa, self.optimizer.take_arena()
        step, read = arena.rounded(size), read or self.target.guest.machine.read
        bounds = sites[0], sites[-1] + len(originals[-1])
        try:
            code, data = arena.allocate_counts(len(sites), step, WORD, bounds, isa.branch_reach, isa.data_reach)
        except Refused:
            if spec.is_return:
                raise
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
            before=before,
            offset=offset,
            plans=plans,
            installed_at=self.target.guest.moment(),
            handler=handler,
            laid_out=(known := self.planner.entry_plans).laid_out,
            moved=() if is_uniform else [known.moved(plan, isa) for plan in plans],
        )
        try:
            fits = arena.claim_block(code, read) and self.routines.install(block, arena)
            if fits and spec.is_return:
                block = self.optimizer.with_memory(lambda: self.returns.with_hook(block, arena), arena)
        except BaseException:
            arena.free_counts(code, data)
            self.routines.forget(block, arena)
            raise
        if not fits or not _can_be_laid_out(block):
            self.returns.forget(block, arena)
            arena.free_counts(code, data)
            self.routines.forget(block, arena)
            return
        block.first = self.registry.take_numbers(len(sites))
        yield block

    def _write(self, blocks: Sequence[CountBlock], arena: Arena) -> None:
        """Write counters, detours, flags and branches. Raises OptprobeError; text and flags are as they were then."""
        machine = self.target.guest.machine
        for block in blocks:
            self.members.note(block, arena)
        arena.journal.flush()
        written = dict[int, tuple[bytes, int]]()
        counters = sorted((block.data.address, block.data.end) for block in blocks)
        for (start, end), found in zip(counters, runs.read_spans(counters, machine), strict=True):
            if found != bytes(end - start):
                machine.write(start, bytes(end - start))
        for block in blocks:
            code, block.laid = block.laid or block.detours(), b""
            arena.write_block(block.code.address, code, block.step, machine)
            written[block.code.address] = code, block.step
        arena.check_blocks(written, machine)
        self._arm(blocks, arena)

    def _arm(self, blocks: Sequence[CountBlock], arena: Arena) -> None:
        """Lead the text to the detours, which are written. Raises OptprobeError, the text as it was, or the number of
        branches that could not be undone: the tracer is kept off these, and their blocks are enabled.
        """
        traced = _traced_sites(blocks)
        self.target.tracer.hold_all(traced)
        try:
            self.text.write(blocks, self.target.guest.machine)
        except BaseException as error:
            led = [self._led(block) for block in blocks]
            for block, found in zip(blocks, led, strict=True):
                if found is None or found:
                    block.enabled = True
                    self.members.note(block, arena)
            with suppress(Exception):  # a later change writes it
                arena.journal.flush()
            stay = {
                site
                for block, found in zip(blocks, led, strict=True)
                for site in (found if found is not None else [start for start, _ in block.places()])
            }
            with suppress(Exception):  # the first error tells; the tracer is kept off more sites than it has to be
                self.target.tracer.release_all([site for site in traced if site not in stay])
            if stay:
                known = "could not be undone" if None not in led else "may be in the text"
                there = [block for block, found in zip(blocks, led, strict=True) if found != []]
                what = f"{len(stay)} {'branch' if len(stay) == 1 else 'branches'} {known}"
                raise BranchesStay(str(error), what, there) from error
            raise

    def _led(self, block: CountBlock) -> list[int] | None:
        """Return the sites at which the text leads to the detours of a block; None where it cannot be read."""
        places = block.places()
        try:
            texts = runs.held(places, self.target.guest.machine)
        except Exception:  # of GDB's own errors too: the connection broke
            return None
        rows = zip(places, texts, block.branches(block.isa), strict=True)
        return [site for (site, _), text, branch in rows if text == branch]

    def _disarm(self, blocks: Sequence[CountBlock]) -> list[Probe]:
        """Take the branches out of the text. Return the members that leave their blocks instead: others have changed
        the text there. Raises OptprobeError, the text as it was.
        """
        alone = list[Probe]()
        try:
            self.text.take_away(blocks, self.target.guest.machine)
        except TextChanged:  # nothing was written
            alone = [probe for block in blocks for probe in self._unpack_changed(block)]
            self.text.take_away(blocks, self.target.guest.machine)
        self.target.tracer.release_all(_traced_sites(blocks))
        return alone

    def _forget(self, blocks: Sequence[CountBlock], arena: Arena) -> None:
        """Free what was allocated, unless a branch may lead there, one that could not be undone: it is listed then."""
        for block in blocks:
            if self._led(block) != []:
                self.registry.add_block(block)
                continue
            with suppress(Exception):  # the first error tells; memory that may hold code stays allocated
                arena.wipe([block.code], self.target.guest.machine)
                self.members.forget(block, arena)
                arena.free_counts(block.code, block.data)
                self.returns.forget(block, arena)
                self.routines.forget(block, arena)
        with suppress(Exception):  # a later change writes it
            arena.journal.flush()

    def _stopped_at(self, blocks: Sequence[CountBlock]) -> Collection[int]:
        """Return the sites of `blocks` that a vCPU is stopped at."""
        guest = self.target.guest
        found = []
        for vcpu in guest.machine.vcpus():
            with suppress(OptprobeError):
                found.append(guest.machine.registers(vcpu, [guest.isa.pc])[guest.isa.pc])
        return [pc for pc in found if any(block.at(pc) is not None for block in blocks)]

    # out of it, and on and off ---------------------------------------------------------------------------------------

    def remove(self, blocks: Sequence[CountBlock]) -> list[Probe]:
        """Take the probes of `blocks` out of the guest. Return those that others have changed: they leave it instead.

        Raises OptprobeError with all as it was.
        """
        if not blocks:
            return []
        arena = self.optimizer.arena
        assert arena is not None, "the blocks have memory"
        with held():
            # Read while nothing has changed: a block of unreadable code would be forgotten, and what it
            # leads to freed, with a thread inside.
            codes = [self._code_to_retire(block, arena) for block in blocks]
            alone = self._disarm([block for block in blocks if block.enabled])
            for block, code in zip(blocks, codes, strict=True):
                if len(block):
                    # Its code stays, in pieces, until no thread is in them.
                    self.members.drop(block, arena)
                    for start, end in block.runs():
                        self._retire_piece(block, start, end, code, arena)
            self.text.forget()
        self.returns.end_hooks()
        return alone

    def _unpack_changed(self, block: CountBlock) -> list[Probe]:
        """Have members leave an enabled block where the text is not theirs any more: by themselves they are reported.
        Those of which nothing is there, as where branches were half written, leave it disabled.
        """
        places = block.places()
        texts = runs.held(places, self.target.guest.machine)
        found = list(zip(block.members, texts, block.texts(), block.branches(block.isa), strict=True))
        changed = [index for index, text, old, own in found if text not in (old, own)]
        gone = [index for index, text, old, own in found if text == old]
        alone = [self.members.unpack(block, index) for index in changed]
        block.enabled = False
        try:
            alone += [self.members.unpack(block, index) for index in gone]
        finally:
            block.enabled = True
        if block.traced:
            self.target.tracer.release_all([block.sites[index] for index in gone])
        return alone

    def _code_to_retire(self, block: CountBlock, arena: Arena) -> bytes | None:
        """Return what the guest holds of a block's code; None where no thread has been there since it was put in."""
        guest = self.target.guest
        if block.installed_at == guest.moment() and not arena.has_retired_dispatchers:
            return None
        return guest.machine.read(block.code.address, block.code.size)

    def _retire_piece(self, block: CountBlock, start: int, end: int, held_now: bytes | None, arena: Arena) -> None:
        """Release the code and the data of some members, to which nothing leads any more. held_now: see
        `_code_to_retire`.
        """
        code, data = block.piece(start, end)
        guest = self.target.guest
        self.members.note_left(block, block.first, start, end, arena)
        if held_now is None:
            arena.wipe([code], guest.machine)
            arena.free_counts(code, data)
            self.returns.forget_counts(block)
        else:
            if not self.optimizer.rethooks.keep_counter(data):
                arena.data.release(data)
            at = code.address - block.code.address
            arena.retire(code, block.left_code(start, end, held_now[at : at + code.size], guest.isa))

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
            if on:
                alone = self._unpack_in_the_way(blocks)
                self._arm([block for block in blocks if len(block)], arena)
            else:
                alone = self._disarm(blocks)
            for block in (block for block in blocks if len(block)):
                block.enabled = on
                self.members.note(block, arena)
        for probe in alone:
            probe.enabled = on
        return alone

    def _unpack_in_the_way(self, blocks: Sequence[CountBlock]) -> list[Probe]:
        """Have members leave disabled blocks that cannot be written as they were: something came there meanwhile."""
        for block in blocks:  # they are in their own way
            self.registry.remove_block(block)
        try:
            ready = self.planner.ready(blocks)
        finally:  # a Ctrl-C interrupts planning
            for block in blocks:
                self.registry.add_block(block)
        return [
            self.members.unpack(block, index)
            for block in blocks
            for index in list(block.members)
            if block.sites[index] not in ready
        ]

    def resettle(self) -> None:
        """Unpack the blocks that settings, or breakpoints of the user, do not let be as they are any more."""
        stops = self.target.debugger.breakpoints()
        for block in list(self.registry.blocks):
            fits = may_share_detour(self.optimizer.limits([block.spec]))
            near = {index for at in stops for index in block.within(at - LONGEST, at + 1)}
            for index in list(block.members) if not fits else sorted(near):
                self.members.unpack(block, index)

    # is it there? ----------------------------------------------------------------------------------------------------

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
        for block in self.registry.blocks:
            places = block.places()
            texts = runs.held(places, guest.machine)
            for (address, _), text, own in zip(places, texts, block.branches(block.isa), strict=True):
                if block.enabled and text != own:
                    found.append(TextChanged(address, own, text).message)
                elif not block.enabled and text == own:
                    found.append(f"the branch at {guest.text.spell(address)} is there, and its probe is disabled")
            for start, end in block.runs():
                piece, _ = block.piece(start, end)
                code, held_now = block.detours(start, end), guest.machine.read(piece.address, piece.size)
                for index in range(start, end) if code != held_now else ():
                    part = slice((index - start) * block.step, (index - start + 1) * block.step)
                    if held_now[part] != code[part]:
                        found.append(f"the detour of {guest.text.spell(block.sites[index])} was changed")
        return found


def _share_trampoline(arena: Arena, head: int, isa: Isa) -> bool:
    """Return whether code near a function at `head` may have the trampoline of all: else each has one of its own."""
    return arena.trampolines_near(head, isa.branch_reach) == head


def _may_call(calls: RoutineCalls, plan: Plan, isa: Isa, spec: Spec) -> bool:
    """Return whether a detour of `plan` may call a routine so: all of a block must, which recorded hits alone know."""
    return calls.clobbers <= plan.dead.registers and (spec.is_recorded or calls is isa.routines[0])


def _apart(planned: Sequence[_Planned]) -> Sequence[_Planned]:
    """Return the same without the plans of recorded hits that displace a byte that another one does."""
    plans = sorted((plan for each in planned for plan in each.plans), key=lambda plan: plan.head)
    meet = {plan.head for pair in pairwise(plans) if pair[1].head < pair[0].end for plan in pair}
    return [
        replace(each, plans=[plan for plan in each.plans if plan.head not in meet]) if each.spec.is_recorded else each
        for each in planned
    ]


def _can_be_laid_out(block: CountBlock) -> bool:
    """Return whether the code of a block can be where its memory is, and branches can lead there. It is kept for
    `_write`.
    """
    try:
        code = block.laid = block.detours()
        block.branches(block.isa)
    except (OutOfReach, Unrelocatable):
        return False
    # All detours at sites are alike: two of them are compared with what the compiler makes.
    for index in (0, len(block.sites) - 1):
        made = block.detour(index).data
        assert code[index * block.step :][: len(made)] == made
    return not block.offset or all(map(block.calls_in_place, block.members))


def _traced_sites(blocks: Iterable[CountBlock]) -> list[int]:
    """Return the tracer's sites of blocks, ascending."""
    return sorted(block.sites[index] for block in blocks if block.traced for index in block.members)
