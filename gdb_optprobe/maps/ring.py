"""A ring of records in guest memory, filled by hits without a lock, read at any time, emptied at stops of the guest.

    ┌──────┬───────┬──────────┬─────────────────────────────┐
    │ next │ first │ record 0 │ record 1 │ … │ 2**bits - 1  │
    └──────┴───────┴──────────┴─────────────────────────────┘
    record: │ number + 1 │ time │ kind, 4 B │ CPU, 4 B │ word │ word │ … │
A hit adds one to `next`; the old value is its record's number. There is room for 2**bits numbers from `first` on. A
record with any other number is dropped, so the drops are the numbers from `first` + 2**bits to `next`. Else its place
is the number modulo 2**bits: the hit writes the record, and number + 1 in front of it last. A place with another number
is pending: the stop interrupted the hit that writes it. A record of the kind VOID does not count: it had a fault. One
of a kind that no hit writes was damaged: it is dropped.

When the ring is emptied, numbers continue, so they give the order of records, and `first` moves to the first pending
record, or to `next`: no other hit uses the place of a pending record. A hit that was stopped before it read `first` may
have a number that was counted as dropped, so `first` never moves to before one of these.

While the guest runs, `first` stays: until the next stop, a place is written by the hit that has its number, and by no
other. So a record with its number in front is whole from then on. It counts where it had that when the ring was read a
first time; its bytes are those of a second time. The others are pending.

A ring that overwrites keeps the newest records. Each has one word more, its lock:
    │ number + 1 │ … │ word │ lock │
A hit claims its place by setting bit 0, and clears it last. It drops its record where that was set, or where the place
has a newer one: the other hit, which it interrupted or which overtook it, is a round apart. So a place without a lock
has a whole record, and no hit waits. Here `first` is the first number that was not read; a hit does not look at it.
Numbers with neither record nor lock were lost. A locked record counts once it is finished; where the ring was emptied
before that, it is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

NEXT, FIRST, HEADER = 0, 8, 16  # offsets
LOOK_BACK = 8
"""Records that `newest` looks at: those behind may be under way."""
VOID = (1 << 32) - 1
NUMBER, TIME, KIND, CPU, FIELDS = 0, 8, 16, 20, 24  # offsets in a record


@dataclass(frozen=True, slots=True)
class Record:
    """A record. fields: the bytes behind its header, as many as those of the longest kind."""

    number: int
    time: int
    kind: int
    cpu: int
    fields: bytes


@dataclass(frozen=True, slots=True)
class RingPosition:
    """How far the ring was read: all records below `following` but the pending ones."""

    following: int = 0
    pending: tuple[int, ...] = ()


START = RingPosition()


@dataclass(frozen=True, slots=True)
class RingContents:
    """The records since a position.

    records: the finished ones, in order.
    dropped: how many found no place, or were overwritten. fullness: numbers since `first` for each place; more than 1
    where some dropped. overwrites: whether what was dropped came before these records, not behind them.
    header, position: to empty the ring, write `header` to its start and continue from `position`.
    latest: the time of the latest record that is finished.
    """

    records: tuple[Record, ...]
    dropped: int
    fullness: float
    header: bytes
    position: RingPosition
    overwrites: bool = False
    latest: int = 0


@dataclass(frozen=True, slots=True)
class RingLayout:
    """words: of the longest record's fields. bits: the ring has 2**bits places. overwrites: see above.

    kinds: of records that hits write; None for any.
    """

    words: int
    bits: int = 10
    overwrites: bool = False
    kinds: frozenset[int] | None = None

    @property
    def record_size(self) -> int:
        return self.lock + (8 if self.overwrites else 0)

    @property
    def lock(self) -> int:
        """Return the offset of the lock in a record of a ring that overwrites."""
        return FIELDS + 8 * self.words

    @property
    def places(self) -> int:
        return 1 << self.bits

    @property
    def size(self) -> int:
        return HEADER + self.places * self.record_size

    def initial(self) -> bytes:
        return self._header(0, 0) + bytes(self.places * self.record_size)

    def decode(
        self, data: bytes, since: RingPosition = START, before: bytes | None = None, until: int | None = None
    ) -> RingContents:
        """Return what the ring has since a position.

        before: what it had a moment earlier, where the guest runs; of a ring that overwrites nothing is proven then.
        until: records of a later time stay pending.
        """
        assert before is None or not self.overwrites
        following, first = self._ends(data if before is None else before)
        if self.overwrites:
            return self._newest(data, following, first, since)
        limit = first + self.places
        # No number outside of [first, limit) has a place: there are as many as places, whatever the header says.
        earlier = (number for number in since.pending if first <= number < limit)
        numbers = (*earlier, *range(max(since.following, first), min(following, limit)))
        found = {number: self._finished(data, number, before) for number in numbers}
        finished = [record for record in found.values() if record is not None]
        ready = [record for record in finished if until is None or record.time <= until]
        pending = tuple(sorted(found.keys() - {record.number for record in ready}))
        records, damaged = self._known(ready)
        return RingContents(
            records=records,
            dropped=max(0, following - max(limit, since.following)) + damaged,
            fullness=(following - first) / self.places,
            header=self._header(following, first if pending and following > limit else min((*pending, following))),
            position=RingPosition(following, pending),
            latest=max((record.time for record in finished), default=0),
        )

    def _newest(self, data: bytes, following: int, first: int, since: RingPosition) -> RingContents:
        """Decode a ring that overwrites. Its position is how many numbers were accounted for: locked ones are not."""
        found, locked = list[int](), 0
        for place in range(self.places):
            at = HEADER + place * self.record_size
            if int.from_bytes(data[at + self.lock : at + self.record_size], "little"):
                locked += 1
                continue
            number = int.from_bytes(data[at + NUMBER : at + NUMBER + 8], "little") - 1
            if first <= number < following and number % self.places == place:
                found.append(number)
        found.sort()
        records, damaged = self._known(filter(None, (self._record(data, number) for number in found)))
        dropped = max(0, following - since.following - len(found) - locked)
        return RingContents(
            records=records,
            dropped=dropped + damaged,
            fullness=(following - first) / self.places,
            header=self._header(following, following),
            position=RingPosition(since.following + len(found) + dropped),
            overwrites=True,
        )

    def _known(self, found: Iterable[Record]) -> tuple[tuple[Record, ...], int]:
        """Return those that count, and how many were damaged."""
        written = [record for record in found if record.kind != VOID]
        known = tuple(record for record in written if self.kinds is None or record.kind in self.kinds)
        return known, len(written) - len(known)

    def has_more(self, header: bytes, since: RingPosition) -> bool:
        """Return whether there are, or may be, records since a position. header: the ring's first HEADER bytes."""
        return bool(since.pending) or self._ends(header)[0] != since.following

    def is_empty(self, header: bytes) -> bool:
        """Return whether all of its places are free, in a ring that does not overwrite."""
        following, first = self._ends(header)
        return following == first

    @staticmethod
    def _ends(header: bytes) -> tuple[int, int]:
        """Return the next number, and the first."""
        return int.from_bytes(header[NEXT : NEXT + 8], "little"), int.from_bytes(header[FIRST : FIRST + 8], "little")

    def lost(self, header: bytes, since: RingPosition) -> int:
        """Return how many records found no place, or were overwritten, by the ring's first HEADER bytes alone.

        Records that were damaged, or that are locked now, are not among them.
        """
        following, first = self._ends(header)
        if self.overwrites:
            return max(0, following - since.following - self.places)
        return max(0, following - max(first + self.places, since.following))

    def newest(self, read: Callable[[int, int], bytes]) -> Record | None:
        """Return the newest finished record of a ring that is being written to; None where it is not found.

        read: returns bytes of the ring, by offset and size. A record counts if its number is its own and its lock
        clear, before it is read and behind it. Its writer stores the number last; a later one claims the lock first and
        clears it last, so the lock is looked at before the number then.
        """
        following, first = (int.from_bytes(read(at, 8), "little") for at in (NEXT, FIRST))
        last = following if self.overwrites else min(following, first + self.places)
        for number in range(last - 1, max(first, last - LOOK_BACK) - 1, -1):
            at = HEADER + number % self.places * self.record_size
            marks = [(at, 8), *([(at + self.lock, 8)] if self.overwrites else [])]
            before = [int.from_bytes(read(*mark), "little") for mark in marks]
            data = read(at, self.record_size)
            behind = [int.from_bytes(read(*mark), "little") for mark in reversed(marks)]
            if before == behind[::-1] == [number + 1, *[0] * (len(marks) - 1)]:
                record = self._record_of(data, number)
                return record if record is not None and self._known([record])[0] else None
        return None

    def _finished(self, data: bytes, number: int, before: bytes | None) -> Record | None:
        """Return the record of a number; None where it was not finished in `before`, or in `data`."""
        at = HEADER + number % self.places * self.record_size
        if before is not None and int.from_bytes(before[at : at + 8], "little") != number + 1:
            return None
        return self._record(data, number)

    def _record(self, data: bytes, number: int) -> Record | None:
        at = HEADER + number % self.places * self.record_size
        return self._record_of(data[at : at + self.record_size], number)

    def _record_of(self, data: bytes, number: int) -> Record | None:
        """Return what the place of a number holds; None where it is not that record."""
        own, time = (int.from_bytes(data[word : word + 8], "little") for word in (NUMBER, TIME))
        kind, cpu = (int.from_bytes(data[half : half + 4], "little") for half in (KIND, CPU))
        fields = data[FIELDS : self.lock]
        return Record(number, time, kind, cpu, fields) if own == number + 1 else None

    @staticmethod
    def _header(following: int, first: int) -> bytes:
        return following.to_bytes(8, "little") + first.to_bytes(8, "little")
