"""Whenever GDB is killed, the journal is what it was before or after; what is no journal is one clear error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.detours.arena_contents import ArenaContents, Bounds, decode, restoring_patches
from gdb_optprobe.detours.journal import Item, Journal
from gdb_optprobe.detours.patch import TextChanged
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.maps import journal_format as form
from gdb_optprobe.maps.journal_format import Found

START, SIZE, FILL = 0x10000, 2048, 0xCC
TEXT, CODE, DATA = (0x1000, 0x2000), (0x10000, 0x20000), (0x30000, 0x40000)
BOUNDS = Bounds(TEXT, (CODE,), DATA, FILL)


class Killed(Exception):
    """GDB is no more."""


class Memory:
    """That takes so many bytes more."""

    def __init__(self, left: int = 1 << 40) -> None:
        self.data = bytearray([FILL]) * SIZE
        self.left = left

    def read(self, address: int, size: int) -> bytes:
        return bytes(self.data[address - START : address - START + size])

    def write(self, address: int, data: bytes) -> None:
        done = data[: self.left] if len(data) > form.AT_ONCE else data * (self.left >= len(data))
        self.data[address - START : address - START + len(done)] = done
        self.left -= len(data)
        if self.left < 0:
            raise Killed

    def found(self) -> Found | None:
        return form.decode(bytes(self.data), FILL)


values = st.one_of(st.integers(0, 1 << 64), st.text(max_size=40), st.lists(st.integers(0, 255), max_size=30))
steps = st.lists(st.tuples(st.integers(0, 8), st.none() | values), max_size=40)


@given(steps, st.integers(0, 20000))
def test_a_kill_at_any_instant(some: list[tuple[int, Any]], left: int) -> None:
    memory = Memory(left)
    states: list[dict[str, Any]] = [{}]
    try:
        journal = Journal(memory, START, SIZE, FILL)
        journal.begin()
        for number, value in some:
            if value is None:
                journal.drop(Item.CODE, number)
            else:
                journal.put(Item.CODE, number, value)
            states.append(dict(journal.state))
            journal.flush()
            states = states[-1:]
        journal.clear()
        states = [{}]
    except Killed:
        pass
    found = memory.found()
    now = found.state if found is not None else {}
    assert now in states or (now == {} and states[-1] == journal.state), (now, states)
    memory.left = 1 << 40
    next_one = Journal(memory, START, SIZE, FILL, found or Found())
    next_one.begin()
    next_one.put(Item.DATA, 1, [1])
    next_one.flush()
    again = memory.found()
    assert again is not None and again.state == {**now, "data 1": [1]}
    next_one.clear()
    assert memory.data == bytes([FILL]) * SIZE


def test_what_is_not_ours_is_not_written_over() -> None:
    memory = Memory()
    memory.data[100] = 0
    before = bytes(memory.data)
    with pytest.raises(OptprobeError, match="holds something"):
        Journal(memory, START, SIZE, FILL).begin()
    assert memory.data == before


@given(steps, st.integers(0, 40))
def test_an_older_snapshot_is_noticed(some: list[tuple[int, Any]], back: int) -> None:
    """Wherever anything was written since."""
    memory = Memory()
    journal = Journal(memory, START, SIZE, FILL)
    journal.begin()
    snapshots = [bytes(memory.data)]
    for number, value in some:
        journal.put(Item.PROBE, number, value)
        journal.flush()
        snapshots.append(bytes(memory.data))
    now = snapshots[-1]
    older = snapshots[max(0, len(snapshots) - 1 - back)]
    assert journal.is_in_place()
    memory.data[:] = older
    assert journal.is_in_place() == (older == now or not journal._open)


def test_what_was_written_in_another_time_is_no_later_state_of_this_one() -> None:
    """A snapshot with nothing of ours was loaded, the same was noted again, and a later snapshot of before loaded."""

    def noted(*numbers: int) -> tuple[Memory, Journal]:
        memory = Memory()
        journal = Journal(memory, START, SIZE, FILL)
        journal.begin()
        for number in numbers:
            journal.put(Item.PROBE, number, "vfs_read")
            journal.flush()
        return memory, journal

    before, _ = noted(1, 2)
    memory, journal = noted(1)
    assert journal.is_in_place()
    memory.data[:] = before.data
    assert not journal.is_in_place()


def test_one_that_was_never_taken_up_is_cleared() -> None:
    memory = Memory()
    memory.data[:] = kept()
    Journal(memory, START, SIZE, FILL, memory.found() or Found()).clear()
    assert memory.data == bytes([FILL]) * SIZE


def kept() -> bytearray:
    memory = Memory()
    journal = Journal(memory, START, SIZE, FILL)
    journal.put(Item.TEXT, 0x1000, ["0f1f440000", True])
    journal.begin()
    for number in range(9):
        journal.put(Item.PROBE, number, {"at": number})
        journal.flush()
    return memory.data


@given(st.integers(0, SIZE), st.binary(min_size=1, max_size=64))
def test_garbled(at: int, noise: bytes) -> None:
    """It is told, or what is left of it is what was written."""
    whole = bytes(kept())
    garbled = (whole[:at] + noise + whole[at + len(noise) :])[:SIZE]
    before = form.decode(whole, FILL)
    assert before is not None
    try:
        found = form.decode(garbled, FILL)
    except OptprobeError as error:
        assert "\n" not in error.message
    else:
        assert found is None or found.state.items() <= before.state.items()


@given(st.integers(0, SIZE))
def test_cut_short(size: int) -> None:
    whole = bytes(kept())
    before = form.decode(whole, FILL)
    assert before is not None
    try:
        found = form.decode(whole[:size], FILL)
    except OptprobeError as error:
        assert "\n" not in error.message
    else:
        assert found is None or found.state in ({}, before.state)


def test_full_is_told() -> None:
    memory, said = Memory(), []
    journal = Journal(memory, START, SIZE, FILL, when_full=lambda: said.append(memory.found()))
    journal.begin()
    for number in range(500):
        journal.put(Item.PROBE, number, [number * 0x9E3779B97F4A7C15 % (1 << 64)])
        journal.flush()
    found = memory.found()
    assert found is not None and said == [found]
    with pytest.raises(OptprobeError, match="more probes"):
        decode(found.state, BOUNDS, memory, X86_64)
    journal.clear()
    assert memory.data == bytes([FILL]) * SIZE


def test_it_is_short_before_it_is_full() -> None:
    """Early enough for what tells of a loan; and for more probes at once, earlier."""
    memory, full = Memory(), list[int]()
    journal = Journal(memory, START, SIZE, FILL, when_full=lambda: full.append(1))
    journal.begin()
    assert not journal.is_short_of(SIZE // 2 * 3 // 4) and journal.is_short_of(SIZE // 2 * 9 // 10)
    short, number = 0, 0
    while not full:
        number += 1
        journal.put(Item.PROBE, number, [number * 0x9E3779B97F4A7C15 % (1 << 64)])
        journal.flush()
        if not short and journal.is_short_of(1):
            short = number
    assert number // 2 < short < number and not journal.is_short_of(1)


def test_one_that_is_full_from_its_beginning_is_told() -> None:
    memory, said = Memory(), []
    journal = Journal(memory, START, SIZE, FILL, when_full=lambda: said.append(memory.found()))
    for number in range(500):
        journal.put(Item.PROBE, number, [number * 0x9E3779B97F4A7C15 % (1 << 64)])
    journal.begin()
    journal.put(Item.PROBE, 0, 1)
    journal.flush()
    found = memory.found()
    assert found is not None and found.state == {"full": True} and not journal.is_open and said == [found]
    journal.clear()
    assert memory.data == bytes([FILL]) * SIZE


GOOD: dict[str, Any] = {
    "text 1000": ["0f1f440000", True],
    "code 10000": [16, 13, 0x1000, [[0, 0], [8, 5]], [[8, "e900000000"]]],
    "pads 12000": 4096,
    "data 30000": 8,
    "probe 1": {"at": 0x1000},
}
BLOCKS: dict[str, Any] = {
    "block 14000": [24, 0x34000, "0f1f440000", True, 7, {"location": "f*"}, 0x1100, [32, 5]],
    "block 15000": [24, 0x35000, ["0f1f440000", "55"], False, 17, None, 0x1200, [32]],
    "out 14018": 1,
    "counts 2f": [24, 0x38000, "0f1f440000", True, 0x18000, {"location": "g*"}, 0x1400, [32, 5]],
    "alone 30": 1,
}
BLOCK = [24, 0x36000, "0f1f440000", True, 27, {}, 0x1300, [16]]
"""One of two counts."""


def block(**changed: object) -> list[object]:
    """Return BLOCK with other values, by their places: `_0` is the first."""
    return [changed.get(f"_{place}", value) for place, value in enumerate(BLOCK)]



@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("text 2000", ["0f1f440000", False]),
        ("text 1ffe", ["0f1f440000", False]),
        ("text 1800", ["", False]),
        ("text 1800", ["0f" * 32, False]),
        ("text 1800", [5, False]),
        ("text zz", ["0f", False]),
        ("code f000", [16, 13, 0x1000, [], []]),
        ("code 1fff8", [16, 13, 0x1000, [], []]),
        ("code 10008", [16, 13, 0x1000, [], []]),
        ("code 11000", [16, 17, 0x1000, [], []]),
        ("code 11000", [16, 13, -1, [], []]),
        ("code 11000", [16, 13, 0x1000, [], [[12, "e900000000"]]]),
        ("code 11000", [16, 13]),
        ("code 12800", [16, 13, 0x1000, [], []]),
        ("pads 1f800", 4096),
        ("data 30004", 8),
        ("data 3fffc", 8),
        ("data 31000", "many"),
        ("data 31000", -8),
        ("block 16000", block(_0=0)),
        ("block 16000", block(_0=1 << 11)),
        ("block 1fff0", BLOCK),
        ("block 14030", BLOCK),
        ("block 16000", block(_1=0x34008)),
        ("block 16000", block(_1=0x3fff8)),
        ("block 16000", block(_2="")),
        ("block 16000", block(_2=["55"])),
        ("block 16000", block(_2=["55", "zz"])),
        ("block 16000", block(_3=1)),
        ("block 16000", block(_4=0)),
        ("block 16000", block(_5=5)),
        ("block 16000", block(_6=0x900)),
        ("block 16000", block(_6=-1)),
        ("block 16000", block(_7=[4])),
        ("block 16000", block(_7=[0])),
        ("block 16000", block(_7=[-16])),
        ("block 16000", block(_7=[1 << 64])),
        ("block 16000", block(_7=16)),
        ("block 16000", [*BLOCK, 1]),
        ("counts 50", block(_4=0x1fff0)),
        ("counts 50", block(_4=0x18018)),
        ("counts 50", block(_4=-1)),
        ("counts 0", block(_4=0x16000)),
        ("counts 100000000", block(_4=0x16000)),
        ("counts 50", block(_4=0x16000, _7=[4])),
    ],
)
def test_what_cannot_be(key: str, value: object) -> None:
    memory = Memory()
    good = GOOD | BLOCKS
    assert isinstance(decode(good, BOUNDS, memory, X86_64), ArenaContents)
    with pytest.raises(OptprobeError, match="damaged"):
        decode({**good, key: value}, BOUNDS, memory, X86_64)


anything = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6), st.lists)
names = ["text", "code", "pads", "data", "counts", "alone", "block", "out", "probe", "room", "other"]
keys = st.sampled_from(names)
keyed = st.tuples(keys, st.integers(0, 1 << 65)).map(lambda pair: f"{pair[0]} {pair[1]:x}")


@given(st.dictionaries(keyed, anything, max_size=4))
def test_no_value_is_more_than_an_error(state: dict[str, Any]) -> None:
    try:
        decode(state, BOUNDS, Memory(), X86_64)
    except OptprobeError as error:
        assert "\n" not in error.message


def test_a_block_of_which_all_members_are_out_has_no_probes() -> None:
    alone = {"block 16000": BLOCK, "out 16000": 1, "out 16018": 1}
    (found,) = decode(alone, BOUNDS, Memory(), X86_64).blocks
    assert not len(found) and not found.is_live


def test_a_block_in_the_slot_that_a_member_of_another_has_left() -> None:
    state = {
        "counts 1": [24, 0x36000, "0f1f440000", True, 0x16000, {}, 0x1300, [16]],
        "alone 1": 1,
        "counts 9": [24, 0x38000, "0f1f440000", True, 0x16000, {}, 0x1500, []],
    }
    one, other = decode(state, BOUNDS, Memory(), X86_64).live_blocks
    assert (one.out, [*one.members], one.slot(1).address) == ([0], [1], 0x16018)
    assert (other.out, other.first, other.slot(0).address) == ([], 9, 0x16000)


def test_text_that_somebody_changed() -> None:
    class Text(Memory):
        """What stands at 0x1000 and, else, filler."""

        text = bytes.fromhex("0f1f440000")

        def read(self, address: int, size: int) -> bytes:
            return self.text[:size] if address == 0x1000 else bytes([FILL]) * size

    memory = Text()
    left = decode(GOOD, BOUNDS, memory, X86_64)
    assert restoring_patches(left, memory, X86_64) == ([], [])
    memory.text = X86_64.branch(0x1000, 0x10000)
    (change,), _ = restoring_patches(left, memory, X86_64)
    assert (change.old, change.new) == (memory.text, bytes.fromhex("0f1f440000"))
    memory.text = X86_64.branch(0x1000, 0x10008)
    with pytest.raises(TextChanged):
        restoring_patches(left, memory, X86_64)


class Large(Memory):
    """As large as the largest journal."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.data = bytearray([FILL]) * size


