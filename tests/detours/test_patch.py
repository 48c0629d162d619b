from __future__ import annotations

import pytest

from gdb_optprobe.detours.patch import (
    Patch,
    TextChanged,
    apply,
    apply_in_runs,
    check,
    exchange_in_runs,
    revert,
    take_back,
)
from tests.detours.fakes import FakeMemory

PATCHES = (Patch(0x1000, b"\x90" * 5, b"\xe9abcd"), Patch(0x1010, b"\x90", b"\xcc"))


def memory() -> FakeMemory:
    return FakeMemory(0x1000, b"\x90" * 32)


def test_apply_and_revert() -> None:
    there = memory()
    apply(PATCHES, there)
    assert there.read(0x1000, 5) == b"\xe9abcd" and check(PATCHES, there) == ()
    revert(PATCHES, there)
    assert there.data == b"\x90" * 32


def test_old_bytes_first() -> None:
    there = memory()
    there.data[0x10] = 0x55
    with pytest.raises(TextChanged) as changed:
        apply(PATCHES, there)
    assert changed.value.address == 0x1010 and changed.value.found == b"\x55"
    assert there.writes == [], "nothing is written where anything differs"


def test_own_bytes_before_they_are_taken_back() -> None:
    there = memory()
    apply(PATCHES, there)
    there.data[2] = 0
    there.writes.clear()
    with pytest.raises(TextChanged):
        revert(PATCHES, there)
    assert there.writes == []
    assert [each.address for each in check(PATCHES, there)] == [0x1000]


def test_what_leads_somewhere_is_written_last_and_removed_first() -> None:
    there = memory()
    apply(PATCHES, there)
    revert(PATCHES, there)
    assert there.writes == [0x1000, 0x1010, 0x1010, 0x1000]


def test_memory_that_does_not_take_the_bytes() -> None:
    class Rom(FakeMemory):
        def write(self, address: int, data: bytes) -> None:
            if address != 0x1010:
                super().write(address, data)

    there = Rom(0x1000, b"\x90" * 32)
    with pytest.raises(TextChanged):
        apply(PATCHES, there)
    assert there.data == b"\x90" * 32, "never half"


def test_runs_are_undone_whatever_error_ends_them() -> None:
    class Breaking(FakeMemory):
        def write(self, address: int, data: bytes) -> None:
            super().write(address, data)
            if len(self.writes) == 2:
                raise RuntimeError("Remote connection closed")  # as gdb.error, no OptprobeError

    there = Breaking(0x1000, b"\x90" * 0x2000)
    with pytest.raises(RuntimeError):
        apply_in_runs([Patch(0x1000 + 0x800 * number, b"\x90", b"\xcc") for number in range(4)], there)
    assert len(there.writes) == 4 and there.data == b"\x90" * 0x2000


def test_patches_are_undone_whatever_error_ends_them() -> None:
    class Breaking(FakeMemory):
        def write(self, address: int, data: bytes) -> None:
            super().write(address, data)
            if len(self.writes) == 2:
                raise RuntimeError("Remote connection closed")  # as gdb.error, no OptprobeError

    there = Breaking(0x1000, b"\x90" * 32)
    with pytest.raises(RuntimeError):
        apply(PATCHES, there)
    assert len(there.writes) == 4 and there.data == b"\x90" * 32


PLACES = [(0x1000 + 0x800 * number, 0x1001 + 0x800 * number) for number in range(4)]


def test_an_exchange_is_taken_back_as_it_was() -> None:
    there = FakeMemory(0x1000, b"\x90" * 0x2000)
    done = exchange_in_runs(PLACES, b"\x90", b"\xcc", there)
    with_traps = bytes(there.data)
    back = take_back(done, there)
    assert back is not None and there.data == b"\x90" * 0x2000
    assert take_back(back, there) == done and there.data == with_traps, "and written again"


@pytest.mark.parametrize("at", [0, 0x1800])
def test_an_exchange_is_not_taken_back_where_other_bytes_are(at: int) -> None:
    there = FakeMemory(0x1000, b"\x90" * 0x2000)
    done = exchange_in_runs(PLACES, b"\x90", b"\xcc", there)
    there.data[at] = 0x55
    there.writes.clear()
    assert take_back(done, there) is None and there.writes == []


def test_an_exchange_that_is_not_taken_back_whole_is_there_again() -> None:
    there = FakeMemory(0x1000, b"\x90" * 0x2000)
    done, write = exchange_in_runs(PLACES, b"\x90", b"\xcc", there), there.write
    with_traps = bytes(there.data)

    def lost(address: int, data: bytes) -> None:
        if address != 0x1800 or data == b"\xcc":
            write(address, data)

    there.write = lost  # type: ignore[method-assign]
    with pytest.raises(TextChanged):
        take_back(done, there)
    assert there.data == with_traps


def test_a_patch_changes_no_size() -> None:
    with pytest.raises(ValueError):
        Patch(0, b"", b"\xcc")
