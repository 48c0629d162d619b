"""One branch in the guest's text, and the detour it leads to: it runs the programs of one site or of several.

    Site at +0 ─┐            text            detour
    Site at +3 ─┼─► Branch ──► jmp ─────────► program of +0, insn, program of +3, insn, …, jmp back
    Site at +4 ─┘

Whatever happens between two of its writes, the guest runs correct code: the detour stands before the branch that leads
to it, and the branch is one write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gdb_optprobe.detours import layout, patch
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.layout import Detour, Program
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.objects.counter import SIZE as COUNTER_SIZE
from gdb_optprobe.probes.placed import Placed
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.target import Target


@dataclass(frozen=True)
class Branch:
    """plan: of any of `sites`, which are ascending. serves: the numbers of the probes whose programs it runs."""

    plan: Plan
    sites: tuple[Site, ...]
    serves: tuple[int, ...]
    patch: Patch
    placed: Placed

    @classmethod
    def write(cls, sites: Sequence[Site], target: Target, arena: Arena) -> Branch:
        """Serve `sites`, which have one region. Raises Refused or TextChanged with the guest as it was."""
        plan = sites[0].plan
        programs = _programs(sites, target, arena)
        placed = Placed.near(plan.head, lambda at: layout.build(plan, target.isa, at, programs), target, arena)
        try:
            # What stands there must be what was planned for: the guest may have run since.
            change = Patch(plan.head, plan.original, target.isa.branch(plan.head, placed.detour.address))
            patch.apply([change], target.machine)
        except OptprobeError:
            placed.give_up(target, arena, reached=False)
            raise
        branch = cls(plan, tuple(sites), serves(sites), change, placed)
        for site in sites:
            site.begin_branch(branch, target)
        return branch

    def take_away(self, target: Target, arena: Arena) -> None:
        """The original instructions again; the counters stay. Raises TextChanged; then all is left as it is."""
        patch.revert([self.patch], target.machine)
        self.placed.give_up(target, arena, reached=True)
        for site in self.sites:
            site.end_branch()

    def abandon(self) -> None:
        """Somebody else has changed our bytes: they are left alone, and so is the detour they may lead to."""
        for site in self.sites:
            site.abandon()

    @property
    def detour(self) -> Detour:
        return self.placed.detour


def serves(sites: Sequence[Site]) -> tuple[int, ...]:
    """The numbers of the probes to be served at `sites`."""
    return tuple(probe.number for site in sites for probe in site.enabled)


def _programs(sites: Sequence[Site], target: Target, arena: Arena) -> Mapping[int, Program]:
    """By address, every enabled probe's program there, one behind the other."""
    for site in sites:
        for probe in site.enabled:
            if probe.counter is None:
                probe.counter = arena.allocate_data(COUNTER_SIZE, site.address, target.isa.data_reach)
                target.machine.write(probe.counter.address, bytes(COUNTER_SIZE))
    return {site.address: _program(site, target) for site in sites}


def _program(site: Site, target: Target) -> Program:
    plan = site.plan
    counters = [probe.counter.address for probe in site.enabled if probe.counter is not None]

    def program(at: int) -> bytes:
        code = b""
        for counter in counters:
            code += target.isa.count(counter, at + len(code), plan.dead, plan.base)
        return code

    return program
