"""Our table of the traps in user programs, in the guest, and the code before the kernel's own handler of breakpoints.

    kernel's entry code ── call ──► our handler ── table ──► code of the probe ──► back
                                        └── not ours ──► the kernel's handler
The first probe puts it in, by a patch of one instruction; the last one takes it out, once nobody is on the way there.
A larger table has a handler of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.journal import TableKind
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers import lower_user_traps
from gdb_optprobe.isa.base import Code, Insn
from gdb_optprobe.isa.codegen import ProbeReadRoutines
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.maps import user_trap_table
from gdb_optprobe.maps.user_trap_table import CODE, SLOT, Key, UserTrapTableLayout, slot
from gdb_optprobe.probes import hooks
from gdb_optprobe.probes.hooks import NOT_INSTALLED, InstalledBytes
from gdb_optprobe.probes.installed_detour import InstalledDetour
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.user.target import UserTarget

SLOTS = 512
GROWTH = 4


@dataclass
class _Handler:
    """In the guest, with its table, which holds `data`. calls: the kernel's calls of its own handler lead here."""

    layout: UserTrapTableLayout
    memory: Slot
    data: bytearray
    installed: InstalledDetour
    calls: tuple[Patch, ...]


@dataclass
class _Installed:
    """In the guest. writable, leaf, gone: code, which any handler uses."""

    user: UserTarget
    arena: Arena
    writable: InstalledDetour
    leaf_entry: InstalledDetour
    gone: InstalledDetour
    handler: _Handler


