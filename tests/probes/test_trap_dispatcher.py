"""The dispatcher of traps on a fake guest, for keys of one word and of two: its table, its growth, its removal."""

from __future__ import annotations

import pytest

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.journal import TableKind
from gdb_optprobe.detours.patch import TextChanged
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.maps.trap_table import KERNEL_KEY, USER_KEY, Key, layout_of
from gdb_optprobe.probes.trap_dispatcher import Dispatch, TrapDispatcher
from tests.fake_guest import TRAP, FakeGuest, program

KINDS = {KERNEL_KEY: TableKind.TRAPS, USER_KEY: TableKind.USER_TRAPS}
GONE = 0x1234
pytestmark = pytest.mark.parametrize("words", KINDS)


def dispatcher(words: int) -> tuple[FakeGuest, Arena, TrapDispatcher, Dispatch]:
    guest = program()
    dispatch = Dispatch(guest.trap_calls(), lambda table: lambda at: table.address.to_bytes(8, "little"), GONE)
    arena = guest.session().optimizer.take_arena()
    return guest, arena, TrapDispatcher(guest, KINDS[words], words, slots=4), dispatch


def keys(words: int, count: int) -> list[Key]:
    return [(0x100 * number,) * words for number in range(1, count + 1)]


def in_guest(guest: FakeGuest, traps: TrapDispatcher) -> dict[Key, int]:
    """Return the table that the guest has now."""
    (memory,) = traps.memory
    layout = layout_of(memory.size, traps.key_words)
    assert layout is not None
    return dict(layout.decode(guest.machine.read(memory.address, memory.size)) or {})


def test_a_table_grows_and_keeps_what_traps_lead_to(words: int) -> None:
    guest, arena, traps, dispatch = dispatcher(words)
    traps.install(dispatch, arena)
    wanted = {key: 0x7000 + number for number, key in enumerate(keys(words, 9))}
    sizes = set()
    for key, code in wanted.items():
        traps.set_code(key, code)
        sizes.add(traps.memory[0].size)
    assert in_guest(guest, traps) == wanted and len(sizes) == 3
    assert guest.machine.read(TRAP, 5) == traps.patches[0].new
    assert traps.ranges[0] == dispatch.calls.ways_in[0]


def test_it_is_removed_after_the_last_trap(words: int) -> None:
    guest, arena, traps, dispatch = dispatcher(words)
    original = guest.machine.read(TRAP, 5)
    one, other = keys(words, 2)
    traps.install(dispatch, arena)
    for key in (one, other):
        traps.set_code(key, 0x7000)
    traps.clear(one)
    assert in_guest(guest, traps) == {one: GONE, other: 0x7000}
    assert not traps.remove() and traps.is_installed
    traps.clear(other)
    assert traps.remove() and not traps.is_installed and not traps.patches
    assert guest.machine.read(TRAP, 5) == original


def test_traps_of_an_earlier_session_are_removed_ones(words: int) -> None:
    guest, arena, traps, dispatch = dispatcher(words)
    earlier = keys(words, 3)
    traps.install(dispatch, arena, dict.fromkeys(earlier))
    assert in_guest(guest, traps) == dict.fromkeys(earlier, GONE)
    assert traps.remove()


def test_where_the_kernel_s_text_is_another_nothing_is_left(words: int) -> None:
    guest, arena, traps, dispatch = dispatcher(words)
    earlier = keys(words, 1)
    original = guest.machine.read(TRAP, 5)
    guest.machine.write(TRAP, b"\x90" * 5)
    with pytest.raises(TextChanged):
        traps.install(dispatch, arena, dict.fromkeys(earlier, 0x7000))
    assert not traps.is_installed and not traps.memory
    guest.machine.write(TRAP, original)
    # The code that the trap led to is not known any more; a CPU that came to it is served nevertheless.
    traps.install(dispatch, arena)
    assert in_guest(guest, traps) == dict.fromkeys(earlier, GONE)


def test_a_key_that_was_not_written_is_written_again(words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its key the trap would go to the kernel's own handler."""
    guest, arena, traps, dispatch = dispatcher(words)
    traps.install(dispatch, arena)
    (key,) = keys(words, 1)
    written: list[int] = []
    write = guest.machine.write

    def fails(address: int, data: bytes) -> None:
        if len(written) == 1:
            raise OptprobeError("the connection does not answer")
        written.append(address)
        write(address, data)

    with monkeypatch.context() as broken:
        broken.setattr(guest.machine, "write", fails)
        with pytest.raises(OptprobeError):
            traps.set_code(key, 0x7000)
    traps.set_code(key, 0x7008)
    assert in_guest(guest, traps) == {key: 0x7008}
