"""What is known of a kernel while its guest may be reset."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.base import LinuxArch, Loan, Room, StaysLent
from gdb_optprobe.maps.journal_format import MAGIC, Damaged, decode
from gdb_optprobe.probes import arena_record
from gdb_optprobe.probes.linux import Linux
from gdb_optprobe.probes.settings import Settings
from tests.linux.fakes import Pages

FILL = 0xCC


def test_a_kernel_whose_memory_for_detours_was_undone_is_not_the_one_that_was_probed() -> None:
    """A reset guest may have the same kernel at the same place: on ppc64le its page of data is text again."""
    mapped = True
    room = Room(((0, 8),), (8, 16), 0, stands=lambda: mapped)
    anything: Any = SimpleNamespace(still_there=lambda _: True, forget=lambda: None, alignment=4)
    port = cast(LinuxArch, SimpleNamespace(room=lambda machine, kernel: room, places=lambda machine, kernel: ()))
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


JOURNAL, LENT = (0x3000, 0x4000), (0x8000, 0x9000)


def lending(fails: bool = False, stays: bool = False) -> tuple[Linux, Pages, list[str]]:
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
            raise StaysLent("it stays", "try again")

    def borrow() -> Room:
        assert not memory.writes
        events.append("borrow")
        memory.put(LENT[0], bytes([FILL]) * 0x1000)
        return replace(planned, borrow=None, take=take, give_back=give_back, journal=LENT, loan=Loan(0x5000, 0x4000))

    planned = Room(((0x2000, 0x3000),), (0x1000, 0x2000), FILL, journal=JOURNAL, borrow=borrow, told="as it is said")
    anything: Any = SimpleNamespace(
        still_there=lambda _: True, forget=lambda: None, alignment=4, build="b", text=(0x100, 0x200)
    )
    port = cast(LinuxArch, SimpleNamespace(room=lambda machine, kernel: planned, places=lambda machine, kernel: ()))
    known = cast(Any, SimpleNamespace(read=memory.read, write=memory.write, forget=lambda: None))
    linux = Linux(anything, anything, known, *[anything] * 5, port, tell=lambda text: events.append(text))
    return linux, memory, events


def test_memory_is_lent_when_it_is_taken_and_noted_before_it_appears() -> None:
    linux, memory, events = lending()
    linux.new_arena(Settings())
    assert (linux.lends(), events, memory.writes) == (True, ["as it is said"], [])
    linux.take_arena()
    assert not linux.lends() and linux.room is not None and linux.room.loan == Loan(0x5000, 0x4000)
    assert events[1].startswith("the guest runs") and events[2:] == ["borrow", "take"]
    found = decode(memory.read(LENT[0], 0x1000), FILL)
    assert found is not None and found.state["room 0"][-1] == [0x5000, 0x4000]
    linux.give_back_arena()
    assert events[-1] == "give back" and linux.room is None


def test_what_is_lent_and_cannot_be_used_is_given_back_and_may_be_lent_again() -> None:
    linux, memory, events = lending(fails=True)
    linux.new_arena(Settings())
    for _ in range(2):
        memory.writes.clear()
        with pytest.raises(OptprobeError):
            linux.take_arena()
        assert linux.lends() and events[-3:] == ["borrow", "take", "give back"]


def test_what_failed_first_is_told_first_where_the_loan_cannot_be_given_back() -> None:
    linux, _, events = lending(fails=True, stays=True)
    linux.new_arena(Settings())
    with pytest.raises(OptprobeError) as failed:
        linux.take_arena()
    assert str(failed.value) == "no; it stays; try again" and events[-2:] == ["take", "give back"]


@pytest.mark.parametrize("fails", [StaysLent("it stays"), OptprobeError("nothing has changed")])
def test_a_loan_that_is_not_taken_back(fails: OptprobeError) -> None:
    """It is the arena as before, unless nothing leads there any more."""

    def give_back() -> None:
        raise fails

    linux, _, events = lending()
    linux.new_arena(Settings())
    linux.take_arena()
    assert linux.room is not None
    linux.room = replace(linux.room, give_back=give_back)
    if isinstance(fails, StaysLent):
        linux.give_back_arena()
        assert linux.room is None and events[-1] == "it stays"
    else:
        with pytest.raises(OptprobeError):
            linux.give_back_arena()
        assert linux.room is not None and linux.keeps_journal


def test_the_journal_tells_of_every_range_and_of_the_loan() -> None:
    recovered = cast(Any, SimpleNamespace(build="b", text=(0x100, 0x200)))
    place = Room(((0x2000, 0x4000), (0x6000, 0x9000)), (0x1000, 0x2000), FILL, journal=(0x5000, 0x6000))
    room = replace(place, code=((0x3000, 0x4000), (0x6000, 0x7000)))
    state = {"room 0": json.loads(json.dumps(arena_record.facts(room, recovered)))}
    found, mapping, loan = arena_record._room(state, place, recovered)
    assert (found.code, mapping, loan) == (room.code, (), None)
    for wrong in (((0x3000, 0x4001),), ((0x3000, 0x4000), (0x3800, 0x3900)), ((0x4000, 0x3000),), ()):
        state = {"room 0": arena_record.facts(replace(room, code=wrong), recovered)}
        with pytest.raises(Damaged):
            arena_record._room(state, place, recovered)
    lent = replace(room, loan=Loan(0x5000, 0x4000))
    state = {"room 0": json.loads(json.dumps(arena_record.facts(lent, recovered)))}
    with pytest.raises(Damaged):
        arena_record._room(state, place, recovered)
    _, _, loan = arena_record._room(state, replace(place, repay=lambda loan, mapping: None), recovered)
    assert loan == lent.loan
