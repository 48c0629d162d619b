"""Patches of files' code are written into new mappings by code in the guest, without a stop.

    the kernel's calls of vm_mmap_pgoff ── redirected ──► our code ──► vm_mmap_pgoff, then the rows of that file
See maps/mmap_patches.py. It continues without a GDB, and so do the traps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.journal import TableKind
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux.user.mmap_hook import MmapHook
from gdb_optprobe.maps import mmap_patches
from gdb_optprobe.maps.mmap_patches import FAILED, INSIDE, ROWS, SIZE, MmapPatch
from gdb_optprobe.probes import hooks
from gdb_optprobe.probes.installed_detour import InstalledDetour

ROOM, LEAST = 1023, 63
"""Rows of a table, and of one where there is less memory."""


@dataclass(frozen=True, slots=True)
class _Installed:
    memory: Slot
    placed: InstalledDetour
    patches: tuple[Patch, ...]

    @property
    def room(self) -> int:
        """Rows that its table holds."""
        return (self.memory.size - ROWS) // SIZE - 1


@dataclass
class MmapPatcher:
    """rows: what the guest's table holds, in this order; None where one was withdrawn."""

    guest: Guest
    _installed: _Installed | None = None
    _rows: list[MmapPatch | None] = field(default_factory=list)

    def install(self, hook: MmapHook, force: int, arena: Arena) -> None:
        """Have mappings come here; force: see MmapHook. Raises Refused, TextChanged with the guest as it was."""
        if self._installed is not None:
            return
        guest = self.guest
        # An earlier session's holds nothing any more: nothing leads to its code, in which no thread is.
        memory = arena.adopt_table(TableKind.USER_MAPPINGS, lambda size: size >= mmap_patches.size(LEAST))
        if memory is None:
            memory = _table(hook.to, guest, arena)
        guest.machine.write(memory.address, bytes(memory.size))
        placed = None
        try:
            code = hook.code(memory.address, force)
            placed = InstalledDetour.install_or_reuse(
                hook.to, lambda at: Detour(at, code(at), hook.to, ()), guest, arena
            )
            redirect, to = guest.isa.redirect, placed.detour.address
            patches = tuple(Patch(call.address, call.data, redirect(call, to)) for call in hook.calls)
            hooks.install(patches, guest, arena)
        except OptprobeError:
            if placed is not None:
                placed.release(guest, arena, reached=False)
            arena.release_table(TableKind.USER_MAPPINGS, memory)
            raise
        self._installed, self._rows = _Installed(memory, placed, patches), []

    def set_patches(self, rows: Sequence[MmapPatch]) -> None:
        """Have these written into mappings that are made from now on, in this order, and no others.

        Raises OptprobeError where there is no room for them; none of the new ones are held then.
        """
        hook = self._installed
        assert hook is not None or not rows, "begin"
        if hook is None:
            return
        wanted = list(dict.fromkeys(piece for row in rows for piece in row.split()))
        if len(wanted) > hook.room:
            raise OptprobeError(f"there is room for {hook.room} pieces of code in programs")
        if not self._word(hook, INSIDE):
            self._rows = [*wanted]
            self.guest.machine.write(hook.memory.address + ROWS, mmap_patches.encode(wanted, len(wanted)))
            return
        kept = set(wanted)
        for number, row in enumerate(self._rows):
            if row is not None and row not in kept:
                self._write(hook, number, row.encode_disabled())
                self._rows[number] = None
        there = set(self._rows)
        new = [row for row in wanted if row not in there]
        if len(self._rows) + len(new) > hook.room:
            raise OptprobeError("a thread maps programs just now, and their table is full", "try again")
        for row in new:
            self._write(hook, len(self._rows), row.encode() + bytes(SIZE))
            self._rows.append(row)

    @property
    def is_busy(self) -> bool:
        """Return whether a thread may be about to write into a mapping that it has made."""
        return self._installed is not None and self._word(self._installed, INSIDE) != 0

    @property
    def failed(self) -> int:
        """How many mappings did not get all that belongs there: there was no memory, say."""
        return self._word(self._installed, FAILED) if self._installed is not None else 0

    def remove(self, arena: Arena) -> None:
        """Remove the hook: the kernel maps on its own again; a thread in our code finishes there."""
        hook = self._installed
        if hook is None:
            return
        self.set_patches(())
        hooks.remove(hook.patches, self.guest, arena)
        hook.placed.release(self.guest, arena, reached=True)
        arena.release_table(TableKind.USER_MAPPINGS, hook.memory)
        self.abandon()

    def abandon(self) -> None:
        """Forget the hook: the guest that held it is gone."""
        self._installed, self._rows = None, []

    @property
    def patches(self) -> tuple[Patch, ...]:
        """What was written into the kernel's text."""
        return self._installed.patches if self._installed is not None else ()

    def _word(self, hook: _Installed, at: int) -> int:
        return int.from_bytes(self.guest.machine.read(hook.memory.address + at, 8), "little")

    def _write(self, hook: _Installed, number: int, row: bytes) -> None:
        self.guest.machine.write(hook.memory.address + ROWS + number * SIZE, row)


def _table(near: int, guest: Guest, arena: Arena) -> Slot:
    """Return memory for as many rows as there is room for. Raises Refused where it has not even some."""
    room = ROOM
    while True:
        try:
            return arena.allocate_table(TableKind.USER_MAPPINGS, mmap_patches.size(room), near, guest.isa.data_reach)
        except Refused:
            if room <= LEAST:
                raise
            room //= 4
