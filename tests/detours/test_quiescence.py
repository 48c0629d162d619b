from __future__ import annotations

from array import array

from gdb_optprobe.detours.quiescence import busy, window
from gdb_optprobe.guest.saved_pcs import SavedWords

SITE = 0xFFFFFFFF81000000


def stack(*words: int) -> list[SavedWords]:
    return [SavedWords("thread 7 (dd)", 0x1000, array("Q", words))]


def test_a_pc_at_the_start_is_not_inside() -> None:
    assert busy([window(SITE, 5)], stack(SITE)) == ()


def test_a_pc_behind_the_branch_is_not_inside() -> None:
    assert busy([window(SITE, 5)], stack(SITE + 5)) == ()


def test_every_byte_between_is() -> None:
    for offset in range(1, 5):
        (found,) = busy([window(SITE, 5)], stack(0, SITE + offset, 2**64 - 1))
        assert (found.owner, found.pc, found.where) == ("thread 7 (dd)", SITE + offset, window(SITE, 5))


def test_a_slot_is_busy_from_its_first_byte() -> None:
    slot = (SITE, SITE + 64)
    assert busy([slot], stack(SITE)) and busy([slot], stack(SITE + 63)) and not busy([slot], stack(SITE + 64))


def test_one_scan_serves_overlapping_ranges() -> None:
    ranges = [(100, 200), (150, 160), (155, 300), (400, 401)]
    found = busy(ranges, stack(155, 400))
    assert {each.where for each in found if each.pc == 155} == {(100, 200), (150, 160), (155, 300)}
    assert {each.where for each in found if each.pc == 400} == {(400, 401)}


def test_a_one_byte_instruction_has_no_inside() -> None:
    assert busy([window(SITE, 1)], stack(SITE, SITE + 1)) == ()
