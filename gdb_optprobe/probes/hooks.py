"""Patches that lead from the kernel's code to a routine of optprobe before one of its own, of one instruction each.

The journal has them before they are written. They are removed while no thread is on the way to the routine, or in it.
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
"""By address, what an earlier GDB has written where a patch is to be."""
NOT_INSTALLED: InstalledBytes = MappingProxyType({})


def install(patches: Sequence[Patch], guest: Guest, arena: Arena, standing: InstalledBytes = NOT_INSTALLED) -> None:
    """Write `patches`, over those of an earlier GDB if it has any there. Raises TextChanged."""
    record(patches, arena)
    arena.journal.flush()
    changes = [Patch(one.address, standing.get(one.address, one.old), one.new) for one in patches]
    patch.apply(changes, guest.machine)


def record(patches: Sequence[Patch], arena: Arena) -> None:
    """Record these patches in the journal."""
    for change in patches:
        arena.journal.text(change.address, change.old)


def exchange(old: Sequence[Patch], new: Sequence[Patch], guest: Guest) -> None:
    """Write `new` over `old`: one of the two is there at any instant, for GDB may die. Raises TextChanged."""
    pairs = zip(old, new, strict=True)
    patch.apply([Patch(now.address, before.new, now.new) for before, now in pairs], guest.machine)


def remove(patches: Sequence[Patch], guest: Guest, arena: Arena) -> None:
    """Write the original instructions; a thread behind them continues. Raises TextChanged."""
    patch.revert(patches, guest.machine)
    for change in patches:
        arena.journal.drop(Item.TEXT, change.address)


def is_quiescent(
    inside: Sequence[tuple[int, int]], guest: Guest, beside: Sequence[tuple[int, int]] = ()
) -> bool:
    """Step every vCPU out of these ranges. Return whether no thread is in them; False where that is not known.

    beside: where a vCPU may be on its way into them or out of them; it is stepped out of these too.
    """
    guest.step_out([*inside, *beside])
    try:
        return not quiescence.busy(inside, guest.saved())
    except OptprobeError:
        return False
