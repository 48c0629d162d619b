"""A ring's records: in order, once each, and none that is not finished."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gdb_optprobe.maps.ring import HEADER, KIND, START, VOID, RingContents, RingLayout, RingPosition

LAYOUT = RingLayout(1, 2)
NEWEST = RingLayout(1, 2, overwrites=True)


class Guest:
    """Does what a hit does, and what a report that empties the ring does."""

    def __init__(self) -> None:
        self.data = bytearray(LAYOUT.initial())

    def begin(self) -> int:
        number = int.from_bytes(self.data[:8], "little")
        self.data[:8] = (number + 1).to_bytes(8, "little")
        return number

    def finish(self, number: int) -> None:
        """Where there is a place for it."""
        if not 0 <= number - int.from_bytes(self.data[8:16], "little") < LAYOUT.places:
            return
        at = HEADER + number % LAYOUT.places * LAYOUT.record_size
        words = (number + 1, 1000 + number, 7 | 2 << 32, 5 * number)
        self.data[at : at + LAYOUT.record_size] = b"".join(word.to_bytes(8, "little") for word in words)

    def hits(self, number: int) -> None:
        for _ in range(number):
            self.finish(self.begin())


class Overwriting(Guest):
    """The same for a ring that overwrites."""

    def __init__(self) -> None:
        self.data = bytearray(NEWEST.initial())

    def place(self, number: int) -> int:
        return HEADER + number % NEWEST.places * NEWEST.record_size

    def claim(self, number: int) -> bool:
        lock = self.place(number) + NEWEST.lock
        newest = int.from_bytes(self.data[self.place(number) :][:8], "little") - 1
        if self.data[lock] or newest > number:
            return False
        self.data[lock] = 1
        return True

    def write(self, number: int) -> None:
        words = (number + 1, 1000 + number, 7 | 2 << 32, 5 * number, 0)
        at = self.place(number)
        self.data[at : at + NEWEST.record_size] = b"".join(word.to_bytes(8, "little") for word in words)

    def finish(self, number: int) -> None:
        if self.claim(number):
            self.write(number)

    def read(self, since: RingPosition = START) -> tuple[list[int], int, RingPosition]:
        """Return the numbers of the records, how many were lost, and the position; empty the ring."""
        found = NEWEST.decode(bytes(self.data), since)
        self.data[:HEADER] = found.header
        return [record.number for record in found.records], found.dropped, found.position


def test_a_record() -> None:
    guest = Guest()
    guest.hits(2)
    (_, record) = LAYOUT.decode(bytes(guest.data)).records
    assert (record.number, record.time, record.kind, record.cpu) == (1, 1001, 7, 2)
    assert record.fields == (5).to_bytes(8, "little")


def test_what_there_is_no_place_for_is_dropped() -> None:
    guest = Guest()
    guest.hits(7)
    contents = LAYOUT.decode(bytes(guest.data))
    assert [record.number for record in contents.records] == [0, 1, 2, 3] and contents.dropped == 3


def test_emptied_it_takes_as_many_again_and_none_twice() -> None:
    guest = Guest()
    guest.hits(7)
    first = LAYOUT.decode(bytes(guest.data))
    guest.data[:HEADER] = first.header
    assert LAYOUT.decode(bytes(guest.data), first.position).records == ()
    guest.hits(5)
    second = LAYOUT.decode(bytes(guest.data), first.position)
    assert [record.number for record in second.records] == [7, 8, 9, 10] and second.dropped == 1


def test_a_record_that_is_being_written_comes_later_and_keeps_its_place() -> None:
    guest = Guest()
    guest.hits(1)
    pending = guest.begin()
    guest.hits(1)
    first = LAYOUT.decode(bytes(guest.data))
    assert [record.number for record in first.records] == [0, 2] and first.position.pending == (pending,)
    guest.data[:HEADER] = first.header
    guest.hits(4)  # 3 and 4; 5 would be in the place of the pending one
    guest.finish(pending)
    second = LAYOUT.decode(bytes(guest.data), first.position)
    assert [record.number for record in second.records] == [pending, 3, 4] and second.dropped == 2
    guest.data[:HEADER] = second.header
    guest.hits(4)
    assert len(LAYOUT.decode(bytes(guest.data), second.position).records) == 4


def test_who_was_stopped_with_a_number_that_is_dropped_writes_nothing() -> None:
    guest = Guest()
    guest.hits(4)
    late = guest.begin()
    first = LAYOUT.decode(bytes(guest.data))
    assert first.dropped == 1
    guest.data[:HEADER] = first.header
    guest.hits(4)
    guest.finish(late)
    second = LAYOUT.decode(bytes(guest.data), first.position)
    assert [record.number for record in second.records] == [5, 6, 7, 8] and not second.dropped


def test_nor_where_another_one_was_stopped_that_had_a_place() -> None:
    guest = Guest()
    pending = guest.begin()
    guest.hits(3)
    late = guest.begin()
    first = LAYOUT.decode(bytes(guest.data))
    assert (first.dropped, first.position.pending) == (1, (pending,))
    guest.data[:HEADER] = first.header
    guest.finish(late)
    guest.finish(pending)
    guest.hits(1)  # for this there is no room until the ring is emptied once more
    second = LAYOUT.decode(bytes(guest.data), first.position)
    assert ([record.number for record in second.records], second.dropped) == ([pending], 1)
    guest.data[:HEADER] = second.header
    guest.hits(4)
    assert len(LAYOUT.decode(bytes(guest.data), second.position).records) == 4


def test_a_ring_that_overwrites_has_the_newest() -> None:
    guest = Overwriting()
    guest.hits(3)
    assert [record.number for record in NEWEST.decode(bytes(guest.data)).records] == [0, 1, 2]
    guest.hits(4)
    contents = NEWEST.decode(bytes(guest.data))
    assert [record.number for record in contents.records] == [3, 4, 5, 6]
    assert (contents.dropped, contents.overwrites, contents.fullness) == (3, True, 7 / 4)
    assert contents.records[0].fields == (15).to_bytes(8, "little")


def test_emptied_it_has_what_came_since() -> None:
    guest = Overwriting()
    guest.hits(7)
    _, _, position = guest.read()
    assert guest.read(position) == ([], 0, position)
    assert not NEWEST.has_more(bytes(guest.data), position)
    guest.hits(2)
    assert NEWEST.has_more(bytes(guest.data), position)
    numbers, lost, position = guest.read(position)
    assert (numbers, lost) == ([7, 8], 0)
    guest.hits(6)
    assert guest.read(position)[:2] == ([11, 12, 13, 14], 2)


def test_a_hit_that_finds_its_place_taken_drops_its_record() -> None:
    """It is in the middle of the one that has the place, which then has the older one."""
    guest = Overwriting()
    slow = guest.begin()
    assert guest.claim(slow)
    guest.hits(4)  # the last is a round behind `slow`
    contents = NEWEST.decode(bytes(guest.data))
    assert ([record.number for record in contents.records], contents.dropped) == ([1, 2, 3], 1)
    guest.write(slow)
    contents = NEWEST.decode(bytes(guest.data))
    assert ([record.number for record in contents.records], contents.dropped) == ([0, 1, 2, 3], 1)


def test_a_hit_that_was_overtaken_does_not_overwrite_a_newer_record() -> None:
    guest = Overwriting()
    slow = guest.begin()
    guest.hits(4)
    guest.finish(slow)
    contents = NEWEST.decode(bytes(guest.data))
    assert ([record.number for record in contents.records], contents.dropped) == ([1, 2, 3, 4], 1)


def test_a_record_that_is_being_written_while_the_ring_is_emptied_is_lost() -> None:
    """It is counted once, when it has ended or the next time; what is neither shown nor lost is under way."""
    guest = Overwriting()
    slow = guest.begin()
    assert guest.claim(slow)
    guest.hits(2)
    numbers, lost, position = guest.read()
    assert (numbers, lost) == ([1, 2], 0)
    assert guest.read(position) == ([], 0, position)
    guest.write(slow)
    numbers, lost, position = guest.read(position)
    assert (numbers, lost) == ([], 1)
    guest.hits(1)
    assert guest.read(position)[:2] == ([3], 0)


def test_what_was_counted_as_lost_before_it_had_its_place_is_not_counted_again() -> None:
    guest = Overwriting()
    slow = guest.begin()
    _, lost, position = guest.read()
    assert lost == 1
    assert guest.claim(slow)
    _, lost, position = guest.read(position)
    assert lost == 0
    guest.write(slow)
    assert guest.read(position)[:2] == ([], 0)
    guest.hits(5)
    assert guest.read(position)[:2] == ([2, 3, 4, 5], 1)


def test_a_void_record_and_one_that_cannot_be_there_are_none() -> None:
    guest = Overwriting()
    guest.hits(4)
    at = guest.place(1)
    guest.data[at + KIND : at + KIND + 4] = VOID.to_bytes(4, "little")
    guest.data[guest.place(2) : guest.place(2) + 8] = (2).to_bytes(8, "little")
    guest.data[guest.place(3) : guest.place(3) + 8] = (2**64 - 1).to_bytes(8, "little")
    contents = NEWEST.decode(bytes(guest.data))
    assert ([record.number for record in contents.records], contents.dropped) == ([0], 2)


def test_a_record_of_a_kind_that_no_hit_writes_is_dropped() -> None:
    for guest, layout in ((Guest(), LAYOUT), (Overwriting(), NEWEST)):
        guest.hits(3)
        at = HEADER + layout.record_size + KIND
        guest.data[at : at + 4] = (99).to_bytes(4, "little")
        found = replace(layout, kinds=frozenset({7})).decode(bytes(guest.data))
        assert [record.number for record in found.records] == [0, 2]
        assert found.dropped == 1
        assert found.position == layout.decode(bytes(guest.data)).position, "it is told once"


class Racing:
    """Reads a ring that a writer changes meanwhile. steps: what it does before each read, by the number of the read."""

    def __init__(self, guest: Guest, steps: dict[int, Callable[[], object]]) -> None:
        self.guest, self.steps, self.reads = guest, steps, 0

    def __call__(self, offset: int, size: int) -> bytes:
        self.steps.get(self.reads, lambda: None)()
        self.reads += 1
        return bytes(self.guest.data[offset : offset + size])


def test_the_newest_record_is_one_that_is_finished() -> None:
    guest = Guest()
    assert LAYOUT.newest(Racing(guest, {})) is None
    guest.hits(2)
    guest.begin()
    found = LAYOUT.newest(Racing(guest, {}))
    assert found is not None and found.number == 1 and found.time == 1001
    guest.hits(9)
    found = LAYOUT.newest(Racing(guest, {}))
    assert found is not None and found.number == 3, "the last that had a place"


def test_what_is_lost_is_told_by_the_header_alone() -> None:
    for guest, layout in ((Guest(), LAYOUT), (Overwriting(), NEWEST)):
        for _ in range(7):
            assert layout.lost(bytes(guest.data[:HEADER]), START) == layout.decode(bytes(guest.data)).dropped
            guest.hits(1)


BEHIND_HEADER, MARKS = 2, 2


@pytest.mark.parametrize("read", range(1, 2 * MARKS + 1), ids=lambda read: f"before read {read}")
@pytest.mark.parametrize("parts", [1, 2, 3], ids=["claimed", "half written", "whole"])
def test_a_record_that_is_overwritten_while_it_is_read_does_not_count(read: int, parts: int) -> None:
    """Whatever the writer has done by any read: what is returned is one whole record, the old one or none."""
    guest = Overwriting()
    guest.hits(NEWEST.places)
    last = NEWEST.places - 1
    place = HEADER + last * NEWEST.record_size

    def write() -> None:
        """Overwrite the newest record's place, a round later, as far as `parts` says."""
        new = last + NEWEST.places + 1
        words = (new, 1000 + new - 1, 7 | 2 << 32, 5 * (new - 1))
        guest.data[place + NEWEST.lock : place + NEWEST.lock + 8] = (1).to_bytes(8, "little")
        if parts > 1:
            guest.data[place + 8 : place + NEWEST.lock] = b"".join(word.to_bytes(8, "little") for word in words[1:])
        if parts > 2:
            guest.data[place : place + 8] = new.to_bytes(8, "little")
            guest.data[place + NEWEST.lock : place + NEWEST.lock + 8] = bytes(8)

    found = NEWEST.newest(Racing(guest, {BEHIND_HEADER + read - 1: write}))
    assert found is None or found.time == 1000 + found.number, "no mixture of two"
    assert found is None or found.number < NEWEST.places


