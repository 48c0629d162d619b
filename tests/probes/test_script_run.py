"""Which probes of a script are attached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gdb_optprobe.handlers.ir import Program
from gdb_optprobe.handlers.script.attach import AttachPoint
from gdb_optprobe.handlers.script.compile import Attached, Script
from gdb_optprobe.handlers.script.host import HostNames, NoFiles
from gdb_optprobe.handlers.script.output import TextOutput
from gdb_optprobe.handlers.script.place import Place
from gdb_optprobe.handlers.script.settings import Settings
from gdb_optprobe.probes.kprobes import WOULD_STOP
from gdb_optprobe.probes.script_run import ScriptRun
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.views import ProbeView
from tests.fake_guest import PLAIN, SHORT, TRACED, FakeGuest, program

AT = {"plain": PLAIN, "traced": TRACED, "short": SHORT}
LEFT_OUT = f"could not attach probe kprobe:short, skipping: {WOULD_STOP.message}"


def attached(guest: FakeGuest, name: str, *functions: str) -> tuple[list[int], list[str]]:
    """Attach a script's probes, of which the point names `functions` by `name`. Return where they are, the warnings."""
    point, warnings, session = AttachPoint(Place("", 0, 0), "kprobe", name=name), list[str](), guest.session()
    probes = tuple(Attached(point, f"kprobe:{each}", Program(), AT[each]) for each in functions)
    added, add = list[int](), session.add

    def noted(*specs: Spec) -> Sequence[ProbeView]:
        views = add(*specs)
        added.extend(view.address for view in views)
        return views

    session.add = noted  # type: ignore[method-assign]
    running = ScriptRun(
        session, Script(probes, {}, (), Settings()), TextOutput(HostNames(0)), NoFiles(), str, warnings.append, int,
        quiet=True,
    )  # fmt: skip
    running.attach_only()
    assert not session.views()
    return added, warnings


@pytest.fixture
def guest() -> FakeGuest:
    """A guest where each hit of SHORT stops it."""
    made = program()
    made.settings = replace(made.settings, trap=False)
    return made


def test_a_wildcard_leaves_out_what_would_stop_the_guest_at_each_hit(guest: FakeGuest) -> None:
    assert attached(guest, "*", "plain", "short", "traced") == ([PLAIN, TRACED], [LEFT_OUT])


def test_a_name_takes_it(guest: FakeGuest) -> None:
    assert attached(guest, "short", "short") == ([SHORT], [])


def test_a_setting_that_asks_for_stops_leaves_nothing_out(guest: FakeGuest) -> None:
    guest.settings = replace(guest.settings, optimization=False)
    assert attached(guest, "*", "plain", "short", "traced") == ([PLAIN, SHORT, TRACED], [])
