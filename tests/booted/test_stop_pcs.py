"""GDB leaves the PC of a stop behind a breakpoint at an instruction of one byte as it is: the guest runs none twice."""

from __future__ import annotations

import re

import pytest

from qemu import micro
from tests.booted.batch import batch, keep
from tests.booted.conftest import Boot
from tests.booted.test_micro_probes import ONE_ROUND, READY

SHORT, BEHIND = "*(&hz_neighbours_loop_site+15)", "*(&hz_neighbours_loop_site+16)"
"""`cld`, and the `ret` behind it, which nothing but a copy of the former leads to."""
SHOW = "show remote swbreak-feature-packet"
STACKS = "python from tests.booted.probe_hazards import session_of_micro; session_of_micro()"


def settings(output: str) -> list[str]:
    """Return how GDB shows it, each time: by GDB 13 in other words than by later ones."""
    shown = re.findall(r"swbreak-feature.*? is (.*)\.", output)
    return ["auto" if "auto" in one else "on" if "on" in one or "enabled" in one else one for one in shown]


@pytest.mark.parametrize("tier", ["boosted", "emulated", "breakpoint"])
def test_stops_at_adjacent_bytes(boot: Boot, tier: str) -> None:
    """On this connection, and on another one of the same GDB."""
    guest = boot(arch="x86_64", micro=True)
    probes = [STACKS, f"optprobe add {SHORT} -tier boosted", f"optprobe add {BEHIND} -tier {tier}", *ONE_ROUND, SHOW]
    script = [
        *(SHOW, *READY, *probes, keep("first", "optprobe list"), "disconnect", SHOW),
        *(f"target remote {guest.gdb_socket}", *probes, keep("second", "optprobe list")),
    ]
    finished = batch(guest, script, symbols=micro.build("x86_64"), timeout=120)
    assert finished.status == 0, finished.output
    assert settings(finished.output) == ["auto", "on", "auto", "on"], finished.output
    for when in ("first", "second"):
        assert [(probe["tier"], probe["hits"]) for probe in finished.json(when)] == [("boosted", 4), (tier, 4)]
