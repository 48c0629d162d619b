"""The routines that read memory which may not be there, in the guest: once for all programs in reach of them.

    program of probe 1 ──call──┐
    program of probe 4 ──call──┴─► bytes, text     placed when the first program needs it, taken out with the arena
"""

from __future__ import annotations

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux.arch.base import Reads
from gdb_optprobe.isa.codegen import ProbeReadRoutines
from gdb_optprobe.probes.installed_detour import InstalledDetour


def install_probe_read(reads: Reads, near: int, guest: Guest, arena: Arena) -> ProbeReadRoutines:
    """Return where they are, for code that a branch at `near` leads to. Raises Refused, or OptprobeError without
    keystone.
    """
    routine, reach = reads.routine, guest.isa.branch_reach

    def is_same(one: Detour) -> bool:
        here = Slot(one.address, len(one.data))
        return one.head == one.address and one.data == routine.code and arena.reaches(here, near, reach)

    found = next((one for one in arena.probe_reads if arena.reaches(one[0], near, reach)), None)
    # An earlier GDB's does the same.
    if found is None and (found := arena.reuse(is_same)) is not None:
        arena.probe_reads.append(found)
    if found is None:
        placed = InstalledDetour.install(near, lambda at: Detour(at, routine.code, at, ()), guest, arena, uses=())
        found = placed.slot, placed.detour
        arena.probe_reads.append(found)
    return routine.at(found[1].address)
