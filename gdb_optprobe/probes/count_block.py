"""The counts of one `add` as a block: no object for a probe until something asks for that one.

    number     first, first + 1, …        member n:  probe  first + n

A member that is asked for by itself leaves the block as a Probe at a Site with a Branch (probes/batch.py, `unpack`), on
the same code and with the same counter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.detours.block import WORD, Block
from gdb_optprobe.detours.detour import Detour, build_count
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.probes.spec import Spec


@dataclass(kw_only=True)
class CountBlock(Block):
    """sizes: the settings that the counts were made with. model: the plan of the first; the others differ by address.

    installed_at: the moment when the code was placed; None where it was an earlier session's.
    enabled: whether the branches are in the text. symbols: of the sites, once something asked for them.
    """

    isa: Isa
    spec: Spec
    sizes: Mapping[str, int]
    first: int
    model: Plan
    installed_at: object = None
    enabled: bool = True
    symbols: Sequence[str] = ()

    @property
    def numbers(self) -> range:
        """Return the numbers of the members, those that are out too."""
        return range(self.first, self.first + len(self.sites))

    def with_number(self, number: int) -> int | None:
        """Return the index of the member with this number; None where it is none."""
        index = number - self.first
        return index if self.has(index) else None

    def plan(self, index: int) -> Plan:
        address, model = self.sites[index], self.model
        assert model.ftrace is not None
        moved = tuple(insn._replace(address=address) for insn in model.displaced)
        return replace(model, address=address, displaced=moved, ftrace=replace(model.ftrace, address=address))

    def detour(self, index: int) -> Detour:
        return build_count(self.plan(index), self.isa, self.slot(index).address, self.counter(index).address)

    def patch(self, index: int) -> Patch:
        """Return the change of the text that leads to the member's detour."""
        address = self.sites[index]
        return Patch(address, self.original, self.isa.branch(address, self.slot(index).address))

    def detours(self) -> bytes:
        """Return what `code` holds as it was written. Raises OutOfReach."""
        ends = [site + len(self.original) for site in self.sites]
        counters = range(self.data.address, self.data.end, WORD)
        return self.isa.counts(self.code.address, self.step, counters, ends, self.model.dead, self.model.base)
