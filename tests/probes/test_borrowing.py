"""When the guest runs so that its kernel lends memory for detours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.spec import Spec
from tests.fake_guest import OneArena
from tests.probes.threads import START, World


@pytest.mark.parametrize("verb", ["add", "enable"])
def test_a_setting_never_runs_the_guest(verb: str) -> None:
    """After no thread came to where it can call, say: what adds or enables a probe asks again, a setting does not."""
    runs: list[bool] = []
    comes = False

    class Lending(OneArena):
        def take(self) -> None:
            runs.append(comes)
            if not comes:
                raise OptprobeError("no thread came", "try again")

        def lends(self) -> bool:
            return True not in runs

    world = World()
    target = replace(world.session.target, arena_source=Lending(world.arena))
    session = Session(target, lambda: Settings(emulation=False))
    session.add(Spec(f"*{START:#x}"))
    (site,) = session.registry.sites()
    assert runs == [False] and site.tier is Tier.BREAKPOINT
    comes = True
    session.resettle()
    assert runs == [False] and site.tier is Tier.BREAKPOINT
    if verb == "add":
        session.add(Spec(f"*{START:#x}"))
    else:
        session.enable()
    session.resettle()
    assert runs == [False, True] and site.tier is not Tier.BREAKPOINT
