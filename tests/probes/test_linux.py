"""What is known of a kernel while its guest may be reset."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.guest.linux.port import Port, Room
from gdb_optprobe.probes.linux import Linux
from gdb_optprobe.probes.settings import Settings


def test_a_kernel_whose_memory_for_detours_was_undone_is_not_the_one_that_was_probed() -> None:
    """A reset guest may have the same kernel at the same place: on ppc64le its page of data is text again."""
    mapped = True
    room = Room(((0, 8),), (8, 16), 0, stands=lambda: mapped)
    anything: Any = SimpleNamespace(still_there=lambda _: True, forget=lambda: None, alignment=4)
    port = cast(Port, SimpleNamespace(room=lambda machine, kernel: room, places=lambda machine, kernel: ()))
    linux = Linux(*[anything] * 8, port)
    assert linux.still_there()
    linux.new_arena(Settings())
    mapped = False
    assert linux.still_there(), "nothing was changed yet"
    linux.take_arena()
    assert not linux.still_there()
    mapped = True
    assert linux.still_there()
    linux.give_back_arena()
    mapped = False
    assert linux.still_there(), "there is nothing left to be undone"


def test_code_under_an_earlier_gdb_s_branch_is_shown_while_the_branch_stands() -> None:
    """A reading that was taken before the branch went must agree with one from after that."""
    anything: Any = SimpleNamespace()
    linux = Linux(*[anything] * 9)
    linux._covered = [Patch(0x1004, b"AAAAA", b"\xe9\1\2\3\4")]
    before, after = b"0000\xe9\1\2\3\0045555", b"0000AAAAA5555"
    for start in range(13):
        for end in range(start + 1, 14):
            assert linux.uncovered(0x1000 + start, before[start:end]) == after[start:end]
            assert linux.uncovered(0x1000 + start, after[start:end]) == after[start:end]
