"""The table of traps in programs: every key is found where a search from its home comes first."""

from __future__ import annotations

import random

from gdb_optprobe.maps.user_trap_table import CODE, INODE, OFFSET, SLOT, UserTrapTableLayout, slot

LAYOUT = UserTrapTableLayout(64)


def test_all_keys_are_found_and_no_other() -> None:
    chosen = random.Random(1)
    inodes = [0xFFFF_8880_0000_0000 + 0x400 * number for number in range(3)]
    codes = {(chosen.randrange(1 << 20), chosen.choice(inodes)): 1 + n for n in range(LAYOUT.room)}
    data = LAYOUT.encode(codes)
    for (offset, inode), code in codes.items():
        at = LAYOUT.place(data, (offset, inode))
        words = [int.from_bytes(data[at + part : at + part + 8], "little") for part in (OFFSET, INODE, CODE)]
        assert words == [offset, inode, code]
    free = LAYOUT.place(data, (1 << 30, inodes[0]))
    assert data[free : free + SLOT] == bytes(SLOT)


def test_one_offset_in_several_programs() -> None:
    codes = {(0x100, inode): inode for inode in range(1, LAYOUT.room)}
    data = LAYOUT.encode(codes)
    assert len({LAYOUT.place(data, key) for key in codes}) == len(codes)


def test_what_another_session_left_is_read_and_keeps_its_places() -> None:
    codes = {(0x100 * number, 1 + number % 3): 7 + number for number in range(LAYOUT.room)}
    data = LAYOUT.encode(codes)
    assert LAYOUT.decode(data) == codes
    changed = LAYOUT.changed(bytearray(data), dict.fromkeys(codes, 5))
    assert [LAYOUT.place(changed, key) for key in codes] == [LAYOUT.place(data, key) for key in codes]
    assert LAYOUT.decode(changed) == dict.fromkeys(codes, 5)


def test_a_table_that_a_guest_wrote_is_one_or_none() -> None:
    chosen = random.Random(2)
    full = b"".join(slot((chosen.randrange(1 << 20), 1), 1) for _ in range(LAYOUT.slots))
    assert LAYOUT.decode(full) is None
    data = LAYOUT.encode({(0x100, 1): 1, (0x200, 1): 2})
    data[:SLOT] = slot((0x300, 1), 1)
    known = LAYOUT.decode(data)
    assert known is None or LAYOUT.place(data, (0x300, 1)) == 0