@dataclass
class UprobeTraps:
    """codes: by key, the code of every trap that ever was."""

    target: Target
    slots: int = SLOTS
    _installed: _Installed | None = None
    _codes: dict[Key, int] = field(default_factory=dict)

    def install(
        self,
        user: UserTarget,
        readers: ProbeReadRoutines,
        arena: Arena,
        standing: InstalledBytes = NOT_INSTALLED,
        codes: Mapping[Key, int] = MappingProxyType({}),
        gone: Collection[Key] = (),
    ) -> None:
        """Have traps come here. Raises Refused, TextChanged with the guest as it was.

        codes, gone: of an earlier GDB's traps, what they come to from then on, and those that have gone.
        """
        if self._installed is not None:
            return
        kernel, near, placed = user.kernel, user.kernel.calls.handler, list[InstalledDetour]()

        def put(code: Code) -> InstalledDetour:
            placed.append(self.install_or_reuse(code, near, arena))
            return placed[-1]

        try:
            writable, leaf = put(lambda at: kernel.writable), put(lambda at: kernel.leaf)
            nothing = put(lower_user_traps.lower_removed_trap(near, readers, kernel.isa))
            arena.reserve(near, self.target.isa.data_reach)
            known = {**codes, **dict.fromkeys(gone, nothing.detour.address)}

            def lead(new: Sequence[Patch]) -> None:
                hooks.install(new, self.target, arena, standing)

            handler, known = self._install_handler(known, nothing, leaf, user, arena, lead)
        except OptprobeError:
            for one in placed:
                one.release(self.target, arena, reached=False)
            raise
        self._installed, self._codes = _Installed(user, arena, writable, leaf, nothing, handler), known

    def _install_handler(
        self,
        codes: Mapping[Key, int],
        nothing: InstalledDetour,
        leaf: InstalledDetour,
        user: UserTarget,
        arena: Arena,
        lead: Callable[[Sequence[Patch]], None],
    ) -> tuple[_Handler, dict[Key, int]]:
        """One whose table has room for one more than `codes`, and all that the table holds.

        lead: has the kernel come there. Raises as `begin`.
        """
        kernel, near = user.kernel, user.kernel.calls.handler
        layout, memory, data, known = self._table(codes, nothing, near, arena)
        self.target.machine.write(memory.address, bytes(data))
        table = lower_user_traps.PlacedUserTrapTable(layout, memory.address)
        code = lower_user_traps.lower_user_trap_handler(table, kernel.mapped, leaf.detour.address, near, kernel.isa)
        placed = None
        try:
            placed = self.install_or_reuse(code, near, arena)
            calls = tuple(
                Patch(call.address, call.data, _branch_to(self.target.isa, call, placed.detour.address))
                for call in kernel.calls.calls
            )
            lead(calls)
        except OptprobeError:
            if placed is not None:
                placed.release(self.target, arena, reached=False)
            arena.release_table(TableKind.USER_TRAPS, memory)
            raise
        return _Handler(layout, memory, data, placed, calls), known

    def check_memory(self, keys: Collection[Key], more: int, near: int, arena: Arena) -> None:
        """Raises Refused where there is no memory for a table of these traps, all they come to, and `more` bytes."""
        memory = arena.earlier_table(TableKind.USER_TRAPS)
        new = 0 if memory is not None and self._known(memory, keys) else self._layout(len(keys)).size
        arena.check_reserve(near, self.target.isa.data_reach, new + more)

    def _known(
        self, memory: Slot, keys: Iterable[Key]
    ) -> tuple[UserTrapTableLayout, bytearray, Collection[Key]] | None:
        """An earlier session's table, what it holds and the traps in it; None where it has no room for these too."""
        if not user_trap_table.is_size(memory.size):
            return None
        layout = UserTrapTableLayout(memory.size // SLOT)
        data = bytearray(self.target.machine.read(memory.address, layout.size))
        known = layout.decode(data)
        return (layout, data, known) if known is not None and len({*known, *keys}) <= layout.room else None

    def _layout(self, traps: int) -> UserTrapTableLayout:
        layout = UserTrapTableLayout(self.slots)
        while traps >= layout.room:
            layout = UserTrapTableLayout(GROWTH * layout.slots)
        return layout

    def _table(
        self, codes: Mapping[Key, int], nothing: InstalledDetour, near: int, arena: Arena
    ) -> tuple[UserTrapTableLayout, Slot, bytearray, dict[Key, int]]:
        """One with room for one more than `codes`: an earlier session's, or a new one. Raises Refused."""
        memory = arena.adopt_table(TableKind.USER_TRAPS, user_trap_table.is_size) if self._installed is None else None
        if memory is not None:
            if (found := self._known(memory, codes)) is not None:
                layout, data, known = found
                # Who searches it now finds what was found before: no trap changes its place.
                wanted = dict.fromkeys(known, nothing.detour.address) | {**codes}
                return layout, memory, layout.changed(data, wanted), wanted
            arena.release_table(TableKind.USER_TRAPS, memory)
        layout = self._layout(len(codes))
        memory = arena.allocate_table(TableKind.USER_TRAPS, layout.size, near, self.target.isa.data_reach)
        return layout, memory, layout.encode(codes), {**codes}

    def _grow(self, hook: _Installed) -> None:
        """Whoever is in the handler that there was goes on, over the table that there was. Raises as `begin`."""
        old = hook.handler

        def lead(new: Sequence[Patch]) -> None:
            hooks.exchange(old.calls, new, self.target)

        hook.handler, self._codes = self._install_handler(
            self._codes, hook.gone, hook.leaf_entry, hook.user, hook.arena, lead
        )
        self._release(old, hook.arena)

    def _release(self, handler: _Handler, arena: Arena) -> None:
        """Nothing leads there any more."""
        handler.installed.release(self.target, arena, reached=True, way=True)
        arena.release_table(TableKind.USER_TRAPS, handler.memory)

    @property
    def writable(self) -> int:
        """Where the routine is."""
        assert self._installed is not None, "begin"
        return self._installed.writable.detour.address

    def install_or_reuse(self, code: Code, near: int, arena: Arena) -> InstalledDetour:
        """The same, or what an earlier session has left of it. Raises Refused."""
        return InstalledDetour.install_or_reuse(near, lambda at: Detour(at, code(at), near, ()), self.target, arena)

    def install_code(self, code: Code, near: int, arena: Arena) -> InstalledDetour:
        """Code that traps come to. Raises Refused."""
        return InstalledDetour.install(near, lambda at: Detour(at, code(at), near, ()), self.target, arena)

    def set_code(self, key: Key, code: int) -> None:
        """A trap there, which is about to be written, comes to `code`. Raises Refused, TextChanged."""
        assert self._installed is not None, "begin"
        if key not in self._codes and len(self._codes) >= self._installed.handler.layout.room:
            self._grow(self._installed)
        self._write_slot(key, code)

    def clear(self, key: Key) -> None:
        """The trap has gone, or does not come."""
        if self._installed is not None and key in self._codes:
            self._write_slot(key, self._installed.gone.detour.address)

    def adopt_trap(self, key: Key) -> None:
        """A trap was there until now, of an earlier GDB's."""
        assert self._installed is not None, "begin"
        self.set_code(key, self._installed.gone.detour.address)

    def remove(self, user: UserTarget, arena: Arena) -> None:
        """The kernel calls its own handler again, where no trap of ours is left and nobody has just come to one."""
        hook = self._installed
        if hook is None or any(code != hook.gone.detour.address for code in self._codes.values()):
            return
        inside = [
            *user.kernel.calls.ways_in, *((one.detour.address, one.detour.end) for one in self._shared_code(hook))
        ]
        if not hooks.is_quiescent(inside, self.target, (*user.kernel.calls.beside, *arena.ranges.code)):
            return
        hooks.remove(hook.handler.calls, self.target, arena)
        self._release(hook.handler, arena)
        for one in (hook.gone, hook.leaf_entry, hook.writable):
            one.release(self.target, arena, reached=True)
        self._installed, self._codes = None, {}

    def abandon(self) -> None:
        """The guest that held it all is gone."""
        self._installed, self._codes = None, {}

    @property
    def patches(self) -> tuple[Patch, ...]:
        """What was written into the kernel's text."""
        return self._installed.handler.calls if self._installed is not None else ()

    @property
    def handler_ranges(self) -> tuple[tuple[int, int], ...]:
        """The code that every trap comes to."""
        hook = self._installed
        return tuple(
            (one.detour.address, one.detour.end) for one in self._shared_code(hook)
        ) if hook is not None else ()

    def _shared_code(self, hook: _Installed) -> tuple[InstalledDetour, ...]:
        return hook.handler.installed, hook.gone, hook.leaf_entry, hook.writable

    def _write_slot(self, key: Key, code: int) -> None:
        """The key last: GDB may be killed in between, and the guest may run."""
        hook = self._installed
        assert hook is not None, "begin"
        new, table = key not in self._codes, hook.handler
        at = table.layout.place(table.data, key)
        table.data[at : at + SLOT] = slot(key, code)
        parts = (CODE, 0, 8) if new else (CODE,)
        for part in parts:
            word = bytes(table.data[at + part : at + part + 8])
            self.target.machine.write(table.memory.address + at + part, word)
        self._codes[key] = code


def _branch_to(isa: Isa, insn: Insn, to: int) -> bytes:
    """`insn`, a call or what runs before the kernel's handler, made a way to ours."""
    return isa.redirect(insn, to) if insn.target is not None else isa.branch(insn.address, to)
