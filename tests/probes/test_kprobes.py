"""A glob leaves out the functions for which its handler does not compile, and says which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.handlers.scope import Meaning, Missing
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
