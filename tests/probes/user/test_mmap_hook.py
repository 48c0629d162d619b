"""What the guest's table of bytes in programs holds, by what it is to hold and whether somebody is at it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from gdb_optprobe.detours.arena import Arena, Ranges
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux.user.mmap_hook import MmapHook
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.maps.mmap_patches import INSIDE, ROWS, SIZE, MmapPatch
from gdb_optprobe.probes.user.mmap_hook import ROOM, MmapPatcher
from tests.detours.fakes import FakeMemory

START = 0xFFFF_FFFF_8100_0000
CODE, DATA = (START, START + 0x1000), (START + 0x1000, START + 0x2_0000)
CALLED = START + 0x3_0000
FIRST, SECOND, THIRD = (MmapPatch(0xFFFF_8880_0000_1000, 0x1000 * n, b"\xcc", bytes([n])) for n in (1, 2, 3))
LONG = MmapPatch(0xFFFF_8880_0000_1000, 0x9000, bytes(range(40)), bytes(40))


class HookedGuest:
    def __init__(self) -> None:
        self.memory = FakeMemory(START, bytes(0x4_0000))
        guest = cast(Guest, SimpleNamespace(isa=X86_64, machine=self.memory, moment=object))
        self.arrivals = MmapPatcher(guest)
        arena = Arena(Ranges((CODE,), (DATA,), 0), X86_64.alignment)
        (call,) = X86_64.decode(X86_64.branch(CALLED, CALLED + 0x100), CALLED)
        self.memory.write(CALLED, call.data)
        made: list[int] = []

        def code(table: int, force: int) -> object:
            made.append(table)
            return lambda at: b"\xc3"

        self.arrivals.install(cast(MmapHook, SimpleNamespace(calls=(call,), to=CALLED + 0x100, code=code)), 0x11, arena)
        (self.table,) = made

    def busy(self, threads: int) -> None:
        self.memory.write(self.table + INSIDE, threads.to_bytes(8, "little"))

    @property
    def rows(self) -> list[bytes]:
        """As code in the guest finds them: up to the first without an inode."""
        found: list[bytes] = []
        while any((row := self.memory.read(self.table + ROWS + len(found) * SIZE, SIZE))[:8]):
            found.append(row)
        return found


def test_while_nobody_is_there_it_is_written_anew() -> None:
    guest = HookedGuest()
    for rows in ([FIRST, SECOND, THIRD], [THIRD], [SECOND, LONG, FIRST], []):
        guest.arrivals.set_patches(rows)
        assert guest.rows == [piece.encode() for row in rows for piece in row.split()]
    assert len(LONG.split()) == 3 and b"".join(piece.data for piece in LONG.split()) == LONG.data


def test_while_somebody_is_there_rows_keep_their_places() -> None:
    """And behind the last one nothing of earlier ones is left."""
    guest = HookedGuest()
    guest.arrivals.set_patches([FIRST, SECOND, THIRD, *LONG.split()])
    guest.arrivals.set_patches([FIRST, SECOND])
    guest.busy(1)
    assert guest.arrivals.is_busy
    guest.arrivals.set_patches([SECOND])
    assert guest.rows == [FIRST.encode_disabled(), SECOND.encode()]
    guest.arrivals.set_patches([THIRD, SECOND, FIRST])
    assert guest.rows == [FIRST.encode_disabled(), SECOND.encode(), THIRD.encode(), FIRST.encode()]
    guest.busy(0)
    guest.arrivals.set_patches([THIRD, SECOND])
    assert guest.rows == [THIRD.encode(), SECOND.encode()] and not guest.arrivals.is_busy


def test_there_is_room_for_so_many() -> None:
    guest = HookedGuest()
    many = [MmapPatch(0xFFFF_8880_0000_1000, at, b"\xcc", b"\x55") for at in range(ROOM)]
    guest.arrivals.set_patches(many)
    assert guest.rows == [row.encode() for row in many]
    with pytest.raises(OptprobeError, match="there is room for"):
        guest.arrivals.set_patches([*many, THIRD])
    guest.busy(1)
    with pytest.raises(OptprobeError, match="full"):
        guest.arrivals.set_patches([*many[1:], THIRD])
    assert guest.rows == [many[0].encode_disabled(), *(row.encode() for row in many[1:])]
