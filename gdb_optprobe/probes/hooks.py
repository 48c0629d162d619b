"""Patches that have the kernel come to code of ours before its own handler of traps, of one instruction each.

Another GDB knows of them before they are written. They go while nobody is on the way to that code, or in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gdb_optprobe.detours import patch, quiescence
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest

InstalledBytes = Mapping[int, bytes]
"""By address, what an earlier GDB has written where ours is to stand."""
NOT_INSTALLED: InstalledBytes = MappingProxyType({})


def install(patches: Sequence[Patch], guest: Guest, arena: Arena, standing: InstalledBytes = NOT_INSTALLED) -> None:
    """One of the two, an earlier GDB's or ours, leads on at any instant. Raises TextChanged."""
    record(patches, arena)
    arena.journal.flush()
    changes = [Patch(one.address, standing.get(one.address, one.old), one.new) for one in patches]
    patch.apply(changes, guest.machine)


def record(patches: Sequence[Patch], arena: Arena) -> None:
    """Have the journal know of these patches."""
    for change in patches:
        arena.journal.text(change.address, change.old)


def exchange(old: Sequence[Patch], new: Sequence[Patch], guest: Guest) -> None:
    """`new` in the places of `old`: one of the two leads on at any instant, for GDB may die. Raises TextChanged."""
    pairs = zip(old, new, strict=True)
    patch.apply([Patch(now.address, before.new, now.new) for before, now in pairs], guest.machine)


def remove(patches: Sequence[Patch], guest: Guest, arena: Arena) -> None:
    """Whoever is behind them goes on. Raises TextChanged."""
    patch.revert(patches, guest.machine)
    for change in patches:
        arena.journal.drop(Item.TEXT, change.address)


def is_quiescent(
    inside: Sequence[tuple[int, int]], guest: Guest, beside: Sequence[tuple[int, int]] = ()
) -> bool:
    """Whether nobody is in these ranges, once every vCPU was stepped out of them; not where that cannot be told.

    beside: where a vCPU may be on its way into them or out of them; it is stepped out of these too.
    """
    guest.step_out([*inside, *beside])
    try:
        return not quiescence.busy(inside, guest.saved())
    except OptprobeError:
        return False
