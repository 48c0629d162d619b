"""Traps where functions of programs return: which function has them, and when calls are forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from gdb_optprobe.detours.quiescence import Range
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers import lower_user_returns
from gdb_optprobe.isa.user_returns import Leaving
from gdb_optprobe.maps.user_call_table import ACTIVE, COUNTERS, KEY, WORD
from gdb_optprobe.probes import hooks
from gdb_optprobe.probes.user import user_rethooks
from gdb_optprobe.probes.user.user_rethooks import UserRethook, UserRethooks

INODE, ENTRY, EXITS = 1 << 63, 0x1000, (0x1010, 0x1020)
TABLE, COPIED = 0x10_0000, (0x20_0000, 0x20_0100)
KEYS = {(at, INODE) for at in EXITS}


class Texts:
    """The text of one program. refuses: what is put back, as where a program is shown."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.armed: set[int] = set()
        self.refuses = False

    def is_installed(self, program: object, address: int) -> bool:
        return address in self.armed

    def install(self, program: object, texts: Mapping[int, bytes]) -> None:
        self.armed |= texts.keys()
        self.held |= texts.keys()

    def remove(self, program: object, addresses: Iterable[int]) -> None:
        self.armed -= {*addresses}
        self.revert(program, [SimpleNamespace(address=at) for at in addresses])

    def revert(self, program: object, changes: Sequence[Any]) -> None:
        if self.refuses:
            raise OptprobeError("a program is shown")
        self.held -= {change.address for change in changes}


class World:
    """A function of a program on an ISA where its returns are traps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory: dict[int, int] = {}
        self.codes: dict[tuple[int, int], int] = {}
        self.inside: list[Range] = []
        self.texts, addresses = Texts(), count(0x30_0000, 0x1000)

        def placed(*_: object) -> Any:
            at = next(addresses)
            return MagicMock(detour=SimpleNamespace(address=at), range=(at, at + 0x100))

        def is_quiescent(inside: Sequence[Range], *_: object) -> bool:
            self.inside = [*inside]
            return True

        monkeypatch.setattr(user_rethooks, "exits", lambda *_: EXITS)
        monkeypatch.setattr(hooks, "is_quiescent", is_quiescent)
        for name in ("uretprobe_parts", "return_handler", "return_code", "entry_code"):
            monkeypatch.setattr(user_rethooks, name, lambda *_: [None])
        monkeypatch.setattr(lower_user_returns, "dead_at_return", MagicMock())
        guest, traps = MagicMock(), MagicMock(ranges=())
        guest.machine.read, guest.machine.write = self.read, self.write
        traps.install_code = placed
        traps.dispatcher.set_code = self.codes.__setitem__
        traps.dispatcher.clear = self.codes.pop
        self.program = MagicMock(inode=INODE, bits=64)
        self.program.offset = lambda at: at
        self.user, self.arena = MagicMock(texts=self.texts), MagicMock(retired=())
        self.user.kernel.returning.return_value.isa.leaving = Leaving(b"ret.", 0)
        self.arena.allocate_data = lambda *_: SimpleNamespace(address=next(addresses))
        self.rethooks = UserRethooks(guest, traps, MagicMock(), MagicMock(), count(1).__next__)
        hook = MagicMock(range=COPIED)
        table: Any = SimpleNamespace(address=TABLE)
        self.rethooks._installed = user_rethooks._Installed(table, table, (hook,), ())

    def read(self, at: int, size: int) -> bytes:
        words = (self.memory.get(at + offset, 0) for offset in range(0, size, WORD))
        return b"".join(word.to_bytes(WORD, "little") for word in words)

    def write(self, at: int, data: bytes) -> None:
        for offset in range(0, len(data), WORD):
            self.memory[at + offset] = int.from_bytes(data[offset : offset + WORD], "little")

    def add(self) -> UserRethook:
        probe: Any = MagicMock(number=1)
        probe.spec.maxactive = 0
        self.rethooks.install_entry(self.program, ENTRY, [probe], self.user, self.arena)
        return self.rethooks.functions[INODE, ENTRY]

    def delete(self) -> None:
        self.rethooks.release(self.program, ENTRY)

    def tidy(self) -> None:
        self.rethooks.tidy(self.user, self.arena)

    def enter(self, function: UserRethook) -> None:
        """A call of it is under way."""
        self.memory |= {TABLE + KEY: 0x7F01, TABLE + COUNTERS: function.counters.address}
        self.memory[function.counters.address + ACTIVE] = 1

    def is_seen(self, function: UserRethook) -> bool:
        """Whether each return of the function leads to its code."""
        assert function.installed is not None
        return self.texts.held == {*EXITS} and self.codes == dict.fromkeys(KEYS, function.installed.detour.address)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_probe_that_is_put_back_while_a_program_is_shown_sees_returns(world: World) -> None:
    """The traps of the first are still there: nothing was tidied."""
    first = world.add()
    numbers = dict(first.exits)
    world.enter(first)
    world.delete()
    second = world.add()
    assert second is not first and second.exits == numbers and not first.exits
    world.tidy()
    assert world.is_seen(second)
    assert not world.memory[TABLE + KEY] and not world.rethooks.read_counts(first).active
    world.tidy()
    assert world.rethooks.retired == []
    world.delete()
    world.tidy()
    assert not world.texts.held and not world.codes


@pytest.mark.parametrize("switched_off", [False, True])
def test_so_does_one_after_traps_that_could_not_be_removed(world: World, switched_off: bool) -> None:
    """The text has forgotten them: later processes would not have them."""
    first = world.add()
    if switched_off:
        world.rethooks.retire(world.program, ENTRY)
    else:
        world.delete()
    world.texts.refuses = True
    with pytest.raises(OptprobeError, match="shown"):
        world.tidy()
    world.texts.refuses = False
    second = world.add()
    assert (second is first) is switched_off
    world.tidy()
    assert world.is_seen(second) and world.texts.armed == {*EXITS}


def test_no_call_is_forgotten_while_a_thread_copies_it(world: World) -> None:
    world.add()
    world.delete()
    world.tidy()
    assert COPIED in world.inside
