"""Blocks of the direct map appear below the data of the arena, on page tables of our own making."""

from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import physical_patch
from gdb_optprobe.guest.linux.arch.x86_64.data_window import ALL_PLACES, DataWindow
from gdb_optprobe.guest.linux.arch.x86_64.image_padding import DATA_AT
from gdb_optprobe.guest.linux.arch.x86_64.paging import LARGE, NO_EXECUTE
from tests.guest.linux.arch.x86_64 import test_image_padding as padding
from tests.guest.linux.arch.x86_64.test_image_padding import PGD, TAIL, Guest, at, found, guest
from tests.guest.linux.fake_kernel import kernel

DIRECT = 0xFFFF_8880_0000_0000
DIRECT_PUD, DIRECT_PMD, DIRECT_PTE = 0x9000, 0xA000, 0xB000
MIB = 1 << 20
BLOCK = DIRECT + 64 * MIB
SMALL = DIRECT + 66 * MIB  # mapped by pages of 4 KiB


class Mapped(Guest):
    """Memory is what the page tables say it is, the direct map included."""

    def read(self, address: int, size: int) -> bytes:
        if DIRECT <= address < DIRECT + 80 * MIB:
            return self.read_physical(address - DIRECT, size)
        return super().read(address, size)


def mapped() -> tuple[Mapped, DataWindow]:
    there = guest()
    there.__class__ = Mapped
    for table in (DIRECT_PUD, DIRECT_PMD, DIRECT_PTE):
        there.put(table, bytes(4096))
    there.put_words(PGD + (DIRECT >> 39 & 511) * 8, DIRECT_PUD | 0x63)
    there.put_words(DIRECT_PUD, DIRECT_PMD | 0x63)
    there.put_words(DIRECT_PMD + 32 * 8, 64 * MIB | 0xE3 | NO_EXECUTE, DIRECT_PTE | 0x63)
    for page in range(512):
        there.put_words(DIRECT_PTE + 8 * page, 66 * MIB + 4096 * page | 0x63 | NO_EXECUTE)
    _, _, patches = found(there)
    physical_patch.apply(patches, there)
    for start in (64, 66):
        for page in (0, 511, 31, 30):
            there.put(start * MIB + page * 4096, bytes(4096))
    assert isinstance(there, Mapped)
    return there, DataWindow(there, kernel(there, TAIL))


@pytest.mark.parametrize("block", [BLOCK, SMALL])
def test_a_block_of_2_mib_is_one_large_page_writable_and_not_executable(block: int) -> None:
    there, window = mapped()
    place = ALL_PLACES[0]
    assert place == DATA_AT - 2 * MIB and window.is_free(place) and not window.is_mapped(place, 9, block)
    there.writes.clear()
    assert window.map(place, 9, block) == place
    assert there.writes[0] == window.table() + (place >> 21 & 511) * 8, "one write makes it appear"
    assert all(address >= 64 * MIB for address in there.writes[1:]), "and it is proven by its own memory"
    mapping = at(there, place + 12345)
    assert mapping is not None and mapping.level == 2 and mapping.entry & LARGE
    assert (mapping.writable, mapping.executable, mapping.user, mapping.is_global) == (True, False, False, False)
    assert mapping.frame_of(place) == block - DIRECT
    assert window.is_mapped(place, 9, block) and not window.is_free(place)
    assert at(there, DATA_AT) is not None and at(there, place - 1) is None
    window.unmap(place)
    assert at(there, place) is None and window.is_free(place)


def test_the_last_page_of_a_smaller_block_is_its_table() -> None:
    there, window = mapped()
    place = ALL_PLACES[1]
    window.map(place, 5, BLOCK)
    end = place + window.size(5)
    assert end == place + 31 * 4096
    for address in range(place, end, 4096):
        mapping = at(there, address)
        assert mapping is not None and mapping.writable and not mapping.executable
        assert mapping.physical == BLOCK - DIRECT + address - place
    assert at(there, end) is None
    assert window.is_mapped(place, 5, BLOCK)
    with pytest.raises(OptprobeError, match="is not what an earlier GDB wrote"):
        window.is_mapped(place, 5, SMALL)


@pytest.mark.parametrize("block", [BLOCK + 4096, DIRECT + 70 * MIB, 0, padding.IMAGE, 1 << 63])
def test_what_the_kernel_cannot_have_lent(block: int) -> None:
    there, window = mapped()
    there.writes.clear()
    with pytest.raises(OptprobeError):
        window.map(ALL_PLACES[0], 9, block)
    assert not there.writes and window.is_free(ALL_PLACES[0])


def test_places_that_are_taken_or_none() -> None:
    there, window = mapped()
    place = ALL_PLACES[0]
    there.put_words(window.table() + (place >> 21 & 511) * 8, 1 << 12)
    with pytest.raises(OptprobeError, match="is mapped"):
        window.map(place, 9, BLOCK)
    assert window.is_place(place, 9) and not window.is_place(DATA_AT, 9)
    assert window.places(0, 1 << 64) == [*ALL_PLACES]
    assert window.places(ALL_PLACES[2], ALL_PLACES[0]) == [ALL_PLACES[1], ALL_PLACES[2]]
    with pytest.raises(OptprobeError, match="no block can be at"):
        window.unmap(DATA_AT)
    there.put_words(padding.PUD + 509 * 8, 0)
    with pytest.raises(OptprobeError, match="no page table maps the memory for detours"):
        window.table()
