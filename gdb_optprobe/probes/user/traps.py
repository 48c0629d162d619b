"""Our table of the traps in user programs, in the guest, and the code before the kernel's own handler of breakpoints.

    kernel's entry code ── call ──► our handler ── table ──► code of the probe ──► back
                                        └── not ours ──► the kernel's handler
The first probe puts it in, by a patch of one instruction; the last one takes it out, once nobody is on the way there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.layout import Detour
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers import lowering_user_traps
from gdb_optprobe.isa.base import Insn, Isa
from gdb_optprobe.isa.code import Code
from gdb_optprobe.isa.emitter import Readers
from gdb_optprobe.objects.user_traps import CODE, SLOT, Key, UserTrapsLayout, slot
from gdb_optprobe.probes import hooks
from gdb_optprobe.probes.hooks import NOTHING, Standing
from gdb_optprobe.probes.placed import Placed
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.user.target import UserTarget

SLOTS = 512


@dataclass
class _Hook:
    """In the guest. writable, leaf, gone, handler: code; memory: the table, which holds `data`."""

    memory: Slot
    data: bytearray
    writable: Placed
    leaf: Placed
    gone: Placed
    handler: Placed
    calls: tuple[Patch, ...]


@dataclass
class UserTraps:
    """codes: by key, the code of every trap that ever was."""

    target: Target
    layout: UserTrapsLayout = field(default_factory=lambda: UserTrapsLayout(SLOTS))
    _hook: _Hook | None = None
    _codes: dict[Key, int] = field(default_factory=dict)

    def begin(
        self,
        user: UserTarget,
        readers: Readers,
        arena: Arena,
        standing: Standing = NOTHING,
        codes: Mapping[Key, int] = MappingProxyType({}),
        gone: Collection[Key] = (),
    ) -> None:
        """Have traps come here. Raises Refused, TextChanged with the guest as it was.

        codes, gone: of an earlier GDB's traps, what they come to from then on, and those that have gone.
        """
        if self._hook is not None:
            return
        calls = user.kernel.calls
        near = calls.handler
        memory = arena.allocate_data(self.layout.size, near, self.target.isa.data_reach)
        table = lowering_user_traps.UserTraps(self.layout, memory.address)
        kernel, isa, placed = user.kernel, self.target.isa, list[Placed]()

        def put(code: Code) -> Placed:
            placed.append(self.place(code, near, arena))
            return placed[-1]

        try:
            writable, leaf = put(lambda at: kernel.writable), put(lambda at: kernel.leaf)
            nothing = put(lowering_user_traps.gone(near, readers, kernel.isa))
            page = leaf.detour.address
            handler = put(lowering_user_traps.handler(table, kernel.mapped, page, near, kernel.isa))
            patches = tuple(
                Patch(call.address, call.data, _led(isa, call, handler.detour.address)) for call in calls.calls
            )
            known = {**codes, **dict.fromkeys(gone, nothing.detour.address)}
            data = self.layout.encode(known)
            self.target.machine.write(memory.address, bytes(data))
            hooks.put_in(patches, self.target, arena, standing)
        except OptprobeError:
            for one in placed:
                one.give_up(self.target, arena, reached=False)
            arena.data.release(memory)
            raise
        self._hook = _Hook(memory, data, writable, leaf, nothing, handler, patches)
        self._codes = known

    @property
    def writable(self) -> int:
        """Where the routine is."""
        assert self._hook is not None, "begin"
        return self._hook.writable.detour.address

    def place(self, code: Code, near: int, arena: Arena) -> Placed:
        """Code that traps come to. Raises Refused."""
        return Placed.near(near, lambda at: Detour(at, code(at), near, ()), self.target, arena)

    def lead(self, key: Key, code: int) -> None:
        """A trap there, which is about to be written, comes to `code`. Raises OptprobeError."""
        if key not in self._codes and len(self._codes) >= self.layout.room:
            raise OptprobeError(
                f"there is room for {self.layout.room} traps in programs, those of deleted probes among them",
                "optprobe delete all probes on programs to begin anew",
            )
        self._write(key, code)

    def forget(self, key: Key) -> None:
        """The trap has gone, or does not come."""
        if self._hook is not None and key in self._codes:
            self._write(key, self._hook.gone.detour.address)

    def pass_by(self, key: Key) -> None:
        """A trap was there until now, of an earlier GDB's."""
        assert self._hook is not None, "begin"
        self.lead(key, self._hook.gone.detour.address)

    def dismiss(self, user: UserTarget, arena: Arena) -> None:
        """The kernel calls its own handler again, where no trap of ours is left and nobody has just come to one."""
        hook = self._hook
        if hook is None or any(code != hook.gone.detour.address for code in self._codes.values()):
            return
        inside = [*user.kernel.calls.ways_in, *((one.detour.address, one.detour.end) for one in self._code(hook))]
        if not hooks.is_deserted(inside, self.target, (*user.kernel.calls.beside, *arena.ranges.code)):
            return
        hooks.take_out(hook.calls, self.target, arena)
        for one in self._code(hook):
            one.give_up(self.target, arena, reached=True)
        arena.data.release(hook.memory)
        self._hook, self._codes = None, {}

    def abandon(self) -> None:
        """The guest that held it all is gone."""
        self._hook, self._codes = None, {}

    @property
    def patches(self) -> tuple[Patch, ...]:
        """What was written into the kernel's text."""
        return self._hook.calls if self._hook is not None else ()

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The code that every trap comes to."""
        hook = self._hook
        return tuple((one.detour.address, one.detour.end) for one in self._code(hook)) if hook is not None else ()

    def _code(self, hook: _Hook) -> tuple[Placed, ...]:
        return hook.handler, hook.gone, hook.leaf, hook.writable

    def _write(self, key: Key, code: int) -> None:
        """The key last: GDB may be killed in between, and the guest may run."""
        hook = self._hook
        assert hook is not None, "begin"
        new = key not in self._codes
        at = self.layout.place(hook.data, key)
        hook.data[at : at + SLOT] = slot(key, code)
        parts = (CODE, 0, 8) if new else (CODE,)
        for part in parts:
            word = bytes(hook.data[at + part : at + part + 8])
            self.target.machine.write(hook.memory.address + at + part, word)
        self._codes[key] = code


def _led(isa: Isa, insn: Insn, to: int) -> bytes:
    """`insn`, a call or what runs before the kernel's handler, made a way to ours."""
    return isa.redirect(insn, to) if insn.target is not None else isa.branch(insn.address, to)