@pytest.mark.parametrize("value", ["count" * 400, [[]] * 200, "," * 500], ids=["bytes", "values", "commas"])
def test_what_packs_well_and_is_noted_again_and_again_is_read(value: object) -> None:
    """A thousand probes of a glob, each noted three times: 128 KiB packed, and more unpacked than is read."""
    memory = Large(1 << 18)
    journal = Journal(memory, START, 1 << 18, FILL)
    journal.begin()
    for turn in range(3):
        for number in range(1000):
            journal.put(Item.PROBE, number, [turn, value])
        journal.flush()
        found = memory.found()
        assert found is not None and journal.is_open and found.state == journal.state


@pytest.mark.parametrize("value", ["x" * 5000, [[]] * 600], ids=["bytes", "values"])
def test_more_than_is_read_is_said_to_be_full(value: object) -> None:
    memory = Large(1 << 18)
    journal = Journal(memory, START, 1 << 18, FILL)
    journal.begin()
    for number in range(1000):
        journal.put(Item.PROBE, number, value)
        if number % 100 == 99:
            journal.flush()
    found = memory.found()
    assert found is not None and found.state["full"] is True and not journal.is_open


LARGE = 4 * SIZE
MOVED = f"{Item.MOVED} 0"


class TwoPlaces(Memory):
    """Room for a journal, and for a larger one behind it, which holds something."""

    def __init__(self, left: int = 1 << 40) -> None:
        super().__init__(left)
        self.data += bytes(LARGE)

    def state(self) -> tuple[dict[str, Any], bool]:
        """Return what another GDB finds, and whether it was moved."""
        first = form.decode(bytes(self.data[:SIZE]), FILL)
        assert first is not None
        if (there := first.state.get(MOVED)) is None:
            return first.state, False
        assert there == [START + SIZE, LARGE]
        found = form.decode(bytes(self.data[SIZE:]), FILL)
        assert found is not None and found.generation
        return found.state, True


