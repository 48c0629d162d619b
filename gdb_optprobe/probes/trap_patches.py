"""Many traps of plain counts, written together: all of them, or none.

    counters ──► journal ──► detours, read back ──► table of the traps ──► traps, read back
Each step is done for all before the next begins, so that between any two writes the guest runs correct code, as with
one trap (branch_patch.py). One by one they are 11 packets each: 2,200 for those of a kernel's functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour, build_detour
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.interrupts import held
from gdb_optprobe.isa.base import Code
from gdb_optprobe.probes.branch import Branch, PreservedRegisters, ProgramPart
from gdb_optprobe.probes.branch_patch import program_of
from gdb_optprobe.probes.installed_detour import InstalledDetour, trial
from gdb_optprobe.probes.journal_records import write_probe
from gdb_optprobe.probes.kernel_traps import KernelTraps
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.target import Target

LEAST = 16
"""Traps that are worth it."""


def can_be_together(group: Sequence[Site]) -> bool:
    """Return whether what is wanted for `group` is a trap of one plain count, where nothing is yet."""
    site = group[0]
    if len(group) > 1 or site.plan.tier is not Tier.TRAPPED or site.plan.ftrace is not None or site.branch is not None:
        return False
    if site.is_lost or site.pinned or site.blocked_by or len(site.enabled) != 1:
        return False
    probe = site.enabled[0]
    return probe.handler.is_plain and not probe.is_return and probe.counter is None and probe.pad is None


def install(
    sites: Sequence[Site],
    target: Target,
    arena: Arena,
    traps: KernelTraps,
    keeps: Sequence[PreservedRegisters],
    lost: list[Branch],
) -> list[Branch]:
    """Write the traps of `sites`, of each of which `can_be_together` is true. keeps: of each site.

    Raises OptprobeError with the text as it was, and no trap written; but where the guest cannot be reached any more,
    traps may stay: these are in `lost` then, with all that they lead to.
    """
    guest = target.guest
    with held():
        probes = [site.enabled[0] for site in sites]
        programs = list[Code]()
        try:
            for site, probe, kept in zip(sites, probes, keeps, strict=True):
                size, reach = probe.handler.size, guest.isa.data_reach
                probe.counter = arena.allocate_data(size, probe.address, reach)
                programs.append(program_of(probe, probe.counter.address, site.plan, guest, kept))
            _write_initial(probes, guest.machine)
            for site, probe in zip(sites, probes, strict=True):
                write_probe(probe, arena.journal)
                arena.journal.text(site.plan.head, site.plan.original)
            placed = _detours(sites, programs, guest, arena)
        except BaseException:  # the text is as it was
            for probe in probes:
                _free_counter(probe, arena)
            raise
        branches = _branches(sites, placed, keeps, traps.trap)
        try:
            traps.set_detours({one.plan.head: one.detour.address for one in branches}, arena)
            # The text must be the one that was planned for: the guest may have run since.
            changes = sorted((one.patch for one in branches), key=lambda change: change.address)
            patch.apply_in_runs(changes, guest.machine)
        except BaseException as error:  # of GDB's own errors too: the connection broke
            left = {branch.plan.head: (site, branch) for site, branch in zip(sites, branches, strict=True)}
            with suppress(Exception):  # the first error tells; the rest is lost
                for head in patch.undone([branch.patch for branch in branches], error, guest.machine):
                    _release(*left[head], guest, arena, traps)
                    del left[head]
            for site, branch in left.values():
                site.abandon()
                lost.append(branch)
            raise
        for site, branch in zip(sites, branches, strict=True):
            site.attach_branch(branch, target)
        return branches


def _release(site: Site, branch: Branch, guest: Guest, arena: Arena, traps: KernelTraps) -> None:
    """Release what was made for a trap that is not there. Raises OptprobeError with nothing released."""
    traps.clear(branch.plan.head)
    _free_counter(site.enabled[0], arena)
    with suppress(OptprobeError):  # its memory is not used again; the first error tells
        branch.installed.release(guest, arena, reached=False)


def _free_counter(probe: Probe, arena: Arena) -> None:
    """Free the counter of `probe`, to which nothing leads, and have the journal know that it has none."""
    if probe.counter is not None:
        arena.free_data(probe.counter)
        probe.counter = None
        write_probe(probe, arena.journal)


def _branches(
    sites: Sequence[Site], placed: Sequence[InstalledDetour], keeps: Sequence[PreservedRegisters], trap: bytes
) -> list[Branch]:
    """Return the branches of traps that are about to be written."""
    made = list[Branch]()
    for site, one, kept in zip(sites, placed, keeps, strict=True):
        ((start, end, _),) = one.detour.programs
        number, change = site.enabled[0].number, Patch(site.plan.head, site.plan.original, trap)
        parts = (ProgramPart(site.address, number, start, end),)
        made.append(Branch(site.plan, (site.address,), (number,), change, one, kept, parts))
    return made


def _write_initial(probes: Iterable[Probe], memory: Memory) -> None:
    """Write what each gathers as it is before the first hit: what follows one another at once."""
    initial = {probe.counter: probe.handler.initial() for probe in probes if probe.counter is not None}
    joined: list[tuple[int, bytearray]] = []
    for slot in sorted(initial):
        words = initial[slot].ljust(slot.size, b"\0")
        if joined and joined[-1][0] + len(joined[-1][1]) == slot.address:
            joined[-1][1].extend(words)
        else:
            joined.append((slot.address, bytearray(words)))
    for address, data in joined:
        memory.write(address, bytes(data))


def _detours(
    sites: Sequence[Site], programs: Sequence[Code], guest: Guest, arena: Arena
) -> list[InstalledDetour]:
    """Write a detour for each of `sites`, and read it back. Raises OptprobeError, with their memory free."""
    isa, slots, detours = guest.isa, list[Slot](), list[Detour]()

    def laid_out(site: Site, program: Code, at: int) -> Detour:
        return build_detour(site.plan, isa, at, {site.address: program})

    try:
        for site, program in zip(sites, programs, strict=True):
            first = trial(site.plan.head, partial(laid_out, site, program), guest, arena)
            slots.append(slot := arena.allocate_code(first.size, site.plan.head, isa.branch_reach))
            detours.append(first if first.address == slot.address else laid_out(site, program, slot.address))
        changes = arena.code_patches(slots, [one.data for one in detours], guest.machine, isa.breakpoint)
    except BaseException:
        for slot in slots:
            arena.code.free(slot)
        raise
    for slot, detour in zip(slots, detours, strict=True):
        arena.journal.code(slot, detour)
    try:
        arena.journal.flush()
        patch.apply_in_runs(sorted(changes, key=lambda change: change.address), guest.machine)
    except BaseException:
        for slot in slots:
            arena.code.discard(slot)
        raise
    return [InstalledDetour(slot, one, guest.moment()) for slot, one in zip(slots, detours, strict=True)]
