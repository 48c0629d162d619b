"""Write the branch of one site or of several into the guest, and take it away.

Whatever happens between two of its writes, the guest runs correct code: the detour stands before the branch that leads
to it, and the branch is one write.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gdb_optprobe.detours import layout, patch
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.layout import Program
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.isa.base import Dead, Isa
from gdb_optprobe.probes.branch import Branch
from gdb_optprobe.probes.placed import Placed
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.resident import readers
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.target import Target


def write(sites: Sequence[Site], target: Target, arena: Arena, keeps: frozenset[str] = frozenset()) -> Branch:
    """Serve `sites` (ascending, of one region). Raises Refused or TextChanged with the guest as it was.

    keeps: registers that programs of the same function read, so that none of these may overwrite them.
    """
    plan = sites[0].plan
    programs = _programs(sites, target, arena, keeps)
    placed = Placed.near(plan.head, lambda at: layout.build(plan, target.isa, at, programs), target, arena)
    try:
        # What stands there must be what was planned for: the guest may have run since.
        change = Patch(plan.head, plan.original, target.isa.branch(plan.head, placed.detour.address))
        patch.apply([change], target.machine)
    except OptprobeError:
        placed.give_up(target, arena, reached=False)
        raise
    branch = Branch(plan, tuple(site.address for site in sites), serves(sites), change, placed, keeps)
    for site in sites:
        site.begin_branch(branch, target)
    return branch


def take_away(branch: Branch, sites: Sequence[Site], target: Target, arena: Arena) -> None:
    """The original instructions again for `sites`, all that `branch` serves; the counters stay.

    Raises TextChanged; then all is left as it is.
    """
    patch.revert([branch.patch], target.machine)
    branch.placed.give_up(target, arena, reached=True)
    for site in sites:
        site.end_branch()


def serves(sites: Sequence[Site]) -> tuple[int, ...]:
    """The numbers of the probes to be served at `sites`."""
    return tuple(probe.number for site in sites for probe in site.enabled)


def reserve(probe: Probe, target: Target, arena: Arena) -> None:
    """Memory for what the probe's program gathers, as it is before the first hit. Raises Refused."""
    if probe.counter is None:
        probe.counter = arena.allocate_data(probe.handler.size, probe.address, target.isa.data_reach)
        target.machine.write(probe.counter.address, probe.handler.initial())
    if probe.handler.program.dereferences and not isinstance(probe.handler.unmapped, Missing):
        probe.readers = readers(probe.handler.unmapped, probe.address, target, arena)


def overwrites(site: Site, target: Target, keeps: Collection[str], read: Collection[str]) -> bool:
    """Whether the programs of `site`, made to keep `keeps`, overwrite any of `read`: they would be others for it."""
    less, more = (_unread(site.plan.dead, names, target.isa) for names in (keeps, {*keeps, *read}))
    at = site.address
    return less != more and _program(site, target, keeps)(at) != _program(site, target, {*keeps, *read})(at)


def _programs(sites: Sequence[Site], target: Target, arena: Arena, keeps: Collection[str]) -> Mapping[int, Program]:
    """By address, every enabled probe's program there, one behind the other."""
    for site in sites:
        for probe in site.enabled:
            reserve(probe, target, arena)
    return {site.address: _program(site, target, keeps) for site in sites}


def _program(site: Site, target: Target, keeps: Collection[str]) -> Program:
    plan = site.plan
    dead = _unread(plan.dead, keeps, target.isa)
    programs = [
        probe.handler.code(target.isa, plan, dead, probe.counter.address, probe.readers)
        for probe in site.enabled
        if probe.counter is not None
    ]

    def program(at: int) -> bytes:
        code = b""
        for each in programs:
            code += each(at + len(code))
        return code

    return program


def _unread(dead: Dead, read: Collection[str], isa: Isa) -> Dead:
    """What of `dead` may be overwritten though programs read these registers, of which no part of the flags is one."""
    registers = dead.registers.difference(read)
    if isa.flags not in read:
        return replace(dead, registers=registers)
    return Dead(False, registers.intersection(isa.registers))
