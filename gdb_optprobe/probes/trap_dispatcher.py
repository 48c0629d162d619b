"""The code that runs before the kernel's own handler of traps, and its table: what each trap leads to.

    trap ──► the kernel's entry code ── call or branch ──► dispatcher ── table ──► code of the trap
                                                               └── not in it ──► the kernel's handler
It is installed before the first trap, by patches of one instruction each, and removed after the last one, when no
thread is on the way there. A larger table has a dispatcher of its own; a thread in the old one finishes there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.journal import TableKind
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.quiescence import Range
from gdb_optprobe.detours.slots import Alignment, Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux.trap_calls import TrapCalls
from gdb_optprobe.handlers.lower_traps import PlacedTrapTable
from gdb_optprobe.isa.base import Code, Insn
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.maps.trap_table import Key, TrapTableLayout, layout_of
from gdb_optprobe.probes import hooks
from gdb_optprobe.probes.hooks import NOT_INSTALLED, InstalledBytes
from gdb_optprobe.probes.installed_detour import InstalledDetour

GROWTH = 4
ALIGNED = Alignment(1 << 12, is_needed=False)
"""Of tables: the address of a page is one instruction, where that of another place is two."""

Codes = Mapping[Key, int | None]
"""What traps lead to; None for traps that were removed."""
NO_CODES: Codes = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Dispatch:
    """How traps of one kind are dispatched.

    calls:   what leads to the kernel's handler.
    lower:   makes the dispatcher of a table.
    removed: the value in the table for a trap that was removed.
    """

    calls: TrapCalls
    lower: Callable[[PlacedTrapTable], Code]
    removed: int


@dataclass(frozen=True, slots=True)
class _Table:
    """A table in guest memory, which holds `data`."""

    layout: TrapTableLayout
    memory: Slot
    data: bytearray


@dataclass(frozen=True, slots=True)
class _Installed:
    """patches: lead from the kernel's entry code to the dispatcher."""

    dispatch: Dispatch
    arena: Arena
    table: _Table
    code: InstalledDetour
    patches: tuple[Patch, ...]