def numbers(found: RingContents) -> list[int]:
    return [record.number for record in found.records]


def test_while_the_guest_runs_a_record_counts_that_was_finished_a_moment_before() -> None:
    guest = Guest()
    guest.hits(1)
    late = guest.begin()
    before = bytes(guest.data)
    guest.finish(late)
    guest.hits(1)
    found = LAYOUT.decode(bytes(guest.data), before=before)
    assert (numbers(found), found.position) == ([0], RingPosition(2, (late,))), "the last had no number then"
    assert numbers(LAYOUT.decode(bytes(guest.data), found.position, bytes(guest.data))) == [late, 2]


def test_what_was_read_while_the_guest_ran_is_taken_away_at_a_stop() -> None:
    guest = Guest()
    guest.hits(3)
    seen = LAYOUT.decode(bytes(guest.data), before=bytes(guest.data))
    assert numbers(seen) == [0, 1, 2] and seen.fullness == 0.75
    assert not LAYOUT.has_more(guest.data[:HEADER], seen.position) and not LAYOUT.is_empty(guest.data[:HEADER])
    guest.hits(3)  # there is room for one
    again = LAYOUT.decode(bytes(guest.data), seen.position, bytes(guest.data))
    assert (numbers(again), again.dropped) == ([3], 2)
    stopped = LAYOUT.decode(bytes(guest.data), again.position)
    assert (numbers(stopped), stopped.dropped) == ([], 0)
    guest.data[:HEADER] = stopped.header
    assert LAYOUT.is_empty(guest.data[:HEADER])
    guest.hits(4)
    assert numbers(LAYOUT.decode(bytes(guest.data), stopped.position)) == [6, 7, 8, 9]


def test_records_of_a_later_time_stay_pending() -> None:
    guest = Guest()
    guest.hits(3)
    found = LAYOUT.decode(bytes(guest.data), before=bytes(guest.data), until=1001)
    assert (numbers(found), found.position.pending, found.latest) == ([0, 1], (2,), 1002)
    assert numbers(LAYOUT.decode(bytes(guest.data), found.position)) == [2]
