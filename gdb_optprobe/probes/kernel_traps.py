"""Traps of ours in the guest: the table that leads them to detours, and the code before the kernel's own handler.

    probed insn: trap ──► kernel's entry code ── branch ──► our handler ── table ──► detour of the branch ──► next insn
                                                                 └── not ours ──► the kernel's handler
The first trap puts the handler in, by patches of one instruction each; it goes with the arena. A larger table has a
handler of its own. What a trap leads to is known before the trap is written and never changes: maps/trap_table.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.arena_contents import PatchedText
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.journal import TableKind
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.quiescence import Range
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.trap_calls import TrapCalls
from gdb_optprobe.handlers import lower_traps
from gdb_optprobe.isa.trapping import Trapping
from gdb_optprobe.maps import trap_table as traps_layout
from gdb_optprobe.maps.trap_table import DETOUR, KEY, SLOT, TrapTableLayout, slot
from gdb_optprobe.probes import hooks
from gdb_optprobe.probes.installed_detour import InstalledDetour
from gdb_optprobe.probes.target import Target

SLOTS = 512
GROWTH = 4


@dataclass
class _Handler:
    """In the guest, with its table, which holds `data`. calls: the kernel's calls of its own handler lead here."""

    layout: TrapTableLayout
    memory: Slot
    data: bytearray
    installed: InstalledDetour
    calls: tuple[Patch, ...]


