"""Check that the guest's memory still holds what we wrote, and list the tracers that miss calls because of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.text import KPROBES
from gdb_optprobe.probes.branch import Branch
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.site import SiteState
from gdb_optprobe.probes.target import Target

AGAIN = "it will once it is switched on anew with no probe at its site"
TAKES_OUT = "optprobe commit takes it out, as does the next stop"
MOST_NAMES = 8
"""Of functions that are listed."""


def problems(optimizer: Optimizer, resident: Sequence[Detour]) -> Iterator[str]:
    """Yield where memory is not what it should be. Raises OptprobeError."""
    target, registry = optimizer.target, optimizer.registry
    for branch in registry.branches():
        changes = () if optimizer.kernel_stops.is_lifted(branch) else (branch.patch,)
        yield from (str(change.message) for change in patch.check(changes, target.guest.machine))
        yield from _check_detour(branch.detour, optimizer.links.detour_bytes(branch), target.guest)
    yield from (str(change.message) for change in patch.check(optimizer.traps.dispatcher.patches, target.guest.machine))
    for point in optimizer.rethooks.known:
        if point.trampoline is not None:
            yield from _check_detour(point.trampoline.detour, point.trampoline.detour.data, target.guest)
    for site in registry.sites():
        if site.branch is None and site.detour is not None:
            yield from _check_detour(site.detour, site.detour.data, target.guest)
        if site.enabled and site.state in (SiteState.NOTHING, SiteState.LOST):
            yield f"nothing in the guest counts at {target.guest.text.spell(site.address)} any more"
    for branch in optimizer.lost_branches():
        why, then = in_the_way(branch, target.guest)
        yield f"what was written at {target.guest.text.spell(branch.plan.head)} is there still, {why}; {then}"
    if any(found for one in resident for found in _check_detour(one, one.data, target.guest)):
        yield "the routine that reads memory was changed"


def in_the_way(branch: Branch, guest: Guest) -> tuple[str, str]:
    """Return why a branch could not be taken out, and what to do, in words."""
    try:
        marks = [mark for mark in guest.text.marks(branch.patch.address, branch.patch.end) if mark.fact in KPROBES]
    except OptprobeError:  # the guest's list of them cannot be read
        marks = []
    if marks:
        at = guest.text.spell(marks[0].address)
        return f"under the guest's own kprobe at {at}", f"remove that kprobe in the guest, then {TAKES_OUT}"
    held = guest.machine.read(branch.patch.address, len(branch.patch.new))
    if held in (branch.patch.old, branch.patch.new):
        return "as it could not be taken out", TAKES_OUT
    return "under bytes of something else", f"undo what else has changed these bytes, then {TAKES_OUT}"


def untraced_sites(target: Target) -> tuple[str, ...]:
    """Return one line while a tracer of the guest runs that misses calls at a site of a branch, even a former one."""
    if not (sites := target.tracer.passed_over()):
        return ()
    names = ", ".join(target.guest.symbol(site) for site in sites[:MOST_NAMES])
    if len(sites) > MOST_NAMES:
        names += f" and {len(sites) - MOST_NAMES} more"
    return (f"a tracer of the guest's own is running and does not see {names}: {AGAIN}",)


def _check_detour(detour: Detour, data: bytes, guest: Guest) -> Iterator[str]:
    if guest.machine.read(detour.address, detour.size) != data:
        yield f"the detour of {guest.text.spell(detour.head)} was changed"
