"""Blocks that the kernel lends serve where its linear map has them, on a tree of our own making."""

from __future__ import annotations

from typing import cast

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.base import NOWHERE
from gdb_optprobe.guest.linux.arch.ppc64le.linear_window import HASH, LinearWindow, window
from gdb_optprobe.guest.linux.user.vcpus import Vcpus
from tests.guest.linux.arch.ppc64le import small_guest
from tests.guest.linux.arch.ppc64le.test_arch import BASE, FRAME, big, power_kernel
from tests.guest.linux.fake_kernel import Machine

MIB = 1 << 20
READ_WRITE, READ_EXECUTE, ALL = 6, 5, 7
BLOCK, TEXT, BOTH, ELSEWHERE = (BASE + 2 * MIB * n for n in (4, 6, 7, 8))
PAGES = [1 << 16, 1 << 12]


class Mapped(Machine):
    """Memory is what is physically there."""

    def read(self, address: int, size: int) -> bytes:
        return super().read(address - BASE if address >= BASE else address, size)

    read_physical = Machine.read


def mapped(page: int) -> tuple[Mapped, LinearWindow]:
    there, middle, last = Mapped(), FRAME + 0x10000, FRAME + 0x11000
    there.put(FRAME, big(1 << 63 | middle | 9))
    there.put(middle, big(1 << 63 | last | 9))
    there.put(last, bytes(4096))
    rights = {4: READ_WRITE, 5: READ_WRITE, 6: READ_EXECUTE, 7: ALL, 8: READ_WRITE}
    for number, right in rights.items():
        frame = 2 * MIB * number if number != 8 else 0x4000_0000
        there.put(last + 8 * number, big(1 << 63 | 1 << 62 | frame | right))
    for at in range(4, 9):
        there.put(2 * MIB * at, bytes(8))
        there.put(2 * MIB * at + 0x1FFF8, bytes(8))
        there.put(2 * MIB * (at + 1) - 8, bytes(8))
    return there, LinearWindow(there, power_kernel(there), page, FRAME, cast(Vcpus, None))


@pytest.mark.parametrize("page", PAGES)
def test_a_block_is_data_where_the_kernel_has_it(page: int) -> None:
    there, window = mapped(page)
    whole, least = window.whole, window.orders[-1]
    assert window.size(whole) == 2 * MIB and window.size(least) == MIB // 8
    assert [window.size(order) // MIB for order in window.orders[:4]] == [16, 8, 4, 2]
    assert window.table() is None and window.flushes == "", "no entry of a page table changes"
    for order in (whole, least):
        assert window.is_free(NOWHERE) and not window.is_mapped(NOWHERE, order, BLOCK)
        there.writes.clear()
        assert window.map(NOWHERE, order, BLOCK) == BLOCK
        assert there.writes == [BLOCK - BASE, BLOCK - BASE + window.size(order) - 8], "proven by its own memory"
        assert window.is_mapped(BLOCK, order, BLOCK) and not window.is_free(BLOCK)
        assert window.unmap(BLOCK) == NOWHERE
    assert window.map(NOWHERE, whole + 1, BLOCK) == BLOCK, "over two pages of the tree"


@pytest.mark.parametrize("block", [TEXT, BOTH, ELSEWHERE, BLOCK - 2 * MIB, BLOCK + 4096, 0, 1 << 63])
def test_what_the_kernel_cannot_have_lent(block: int) -> None:
    """Text, what could be written and executed, what is mapped otherwise, nothing, or not aligned."""
    there, window = mapped(PAGES[0])
    there.writes.clear()
    with pytest.raises(OptprobeError):
        window.map(NOWHERE, window.whole, block)
    assert not there.writes
    with pytest.raises(OptprobeError):
        window.is_mapped(block or BLOCK, window.whole, block)


def test_a_block_that_others_have_changed() -> None:
    _, window = mapped(PAGES[0])
    with pytest.raises(OptprobeError, match="and not"):
        window.is_mapped(BLOCK + 2 * MIB, window.whole, BLOCK)
    with pytest.raises(OptprobeError, match="is data already"):
        window.map(BLOCK, window.whole, BLOCK)


def test_places() -> None:
    _, window = mapped(PAGES[0])
    assert set(window.places(-(1 << 64), 1 << 65)) == {NOWHERE} and not window.places(0, BLOCK)
    assert window.is_place(NOWHERE, 5) and window.is_place(BLOCK, 5)
    assert not any(window.is_place(at, 5) for at in (BLOCK + 4096, 4096, BASE, 1 << 64))


def test_with_hash_page_tables_nothing_is_lent() -> None:
    there = small_guest.guest()
    with pytest.raises(OptprobeError, match=HASH):
        window(there, small_guest.kernel(there))
