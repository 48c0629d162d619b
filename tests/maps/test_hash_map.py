"""A table's layout, and what is read out of it."""

from __future__ import annotations

from gdb_optprobe.maps.aggregate import Average, Count, Greatest, Least, Powers, encode, initial, merged
from gdb_optprobe.maps.hash_map import CLAIMED, PROBES, READY, HashMapLayout

LAYOUT = HashMapLayout(2, Average(True), 3)


def with_slots(*slots: tuple[int, tuple[int, ...]], overflow: int = 0) -> bytes:
    data = bytearray(LAYOUT.initial())
    data[:8] = overflow.to_bytes(8, "little")
    for index, words in slots:
        at = 8 + index * LAYOUT.slot_size
        data[at : at + LAYOUT.slot_size] = encode(words)
    return bytes(data)


def test_empty() -> None:
    contents = LAYOUT.decode(LAYOUT.initial())
    assert len(LAYOUT.initial()) == LAYOUT.size == 8 + (8 + PROBES - 1) * 40
    assert contents.by_key == {} and contents.overflow == 0


def test_slots_of_one_key_are_one() -> None:
    data = with_slots((1, (READY, 5, 6, 1, 10)), (2, (READY, 5, 7, 1, 1)), (9, (READY, 5, 6, 2, 32)), overflow=4)
    contents = LAYOUT.decode(data)
    assert contents.by_key == {encode((5, 6)): (3, 42), encode((5, 7)): (1, 1)}
    assert contents.overflow == 4


def test_a_slot_that_is_only_claimed_is_none() -> None:
    assert LAYOUT.decode(with_slots((0, (CLAIMED, 5, 6, 0, 0)))).by_key == {}


def test_places_are_within_the_table_and_spread() -> None:
    layout = HashMapLayout(1, Count(), 8)
    places = [layout.place((pid,)) for pid in range(1000)]
    assert {*places} == {*range(256)}
    assert HashMapLayout(2, Count(), 8).place((1, 2)) != HashMapLayout(2, Count(), 8).place((2, 1))


def test_a_cleared_table_keeps_keys_and_what_is_being_written() -> None:
    layout = HashMapLayout(1, Powers(False), bits=2)
    data = bytearray(layout.initial())
    data[8:24] = READY.to_bytes(8, "little") + (5).to_bytes(8, "little")
    data[24 : 8 + layout.slot_size] = b"\x01" * (layout.slot_size - 16)
    second = 8 + layout.slot_size
    data[second : second + 8] = CLAIMED.to_bytes(8, "little")
    cleared = layout.cleared(bytes(data))
    assert len(cleared) == layout.size
    assert cleared[8:24] == data[8:24] and cleared[second : second + 8] == data[second : second + 8]
    assert layout.decode(cleared).by_key == {(5).to_bytes(8, "little"): initial(Powers(False))}


def test_extremes_are_merged_by_what_words_stand_for() -> None:
    minus = (1 << 64) - 1
    assert merged(Least(True), (minus, 1), (3, 1)) == (minus, 1)
    assert merged(Least(False), (minus, 1), (3, 1)) == (3, 1)
    assert merged(Greatest(True), (minus, 1), initial(Greatest(True))) == (minus, 1)
    assert merged(Powers(True), (1,) * 66, (2,) * 66) == (3,) * 66


def test_of_a_table_that_is_being_written_a_key_counts_that_was_ready_before() -> None:
    before = with_slots((1, (READY, 5, 6, 1, 10)), (2, (CLAIMED, 5, 7, 0, 0)), (3, (READY, 8, 8, 1, 1)))
    others = (2, (READY, 5, 7, 1, 1)), (3, (READY, 8, 9, 1, 1)), (4, (READY, 1, 1, 1, 1))
    now = with_slots((1, (READY, 5, 6, 3, 30)), *others)
    assert LAYOUT.decode(now, before).by_key == {encode((5, 6)): (3, 30)}
    assert len(LAYOUT.decode(now).by_key) == 4
