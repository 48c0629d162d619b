"""The routines that read memory which may not be there, in the guest: once for all programs, in the arena's code.

    program of probe 1 ──call──┐
    program of probe 4 ──call──┴─► bytes, text     placed when the first program needs it, taken out with the arena
"""

from __future__ import annotations

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux.arch.base import Reads
from gdb_optprobe.isa.codegen import ProbeReadRoutines
from gdb_optprobe.probes.installed_detour import InstalledDetour


def install_probe_read(reads: Reads, near: int, guest: Guest, arena: Arena) -> ProbeReadRoutines:
    """Return where they are, for code that a branch at `near` leads to. Raises Refused, or OptprobeError without
    keystone.
    """
    routine = reads.routine
    if arena.probe_read is None:
        # An earlier GDB's does the same.
        arena.probe_read = arena.reuse(lambda one: one.head == one.address and one.data == routine.code)
    if arena.probe_read is None:
        placed = InstalledDetour.install(near, lambda at: Detour(at, routine.code, at, ()), guest, arena, uses=())
        arena.probe_read = placed.slot, placed.detour
    return routine.at(arena.probe_read[1].address)
