"""`optprobe top` at a guest: read while it runs, never back, and the same as a stop has in the end."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.booted.batch import batch, keep
from tests.booted.conftest import FULL
from tests.booted.gdb import Console

READS = "dd if=/dev/zero of=/dev/null bs=1 count=5000"
WORK = f"(while :; do {READS}; done) >/dev/null 2>&1 </dev/null & echo $!"
FOREIGN_MEMORY = Path("/proc/sys/kernel/yama/ptrace_scope")
SAMPLE = """python
from gdb_optprobe.debugger.attach import attachments
session = attachments.current.session
sampler, (live, why) = session.sampler(), session.live_memory()
print("way:", live.name if live else why)
seen, keys, first = [], [], []
def look(memory, runs):
    found = sampler.sample(memory)
    shown = sampler.gathered([0], memory, runs)[0]
    seen.append((runs, tuple(found.hits)))
    keys.append(sum(row.words[0] for row in shown.objects[0].rows))
    first.append(shown.newest)
    return len(seen) < 30
session.watch(look, live, 0.02, 20)
sampler.sample(session.stopped_memory)
print("all run:", all(runs for runs, _ in seen))
print("never back:", all(a <= b for (_, x), (_, y) in zip(seen, seen[1:]) for a, b in zip(x, y)))
print("keys never back:", keys == sorted(keys))
print("moves:", len({hits for _, hits in seen}) > 10)
print("same at the stop:", list(sampler.sample(live).hits) == list(sampler.sample(session.stopped_memory).hits))
print("by words:", sampler.sample(session.stopped_memory).hits[0] == session.hits(1))
print("differs:", live.difference(session.stopped_memory) or "no")
try:
    live.write(0, b"")
except Exception as error:
    print("writes:", error)
live.close()
end"""


@pytest.mark.parametrize("each_linux", ["linux", *["ppc_guest"] * FULL], indirect=True)
def test_what_runs_is_read_and_never_goes_back(each_linux: Guest) -> None:
    """By QEMU's memory, by QMP, and at stops; each ends with what the stopped guest has."""
    if FOREIGN_MEMORY.exists() and int(FOREIGN_MEMORY.read_text()) and os.geteuid():
        pytest.skip("this host lets GDB read no other process's memory")
    work = each_linux.check(WORK).strip()
    top = "optprobe top -every 0.2 -for 1.5 vfs_read"
    script = [
        "optprobe add vfs_read do count by $comm, print(\"%ld\", $arg3)",
        "optprobe add vfs_read -return do latency",
        SAMPLE,
        top,
        f"set optprobe qmp-socket {each_linux.directory}/qmp.sock",
        "set optprobe live qmp",
        keep("doctor", "optprobe doctor"),
        top,
        "set optprobe live slices",
        top,
        "optprobe delete",
    ]
    try:
        found = batch(each_linux, script)
    finally:
        each_linux.check(f"kill {work}")
    assert found.status == 0, found.output
    said = dict(line.split(": ", 1) for line in found.output.splitlines() if ": " in line)
    assert said["way"].startswith("/proc/") and said["differs"] == "no" and "not written" in said["writes"]
    answers = ("all run", "never back", "keys never back", "moves", "same at the stop", "by words")
    assert {name: said[name] for name in answers} == dict.fromkeys(answers, "True")
    (live,) = [one["detail"] for one in found.json("doctor")["facilities"] if one["name"] == "live"]
    assert live == f"by QMP at {each_linux.directory}/qmp.sock, which does not stop it"
    blocks = found.output.split("ran for ")
    assert len(blocks) == 4
    for block in blocks[:3]:
        hits = [int(one.replace(",", "")) for one in re.findall(r" s: [\d,]+/s, ([\d,]+) hit", block)]
        assert len(hits) >= 3 and hits == sorted(hits) and hits[0] > 0, block
        assert re.search(r"vfs_read(\+0x8)? count by \$comm: \d+ keys?\n +[\d,]+ +[\d.]+% \[dd\]", block), block
        assert re.search(r"vfs_read(\+0x8)? newest: 1\n", block) and re.search(r"vfs_read(\+0x8)?%return\n", block)


def test_a_screen_is_drawn_and_left_as_it_was(linux: Guest) -> None:
    """At a terminal: a probe that stops the guest is served meanwhile, keys are heard, and the prompt comes back."""
    with Console(linux) as gdb:
        gdb("python import os; os.environ['TERM'] = 'xterm'")
        gdb("optprobe add ksys_read -tier boosted")
        gdb("optprobe add vfs_read do count by $comm")
        assert "ran for 0.5 s" in gdb("optprobe run -for 0.5")
        gdb.send("optprobe top -every 0.1")
        screen = gdb.until(r"q quit")
        assert screen.startswith("optprobe top") and "\x1b[?1049h" in screen and "vfs_read" in screen
        os.write(gdb._into, b"h")
        gdb.until(r"HITS\*")
        os.write(gdb._into, b"q")
        left = gdb.until(r"ran for [\d.e-]+ s: [\d,]+ hits? of 2 probes")
        assert "\x1b[?1049l" in left and "in all " in left
        assert gdb("print 6 * 7") == "$1 = 42\n"
        gdb.send("optprobe top -every 0.1")
        gdb.until(r"RATE/S\*")
        assert "interrupted\nran for " in gdb.interrupt()
        gdb("set optprobe live qmp")
        assert "set optprobe qmp-socket PATH" in gdb("optprobe top -for 1")
        gdb("set optprobe qmp-socket /nowhere")
        assert "QMP at /nowhere: no such file or directory" in gdb("optprobe top -for 1")
        gdb("optprobe delete")


@pytest.mark.parametrize("each_linux", ["linux", *["ppc_guest"] * FULL], indirect=True)
def test_a_report_of_a_guest_that_runs_in_the_background(each_linux: Guest) -> None:
    """It is read, and tells so. What would write to the guest, or ask it, is refused with the reason."""
    if FOREIGN_MEMORY.exists() and int(FOREIGN_MEMORY.read_text()) and os.geteuid():
        pytest.skip("this host lets GDB read no other process's memory")
    with Console(each_linux) as gdb:
        gdb("optprobe add vfs_read if $comm == \"dd\" do count by $comm")
        gdb.send("continue &")
        gdb.until(r"Continuing\.\n\(gdb\) ")
        each_linux.check(READS)
        told, listed = gdb("optprobe report"), gdb("optprobe list")
        told_as_json, cleared = gdb("optprobe report -json"), gdb("optprobe report -clear")
        page = gdb("optprobe report -html /dev/null")
        refused = [gdb(f"optprobe {line}") for line in ("top -for 1", "add vfs_write", "delete", "graph vfs_read")]
        gdb.send("interrupt")
        gdb.until(r"SIGINT")
        stopped = gdb("optprobe report")
        assert gdb("optprobe check").startswith("The guest's memory holds what we wrote.")
    for text in (told, listed, told_as_json):
        assert re.search(r"Read by /proc/\d+/mem while the guest runs; values may differ by the hits under way", text)
    assert re.search(r"^ +1 5000 ", told, re.M) and "[dd]: 5000" in told, told
    assert re.search(r"\b5000\b", listed) and '"hits": 5000,' in told_as_json
    assert "the guest is running, and -clear writes to its memory" in cleared and "interrupt it first" in cleared
    assert "the guest is running, and a page has facts" in page
    assert refused == ["optprobe: the guest is running\nHINT: interrupt it first\n"] * len(refused)
    assert "[dd]: 5000" in stopped and "while the guest runs" not in stopped
