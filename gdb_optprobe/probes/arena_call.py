"""A call of a kernel's function by a thread of the guest that was reached: its code is in the arena meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.native_call import Runner
from gdb_optprobe.isa.calling import Thunk
from gdb_optprobe.probes.installed_detour import InstalledDetour


def make_call(
    runner: Runner,
    encode: Callable[[int, int], Thunk],
    timeout: float,
    guest: Guest,
    arena: Arena,
    uses: Collection[int],
) -> int:
    """Make the call and return its result. Raises CallFailed, OptprobeError.

    encode: returns the code for an address, and where it leads back to. uses: addresses of data that the code uses.
    """
    back = runner.back()

    def lay_out(at: int) -> Detour:
        return Detour(at, encode(at, back).data, at, ())

    placed = InstalledDetour.install(back, lay_out, guest, arena, uses)
    try:
        result = runner.run(encode(placed.detour.address, back), timeout)
    except BaseException:
        arena.retire(placed.slot, placed.detour)  # a thread may be in it
        raise
    finally:
        guest.forget()
    placed.release(guest, arena, reached=False)
    return result