@dataclass
class TrapDispatcher:
    """One of traps in the kernel, one of traps in programs.

    kind:      of its table, in the journal.
    key_words: of a trap's key.
    slots:     of the first table.
    _codes:    of all traps since the dispatcher was installed.
    """

    guest: Guest
    kind: TableKind
    key_words: int
    slots: int = 512
    _installed: _Installed | None = None
    _codes: dict[Key, int | None] = field(default_factory=dict)

    @property
    def is_installed(self) -> bool:
        return self._installed is not None

    @property
    def has_traps(self) -> bool:
        """Return whether a trap leads somewhere: one that is written, or about to be."""
        return any(code is not None for code in self._codes.values())

    @property
    def patches(self) -> tuple[Patch, ...]:
        """Return what was written into the kernel's text beside the traps."""
        return self._installed.patches if self._installed is not None else ()

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Return where no thread may be when the dispatcher is removed: the way to it, and its code."""
        if self._installed is None:
            return ()
        return (*self._installed.dispatch.calls.ways_in, self._installed.code.range)

    @property
    def memory(self) -> tuple[Slot, ...]:
        """Return the memory of the table."""
        return (self._installed.table.memory,) if self._installed is not None else ()

    @property
    def first_size(self) -> int:
        """Return the bytes of the first table."""
        return self._new_layout(0).size

    def check_memory(self, keys: Collection[Key], near: int, arena: Arena, more: int = 0) -> None:
        """Check that there is room for `adopt`ing traps with these keys, and `more` bytes. Raises Refused."""
        memory = arena.earlier_table(self.kind)
        known = memory is not None and self._read_table(memory, keys) is not None
        new = 0 if known else self._new_layout(len(keys)).size
        arena.check_reserve(near, self.guest.isa.data_reach, new + more)

    def install(
        self, dispatch: Dispatch, arena: Arena, codes: Codes = NO_CODES, standing: InstalledBytes = NOT_INSTALLED
    ) -> None:
        """Have the kernel come to the dispatcher. Raises Refused, TextChanged, with the guest as it was.

        codes: of an earlier session's traps. A CPU may have come to one that was removed.
        """
        self._codes |= codes

        def lead(patches: Sequence[Patch]) -> None:
            arena.reserve(dispatch.calls.handler, self.guest.isa.data_reach)
            hooks.install(patches, self.guest, arena, standing)

        try:
            self._install(dispatch, arena, lead)
        except OptprobeError:
            # The code of the traps is the caller's; when it tries again, a CPU may still come to the traps.
            self._codes = dict.fromkeys(self._codes)
            raise

    def set_code(self, key: Key, code: int | None) -> None:
        """Have the trap, which is about to be written, lead to `code`. Raises Refused, TextChanged.

        code: None for a trap of an earlier session that was removed just now.
        """
        self._make_room(int(key not in self._codes))
        self._write(key, code)

    def set_codes(self, codes: Mapping[Key, int]) -> None:
        """Have many traps, which are about to be written, lead to `codes`: a slot of the table is one write."""
        self._make_room(len(codes.keys() - self._codes.keys()))
        assert self._installed is not None, "there is room"
        table, written = self._installed.table, dict[int, bytes]()
        for key, code in codes.items():
            at = table.layout.place(table.data, key)
            before = bytes(table.data[at : at + table.layout.slot_size])
            table.layout.put(table.data, key, code)
            written[at] = before
        left = dict(written)
        try:
            for at in written:
                self.guest.machine.write(
                    table.memory.address + at, bytes(table.data[at : at + table.layout.slot_size])
                )
                del left[at]
        except BaseException:
            for at, before in left.items():
                table.data[at : at + len(before)] = before  # the next try writes these keys again
            self._codes |= {key: code for key, code in codes.items() if table.layout.place(table.data, key) not in left}
            raise
        self._codes |= codes

    def _make_room(self, more: int) -> None:
        """Have a table with room for so many more traps. Raises Refused, TextChanged."""
        old = self._installed
        assert old is not None, "install"
        if len(self._codes) + more <= old.table.layout.room:
            return

        def lead(patches: Sequence[Patch]) -> None:
            hooks.exchange(old.patches, patches, self.guest)

        self._install(old.dispatch, old.arena, lead, more)
        self._release(old)

    def clear(self, key: Key) -> None:
        """Record that the trap was removed, or is not written."""
        if self._codes.get(key) is not None:
            self._write(key, None)

    def remove(self, inside: Sequence[Range] = (), beside: Sequence[Range] = ()) -> bool:
        """Have the kernel call its own handler again, if no trap is left and no thread is on the way to the dispatcher.

        inside: further code that no thread may be in. beside: see `is_quiescent`.

        Return whether the dispatcher is removed. Raises TextChanged.
        """
        old = self._installed
        if old is None or self.has_traps:
            return False
        if not hooks.is_quiescent((*self.ranges, *inside), self.guest, beside):
            return False
        hooks.remove(old.patches, self.guest, old.arena)
        self._release(old)
        self.abandon()
        return True

    def abandon(self) -> None:
        """Forget all: the guest that held it is gone."""
        self._installed, self._codes = None, {}

    def _install(
        self, dispatch: Dispatch, arena: Arena, lead: Callable[[Sequence[Patch]], None], more: int = 1
    ) -> None:
        """Install a dispatcher with a table that has room for so many `more` traps. lead: writes its patches.

        Raises Refused, TextChanged.
        """
        near = dispatch.calls.handler
        table, code = self._table(dispatch, arena, more), None
        self.guest.machine.write(table.memory.address, bytes(table.data))
        try:
            lowered = dispatch.lower(PlacedTrapTable(table.layout, table.memory.address))
            code = InstalledDetour.install_or_reuse(
                near, lambda at: Detour(at, lowered(at), near, ()), self.guest, arena
            )
            to = code.detour.address
            patches = tuple(
                Patch(insn.address, insn.data, _branch(self.guest.isa, insn, to)) for insn in dispatch.calls.calls
            )
            lead(patches)
        except OptprobeError:
            if code is not None:
                code.release(self.guest, arena, reached=False)
            arena.release_table(self.kind, table.memory)
            raise
        self._installed = _Installed(dispatch, arena, table, code, patches)

    def _table(self, dispatch: Dispatch, arena: Arena, more: int) -> _Table:
        """Return a table with room for all traps and `more`: an earlier session's, or a new one. Raises Refused."""
        near, reach = dispatch.calls.handler, self.guest.isa.data_reach
        earlier = arena.adopt_table(self.kind, self._is_size) if self._installed is None else None
        if earlier is not None:
            if (found := self._read_table(earlier, self._codes)) is not None:
                table, known = found
                self._codes = {**dict.fromkeys(known), **self._codes}
                # A CPU that searches it meanwhile finds what it found before: no key changes its slot.
                table.layout.update(table.data, self._values(dispatch))
                return table
            arena.release_table(self.kind, earlier)
        layout = self._new_layout(len(self._codes) + more - 1)
        memory = arena.allocate_table(self.kind, layout.size, near, reach, ALIGNED)
        return _Table(layout, memory, layout.encode(self._values(dispatch)))

    def _read_table(self, memory: Slot, keys: Collection[Key]) -> tuple[_Table, Collection[Key]] | None:
        """Read an earlier session's table. Return it and its keys; None where it has no room for `keys` too."""
        layout = layout_of(memory.size, self.key_words)
        if layout is None:
            return None
        data = bytearray(self.guest.machine.read(memory.address, layout.size))
        known = layout.decode(data)
        if known is None or len({*known, *keys}) > layout.room:
            return None
        return _Table(layout, memory, data), known

    def _is_size(self, size: int) -> bool:
        return layout_of(size, self.key_words) is not None

    def _new_layout(self, traps: int) -> TrapTableLayout:
        """Return the smallest layout with room for one more than so many traps."""
        layout = TrapTableLayout(self.slots, self.key_words)
        while traps >= layout.room:
            layout = TrapTableLayout(GROWTH * layout.slots, self.key_words)
        return layout

    def _values(self, dispatch: Dispatch) -> Mapping[Key, int]:
        return {key: dispatch.removed if code is None else code for key, code in self._codes.items()}

    def _write(self, key: Key, code: int | None) -> None:
        """Write a slot of the table, word by word: GDB may be killed in between, and the guest may run."""
        assert self._installed is not None, "install"
        table, value = self._installed.table, self._installed.dispatch.removed if code is None else code
        at = table.layout.place(table.data, key)
        slot = slice(at, at + table.layout.slot_size)
        before = table.data[slot]
        try:
            for offset, word in table.layout.put(table.data, key, value):
                self.guest.machine.write(table.memory.address + offset, word)
        except BaseException:
            table.data[slot] = before  # the next try writes the key again
            raise
        self._codes[key] = code

    def _release(self, old: _Installed) -> None:
        """Release a dispatcher that nothing leads to any more; a thread may still be in it."""
        old.code.release(self.guest, old.arena, reached=True, way=True)
        old.arena.release_table(self.kind, old.table.memory)


def _branch(isa: Isa, insn: Insn, to: int) -> bytes:
    """Encode what takes the place of `insn`, a call or what runs before the kernel's handler."""
    return isa.redirect(insn, to) if insn.target is not None else isa.branch(insn.address, to)
