"""Kernel memory is read and written whatever the selected vCPU maps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.memory import MUCH, KernelMemory

BASE = 0xFFFF_FFFF_8100_0000
PAGE = 4096
# Virtual page → physical page: two that follow each other in both, one elsewhere, a hole, one more.
PAGES = {0: 0x100, 1: 0x101, 2: 0x300, 4: 0x200}


class Machine:
    """A guest's memory, which a vCPU in user mode (`sees_kernel` False) reaches only physically."""

    def __init__(self, sees_kernel: bool) -> None:
        self.sees_kernel = sees_kernel
        self.frames = {frame: bytearray(bytes([frame & 0xFF, page]) * (PAGE // 2)) for page, frame in PAGES.items()}
        self.pages = dict(PAGES)
        self.log: list[str] = []

    def walk(self, address: int) -> tuple[int, int] | None:
        self.log.append("walk")
        frame = self.pages.get((address - BASE) // PAGE)
        return None if frame is None else (frame * PAGE + address % PAGE, PAGE - address % PAGE)

    def read_virtual(self, address: int, size: int) -> bytes:
        self.log.append("virtual")
        return bytes(self._at(address + at) for at in range(size))

    def write_virtual(self, address: int, data: bytes) -> None:
        self.log.append("virtual")
        for at in range(len(data)):
            self._at(address + at)
        for at, byte in enumerate(data):
            self.frames[self.pages[(address + at - BASE) // PAGE]][(address + at) % PAGE] = byte

    def read_physical(self, address: int, size: int) -> bytes:
        self.log.append(f"physical {address:#x} {size:#x}")
        return bytes(self.frames[at // PAGE][at % PAGE] for at in range(address, address + size))

    def write_physical(self, address: int, data: bytes) -> None:
        self.log.append(f"physical {address:#x} {len(data):#x}")
        for at, byte in enumerate(data, address):
            self.frames[at // PAGE][at % PAGE] = byte

    def _at(self, address: int) -> int:
        frame = self.pages.get((address - BASE) // PAGE)
        if not self.sees_kernel or frame is None:
            raise Unreadable(address, 1)
        return self.frames[frame][address % PAGE]


def memory(sees_kernel: bool) -> tuple[Machine, KernelMemory]:
    machine = Machine(sees_kernel)
    return machine, KernelMemory(machine, machine, machine.walk)


def test_the_fast_way_where_it_works() -> None:
    machine, kernel = memory(sees_kernel=True)
    kernel.write(BASE + 10, b"abc")
    assert kernel.read(BASE + 10, 3) == b"abc"
    assert machine.log == ["virtual", "virtual"]


def test_both_ways_give_the_same() -> None:
    _, fast = memory(sees_kernel=True)
    _, slow = memory(sees_kernel=False)
    for address, size in [(0, 1), (100, 3 * PAGE - 100), (PAGE - 1, 2), (2 * PAGE - 3, 7), (4 * PAGE, PAGE)]:
        fast.write(BASE + address, bytes(at % 251 for at in range(size)))
        slow.write(BASE + address, bytes(at % 251 for at in range(size)))
    assert slow.read(BASE, 3 * PAGE) == fast.read(BASE, 3 * PAGE)
    assert slow.read(BASE + 4 * PAGE, PAGE) == fast.read(BASE + 4 * PAGE, PAGE)


def test_adjacent_frames_are_read_at_once() -> None:
    machine, kernel = memory(sees_kernel=False)
    kernel.read(BASE + 0x10, 3 * PAGE - 0x20)
    assert [entry for entry in machine.log if entry.startswith("physical")] == [
        f"physical {0x100 * PAGE + 0x10:#x} {2 * PAGE - 0x10:#x}",
        f"physical {0x300 * PAGE:#x} {PAGE - 0x10:#x}",
    ]


def test_translations_are_kept_until_the_guest_has_run() -> None:
    machine, kernel = memory(sees_kernel=False)
    kernel.read(BASE + 0x800, 8)
    kernel.read(BASE, 8)
    kernel.read(BASE + 0x900, 8)
    # One walk, and one attempt at what the vCPU does not see.
    assert (machine.log.count("walk"), machine.log.count("virtual")) == (1, 1)
    machine.pages[0] = 0x300
    kernel.forget()
    assert kernel.read(BASE, 2) == bytes(machine.frames[0x300][:2])
    assert (machine.log.count("walk"), machine.log.count("virtual")) == (2, 2)


def test_a_hole_is_not_the_end_of_the_fast_way() -> None:
    machine, kernel = memory(sees_kernel=True)
    with pytest.raises(Unreadable):
        kernel.read(BASE + 3 * PAGE, 1)
    machine.log.clear()
    kernel.read(BASE, 1)
    assert machine.log == ["virtual"]


@pytest.mark.parametrize("sees_kernel", [True, False])
def test_nothing_is_written_where_a_part_cannot_be(sees_kernel: bool) -> None:
    machine, kernel = memory(sees_kernel)
    before = bytes(machine.frames[0x300])
    with pytest.raises(Unreadable) as raised:
        kernel.write(BASE + 2 * PAGE, bytes(PAGE + 1))
    assert raised.value.address == BASE + 3 * PAGE
    assert bytes(machine.frames[0x300]) == before


def test_nothing_at_all() -> None:
    machine, kernel = memory(sees_kernel=False)
    assert kernel.read(BASE, 0) == b""
    kernel.write(BASE, b"")
    assert machine.log == []


def test_physical_addresses() -> None:
    _, kernel = memory(sees_kernel=False)
    assert kernel.physical(BASE + PAGE + 5) == 0x101 * PAGE + 5
    assert kernel.physical(BASE + 3 * PAGE) is None


def test_runs_that_overlap_what_is_known() -> None:
    """A walk that reports a large page from the middle on, then from its start."""
    walks: list[int] = []

    def walk(address: int) -> tuple[int, int] | None:
        walks.append(address)
        into = address - BASE
        return (0x20_0000 + into, (2 << 20) - into)

    class Physical:
        def read_physical(self, address: int, size: int) -> bytes:
            return address.to_bytes(8, "little")[:size]

        def write_physical(self, address: int, data: bytes) -> None:
            raise NotImplementedError

    kernel = KernelMemory(Machine(sees_kernel=False), Physical(), walk)
    for address in (0x5008, 0x5000, 0x1F_F000, 0x3010, 0x3000, 0x4FF8, 0, 0x5008):
        assert kernel.read(BASE + address, 8) == (0x20_0000 + address).to_bytes(8, "little")
    assert walks == [BASE + 0x5008, BASE + 0x3010, BASE]


def test_a_programs_memory_is_never_looked_for_in_the_kernels_tables() -> None:
    """Not even where the selected vCPU was seen not to map the kernel."""
    machine, kernel = memory(sees_kernel=False)
    kernel.read(BASE, 4)
    machine.log.clear()
    with pytest.raises(Unreadable):
        kernel.read(0x1000, 4)
    with pytest.raises(Unreadable):
        kernel.write(0x1000, b"abcd")
    assert machine.log[0] == "virtual" and machine.log.count("virtual") == 2


@pytest.mark.parametrize("works", [True, False])
def test_much_is_read_at_once_or_piece_by_piece(works: bool) -> None:
    """What is read is the same; a page that is not mapped is an error either way."""
    machine = Machine(sees_kernel=False)
    asked: list[list[tuple[int, int]]] = []

    def dump(pieces: Sequence[tuple[int, int]]) -> list[bytes] | None:
        asked.append([*pieces])
        # What lies between the places that were asked for is read too.
        data = b"".join(bytes(machine.frames.get(frame, bytes(PAGE))) for frame in range(0x100, 0x301))
        return [data[at - 0x100 * PAGE :][:size] for at, size in pieces] if works else None

    kernel = KernelMemory(machine, machine, machine.walk, dump)
    spans = [(BASE + 8, BASE + 24), (BASE + 64, BASE + 64), (BASE + PAGE - 8, BASE + 2 * PAGE + 8)]
    spans += [(BASE + 2 * PAGE + 4, BASE + 2 * PAGE + 12), (BASE + 4 * PAGE, BASE + 5 * PAGE)]
    plain = KernelMemory(machine, machine, machine.walk)
    assert kernel.read_many(spans) == [plain.read(start, end - start) for start, end in spans] == plain.read_many(spans)
    assert len(asked) == 1 and len(asked[0]) < len(spans)
    with pytest.raises(Unreadable):
        kernel.read_many([*spans, (BASE + 3 * PAGE - 8, BASE + 3 * PAGE + 8)])
    tried = len(asked)
    with pytest.raises(Unreadable):
        kernel.read_many([(0x1000, 0x1008)])
    assert len(asked) == tried, "a program's memory is not where the kernel's is"


def test_places_of_one_piece_of_memory_are_read_as_one() -> None:
    machine = Machine(sees_kernel=False)
    asked: list[list[tuple[int, int]]] = []

    def dump(pieces: Sequence[tuple[int, int]]) -> list[bytes] | None:
        asked.append([*pieces])
        return [machine.read_physical(at, size) for at, size in pieces]

    kernel = KernelMemory(machine, machine, machine.walk, dump)
    plain = KernelMemory(machine, machine, machine.walk)
    (at, size), *_ = kernel.extents(BASE, PAGE)
    spans = [(BASE + 8, BASE + 24), (BASE + 64, BASE + 64), (BASE + 100, BASE + size)]
    assert kernel.read_many(spans) == [plain.read(start, end - start) for start, end in spans]
    assert kernel.read_each(spans) == kernel.read_many(spans)
    assert asked == [[(at + 8, size - 8)]] * 3
    assert plain.read_each(spans) is None and kernel.read_each([]) is None
    assert kernel.read_each([(BASE + 8, BASE + 24), (BASE + 5 * PAGE, BASE + 5 * PAGE + 8)]) is None, "not in one piece"
    assert kernel.read_each([(0x1000, 0x1008)]) is None, "a program's memory is not where the kernel's is"


@pytest.mark.parametrize("works", [True, False])
def test_what_is_long_is_read_at_once_or_as_ever(works: bool) -> None:
    class Plain(Machine):
        def read_virtual(self, address: int, size: int) -> bytes:
            if address < BASE:
                raise Unreadable(address, size)
            return bytes(size)

    machine = Plain(sees_kernel=True)
    asked: list[tuple[int, int]] = []

    def dump(pieces: Sequence[tuple[int, int]]) -> list[bytes] | None:
        asked.extend(pieces)
        return [bytes([7]) * size for _, size in pieces] if works else None

    def walk(address: int) -> tuple[int, int] | None:
        return (address - BASE, 1 << 20) if BASE <= address < BASE + (1 << 20) else None

    kernel = KernelMemory(machine, machine, walk, dump)
    kernel.read(BASE, 64)
    kernel.read(BASE, MUCH - 1)
    assert asked == []
    assert kernel.read(BASE, MUCH) == bytes([7 * works]) * MUCH
    assert asked == [(0, MUCH)]
    with pytest.raises(Unreadable):
        kernel.read(0x1000, MUCH)
    assert len(asked) == 1, "a program's memory is not where the kernel's is"
    assert kernel.read(BASE + (1 << 20), MUCH) == bytes(MUCH), "it is seen, and no table has it"


@pytest.mark.parametrize("works", [True, False])
def test_an_image_is_what_one_piece_of_memory_held(works: bool) -> None:
    machine = Machine(sees_kernel=False)

    def dump(pieces: Sequence[tuple[int, int]]) -> list[bytes] | None:
        return [machine.read_physical(at, size) for at, size in pieces] if works else None

    kernel = KernelMemory(machine, machine, machine.walk, dump)
    held = kernel.image(BASE + 8, BASE + 2 * PAGE)
    assert (held is not None) is works
    if held is not None:
        before = kernel.read(BASE + 8, 16)
        kernel.write(BASE + 8, b"other")
        assert held.read(BASE + 8, 16) == before and held.read(BASE + 2 * PAGE - 1, 1) != b""
        for address, size in ((BASE + 7, 2), (BASE + 2 * PAGE - 1, 2), (BASE, 1)):
            with pytest.raises(Unreadable):
                held.read(address, size)
    assert kernel.image(BASE, BASE + 3 * PAGE, print) is None, "it is in two pieces"
    assert kernel.image(BASE + 2 * PAGE, BASE + 4 * PAGE) is None, "a page is not mapped"
    assert KernelMemory(machine, machine, machine.walk).image(BASE, BASE + 8) is None


@pytest.mark.parametrize("sees_kernel", [True, False])
def test_a_write_in_an_image_is_told_once_before_it_is_done(sees_kernel: bool) -> None:
    machine = Machine(sees_kernel)
    kernel = KernelMemory(
        machine, machine, machine.walk, lambda pieces: [machine.read_physical(*each) for each in pieces]
    )
    before, seen = kernel.read(BASE, PAGE), list[bytes]()

    def changed() -> None:
        seen.append(kernel.read(BASE, PAGE))

    for _ in range(2):
        held = kernel.image(BASE + 8, BASE + 16, changed)
    for at, size in ((0, 8), (16, 8)):
        kernel.write(BASE + at, b"o" * size)
    kernel.write(BASE + 10, b"")
    assert held is not None and not seen
    last = kernel.read(BASE, PAGE)
    for _ in range(2):
        kernel.write(BASE + 4, b"other")
    assert seen == [last] != [before]
    for at in (8, 15):
        kernel.image(BASE + 8, BASE + 16, changed)
        kernel.write(BASE + at, b"1")
    assert len(seen) == 3


def test_a_write_of_physical_memory_in_an_image_is_told() -> None:
    machine, seen = Machine(sees_kernel=True), list[int]()
    kernel = KernelMemory(
        machine, machine, machine.walk, lambda pieces: [machine.read_physical(*each) for each in pieces]
    )
    at = kernel.physical(BASE + 8)
    assert at is not None
    kernel.image(BASE + 8, BASE + 16, lambda: seen.append(1))
    for address, size in ((at - 4, 4), (at + 8, 4)):
        kernel.note_write(address, size)
    assert not seen
    for _ in range(2):
        kernel.note_write(at - 1, 2)
    assert seen == [1]
