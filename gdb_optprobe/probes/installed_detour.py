"""A detour in guest memory, in a slot of the arena."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.patch import TextChanged
from gdb_optprobe.detours.quiescence import Range
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.detours.slots import ANYWHERE, Alignment, Slot
from gdb_optprobe.detours.stop_pad import StopPad
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.isa.base import OutOfReach, Unrelocatable

LayOut = Callable[[int], Detour]
"""The detour at an address; its length depends on no more of the address than what it is aligned to."""


def install_pad(address: int, data: bytes, guest: Guest, arena: Arena) -> StopPad:
    """Return a pad for a probe at `address`, that holds `data`. Raises Refused."""
    while True:
        slot = arena.allocate_pad(address, guest.isa.branch_reach)
        try:
            change = arena.code_patch(slot, data, guest.machine, guest.isa.breakpoint)
        except TextChanged:
            continue
        try:
            patch.apply([change], guest.machine)
        except OptprobeError:
            arena.pads.discard(slot)
            raise
        return StopPad(slot, change.new)


@dataclass(frozen=True, slots=True)
class InstalledDetour:
    """`detour` is written and read back; nothing leads to it yet.

    installed_at: the moment when it was placed; None where it was an earlier session's, and something led there then.
    """

    slot: Slot
    detour: Detour
    installed_at: object = None

    @property
    def range(self) -> Range:
        return self.detour.address, self.detour.end

    @staticmethod
    def check_memory(address: int, lay_out: LayOut, guest: Guest, arena: Arena) -> None:
        """Raise Refused where `install` would; nothing is allocated."""
        arena.check_code(trial(address, lay_out, guest, arena).size, address, guest.isa.branch_reach)

    @classmethod
    def install(
        cls,
        address: int,
        lay_out: LayOut,
        guest: Guest,
        arena: Arena,
        uses: Iterable[int] | None = None,
        aligned: Alignment = ANYWHERE,
    ) -> InstalledDetour:
        """Lay out a detour, allocate a slot of its size within reach of `address` and write it there. Raises Refused.

        uses: see Arena.set_references.
        """
        detour = trial(address, lay_out, guest, arena, aligned)
        while True:
            slot = arena.allocate_code(detour.size, address, guest.isa.branch_reach, aligned)
            if detour.address != slot.address:
                detour = lay_out(slot.address)
            if detour.size > slot.size:  # it has its own address, which took less where it was tried
                arena.code.free(slot)
                continue
            try:
                change = arena.code_patch(slot, detour.data, guest.machine, guest.isa.breakpoint)
                break
            except TextChanged:
                # Other data are there. The arena has struck that piece off, and the next one may be free.
                continue
        arena.journal.code(slot, detour)
        if uses is not None:
            arena.set_references(slot, uses)
        try:
            arena.journal.flush()
            patch.apply([change], guest.machine)
        except OptprobeError:
            arena.code.discard(slot)
            raise
        return cls(slot, detour, guest.moment())

    @classmethod
    def install_or_reuse(cls, address: int, lay_out: LayOut, guest: Guest, arena: Arena) -> InstalledDetour:
        """Install as `install` does, or reuse an earlier session's code that is the same, byte for byte."""

        def is_same(one: Detour) -> bool:
            if one.head not in (address, one.address) or one.origins or one.exits:
                return False
            try:
                new = lay_out(one.address)
            except (Unrelocatable, OutOfReach):
                return False
            return (new.head, new.data) == (one.head, one.data)

        if (found := arena.reuse(is_same)) is not None:
            return cls(*found)
        return cls.install(address, lay_out, guest, arena)

    def release(self, guest: Guest, arena: Arena, reached: bool, way: bool = False) -> bool:
        """Release it: nothing leads here any more. Return whether a vCPU may have reached it: dirty until it is proven
        empty.

        reached: something led here. No vCPU was there nevertheless where none has run since, nor will be, where no
                 table that was left may lead here.
        way:     see Arena.retire (dispatches).

        Raises OptprobeError where its memory cannot be wiped: it is not used again.
        """
        if self.installed_at is None or (
            reached and (guest.moment() != self.installed_at or arena.has_retired_dispatchers)
        ):
            arena.retire(self.slot, self.detour, way)
            return True
        try:
            arena.wipe([self.slot], guest.machine)
        except OptprobeError:
            arena.code.discard(self.slot)  # what it holds is not known
            raise
        arena.code.free(self.slot)
        return False


def trial(
    address: int, lay_out: LayOut, guest: Guest, arena: Arena, aligned: Alignment = ANYWHERE
) -> Detour:
    """Return the detour where code memory is free now, for its length. Raises Refused."""
    try:
        return lay_out(arena.free_code(address, guest.isa.branch_reach, aligned))
    except (Unrelocatable, OutOfReach) as stuck:
        raise Refused(Refusal.ARENA_OUT_OF_REACH.because(address=guest.text.spell(address))) from stuck
