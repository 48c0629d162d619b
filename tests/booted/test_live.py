"""What is read while the guest runs: no stops but the last, values that never go back, and the same as at a stop."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from qemu.guest import Guest
from qemu.rsp_proxy import Count, RspProxy
from tests.booted.conftest import ARM, EVERY_ISA, FULL
from tests.booted.gdb import Console

MAPS = 20
WORK = "dd if=/dev/zero of=/dev/null bs=1 count=2000; cat /init"
LOOPS = f"(while :; do {WORK}; sleep 0.05; done) >/dev/null 2>&1 </dev/null & echo $!"
VIEWED = """python
import re
from gdb_optprobe.debugger.attach import attachments
session = attachments.current.session
sampler, (live, why) = session.sampler(), session.live_memory()
seen, maps = [], []
def kept(memory):
    text = "\\n".join(one.text for one in sampler.maps(memory))
    return {key: int(value) for key, value in re.findall(r"(@\\w+\\[\\w+\\]): (\\d+)", text)}
def look(memory, runs):
    seen.append((runs, tuple(sampler.sample(memory).hits)))
    maps.append(kept(memory))
    return len(seen) < 20 or not moves()
def named():
    return len({key.partition("[")[0] for key in maps[-1]})
def moves():
    return len({hits for _, hits in seen}) > 3 and maps[0] != maps[-1] and named() == MAPS
def plain(views):
    return [(one.hits, one.objects, len(one.records), one.missed, one.dropped) for one in views]
session.watch(look, live, 0.1, 60)
machine = session.stopped_memory
with machine.reading(live):
    read = plain(session.reports())
print(json.dumps({
    "way": live.name,
    "rows": len(sampler.labels),
    "maps": named(),
    "all run": all(runs for runs, _ in seen),
    "moves": moves(),
    "back": sum(a > b for (_, x), (_, y) in zip(seen, seen[1:]) for a, b in zip(x, y)),
    "maps back": sum(x[key] > y.get(key, -1) for x, y in zip(maps, maps[1:]) for key in x),
    "totals": sampler.sample(live).hits == sampler.sample(machine).hits and kept(live) == kept(machine),
    "reports": read == plain(session.reports()),
}))
live.close()
end"""
"""What a view of all probes sees in 20 looks, and whether it is what the stopped guest has in the end.

There are more looks where the host is so busy that the guest has hardly run.
"""


class Counted(Console):
    """A GDB that talks to the guest through what counts its packets."""

    def __init__(self, guest: Guest, proxy: RspProxy) -> None:
        self.proxy = proxy
        super().__init__(guest)

    def lines(self) -> tuple[str, ...]:
        _, *others = super().lines()
        return f"target remote {self.proxy.path}", *others

    def counted(self, line: str) -> tuple[Count, str]:
        before = self.proxy.count()
        said = self(line)
        return self.proxy.count() - before, said


@contextmanager
def busy(guest: Guest) -> Iterator[None]:
    work = guest.check(LOOPS).strip()
    try:
        yield
    finally:
        guest.check(f"kill {work}")


def values(said: str) -> list[Any]:
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("each_linux", ["linux", *["ppc_guest"] * FULL, *[ARM] * EVERY_ISA], indirect=True)
def test_reports_records_and_scripts_are_read_without_a_stop(each_linux: Guest) -> None:
    """By QMP, since the process at the other end is the proxy; beside the same at stops."""
    commands = {
        "reports": "optprobe run -every 0.2 -for 2 -json",
        "records": "optprobe run -follow 2 3 -for 2 -json",
        "script": 'optprobe script -q -for 2 -e \'kprobe:vfs_open /comm == "cat"/ { printf("%s %d\\n", comm, 7); }\'',
    }
    counts: dict[str, dict[str, Count]] = defaultdict(dict)
    in_pages = each_linux.options.arch == "aarch64"
    said: dict[str, str] = {}
    with busy(each_linux), RspProxy(each_linux.gdb_socket) as proxy, Counted(each_linux, proxy) as gdb:
        gdb(f"set optprobe qmp-socket {each_linux.directory}/qmp.sock")
        gdb("optprobe add vfs_read do count by $comm, hist($arg3)")
        gdb('optprobe add vfs_open if $comm == "cat" do record($pid)')
        gdb('optprobe add vfs_open -return if $comm == "cat" do print("%ld", $retval)')
        for way in ("slices", "qmp"):
            gdb(f"set optprobe live {way}")
            for name, command in commands.items():
                counts[name][way], said[name] = gdb.counted(command)
        taken = gdb(f"python print(gdb.execute({commands['records']!r}, to_string=True).count('record'))")
        gdb("optprobe delete")
    print({name: {way: (one.stops, one.packets) for way, one in each.items()} for name, each in counts.items()})
    for name, each in counts.items():
        assert each["qmp"].stops == 1 < each["slices"].stops, (name, each)
        # Of memory in many pages that do not follow one another, as aarch64's kernel lends it, each is compared before
        # and behind a run, which may be as many packets as some stops take.
        assert each["qmp"].packets < each["slices"].packets or in_pages, (name, each)
    hits = defaultdict[int, list[int]](list)
    for line in values(said["reports"]):
        if line["type"] == "probe":
            hits[line["number"]].append(line["hits"])
    assert len(hits) == 3
    assert all(len(seen) > 3 and seen == sorted(seen) and seen[0] < seen[-1] for seen in hits.values())
    *records, last = values(said["records"])
    assert len(records) == last["records"] > 10 and not last["lost"]
    times = [record["time"] for record in records]
    assert times == sorted(times) and {record["number"] for record in records} == {2, 3}
    assert int(taken.split()[-1]) > 2, "a caller in Python gets what is printed"
    assert said["script"].splitlines().count("cat 7") > 5


@pytest.mark.parametrize("each_linux", ["linux", *["ppc_guest"] * FULL, *[ARM] * EVERY_ISA], indirect=True)
def test_a_view_of_a_thousand_probes_and_twenty_maps(each_linux: Guest) -> None:
    counts = " ".join(f"@m{number}[comm] = count();" for number in range(MAPS))
    with busy(each_linux), Console(each_linux) as gdb:
        gdb("set optprobe max-probes 65536")
        gdb("optprobe add -glob s[a-h]*", 120)
        gdb(f"optprobe add vfs_read do {{ {counts} }}")
        gdb("optprobe add vfs_read do count by $comm, hist($arg3), record($arg3)")
        gdb(f"python import json; MAPS = {MAPS}")
        found = values("\n".join(gdb(line) for line in [VIEWED]))[-1]
        gdb("optprobe delete")
    assert found.pop("rows") >= 1_000 and re.match(r"/proc/\d+/mem", found.pop("way"))
    same = {"all run": True, "moves": True, "totals": True, "reports": True}
    assert found == {"maps": MAPS, "back": 0, "maps back": 0, **same}
