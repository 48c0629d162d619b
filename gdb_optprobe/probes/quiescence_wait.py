"""The threads in the way of a branch over several instructions, or of a program that is to start anew."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gdb_optprobe.detours import quiescence
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.refusal import Refusal
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.probes.site import Site

MOST_NAMED = 4


def describe_waits(sites: Iterable[Site], guest: Guest) -> tuple[str, ...]:
    """Return what `sites` wait for, in words: each reason once, behind the addresses that it holds up."""
    held: dict[str, list[str]] = {}
    for site in sites:
        held.setdefault(site.blocked_by, []).append(guest.text.spell(site.address))
    return tuple(f"{_listed(places)}: {why}" for why, places in held.items())


def _listed(places: Sequence[str]) -> str:
    more = len(places) - MOST_NAMED
    return ", ".join(places[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def find_busy(
    plans: Sequence[Plan], detours: Sequence[Detour], guest: Guest, arena: Arena | None
) -> Mapping[int, str]:
    """Return, by the head of each of `plans`, the threads inside, in words.

    A thread also counts as inside in a detour that is retired, or may be soon (`detours`), and that leads to the middle
    of the new branch.
    """
    if not plans:
        return {}
    left, pads = (arena.retired, arena.pad_pages) if arena is not None else ((), ())
    # By the original code that they replace.
    places = sorted((at, one.address, one.end) for one in (*left, *detours) for at in one.original_addresses)
    windows: dict[quiescence.Range, set[int]] = {}
    for plan in plans:
        for window in _windows(plan, places, pads):
            windows.setdefault(window, set()).add(plan.head)
    try:
        inside = quiescence.busy(windows, guest.saved())
    except OptprobeError as error:
        # The guest was stopped while it switched threads, say: no thread is proven to be outside.
        return {plan.head: error.message for plan in plans}
    words = {
        found.where: Refusal.NOT_QUIESCENT.because(owner=found.owner, pc=guest.text.spell(found.pc)).text
        for found in inside
    }
    return {head: text for window, text in words.items() for head in windows[window]}


def _windows(
    plan: Plan, places: Sequence[tuple[int, int, int]], pads: Sequence[quiescence.Range]
) -> Iterator[quiescence.Range]:
    """Yield what no thread may be inside. places: the detours as (original address, start, end), ascending."""
    yield quiescence.window(plan.head, plan.end - plan.head)
    inside = places[bisect_left(places, (plan.head + 1,)) : bisect_left(places, (plan.end,))]
    yield from dict.fromkeys((start, end) for _, start, end in inside)
    if inside:  # a pad leads to a detour
        yield from pads


def describe_busy_slots(slots: Sequence[Slot], guest: Guest) -> str:
    """Return the threads that may be inside the retired `slots`, in words; "" for none, or where it is not known."""
    try:
        inside = quiescence.busy([(slot.address, slot.end) for slot in slots], guest.saved())
    except OptprobeError:
        return ""
    found = dict.fromkeys(f"{one.owner} may continue at {one.pc:#x}" for one in inside)
    return _listed(list(found))


def may_be_busy(site: Site, guest: Guest, arena: Arena | None) -> bool:
    """Return whether a thread may be in a program of `site`, or in a retired detour, perhaps of the site."""
    code = [(site.branch.detour.address, site.branch.detour.end)] if site.branch is not None else []
    # Whoever is yet to come to a trampoline has not begun.
    code += [(one.address + 1, one.end) for one in (site.rethook.trampolines if site.rethook is not None else ())]
    return may_be_in(code, guest, arena)


def may_be_in(code: Sequence[quiescence.Range], guest: Guest, arena: Arena | None) -> bool:
    """Return whether a thread may be in some code, or in a retired detour, perhaps of the same probes."""
    left = arena.retired if arena is not None else ()
    inside = [*code, *((one.address, one.end) for one in left)]
    if not inside or guest.stacks_missing:
        return bool(inside)
    try:
        return bool(quiescence.busy(inside, guest.saved()))
    except OptprobeError:
        return True
