"""The program of tests/booted/returning_program.py in a guest, with return probes on all of its functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep

PATH = "/tmp/returns"
SAID = f"{PATH}; echo said $?"
FINE = "said 42\n"
WAITS = f"(sleep 300 | {PATH} wait; echo said $? >> /tmp/said) > /dev/null 2>&1 &"


def every_way(guest: Guest, hits: Mapping[str, int], crowding: str) -> tuple[dict[str, Any], list[Any]]:
    """Check what three processes at once return, with `hits` for each function, and that nothing of it stays.

    crowding: with this argument the program forks in more calls than there is room for.
    Return the probes by function, as they are then, and all of them behind the crowd.
    """
    script: list[str | Workload] = [f"optprobe add -user {PATH}:{name} -return" for name in (*hits, "crowds")]
    script += [
        Workload(f"for i in 1 2 3; do ({SAID}) & done; wait"),
        keep("all", "optprobe list"),
        Workload(f"{PATH} {crowding}; echo said $?"),
        keep("crowd", "optprobe list"),
        "optprobe check",
        "optprobe delete",
        Workload(SAID),
        keep("none", "optprobe list"),
        "optprobe check",
    ]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    assert finished.workloads == (FINE * 3, FINE, FINE)
    found = {probe["location"].partition(":")[2]: probe for probe in finished.json("all")}
    assert {name: found[name]["hits"] for name in hits} == {name: 3 * count for name, count in hits.items()}
    assert finished.json("none") == []
    assert finished.output.count("holds what we wrote") == 2
    return found, finished.json("crowd")
