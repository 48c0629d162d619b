"""Probes side by side, and several at one address: each counts exactly, whatever the others want.

The guest's own events count the same instructions in a run of the same work before, for on one instruction there can
be either. Its tracepoint of read(2) counts in the run of ours too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL
from tests.booted.test_hot_functions import say

HELPERS = Path(__file__).with_name("hot_code.py")
TRACING = "/sys/kernel/tracing"
MANY = 64
READS = 2_000 if FULL else 40
WORK = Workload(f"dd if=/dev/zero of=/dev/null bs=1 count={READS} 2>/dev/null; head -c 5000 /dev/zero | wc -c", 300)
TRIGGER = 'hist:keys=common_pid if comm == "dd"'
READ = f"{TRACING}/events/syscalls/sys_enter_read"
ARM = Workload(f"echo '{TRIGGER}' > {READ}/trigger")
DISARM = f"cat {READ}/hist; echo '!{TRIGGER}' > {READ}/trigger"
KINDS = ('$comm == "dd"', "", '$comm != "dd"', '$comm == "dd" && $pid > 1 do count by $comm')
DD = (0, 3)


def events(guest: Guest, places: Sequence[str]) -> dict[str, int]:
    """How often dd comes to each of `places`, as the guest itself counts."""
    define = "; ".join(f"echo 'p:own/e{number} {place}' >> kprobe_events" for number, place in enumerate(places))
    names = " ".join(f"e{number}" for number in range(len(places)))
    each = "for e in " + names + "; do {}; done"
    on = each.format(f"echo '{TRIGGER}' > events/own/$e/trigger")
    off = each.format(f"echo '!{TRIGGER}' > events/own/$e/trigger")
    guest.check(f"cd {TRACING}; {define}; {on}; echo 1 > events/own/enable")
    guest.check(WORK.command, WORK.timeout)
    told = guest.check(f"cd {TRACING}; {each.format('grep Hits: events/own/$e/hist')}")
    gone = each.format('echo "-:own/$e" >> kprobe_events')
    guest.check(f"cd {TRACING}; echo 0 > events/own/enable; {off}; {gone}")
    counts = [int(hits) for hits in re.findall(r"Hits: (\d+)", told)]
    return dict(zip(places, counts, strict=True))


def test_64_on_consecutive_instructions_and_three_at_one_address(each_linux: Guest) -> None:
    first = batch(each_linux, [f"source {HELPERS}", say("code", "lines-of vfs_read")])
    code = first.json("code")
    lines = [line for line in code["lines"] if line[-1] >= code["entry"]]
    addresses = sorted(at for line in lines for at in line if at >= code["entry"])[:MANY]
    shared = next(line[1] for line in lines[1:] if len(line) > 1)
    spelled = {at: f"vfs_read+{at - code['start']}" for at in addresses}
    if each_linux.options.arch == "aarch64":
        # No event of the guest's can be on the tracer's site, which runs as often as what is before it.
        spelled[code["start"] + 4] = spelled[code["start"]]
    theirs = events(each_linux, [*dict.fromkeys(spelled.values())])

    script: list[str | Workload] = ["set optprobe optimization off"]
    script += [add(at, KINDS[number % len(KINDS)]) for number, at in enumerate(addresses)]
    script += [add(shared, kind) for kind in KINDS[:3]]
    script += [add(shared, ""), "optprobe disable $optprobe", "set optprobe optimization on", "optprobe commit"]
    script += [keep("before", "optprobe list"), ARM, WORK]
    script += [keep("list", "optprobe list"), "optprobe report", "optprobe check"]
    script += ["optprobe delete", "optprobe commit", "optprobe check"]
    finished = batch(each_linux, script)
    (reads,) = re.findall(r"Hits: (\d+)", each_linux.check(DISARM))
    assert finished.status == 0, finished.output
    assert finished.output.count("holds what we wrote") == 2
    before, probes = finished.json("before"), finished.json("list")
    hits = [now["hits"] - then["hits"] for now, then in zip(probes, before, strict=True)]
    assert [probe["tier"] for probe in probes].count("optimized") >= MANY, finished.output
    *three, disabled = hits[MANY:]
    assert disabled == 0
    assert three[0] == theirs[spelled[shared]] and three[1] == three[0] + three[2] > three[0]
    by_kind: list[dict[int, int]] = [{} for _ in KINDS]
    for number, at in enumerate(addresses):
        by_kind[number % len(KINDS)][at] = hits[number]
    for kind in DD:
        assert by_kind[kind] == {at: theirs[spelled[at]] for at in by_kind[kind]}
    assert theirs[spelled[code["entry"]]] == int(reads) == READS
    for line in lines:
        counted = [{found[at] for at in line if at in found} for found in by_kind]
        assert all(len(each) <= 1 for each in counted), "a straight line runs as a whole"
        if all(counted[:3]):
            (of_dd,), (of_all,), (of_others,) = counted[:3]
            assert of_all == of_dd + of_others
    assert each_linux.problems() == []


def add(address: int, kind: str) -> str:
    return f"optprobe add *{address:#x} {'if ' + kind if kind else ''}"
