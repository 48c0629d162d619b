"""A ring's records: in order, once each, and none that is not finished."""

from __future__ import annotations

from gdb_optprobe.maps.ring import HEADER, RingLayout

LAYOUT = RingLayout(1, 2)


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
