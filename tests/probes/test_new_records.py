"""Records of several rings, read while hits go on: each once, whole, and all in the order of time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdb_optprobe.errors import NeedsStop
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.maps.ring import FIRST, HEADER, START, RingLayout
from gdb_optprobe.probes.new_records import RecordReader, read_ring
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.results import Results

LAYOUT = RingLayout(1, 3)
RINGS = 2


class Guest:
    """Rings in memory, and a clock that each hit moves. between: a hit of both rings after each read of memory."""

    def __init__(self, runs: bool, between: int = 0) -> None:
        self.memory = bytearray(LAYOUT.initial() * RINGS)
        self.runs, self.between, self.clock = runs, between, 100
        self.probes = [
            SimpleNamespace(
                number=number,
                handler=SimpleNamespace(ring=LAYOUT, ring_offset=0),
                counter=SimpleNamespace(address=number * LAYOUT.size),
                since=START,
                seen=Results((0,)),
                forget_records=bool,
            )
            for number in range(RINGS)
        ]
        self.reader = RecordReader(cast("Machine", self))

    def hit(self, ring: int) -> None:
        """Write a record of the time now."""
        at = ring * LAYOUT.size
        number, first = (int.from_bytes(self.memory[at + word :][:8], "little") for word in (0, FIRST))
        self.memory[at : at + 8] = (number + 1).to_bytes(8, "little")
        self.clock += 1
        if number - first < LAYOUT.places:
            place = at + HEADER + number % LAYOUT.places * LAYOUT.record_size
            words = (number + 1, self.clock, 0, 0)
            self.memory[place : place + LAYOUT.record_size] = b"".join(word.to_bytes(8, "little") for word in words)

    def read(self, address: int, size: int) -> bytes:
        found = bytes(self.memory[address : address + size])
        if self.between:
            self.between -= 1
            for ring in range(RINGS):
                self.hit(ring)
        return found

    def write(self, address: int, data: bytes) -> None:
        assert not self.runs, "nothing is written while the guest runs"
        self.memory[address : address + len(data)] = data

    def times(self) -> list[int]:
        """Read what is new, and take it."""
        found = self.reader.read(cast("list[Probe]", self.probes))
        found.take(cast("Machine", self))
        return sorted(row.time or 0 for row in found.rows)


def test_all_come_in_the_order_of_time_though_the_rings_are_read_one_after_the_other() -> None:
    guest = Guest(runs=True, between=3)
    looks = [guest.times() for _ in range(4)]
    times = [time for look in looks for time in look]
    assert times == sorted(times) and len(times) == RINGS * 3 == len({*times})
    assert guest.times() == [], "none twice"


def test_of_one_ring_nothing_is_left_for_later() -> None:
    guest = Guest(runs=True)
    del guest.probes[1]
    guest.hit(0)
    assert guest.times() == [101]


def test_a_ring_that_is_half_full_is_left_for_a_stop_which_empties_it() -> None:
    guest = Guest(runs=True)
    for _ in range(3):
        guest.hit(0)
    guest.times(), guest.times()
    guest.hit(0)
    with pytest.raises(NeedsStop):
        guest.times()
    guest.runs = False
    assert guest.times() == [104]
    guest.runs = True
    for _ in range(3):
        guest.hit(0)
    assert guest.times() + guest.times() == [105, 106, 107], "there are eight places again"


def test_at_a_stop_what_was_read_before_is_taken_away_though_nothing_is_new() -> None:
    guest = Guest(runs=True)
    guest.hit(0)
    assert guest.times() + guest.times() == [101]
    guest.runs = False
    assert guest.times() == []
    assert LAYOUT.is_empty(bytes(guest.memory[:HEADER]))


def test_of_a_ring_that_overwrites_nothing_is_proven() -> None:
    newest = RingLayout(1, 3, overwrites=True)
    memory = bytearray(newest.initial())
    memory[:8] = (1).to_bytes(8, "little")
    machine: Any = SimpleNamespace(runs=True, read=lambda address, size: bytes(memory[address : address + size]))
    with pytest.raises(NeedsStop):
        read_ring(newest, 0, START, machine)
    machine.runs = False
    assert read_ring(newest, 0, START, machine) is not None
