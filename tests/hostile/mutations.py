"""Bytes and memory of a guest that lies: what is valid, changed where it counts, and changed again while it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from gdb_optprobe.errors import Unreadable
from tests.guest.linux.fake_kernel import PAGE, Machine, Pages

EDGES = (0, 1, 2, 3, 4, 7, 8, 0x7F, 0x80, 0xFF, 0x100, 0xFFF, 0x1000, 0x7FFF, 0xFFFF, 1 << 16, 1 << 20, (1 << 31) - 1,
         1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1)  # fmt: skip
MOST_EDITS = (1, 1, 1, 2, 3, 8, 40)


def mutated(valid: bytes, random: Random, unit: int = 1, head: int = 64) -> bytes:
    """A few units of it are others; parts may be missing, twice there, or moved. head: where more is changed."""
    data = bytearray(valid)
    for _ in range(random.choice(MOST_EDITS)):
        if not data:
            break
        size = random.choice((1, unit, unit, 2, 4, 8))
        end = len(data) if random.random() < 0.6 else min(head, len(data))
        at = random.randrange(end) // unit * unit
        kind = random.random()
        if kind < 0.45:
            value = random.choice(EDGES)
        elif kind < 0.6:
            value = random.randrange(max(1, 2 * len(data)))
        elif kind < 0.75:
            value = int.from_bytes(data[at : at + size], "little") + random.choice((-1, 1, -8, 8, 1 << 8, 1 << 24))
        elif kind < 0.9:
            value = random.getrandbits(64)
        else:
            _cut(data, at, random, unit)
            continue
        data[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
    return bytes(data)


def _cut(data: bytearray, at: int, random: Random, unit: int) -> None:
    size = unit * random.choice((1, 2, 16, 256))
    part = data[at : at + size]
    match random.randrange(4):
        case 0:
            del data[at:]
        case 1:
            del data[at : at + size]
        case 2:
            data[at:at] = part * random.choice((1, 2, 64))
        case _:
            to = random.randrange(len(data)) // unit * unit
            data[to : to + len(part)] = part


class Liar(Machine):
    """A guest of pages in which some words are others, and become others again while they are read."""

    def __init__(self, valid: Pages, random: Random, registers: Sequence[Mapping[str, int]] = ()) -> None:
        super().__init__(*(dict(each) for each in registers))
        self._random = random
        self._own: set[int] = set()
        self.pages = dict(valid.pages)
        self.reads = 0
        self.bytes = 0
        self._places = places(valid)
        self._change_at = random.choice((0, 0, 0, 5, 20, 60, 200))
        for _ in range(random.choice(MOST_EDITS)):
            self._change()
        if random.random() < 0.1 and len(self.pages) > 1:
            self.pages.pop(random.choice(list(self.pages)))

    def read(self, address: int, size: int) -> bytes:
        self.reads += 1
        self.bytes += size
        assert size < 1 << 27, "no reader asks for more at once"
        if self.reads == self._change_at:
            self._change()
            self._change_at += 20
        address &= (1 << 64) - 1
        if address + size > 1 << 64:
            raise Unreadable(address, size)
        return super().read(address, size)

    read_physical = read

    def _change(self) -> None:
        random, places = self._random, self._places
        at = random.choice(places) if random.random() < 0.9 else random.choice(list(self.pages)) * PAGE
        size = random.choice((8, 8, 8, 4, 2, 1))
        kind = random.random()
        if kind < 0.25:
            value = random.choice(EDGES)
        elif kind < 0.5:
            value = random.choice(places) + random.choice((0, 0, 8, -8, 16, 0x110))
        elif kind < 0.75:
            other = random.choice(places)
            page = self.pages.get(other // PAGE, bytes(PAGE))
            value = int.from_bytes(page[other % PAGE : other % PAGE + 8], "little")
        elif kind < 0.85:
            value = at + random.choice((0, 8, -8))
        else:
            value = random.getrandbits(64)
        self._put(at, (value & (1 << 8 * size) - 1).to_bytes(size, "little"))

    def _put(self, address: int, data: bytes) -> None:
        page = address // PAGE
        if page not in self.pages:
            return
        if page not in self._own:
            self._own.add(page)
            self.pages[page] = bytearray(self.pages[page])
        at = address % PAGE
        self.pages[page][at : at + len(data)] = data[: PAGE - at]


def places(valid: Pages) -> Sequence[int]:
    """Where words are that hold something."""
    known: list[int] | None = getattr(valid, "hostile_places", None)
    if known is None:
        known = [
            page * PAGE + at
            for page, data in valid.pages.items()
            for at in range(0, PAGE, 8)
            if any(data[at : at + 8])
        ]
        valid.hostile_places = known  # type: ignore[attr-defined]
    return known