@given(st.integers(0, 12000))
def test_a_kill_at_any_instant_of_a_move(left: int) -> None:
    """Before, while and after it is in larger memory, it holds the same but for one record that is under way."""
    memory = TwoPlaces()
    journal = Journal(memory, START, SIZE, FILL)
    journal.put(Item.ROOM, 0, [1])
    journal.put(Item.DATA, 8, 16)
    journal.begin()
    before = dict(journal.state)
    memory.left = left
    at_all = [before, before | {"data 10": 32}, {"room 0": [1], "data 10": 32}]
    try:
        journal.move(START + SIZE, LARGE)
        journal.put(Item.DATA, 0x10, 32)
        journal.flush()
        journal.drop(Item.DATA, 8)
        journal.flush()
        journal.move_back()
    except Killed:
        state, _ = memory.state()
        assert state in at_all
        return
    assert memory.state() == (at_all[-1], False) and not journal.has_moved


def test_one_that_became_full_where_it_was_moved_to_goes_back() -> None:
    """That memory is the guest's again: what is left there must lead nowhere else."""
    memory, full = TwoPlaces(), list[int]()
    journal = Journal(memory, START, SIZE, FILL, when_full=lambda: full.append(1))
    journal.put(Item.ROOM, 0, [1])
    journal.begin()
    journal.move(START + SIZE, LARGE)
    numbers = range(3000)
    for number in numbers:
        journal.put(Item.PROBE, number, [number * 0x9E3779B97F4A7C15 % (1 << 64)])
        journal.flush()
    assert full and not journal.is_open
    with pytest.raises(OptprobeError):
        journal.move_back()
    assert journal.has_moved and not journal.is_open
    for number in numbers:
        journal.drop(Item.PROBE, number)
    journal.flush()

    def fails(address: int, data: bytes) -> None:
        raise OptprobeError("the connection is closed")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(OptprobeError):
        patch.setattr(memory, "write", fails)
        journal.move_back()
    assert journal.has_moved and not journal.is_open
    journal.move_back()
    assert journal.is_open and memory.state() == ({"room 0": [1]}, False)
    journal.clear()
    assert bytes(memory.data[:SIZE]) == bytes([FILL]) * SIZE


