"""Leaving a guest: all of its memory is as it was, or what is still in use stays whole for the next GDB."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.recovery import adopt
from gdb_optprobe.recovery.teardown import teardown
from tests.fake_guest import CODE, DATA, FILL, MEETING, PLAIN, SHORT, THREADS, TRACED, FakeGuest, program

SPECS = (
    Spec(f"*{PLAIN:#x}", condition="$rax != 3", actions=("count", "hist($rax)")),
    Spec(f"*{TRACED:#x}", kind=Kind.KRETPROBE),
    Spec(f"*{SHORT:#x}"),
)
ALONE = program()


def probed(specs: Sequence[Spec] = SPECS) -> tuple[FakeGuest, Session]:
    guest = program()
    session = guest.session()
    for spec in specs:
        session.add(spec)
    return guest, session


def is_as_it_was(guest: FakeGuest) -> bool:
    return guest.read_text() == ALONE.read_text() and set(guest.machine.read(CODE, DATA - CODE)) == {FILL}


def into_a_detour(guest: FakeGuest) -> None:
    """Bring thread 0 to the program of the probe at PLAIN."""
    guest.run_to(0, PLAIN)
    guest.step(0)
    guest.step(0)


@pytest.mark.parametrize("number", range(len(SPECS)))
def test_nothing_is_left_of_any_probe(number: int) -> None:
    guest, session = probed(SPECS[number : number + 1])
    for thread in range(THREADS):
        guest.run_to(thread, MEETING)
    assert session.hits(1) and not is_as_it_was(guest)
    teardown(session)
    assert is_as_it_was(guest) and guest.arena_source.left() is None and not session.registry.probes()
    for thread in range(THREADS):
        guest.run_to(thread, MEETING)


def test_leaving_twice_and_without_a_probe_writes_nothing() -> None:
    guest, session = probed()
    teardown(session)
    guest.machine.writes.clear()
    teardown(session)
    teardown(guest.session())
    assert guest.machine.writes == []


def test_a_thread_is_stepped_out_of_a_detour(monkeypatch: pytest.MonkeyPatch) -> None:
    guest, session = probed(SPECS[:1])
    into_a_detour(guest)
    stepped: list[tuple[int, int]] = []

    def step_out(ranges: Sequence[tuple[int, int]]) -> None:
        stepped.extend(ranges)
        guest.run_to(0, MEETING)

    monkeypatch.setattr(guest, "step_out", step_out)
    teardown(session)
    assert (CODE, CODE + 0x10000) in stepped and is_as_it_was(guest)


def test_what_a_thread_is_in_stays_for_the_next_gdb() -> None:
    guest, session = probed()
    into_a_detour(guest)
    with pytest.raises(OptprobeError, match="thread 0 is in a detour"):
        teardown(session)
    assert guest.machine.read(PLAIN, 5) == ALONE.machine.read(PLAIN, 5), "text is the guest's at once"
    guest = guest.copy()
    following = guest.session()
    with pytest.raises(OptprobeError, match="no probes"):
        adopt.recover(following)
    guest.run_to(0, MEETING)
    following.add(SPECS[0])
    teardown(following)
    assert is_as_it_was(guest)


def test_where_stacks_are_not_known_memory_stays_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can never be told that no thread is in it."""
    guest, session = probed(SPECS[2:])
    monkeypatch.setattr(guest, "stacks_missing", "no stack of this guest is known")
    teardown(session)
    assert guest.machine.read(SHORT, 5) == ALONE.machine.read(SHORT, 5)


def test_a_guest_that_is_another_one_is_left_alone() -> None:
    guest, session = probed()
    guest.forgotten = True
    guest.machine.writes.clear()
    with pytest.raises(OptprobeError):
        teardown(session)
    assert guest.machine.writes == []
