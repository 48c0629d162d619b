"""Calls that were entered while an earlier GDB had return probes, and have not returned yet."""

from __future__ import annotations

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.layout import Detour
from gdb_optprobe.detours.left import Left
from gdb_optprobe.objects.instances import InstancesLayout
from gdb_optprobe.objects.journal import Damaged
from gdb_optprobe.probes.returning import ReturnPoint


def points_of(left: Left, arena: Arena | None) -> list[ReturnPoint]:
    """Of the functions whose return probes `left` had; without an arena it is only looked at. Raises Damaged."""
    found: list[ReturnPoint] = []
    for at, value in sorted((left.points or {}).items()):
        memory = left.at(at)
        try:
            address, slots, saved = (int(number) for number in value)
        except (ValueError, TypeError, OverflowError) as wrong:
            raise Damaged(f"return probes at {at:#x}: {wrong}") from None
        if memory is None or not 0 < slots < 1 << 20 or not 0 <= saved < 1 << 10:
            raise Damaged(f"return probes at {at:#x}")
        layout = InstancesLayout(slots, saved)
        if layout.size > memory.size:
            raise Damaged(f"return probes at {at:#x}: {layout.size} bytes in {memory.size}")
        if arena is not None:
            found.append(ReturnPoint.found(address, layout, memory, _trampolines(left, address), arena))
    return found


def _trampolines(left: Left, function: int) -> dict[int, Detour]:
    """Of the function that is entered there: what stands for no instruction of it."""
    found = left.detours.values()
    return {one.address: one for one in found if one.head == function != one.address and not one.origins}
