"""A glob leaves out the functions for which its handler does not compile, or where a hit would stop; it says which."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.guest.text import Fact, Mark
from gdb_optprobe.handlers.scope import Meaning, Missing
from gdb_optprobe.probes.kprobes import WOULD_STOP
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Spec
from tests.fake_guest import PLAIN, SHORT, TRACED, FakeGuest, Registers, program

GLOB = Spec("some", glob=True, condition="$rcx == 1", actions=("sum($rax)",))


class WithoutNames(Registers):
    def dollar(self, name: str) -> Meaning | Missing:
        return Missing(f"no ${name} here", "try another")


def guest_of(*without: int) -> FakeGuest:
    """Return a guest with three functions of one name. without: those that have no names."""
    guest = program()
    some = (PLAIN, TRACED, SHORT)
    guest.bodies = [replace(body, name="some") if body.address in some else body for body in guest.bodies]
    known, none = guest.names_at(PLAIN), NamesAt(WithoutNames())
    guest.names_at = lambda address: none if address in without else known  # type: ignore[method-assign]
    return guest


def test_functions_that_lack_a_name_are_left_out_and_told() -> None:
    session = guest_of(TRACED).session()
    first, second = session.add(GLOB)
    assert (first.address, second.address) == (PLAIN, SHORT)
    (told,) = first.left_out
    assert told.address == TRACED and told.text.startswith("no $rcx here\n") and not second.left_out


def test_a_name_that_no_function_has_is_an_error_and_so_is_one_of_a_single_location() -> None:
    guest = guest_of(PLAIN, TRACED, SHORT)
    session, before = guest.session(), bytes(guest.machine.memory)
    for act in (session.add, session.explain):
        for spec in (GLOB, replace(GLOB, glob=False)):
            with pytest.raises(OptprobeError, match=r"no \$rcx here"):
                act(spec)
    assert not session.views() and bytes(guest.machine.memory) == before


def test_memory_that_cannot_be_read_leaves_nothing_out() -> None:
    guest = guest_of()

    def unreadable(address: int) -> NamesAt:
        raise Unreadable(address, 8)

    guest.names_at = unreadable  # type: ignore[method-assign]
    with pytest.raises(Unreadable):
        guest.session().add(GLOB)


def test_explain_and_save_leave_out_the_same() -> None:
    session = guest_of(SHORT).session()
    views = session.explain(GLOB)
    assert [(view.address, bool(view.tier)) for view in views] == [(PLAIN, True), (TRACED, True), (SHORT, False)]
    assert views[-1].note == "a glob leaves it out: no $rcx here"
    session.add(GLOB)
    assert sum(line.startswith("optprobe add") for line in session.saved().lines) == 1


STOPPING = Spec("some", glob=True)


def without_traps() -> FakeGuest:
    """Return a guest where each hit of SHORT, one of three functions of one name, stops it."""
    guest = guest_of()
    guest.settings = replace(guest.settings, trap=False)
    return guest


def test_a_glob_leaves_out_what_would_stop_the_guest_at_each_hit() -> None:
    session = without_traps().session()
    views = session.add(STOPPING)
    assert [(view.address, view.tier) for view in views] == [(PLAIN, "optimized"), (TRACED, "optimized")]
    assert [(one.address, one.text) for one in views[0].left_out] == [(SHORT, WOULD_STOP.message)]
    assert sum(line.startswith("optprobe add") for line in session.saved().lines) == 1, "the glob is saved, as it is"


def test_explain_tells_that_a_glob_leaves_it_out() -> None:
    *others, short = without_traps().session().explain(STOPPING)
    assert (short.tier, short.address) == ("", SHORT) and short.note == f"a glob leaves it out: {WOULD_STOP}"
    assert all(view.tier and not view.note for view in others)


@pytest.mark.parametrize(
    "spec",
    [
        replace(STOPPING, glob=False),
        replace(STOPPING, tier="breakpoint"),
        replace(STOPPING, actions=("stop",)),
        replace(STOPPING, pre_handler=print),
    ],
    ids=["named", "tier", "stop", "handler"],
)
def test_a_stop_that_was_asked_for_leaves_nothing_out(spec: Spec) -> None:
    session = without_traps().session()
    assert all(session.kprobes.takes(spec, address) for address in (PLAIN, TRACED, SHORT))


def test_a_glob_with_no_other_functions_is_refused_with_the_way_to_have_them() -> None:
    guest = without_traps()
    guest.bodies = [replace(body, name="none") if body.address in (PLAIN, TRACED) else body for body in guest.bodies]
    session = guest.session()
    for act in (session.add, session.explain):
        with pytest.raises(OptprobeError, match=r"would stop the guest.*-tier breakpoint"):
            act(STOPPING)
    assert not session.views()


def test_where_the_guest_stops_anyway_a_glob_leaves_nothing_out() -> None:
    guest = without_traps()
    guest.breakpoints = frozenset([SHORT])
    assert [view.address for view in guest.session().add(STOPPING)] == [PLAIN, TRACED, SHORT]
    guest = without_traps()
    guest.settings = replace(guest.settings, optimization=False)
    assert [view.address for view in guest.session().add(STOPPING)] == [PLAIN, TRACED, SHORT]


@pytest.mark.parametrize(
    ("spec", "before", "now"),
    [
        (STOPPING, {"optimization": False}, {"optimization": True}),
        (STOPPING, {"trap": True}, {"trap": False}),
        (replace(STOPPING, location="*"), {"trap": True}, {"trap": False}),
        (replace(STOPPING, location="*"), {"trap": True}, {"trap": False, "optimization": False}),
    ],
)
def test_a_glob_that_would_leave_out_some_of_its_probes_now_is_saved_probe_by_probe(
    spec: Spec, before: dict[str, Any], now: dict[str, Any]
) -> None:
    guest = without_traps()
    guest.settings = replace(guest.settings, **before)
    session = guest.session()
    session.add(spec)
    (line,) = added(session)
    assert line == f"optprobe add {spec.location} -glob"
    guest.settings = replace(guest.settings, **now)
    session.resettle()
    lines = added(session)
    assert len(lines) == len(session.views()) and not any("-glob" in line for line in lines)


def added(session: Session) -> list[str]:
    return [line for line in session.saved().lines if line.startswith("optprobe add")]


def test_what_the_guest_may_undo_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own kprobe keeps ours from the best tier until it goes."""
    guest = without_traps()
    theirs = [Mark(Fact.KPROBE, PLAIN, 1)]
    monkeypatch.setattr(guest.text, "marks", lambda start, end: [one for one in theirs if start <= one.address < end])
    session = guest.session()
    first, _ = session.add(STOPPING)
    assert (first.address, first.tier) == (PLAIN, "breakpoint") and first.reason is not None
    assert first.reason.code == "FOREIGN_KPROBE"
    assert len(added(session)) == 1
    theirs.clear()
    guest.steps += 1
    guest.text.functions = [replace(function) for function in guest.text.functions]  # looked at again
    session.optimizer.on_stop()
    assert session.views()[0].tier == "optimized"