def test_it_holds_more_where_it_was_moved_to_and_another_gdb_goes_back() -> None:
    memory = TwoPlaces()
    journal = Journal(memory, START, SIZE, FILL)
    journal.put(Item.ROOM, 0, [1])
    journal.begin()
    journal.move(START + SIZE, LARGE)
    long = [[number * 7919 % 65521 for number in range(400)]]
    journal.put(Item.COUNTS, 1, long)
    journal.flush()
    assert journal.is_open and memory.state() == ({"room 0": [1], "counts 1": long}, True)
    assert not journal.is_short_of(1000), "it was moved once, and no larger memory is to be had"
    with pytest.raises(OptprobeError):
        journal.move_back()
    assert journal.is_open and memory.state()[1]
    first = form.decode(bytes(memory.data[:SIZE]), FILL)
    second = form.decode(bytes(memory.data[SIZE:]), FILL)
    assert first is not None and second is not None
    other = Journal(memory, START, SIZE, FILL, first)
    other.adopt_moved(START + SIZE, LARGE, second)
    other.begin()
    assert memory.state()[1]
    other.drop(Item.COUNTS, 1)
    other.move_back()
    assert memory.state() == ({"room 0": [1]}, False)
    other.clear()
    assert bytes(memory.data[:SIZE]) == bytes([FILL]) * SIZE