@dataclass
class KernelTraps:
    """detours: by the address of every trap that ever was; 0 of those that have gone."""

    target: Target
    _handler: _Handler | None = None
    _detours: dict[int, int] = field(default_factory=dict)

    @cached_property
    def missing(self) -> str:
        """Why no trap can be handled in the guest, in words; "" where it can."""
        try:
            self.target.trap_calls()
        except OptprobeError as error:
            return error.message
        return ""

    @property
    def trap(self) -> bytes:
        """What is written where one is to trap."""
        return self.target.trap_calls().trap or self.target.isa.trap

    @property
    def ways_in(self) -> tuple[tuple[int, int], ...]:
        """See Limits."""
        return () if self.missing else self.target.trap_calls().ways_in

    def set_detour(self, address: int, detour: int, arena: Arena) -> None:
        """A trap at `address` that is about to be written leads to `detour`. Raises Refused, OptprobeError."""
        handler = self._handler or self._install_handler(arena)
        if address not in self._detours and len(self._detours) >= handler.layout.room:
            handler = self._install_handler(arena)
        self._detours[address] = detour
        self._write_slot(handler, address)

    def adopt(self, texts: Sequence[PatchedText], arena: Arena) -> None:
        """Where traps of an earlier session's were until now: who has just come to one goes on. Raises as `lead`."""
        if self._needs_adoption(texts):
            self._detours |= dict.fromkeys((text.address for text in texts if text.is_trap(self.target.isa)), 0)
            self._install_handler(arena)

    def _needs_adoption(self, texts: Sequence[PatchedText]) -> bool:
        """Whether somebody may have come to a trap of an earlier session's."""
        if self.missing or not any(text.is_trap(self.target.isa) for text in texts):
            return False
        return self._had_handler(text.address for text in texts)

    def _had_handler(self, places: Iterable[int]) -> bool:
        """Whether an earlier session had a handler, of what it had written to."""
        return not {call.address for call in self.target.trap_calls().calls}.isdisjoint(places)

    def clear(self, address: int) -> None:
        """The trap at `address` has gone, or does not come."""
        if self._handler is not None and self._detours.get(address):
            self._detours[address] = 0
            self._write_slot(self._handler, address)

    def remove_handler(self, arena: Arena) -> None:
        """The kernel calls its own handler again, where no trap of ours is left and nobody has just come to one."""
        if self._handler is None or any(self._detours.values()):
            return
        if not hooks.is_quiescent(self.handler_ranges, self.target):
            return
        hooks.remove(self._handler.calls, self.target, arena)
        self._release(self._handler, arena)
        self._handler, self._detours = None, {}

    def abandon(self) -> None:
        """The guest that held it all is gone."""
        self._handler, self._detours = None, {}

    @property
    def patches(self) -> tuple[Patch, ...]:
        """What was written into the kernel's text beside the traps."""
        return self._handler.calls if self._handler is not None else ()

    @property
    def handler_ranges(self) -> tuple[Range, ...]:
        """Where nobody may be when the kernel is to call its own handler again."""
        if self._handler is None:
            return ()
        code = self._handler.installed.detour
        return (*self.target.trap_calls().ways_in, (code.address, code.end))

    @property
    def memory(self) -> tuple[Slot, ...]:
        """The table's."""
        return (self._handler.memory,) if self._handler is not None else ()

    @property
    def _isa(self) -> Trapping:
        found = self.target.trap_calls().trapping
        assert found is not None, "no plan has a trap"
        return found

    def check_memory(self, texts: Sequence[PatchedText], arena: Arena) -> None:
        """Raises Refused where there is no memory for what `adopt` puts in; nothing is changed."""
        if self._needs_adoption(texts):
            traps = [text.address for text in texts if text.is_trap(self.target.isa)]
            memory = arena.earlier_table(TableKind.TRAPS)
            new = 0 if memory is not None and self._known(memory, traps) else self._layout(len(traps)).size
            arena.check_reserve(self.target.trap_calls().handler, self.target.isa.data_reach, new)

    def _layout(self, traps: int) -> TrapTableLayout:
        layout = TrapTableLayout(SLOTS if self._handler is None else self._handler.layout.slots)
        while traps >= layout.room:
            layout = TrapTableLayout(GROWTH * layout.slots)
        return layout

    def _table(self, arena: Arena) -> tuple[TrapTableLayout, Slot, bytearray]:
        """One with room for one more trap: an earlier session's, or a new one. Raises Refused."""
        memory = arena.adopt_table(TableKind.TRAPS, traps_layout.is_size) if self._handler is None else None
        if memory is not None:
            if (found := self._known(memory, self._detours)) is not None:
                layout, data, known = found
                # Who searches it now finds what was found before: no trap changes its place.
                self._detours = dict.fromkeys(known, 0) | self._detours
                return layout, memory, layout.changed(data, self._detours)
            arena.release_table(TableKind.TRAPS, memory)
        layout = self._layout(len(self._detours))
        near, reach = self.target.trap_calls().handler, self.target.isa.data_reach
        return layout, arena.allocate_table(TableKind.TRAPS, layout.size, near, reach), layout.encode(self._detours)

    def _known(self, memory: Slot, traps: Iterable[int]) -> tuple[TrapTableLayout, bytearray, Collection[int]] | None:
        """An earlier session's table, what it holds and the traps in it; None where it has no room for these too."""
        if not traps_layout.is_size(memory.size):
            return None
        layout = TrapTableLayout(memory.size // SLOT)
        data = bytearray(self.target.machine.read(memory.address, layout.size))
        known = layout.decode(data)
        return (layout, data, known) if known is not None and len({*known, *traps}) <= layout.room else None

    def _install_handler(self, arena: Arena) -> _Handler:
        """A handler with a table that has room. Raises Refused, TextChanged."""
        calls = self.target.trap_calls()
        old = self._handler
        layout, memory, data = self._table(arena)
        self.target.machine.write(memory.address, bytes(data))
        traps = lower_traps.PlacedTrapTable(layout, memory.address)
        code = lower_traps.lower_trap_handler(traps, calls.entry, self._isa)
        placed = None
        try:
            placed = InstalledDetour.install_or_reuse(
                calls.handler, lambda at: Detour(at, code(at), calls.handler, ()), self.target, arena
            )
            arena.reserve(calls.handler, self.target.isa.data_reach)
            patches = self._entry_patches(calls, placed)
            if old is None:
                hooks.install(patches, self.target, arena)
            else:
                hooks.exchange(old.calls, patches, self.target)
        except OptprobeError:
            if placed is not None:
                placed.release(self.target, arena, reached=False)
            arena.release_table(TableKind.TRAPS, memory)
            raise
        self._handler = _Handler(layout, memory, data, placed, patches)
        if old is not None:
            self._release(old, arena)
        return self._handler

    def _entry_patches(self, calls: TrapCalls, placed: InstalledDetour) -> tuple[Patch, ...]:
        ours, isa = placed.detour.address, self.target.isa
        return tuple(
            Patch(at.address, at.data, isa.redirect(at, ours) if at.target else isa.branch(at.address, ours))
            for at in calls.calls
        )

    def _release(self, handler: _Handler, arena: Arena) -> None:
        """Nothing leads there any more; whoever is in it goes on."""
        handler.installed.release(self.target, arena, reached=True, way=True)
        arena.release_table(TableKind.TRAPS, handler.memory)

    def _write_slot(self, handler: _Handler, key: int) -> None:
        """The detour before the key: GDB may be killed in between, and the guest may run."""
        at = handler.layout.place(handler.data, key)
        handler.data[at : at + SLOT] = slot(key, self._detours[key])
        for part in (DETOUR, KEY):
            word = bytes(handler.data[at + part : at + part + 8])
            self.target.machine.write(handler.memory.address + at + part, word)
