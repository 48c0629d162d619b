"""The arena of a Linux guest, which may be reset, and whose kernel may lend memory."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.base import LinuxArch, Loan, Room, StillLent
from gdb_optprobe.guest.linux.linux import LinuxGuest
from gdb_optprobe.maps.journal_format import MAGIC, Damaged, decode
from gdb_optprobe.probes import arena_record
from gdb_optprobe.probes.linux_arena import LinuxArena
from gdb_optprobe.probes.settings import Settings
from tests.guest.linux.fake_kernel import Pages

FILL = 0xCC


def linux_guest(*parts: Any, **rest: Any) -> LinuxGuest:
    """Return a guest that has booted."""
    return LinuxGuest(*parts, **{"_is_booting": False, **rest})


def test_a_kernel_whose_memory_for_detours_was_undone_is_not_the_one_that_was_probed() -> None:
    """A reset guest may have the same kernel at the same place: on ppc64le its page of data is text again."""
    mapped = True
    room = Room(((0, 8),), (8, 16), 0, is_in_place=lambda: mapped)
    anything: Any = SimpleNamespace(is_same_kernel=lambda _: True, forget=lambda: None, alignment=4, pools=None)
    port = cast(LinuxArch, SimpleNamespace(room=lambda machine, kernel: room, places=lambda machine, kernel: ()))
    linux = linux_guest(*[anything] * 8, port)
    arena = LinuxArena(linux, Settings)
    assert arena.is_in_place()
    arena.find()
    mapped = False
    assert arena.is_in_place(), "nothing was changed yet"
    arena.take()
    assert not arena.is_in_place()
    mapped = True
    assert arena.is_in_place()
    arena.give_back()
    mapped = False
    assert arena.is_in_place(), "there is nothing left to be undone"


def test_code_under_an_earlier_gdb_s_branch_is_shown_while_the_branch_stands() -> None:
    """A reading that was taken before the branch went must agree with one from after that."""
    anything: Any = SimpleNamespace()
    arena = LinuxArena(linux_guest(*[anything] * 9), Settings)
    arena._covered = [Patch(0x1004, b"AAAAA", b"\xe9\1\2\3\4")]
    before, after = b"0000\xe9\1\2\3\0045555", b"0000AAAAA5555"
    for start in range(13):
        for end in range(start + 1, 14):
            assert arena.uncovered(0x1000 + start, before[start:end]) == after[start:end]
            assert arena.uncovered(0x1000 + start, after[start:end]) == after[start:end]


JOURNAL, LENT = (0x3000, 0x4000), (0x8000, 0x9000)


def lending(fails: bool = False, stays: bool = False) -> tuple[LinuxArena, Pages, list[str]]:
    """A kernel without memory for detours but what it lends; and what is done, in order."""
    memory, events = Pages(), []
    memory.put(LENT[0], bytes([FILL]) * 0x1000)

    def take() -> None:
        assert memory.read(LENT[0], 8) == MAGIC, "another GDB finds it from here on"
        events.append("take")
        if fails:
            raise OptprobeError("no")

    def give_back() -> None:
        events.append("give back")
        if stays:
            raise StillLent("it stays", "try again")

    def borrow() -> Room:
        assert not memory.writes
        events.append("borrow")
        memory.put(LENT[0], bytes([FILL]) * 0x1000)
        return replace(planned, borrow=None, take=take, give_back=give_back, journal=LENT, loan=Loan(0x5000, 0x4000))

    planned = Room(((0x2000, 0x3000),), (0x1000, 0x2000), FILL, journal=JOURNAL, borrow=borrow, notice="as it is said")
    anything: Any = SimpleNamespace(
        is_same_kernel=lambda _: True, forget=lambda: None, alignment=4, pools=None, build="b", text=(0x100, 0x200)
    )
    port = cast(LinuxArch, SimpleNamespace(room=lambda machine, kernel: planned, places=lambda machine, kernel: ()))
    known = cast(Any, SimpleNamespace(read=memory.read, write=memory.write, forget=lambda: None))
    linux = linux_guest(anything, anything, known, *[anything] * 5, port)
    return LinuxArena(linux, Settings, lambda text: events.append(text)), memory, events


def test_memory_is_lent_when_it_is_taken_and_noted_before_it_appears() -> None:
    arena, memory, events = lending()
    arena.find()
    assert (arena.lends(), events, memory.writes) == (True, ["as it is said"], [])
    arena.take()
    assert not arena.lends() and arena.room is not None and arena.room.loan == Loan(0x5000, 0x4000)
    assert events[1].startswith("the guest runs") and events[2:] == ["borrow", "take"]
    found = decode(memory.read(LENT[0], 0x1000), FILL)
    assert found is not None and found.state["room 0"][-1] == [0x5000, 0x4000]
    arena.give_back()
    assert events[-1] == "give back" and arena.room is None


def test_what_is_lent_and_cannot_be_used_is_given_back_and_may_be_lent_again() -> None:
    arena, memory, events = lending(fails=True)
    arena.find()
    for _ in range(2):
        memory.writes.clear()
        with pytest.raises(OptprobeError):
            arena.take()
        assert arena.lends() and events[-3:] == ["borrow", "take", "give back"]


def test_what_failed_first_is_told_first_where_the_loan_cannot_be_given_back() -> None:
    arena, _, events = lending(fails=True, stays=True)
    arena.find()
    with pytest.raises(OptprobeError) as failed:
        arena.take()
    assert str(failed.value) == "no; it stays; try again" and events[-2:] == ["take", "give back"]


@pytest.mark.parametrize("fails", [StillLent("it stays"), OptprobeError("nothing has changed")])
def test_a_loan_that_is_not_taken_back(fails: OptprobeError) -> None:
    """It is the arena as before, unless nothing leads there any more."""

    def give_back() -> None:
        raise fails

    arena, _, events = lending()
    arena.find()
    arena.take()
    assert arena.room is not None
    arena.room = replace(arena.room, give_back=give_back)
    if isinstance(fails, StillLent):
        arena.give_back()
        assert arena.room is None and events[-1] == "it stays"
    else:
        with pytest.raises(OptprobeError):
            arena.give_back()
        assert arena.room is not None and arena.keeps_journal


def test_the_journal_tells_of_every_range_and_of_the_loan() -> None:
    recovered = cast(Any, SimpleNamespace(build="b", text=(0x100, 0x200)))
    place = Room(((0x2000, 0x4000), (0x6000, 0x9000)), (0x1000, 0x2000), FILL, journal=(0x5000, 0x6000))
    room = replace(place, code=((0x3000, 0x4000), (0x6000, 0x7000)))
    state = {"room 0": json.loads(json.dumps(arena_record.encode_room(room, recovered)))}
    found, mapping, loan = arena_record._decode_room(state, place, recovered)
    assert (found.code, mapping, loan) == (room.code, (), None)
    for wrong in (((0x3000, 0x4001),), ((0x3000, 0x4000), (0x3800, 0x3900)), ((0x4000, 0x3000),), ()):
        state = {"room 0": arena_record.encode_room(replace(room, code=wrong), recovered)}
        with pytest.raises(Damaged):
            arena_record._decode_room(state, place, recovered)
    lent = replace(room, loan=Loan(0x5000, 0x4000))
    state = {"room 0": json.loads(json.dumps(arena_record.encode_room(lent, recovered)))}
    with pytest.raises(Damaged):
        arena_record._decode_room(state, place, recovered)
    _, _, loan = arena_record._decode_room(state, replace(place, repay=lambda loan, mapping: None), recovered)
    assert loan == lent.loan


def test_a_kernel_that_boots_has_no_memory_to_give() -> None:
    """It still frees and protects the pages of its image."""
    room = Room(((0, 8),), (8, 16), 0)
    anything: Any = SimpleNamespace(forget=lambda: None, alignment=4, pools=None, symbols=None)
    port = cast(LinuxArch, SimpleNamespace(room=lambda machine, kernel: room, places=lambda machine, kernel: ()))
    linux = linux_guest(*[anything] * 8, port)
    linux.note_boot(ended=False)
    arena = LinuxArena(linux, Settings)
    with pytest.raises(Refused) as refused:
        arena.find()
    assert refused.value.reason.code == "BOOTING" and arena.left() is None
    linux.note_boot(ended=True)
    arena.find()
