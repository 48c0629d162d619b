"""Which way reads a running guest's memory, what it reads, and what is no proof that it is that memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from gdb_optprobe.errors import NeedsStop, OptprobeError, Unreadable
from gdb_optprobe.guest.live_memory import MOST_EXTENTS, Candidate, Extent, LiveMemory, Way, chosen, extents

DATA, CODE = 0xFFFF_FFFF_7FE0_0000, 0xFFFF_FFFF_8100_0000
SIZE = 0x1000
BYTES = bytes(range(1, 252))


class Stub:
    """The guest's memory as packets have it: text at CODE, and data, zeros but for what is set."""

    def __init__(self) -> None:
        self.held = {DATA: bytearray(SIZE), CODE: bytearray((BYTES * 17)[:SIZE])}

    def read(self, address: int, size: int) -> bytes:
        for start, data in self.held.items():
            if start <= address and address + size <= start + len(data):
                return bytes(data[address - start : address - start + size])
        raise Unreadable(address, size)

    def write(self, address: int, data: bytes) -> None:
        raise AssertionError("reading writes nothing")


class Reading:
    """A way that reads what the stub does, at the addresses that are meant."""

    def __init__(self, stub: Stub, wrong: Callable[[bytes], bytes] = bytes) -> None:
        self.stub, self.wrong = stub, wrong
        self.closed = False

    def read(self, extent: Extent, offset: int, size: int) -> bytes:
        assert extent.host == extent.physical + 0x7000_0000, "what the monitor has said"
        return self.wrong(self.stub.read(extent.address + offset, size))

    def close(self) -> None:
        self.closed = True


def where(*spans: tuple[int, int]) -> list[Extent]:
    return extents(spans, lambda at, size: [(at & 0xFFF_FFFF, size)], lambda physical: physical + 0x7000_0000)


def refuses(error: Exception) -> Callable[[], Way]:
    def open_() -> Way:
        raise error

    return open_


BOTH = partial(where, (DATA, DATA + SIZE), (CODE, CODE + 64))


def test_the_first_way_that_reads_what_the_stub_reads_is_chosen() -> None:
    stub = Stub()
    ways = Reading(stub, lambda data: data[::-1]), Reading(stub), Reading(stub)
    found, why = chosen(
        [
            Candidate("refused", refuses(PermissionError(1, "Operation not permitted"))),
            Candidate("other", lambda: ways[0]),
            Candidate("right", lambda: ways[1]),
            Candidate("later", lambda: ways[2]),
        ],
        BOTH,
        stub,
    )
    assert found is not None and found.name == "right"
    assert why == ["refused: operation not permitted", f"other: it is other memory at {CODE:#x}"]
    assert [way.closed for way in ways] == [True, False, False]
    stub.held[DATA][8:16] = (7).to_bytes(8, "little")
    assert found.read(DATA + 8, 8) == (7).to_bytes(8, "little")
    found.close()
    assert ways[1].closed


def test_zeros_alone_prove_nothing() -> None:
    stub = Stub()
    found, why = chosen([Candidate("zeros", lambda: Reading(stub))], partial(where, (DATA, DATA + SIZE)), stub)
    assert found is None and why == ["zeros: nothing in it tells it from other memory"]


@pytest.mark.parametrize("wrong", [lambda data: data[:-1], lambda data: b""], ids=["less", "nothing"])
def test_a_way_that_reads_less_is_not_used(wrong: Callable[[bytes], bytes]) -> None:
    stub = Stub()
    way = Reading(stub, wrong)
    found, why = chosen([Candidate("short", lambda: way)], BOTH, stub)
    assert found is None and way.closed and why == [f"short: it cannot be read at {DATA:#x}"]


def test_where_the_data_are_is_asked_once_and_only_if_there_is_a_way() -> None:
    asked: list[int] = []

    def places() -> Sequence[Extent]:
        asked.append(1)
        return BOTH()

    stub = Stub()
    none = [Candidate("none", refuses(OSError("no")))]
    assert chosen(none, places, stub)[0] is None and asked == []
    wrong = [Candidate("wrong", lambda: Reading(stub, lambda data: data[::-1]))] * 2
    assert chosen(wrong, places, stub)[0] is None and asked == [1]


def test_a_place_that_the_monitor_does_not_tell_ends_the_search() -> None:
    def unknown() -> Sequence[Extent]:
        raise OptprobeError("QEMU's monitor does not answer gpa2hva 0x1000")

    way = Reading(Stub())
    found, why = chosen([Candidate("one", lambda: way)], unknown, Stub())
    assert found is None and way.closed and why == ["one: QEMU's monitor does not answer gpa2hva 0x1000"]


def test_what_lies_in_pieces_is_read_as_one() -> None:
    """Two physical pieces, the second of which is in two blocks of QEMU's."""
    cut = 0x5000 + 0x300

    def host(physical: int) -> int:
        return physical + (0x10_0000 if physical < cut else 0x90_0000)

    found = extents([(DATA, DATA + 0xC00)], lambda at, size: [(0x2000, 0x400), (0x5000, size - 0x400)], host)
    assert sum(one.size for one in found) == 0xC00
    for one in found:
        assert one.host == host(one.physical) and host(one.physical + one.size - 1) == one.host + one.size - 1
    memory = {extent.host + at: (extent.address + at) * 7 & 0xFF for extent in found for at in range(extent.size)}

    class Blocks(Reading):
        def read(self, extent: Extent, offset: int, size: int) -> bytes:
            return bytes(memory[extent.host + at] for at in range(offset, offset + size))

    live = LiveMemory("blocks", Blocks(Stub()), found)
    assert live.read(DATA + 0x3F0, 0x500) == bytes((DATA + at) * 7 & 0xFF for at in range(0x3F0, 0x8F0))
    for at, size in ((DATA - 1, 2), (DATA + 0xBFF, 2), (DATA + 0xC00, 1)):
        with pytest.raises(NeedsStop):
            live.read(at, size)


def test_few_addresses_are_asked_for_where_all_is_in_one_piece_of_qemu_s() -> None:
    """Memory that the kernel lends is in hundreds of pages that do not follow one another."""
    asked = list[int]()

    def host(physical: int) -> int:
        asked.append(physical)
        return physical + 0x7000_0000

    def scattered(at: int, size: int) -> list[tuple[int, int]]:
        return [(0x9000_0000 - 0x3000 * number, 0x1000) for number in range(size // 0x1000)]

    found = extents([(DATA, DATA + 0x10_0000)], scattered, host)
    assert len(found) == 256 and len(asked) == 2
    assert [one.address for one in found] == [*range(DATA, DATA + 0x10_0000, 0x1000)]
    assert all(one.host == one.physical + 0x7000_0000 for one in found)


def test_memory_in_too_many_pieces_is_not_asked_for_without_end() -> None:
    span = (DATA, DATA + 2 * MOST_EXTENTS)
    with pytest.raises(OptprobeError, match="pieces"):
        extents([span], lambda at, size: [(2 * one, 1) for one in range(size)], lambda at: at)


def test_nothing_is_written() -> None:
    live = LiveMemory("right", Reading(Stub()), BOTH())
    with pytest.raises(NeedsStop, match="not written"):
        live.write(DATA, b"1")
