"""Members of blocks one by one: as probes to look at, and as probes of their own, which leave the block.

    member ── unpack ──► Probe at a Site with a Branch: the same code, the same counter, items of its own in the journal
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.arena_contents import BlockRecord, block_value
from gdb_optprobe.detours.block import Block
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.probes.branch import Branch, PreservedRegisters, ProgramPart
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.installed_detour import InstalledDetour
from gdb_optprobe.probes.journal_records import probe_value, write_probe
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.return_block import ReturnBlock
from gdb_optprobe.probes.shared_returns import SharedReturns, times_of
from gdb_optprobe.probes.site import Site

_PRESERVED = PreservedRegisters()


@dataclass(frozen=True)
class BlockMembers:
    """What a session does to one member of a block, and what the journal has of blocks."""

    registry: Registry
    optimizer: Optimizer
    returns: SharedReturns

    def __post_init__(self) -> None:
        self.registry.unpack = self.unpack

    def probe(self, block: CountBlock, index: int) -> Probe:
        return Probe(
            block.first + index,
            block.spec,
            block.address(index),
            block.handler_of(index),
            block.sizes,
            enabled=block.enabled,
            counter=block.counter(index),
        )

    def probes(self, block: CountBlock) -> list[Probe]:
        """Return the members as probes, to look at: they stay in the block."""
        return [self.probe(block, index) for index in block.members]

    def member(self, block: CountBlock, index: int) -> tuple[Probe, Site]:
        """Return a member as a probe at a site of its own, to look at: it stays in the block."""
        probe, plan = self.probe(block, index), block.plan(index)
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
        self.carve(block, index, arena)
        journal.code(slot, block.detour(index))
        if site.branch is not None:
            journal.text(site.address, block.originals[index], block.traced)
        else:
            arena.retire(slot, block.detour(index))
        if isinstance(block, ReturnBlock):
            self.returns.take_times(probe, block, index)
        if probe.handler.shared is not None:
            probe.handler.shared.users.add(probe.number)
        write_probe(probe, journal)
        site.probes.clear()
        self.registry.add(probe, site)
        if site.branch is not None:
            self.registry.add_branch(site.branch)
            self.optimizer.links.add(site.branch, link=False)
        if isinstance(block, ReturnBlock):
            self.returns.leave(probe, site, block, index)
        if not len(block):
            self.drop(block, arena)
        return probe

    def carve(self, block: CountBlock, index: int, arena: Arena) -> None:
        """Give a member's code and counter items of their own, and take it out of the block."""
        slot, counter = block.slot(index), block.counter(index)
        whole_code, whole_data = block.piece(*block.run_of(index))
        arena.journal.put(Item.ALONE, block.first + index, 1)
        arena.carve_count((whole_code, slot), (whole_data, counter))
        block.take_out(index)

    def drop(self, block: CountBlock, arena: Arena) -> None:
        """Forget a block: none of its members is in it any more, or its pieces have items of their own."""
        self.registry.remove_block(block)
        if block.handler.shared is not None:
            block.handler.shared.release_block(block.code.address, arena)
        self.forget(block, arena)

    def forget(self, block: CountBlock | BlockRecord, arena: Arena) -> None:
        """Have the journal know the block no more."""
        arena.journal.drop(Item.COUNTS, block.first)
        for index in block.out:
            arena.journal.drop(Item.ALONE, block.first + index)

    def note(self, block: CountBlock, arena: Arena) -> None:
        """Have the journal know the block as it is now."""
        value = probe_value(self.probe(block, 0))
        for name in ("at", "data"):
            value.pop(name, None)
        if block.routine is not None:
            value["routine"] = block.routine.address
        arena.journal.put(Item.COUNTS, block.first, block_value(block, block.code.address, value, times_of(block)))

    def note_left(self, block: Block, first: int, start: int, end: int, arena: Arena) -> None:
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
