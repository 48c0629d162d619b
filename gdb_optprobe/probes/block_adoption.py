"""Blocks of an earlier GDB: taken over with their code and their counters, or left as code that may be run yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.arena_contents import BlockRecord, block_value
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.plan_request import TierLimits
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.text import FtraceSite
from gdb_optprobe.interrupts import held
from gdb_optprobe.isa.base import Dead, OutOfReach, Unrelocatable
from gdb_optprobe.probes.block_members import BlockMembers
from gdb_optprobe.probes.block_planner import BlockPlanner
from gdb_optprobe.probes.block_routines import BlockRoutines
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.journal_records import ProbeRecord
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.shared_maps import SharedMaps
from gdb_optprobe.probes.shared_returns import SharedReturns
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target

SAMPLES = 16
"""Members of which one must be planned as it was, for a block of which all are alike."""


@dataclass(frozen=True)
class BlockAdoption:
    """What another session does to the blocks that a killed one has left."""

    target: Target
    registry: Registry
    optimizer: Optimizer
    returns: SharedReturns
    routines: BlockRoutines
    planner: BlockPlanner
    members: BlockMembers

    def plan(self, left: Iterable[tuple[BlockRecord, Spec]]) -> None:
        """Plan the members of all blocks that are not alike: what they have in common is done once."""
        wanted: dict[TierLimits, tuple[Spec, list[int]]] = {}
        for block, spec in left:
            if not block.is_uniform:
                _, sites = wanted.setdefault(self.optimizer.limits([spec]), (spec, []))
                sites += (block.sites[index] for index in block.members)
        for spec, sites in wanted.values():
            self.planner.plans_of(spec, sites)

    def adopt(
        self, left: BlockRecord, record: ProbeRecord, maps: SharedMaps | None
    ) -> tuple[CountBlock, list[Probe]]:
        """Take over a block of an earlier GDB, of which the branches were removed, with its code and its counters.

        record: of its first probe. maps: that it shares. The block is disabled: only when all are taken over, other
        code may be collected. Return it, and members that are probes of their own now: something came to their
        functions meanwhile.
        Raises OptprobeError where it would not be what it was; its code is left then as retired.
        """
        arena = self.optimizer.take_arena()
        plans = self._plans_again(left, record.spec)
        alone = [index for index in left.members if left.sites[index] not in plans]
        some_plan = next(iter(plans.values()), None)
        if some_plan is None:
            raise OptprobeError("its functions cannot be probed together any more")
        dead = some_plan.dead if left.is_uniform else Dead()  # as CountBlock.dead
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
            handler=self.routines.handler_again(record, some_plan, dead, maps),
        )
        if any(left.has(number - left.first) for number in self.registry.numbers()):
            raise OptprobeError("its numbers are those of other probes")
        if record.spec.is_return:
            block = self.returns.adopt(block, left, arena)
        try:
            if record.routine is not None:
                self.routines.adopt(block, record.routine, arena)
            self._find_writer(block)
            own = {index: self.optimizer.plan(left.sites[index], [record.spec]) for index in alone}
        except BaseException:
            self.returns.forget(block, arena)
            self.routines.tidy()
            raise
        with held():
            if maps is not None:
                maps.blocks.add(block.code.address)
            for piece, _ in left.pieces():
                arena.readopt(piece)
            self._note_by_number(left, arena)
            block.out = list(left.out)
            probes = [self._adopt_alone(block, index, plan, record.enabled, arena) for index, plan in own.items()]
            self.registry.add_block(block)
            if not len(block):
                self.members.drop(block, arena)
        return block, probes

    def _find_writer(self, block: CountBlock) -> None:
        """Have a block make the code that is in the guest: this version's, or that of earlier ones.

        Raises OptprobeError where it is neither.
        """
        pieces = [(start, end, block.piece(start, end)[0]) for start, end in block.runs()]
        held = [self.target.guest.machine.read(piece.address, piece.size) for _, _, piece in pieces]
        for isa in (block.isa, *block.isa.earlier):
            block.isa, block.laid_out = isa, {}
            try:
                if held == [block.detours(start, end) for start, end, _ in pieces]:
                    return
            except (OutOfReach, Unrelocatable):  # a step of another length
                continue
        raise OptprobeError("its code is not what this version would write")

    def _note_by_number(self, left: BlockRecord, arena: Arena) -> None:
        """Have the journal know a block by its number, also one that an earlier version noted by its code's address."""
        arena.journal.put(Item.COUNTS, left.first, block_value(left, left.code.address, left.probe, left.times))
        for index in left.out:
            arena.journal.put(Item.ALONE, left.first + index, 1)
        _drop_by_address(left, arena)

    def _adopt_alone(self, block: CountBlock, index: int, plan: Plan, enabled: bool, arena: Arena) -> Probe:
        """Make a member of which the plan is another now a probe of its own, not yet settled. Its code is left."""
        probe, slot = replace(self.members.probe(block, index), enabled=enabled), block.slot(index)
        left = block.left_code(index, index + 1, self.target.guest.machine.read(slot.address, slot.size), block.isa)
        if probe.handler.shared is not None:
            probe.handler.shared.users.add(probe.number)
        self.members.carve(block, index, arena)
        arena.journal.code(slot, left)
        arena.retire(slot, left)
        self.registry.add(probe, Site(probe.address, plan))
        return probe

    def _plans_again(self, left: BlockRecord, spec: Spec) -> dict[int, Plan]:
        """Return the plans of an earlier GDB's block, made anew, by address; none where one is another now."""
        if not left.is_uniform:
            sites = [left.sites[index] for index in left.members]
            return {plan.head: plan for plan in self.planner.plans_of(spec, sites)}
        # All have the same: whether each can be written is asked when it is.
        for index in left.members[:: max(1, len(left) // SAMPLES)]:
            address, original = left.sites[index], left.originals[index]
            if (sample := self.planner.sample(FtraceSite(address, len(original), False, original), spec)) is not None:
                return dict.fromkeys(left.sites, sample)
        return {}

    def leave(self, left: BlockRecord, release: bool = True) -> None:
        """Have the journal know that a block of an earlier GDB has no probes any more, but code that may be run yet.

        release: its data too, as far as nothing else has done so.
        """
        arena = self.optimizer.take_arena()
        self.members.forget(left, arena)
        _drop_by_address(left, arena)
        for start, end in left.runs():
            self.members.note_left(left, left.first, start, end, arena)
            if release:
                arena.data.release(left.piece(start, end)[1])
        if release:
            self.returns.release_memory(left, arena)


def _drop_by_address(left: BlockRecord, arena: Arena) -> None:
    arena.journal.drop(Item.BLOCK, left.code.address)
    for index in left.out:
        arena.journal.drop(Item.OUT, left.slot(index).address)
