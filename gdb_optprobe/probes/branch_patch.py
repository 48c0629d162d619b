"""Write the branch of one site or of several into the guest, or the trap that leads like one, and take it away.

Between any two of its writes the guest runs correct code: the detour is there before the branch that leads
to it, and the branch is one write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour, build_detour
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.refusal import Reason, Refusal, Refused
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.isa.base import Code, Dead, OutOfReach, joined, with_pool
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.probes.branch import Branch, PreservedRegisters, ProgramPart
from gdb_optprobe.probes.installed_detour import InstalledDetour, install_pad
from gdb_optprobe.probes.journal_records import write_probe
from gdb_optprobe.probes.kernel_traps import KernelTraps
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.probe_read import install_probe_read
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.target import Target

STAYS = "it is taken out at the next stop at which the guest can be reached, or by optprobe commit"
Codes = Mapping[int, Sequence[tuple[Probe, Code]]]


def install(
    sites: Sequence[Site],
    target: Target,
    arena: Arena,
    traps: KernelTraps,
    keeps: PreservedRegisters,
    lost: list[Branch],
    old: Branch | None = None,
) -> Branch:
    """Serve `sites` (ascending, of one region). Raises OptprobeError with the guest as it was.

    The caller then has to let in the tracer, which may be kept off the site. But where the guest cannot be reached any
    more, the branch may stay: it is in `lost` then, with all that it leads to, and so is `old`.
    old: the branch there until then.
    """
    plan = sites[0].plan
    for site in sites:
        site.install_trampoline(target, arena)
    codes = _programs(sites, target.guest, arena, keeps)
    programs = {address: joined([code for _, code in some]) for address, some in codes.items()}
    for probe in (probe for site in sites for probe in site.enabled):
        write_probe(probe, arena.journal)
    arena.journal.text(plan.head, plan.original, plan.ftrace is not None)
    isa = target.guest.isa
    placed = InstalledDetour.install(plan.head, lambda at: build_detour(plan, isa, at, programs), target.guest, arena)
    ways: list[Patch] = []
    branch: Branch | None = None
    written: Patch | None = None
    try:
        parts = tuple(_parts(codes, placed.detour))
        ways += _link_pads(parts, {probe.number: probe for site in sites for probe in site.enabled}, target.guest)
        is_trap = plan.tier is Tier.TRAPPED
        leads = traps.trap if is_trap else target.guest.isa.branch(plan.head, placed.detour.address)
        change = Patch(plan.head, plan.original, leads)
        branch = Branch(plan, tuple(site.address for site in sites), probe_numbers(sites), change, placed, keeps, parts)
        if is_trap:
            traps.set_detour(plan.head, placed.detour.address, arena)
        # The journal knows of the site by now: should this GDB be killed, the next one lets the tracer in again.
        if plan.ftrace is not None:
            target.tracer.hold(plan.ftrace)
        # The text must be the one that was planned for: the guest may have run since.
        written = change if old is None else replace(change, old=old.patch.new)
        patch.apply([written], target.guest.machine)
    except BaseException as error:  # of GDB's own errors too
        if branch is not None and not _is_undone(branch, old, written, error, target.guest, traps, arena):
            _keep_ways(sites, ways)
            for site in sites:
                site.abandon()
            lost += [branch] if old is None else [branch, old]
            if not isinstance(error, Exception):
                raise
            where = target.guest.text.spell(plan.head)
            raise OptprobeError(f"{error}; what was written at {where} may be there still", STAYS) from error
        patch.revert(ways, target.guest.machine)
        placed.release(target.guest, arena, reached=False)
        raise
    _keep_ways(sites, ways)
    for site in sites:
        site.attach_branch(branch, target)
    return branch


def _is_undone(
    branch: Branch,
    old: Branch | None,
    written: Patch | None,
    error: BaseException,
    guest: Guest,
    traps: KernelTraps,
    arena: Arena,
) -> bool:
    """Return whether nothing leads to the detour of `branch` after `error`; False where that cannot be known.

    written: the text's change, if that was begun.
    """
    try:
        if written is not None and not patch.undone([written], error, guest.machine):
            return False
        if branch.plan.tier is Tier.TRAPPED and old is not None:
            traps.set_detour(branch.plan.head, old.detour.address, arena)
        elif branch.plan.tier is Tier.TRAPPED:
            traps.clear(branch.plan.head)
    except Exception:  # the first error tells
        return False
    return True


def _keep_ways(sites: Sequence[Site], ways: Iterable[Patch]) -> None:
    """Record what the pads of the probes at `sites` hold."""
    held = {way.address: way.new for way in ways}
    for probe in (probe for site in sites for probe in site.enabled):
        if probe.pad is not None:
            probe.pad.data = held[probe.pad.address]


def remove(branch: Branch, sites: Sequence[Site], guest: Guest, arena: Arena, lifted: bool) -> None:
    """Restore the original instructions for `sites`, all that `branch` serves; its detour and the counters stay.

    lifted: they are there already. Raises TextChanged; then all is left as it is.
    """
    if not lifted:
        patch.revert([branch.patch], guest.machine)
    arena.journal.drop(Item.TEXT, branch.plan.head)
    for site in sites:
        site.detach_branch()


def probe_numbers(sites: Sequence[Site]) -> tuple[int, ...]:
    """Return the numbers of the probes to be served at `sites`."""
    return tuple(probe.number for site in sites for probe in site.enabled)


def reserve(probe: Probe, plan: Plan, guest: Guest, arena: Arena, keeps: PreservedRegisters) -> None:
    """Reserve memory for what the program of `probe` gathers, and write it as it is before the first hit.

    Raises Refused; NotLowered before that is written.
    """
    if probe.handler.dereferences and not isinstance(probe.handler.unmapped, Missing):
        # A program of a return probe is in a trampoline.
        near = arena.trampolines_near(probe.address, guest.isa.branch_reach) if probe.is_return else probe.address
        probe.readers = install_probe_read(probe.handler.unmapped, near, guest, arena)
    if probe.handler.stops and probe.pad is None and not probe.is_return:
        probe.pad = install_pad(probe.address, b"", guest, arena)
    if (maps := probe.handler.shared) is not None:
        maps.reserve(probe.number, probe.address, guest.isa.data_reach, arena, guest.machine)
    if probe.handler.maps is not None:
        maps_of_session, reach = probe.handler.maps, guest.isa.data_reach
        maps_of_session.reserve(probe.number, probe.handler.program.maps, probe.address, reach, arena)
    if probe.counter is None:
        with arena.new_data(probe.handler.size, probe.address, guest.isa.data_reach) as memory:
            if not probe.is_return:
                program_of(probe, memory.address, plan, guest, keeps)
            guest.machine.write(memory.address, probe.handler.initial())
        probe.counter = memory
    elif not probe.is_return:  # adopted, or of a module that is back
        program_of(probe, probe.counter.address, plan, guest, keeps)


def out_of_reach(best: Plan, guest: Guest, arena: Arena) -> Reason | None:
    """Return why no detour of `best` could lie where a branch leads, whatever is free; None where one could."""
    try:
        if best.tier is not Tier.TRAPPED:
            arena.free_code(best.address, guest.isa.branch_reach)
    except Refused as refused:
        if refused.reason.code == Refusal.ARENA_OUT_OF_REACH.name:
            return refused.reason
    return None


def overwrites(site: Site, guest: Guest, keeps: PreservedRegisters, read: PreservedRegisters) -> bool:
    """Return whether the programs of `site`, made to keep `keeps`, overwrite any of `read`: they would be others for
    it.
    """
    less, more = (_dead_for(site.plan.dead, each, guest.isa) for each in (keeps, keeps | read))
    if less == more:
        return False
    both = (_site_programs(site, site.plan, guest, each) for each in (keeps, keeps | read))
    now, then = (joined([code for _, code in codes]) for codes in both)
    return now(site.address) != then(site.address)


def installed_programs(site: Site, guest: Guest) -> Iterator[tuple[int, Code]]:
    """Yield where in the guest each program at the address of `site` begins, and the program, lowered again."""
    if site.branch is None or site.installed_plan is None or site.is_stale:
        return
    codes = _site_programs(site, site.installed_plan, guest, site.branch.preserved) if site.branch.parts else ()
    of_probe = {probe.number: code for probe, code in codes}
    for part in site.branch.parts:
        if part.address == site.address and part.number in of_probe:
            yield part.start, of_probe[part.number]


def _programs(sites: Sequence[Site], guest: Guest, arena: Arena, keeps: PreservedRegisters) -> Codes:
    """Return every enabled probe with its program, by address, in the order in which they run."""
    for site in sites:
        for probe in site.enabled:
            reserve(probe, site.plan, guest, arena, keeps)
    return {site.address: _site_programs(site, site.plan, guest, keeps) for site in sites}


def _site_programs(site: Site, plan: Plan, guest: Guest, keeps: PreservedRegisters) -> Sequence[tuple[Probe, Code]]:
    codes = [
        (probe, program_of(probe, probe.counter.address, plan, guest, keeps))
        for probe in site.enabled
        if not probe.is_return and probe.counter is not None
    ]
    if site.rethook is not None and (returning := site.return_probes):
        dead, _ = _dead_for(plan.dead, keeps, guest.isa)
        codes.append((returning[-1], site.rethook.entry_code(dead, guest)))
    return codes


def program_of(probe: Probe, memory: int, plan: Plan, guest: Guest, keeps: PreservedRegisters) -> Code:
    """Return the lowered program of `probe` for a detour of `plan`, with its memory at `memory`. Raises NotLowered."""
    dead, passed = _dead_for(plan.dead, keeps, guest.isa)
    return probe.handler.code(guest.isa, plan, dead, memory, probe.readers, probe.pad, passed)


def _parts(codes: Codes, detour: Detour) -> Iterator[ProgramPart]:
    """Yield the programs in `detour`, in the order in which they run."""
    for start, _, address in detour.programs:
        for probe, code in codes[address]:
            (code,) = with_pool([code], start)  # in a detour it has one, if it reads any
            end = start + len(code(start))
            yield ProgramPart(address, probe.number, start, end)
            start = end


def _link_pads(parts: Iterable[ProgramPart], probes: Mapping[int, Probe], guest: Guest) -> list[Patch]:
    """Have every pad lead behind its probe's program. Raises TextChanged, Refused."""
    ways: list[Patch] = []
    for part in parts:
        if (pad := probes[part.number].pad) is not None:
            try:
                ways.append(Patch(pad.address, pad.data, pad.code(part.end, part.address, guest.isa)))
            except OutOfReach as stuck:
                raise Refused(Refusal.ARENA_OUT_OF_REACH.because(address=guest.text.spell(part.address))) from stuck
    patch.apply(ways, guest.machine)
    return ways


def _dead_for(dead: Dead, keeps: PreservedRegisters, isa: Isa) -> tuple[Dead, Dead]:
    """Return what programs may overwrite; what one that reads all may where it does not stop."""
    return _unread(dead, keeps.read, isa), _unread(dead, keeps.by_others, isa)


def _unread(dead: Dead, read: Collection[str], isa: Isa) -> Dead:
    """Return what of `dead` may be overwritten though programs read these registers, of which no part of the flags is
    one.
    """
    registers = dead.registers.difference(read)
    if isa.flags not in read:
        return replace(dead, registers=registers)
    return Dead(False, registers.intersection(isa.registers))
