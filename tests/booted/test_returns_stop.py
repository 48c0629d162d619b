"""Returns that stop the guest: Python handlers with data of each call's own, and the user where the call returns to."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path

from qemu.bench_target import BENCH_TARGETS
from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL, on_every_isa
from tests.booted.gdb import PATIENCE, Console
from tests.booted.test_returns import PROCESSES, read_theirs, summed, theirs_of_read_zero, untrace

READS = 100 if FULL else 2
SIZES = range(1, PROCESSES + 1)
SKIPPED, CHOSEN = 4, 3
GONE = Path(__file__).with_name("guest_gone.py")
SESSION = "from gdb_optprobe.debugger.attach import current_session as session"
KEPT = "sum(rethook.stop_handlers.kept_count for rethook in session().optimizer.rethooks.known)"


def show(name: str, expression: str) -> str:
    return f"python from json import dumps; print('@@{name}'); print(dumps({expression}))"


@on_every_isa
def test_each_call_has_its_own_data(each_linux: Guest) -> None:
    """Eight processes' calls on two CPUs, beside compiled probes and the guest's own kretprobe: all see the same."""
    handlers = f"""python
{SESSION}
from gdb_optprobe import kretprobe
seen, chosen = [], []
def entered(hit):
    hit.data.size = hit.regs["{BENCH_TARGETS[each_linux.options.arch].size[1:]}"]
    return hit.data.size == {SKIPPED}
def returned(hit):
    seen.append((hit.data.size, hit.retval, hit.saved["size"], hit.saved["who"], hit.elapsed))
kept = {{"size": "$arg3", "who": "$pid"}}
kretprobe("read_zero", returned, entry_handler=entered, entry_when='$comm == "dd"', save=kept)
kretprobe("read_zero", lambda hit: chosen.append(hit.retval), when="$retval == {CHOSEN}")
kretprobe("read_zero", do="count by $retval, sum($retval)")
end"""
    reads = f"for n in $(seq {PROCESSES}); do dd if=/dev/zero of=/dev/null bs=$n count={READS} 2>/dev/null & done; wait"
    script: list[str | Workload] = [theirs_of_read_zero(each_linux), handlers, Workload(reads)]
    script += [show("seen", "seen"), show("chosen", "chosen"), show("kept", KEPT), keep("list", "optprobe list")]
    script += ["optprobe check", read_theirs(0), f"source {GONE}", "guest-gone"]
    finished = batch(each_linux, script, timeout=600 if FULL else 60)
    untrace(each_linux)
    assert finished.status == 0, finished.output
    seen = finished.json("seen")
    assert Counter(size for size, *_ in seen) == dict.fromkeys({*SIZES} - {SKIPPED}, READS)
    assert all(size == value == saved and elapsed is None for size, value, saved, _, elapsed in seen)
    assert len({(size, who) for size, _, _, who, _ in seen}) == PROCESSES - 1
    assert finished.json("chosen") == [CHOSEN] * READS
    assert finished.json("kept") == 0
    ours = finished.json("list")
    assert [probe["hits"] for probe in ours] == [len(seen), READS, PROCESSES * READS]
    assert summed(finished.workloads[-1]) == (PROCESSES * READS, sum(SIZES) * READS)
    for probe in ours:
        # On x86-64 the guest's own stands at the entry: what can be optimized stands behind it, and has its own table.
        calls = probe["calls"]
        assert probe["hits"] <= calls["entries"] == calls["returns"] <= PROCESSES * READS
    assert ours[-1]["calls"]["entries"] == PROCESSES * READS


def test_calls_that_jump_to_each_other(linux: Guest) -> None:
    """`__x64_sys_read` ends in a jump to `ksys_read`: both return to the same place, each with what is its own."""
    handlers = f"""python
{SESSION}
from gdb_optprobe import kretprobe
seen = []
def probe(name):
    def entered(hit):
        hit.data.depth = len(seen)
        seen.append((name, "in", hit.data.depth, ""))
    def returned(hit):
        seen.append((name, "out", hit.data.depth, gdb.execute("info symbol %#x" % hit.regs["rip"], to_string=True)))
    kretprobe(name, returned, entry_handler=entered, entry_when='$comm == "dd"')
for name in ("__x64_sys_read", "ksys_read", "vfs_read"): probe(name)
end"""
    script: list[str | Workload] = [handlers, Workload("dd if=/dev/zero of=/dev/null bs=777 count=2 2>/dev/null")]
    script += [show("seen", "seen"), show("kept", KEPT), "optprobe check"]
    finished = batch(linux, script, timeout=60)
    assert finished.status == 0, finished.output
    seen = finished.json("seen")
    assert len(seen) >= 2 * 6 and len(seen) % 6 == 0
    for first in range(0, len(seen), 6):
        names, kinds, depths, places = zip(*seen[first : first + 6], strict=True)
        assert names == (*("__x64_sys_read", "ksys_read", "vfs_read"), *("vfs_read", "ksys_read", "__x64_sys_read"))
        assert kinds == ("in",) * 3 + ("out",) * 3
        assert depths == (first, first + 1, first + 2, first + 2, first + 1, first)
        assert [place.split()[0] for place in places[3:]] == ["ksys_read", "do_syscall_64", "do_syscall_64"]
    assert finished.json("kept") == 0


def test_calls_that_are_under_way(linux: Guest) -> None:
    """A handler that is deleted is not called any more, and leaves nothing; nor do calls that never return."""
    with Console(linux) as gdb:

        def kept() -> int:
            return int(gdb(f"python print({KEPT})"))

        def during(command: str, seconds: float) -> None:
            gdb.work = linux.spawn(command)
            gdb.send("continue")
            gdb.work.wait(PATIENCE)
            gdb.work = None
            # What it left behind goes on.
            time.sleep(seconds)
            gdb.interrupt()

        gdb(f"python {SESSION}; from gdb_optprobe import kretprobe; seen = []")
        gdb("python def entered(hit): hit.data.number = 5")
        gdb("python def returned(hit): seen.append(hit.data.number)")
        gdb("python p = kretprobe('hrtimer_nanosleep', returned, entry_handler=entered)")
        gdb("python q = kretprobe('hrtimer_nanosleep', lambda hit: seen.append(hit.elapsed))")
        during("for n in 1 2 3; do sleep 1000 </dev/null >/dev/null 2>&1 & done", 1.5)
        assert kept() == 3
        during("kill $(pidof sleep | cut -d' ' -f1)", 1.5)
        assert kept() == 2 and sorted(gdb("python print(seen)").strip("[]\n").split(", ")) == ["5", "None"]
        gdb("python p.delete()")
        assert kept() == 0
        during("killall sleep", 1.5)
        assert gdb("python print(seen.count(5), len(seen))").split() == ["1", "4"]
        gdb("python q.delete()")
        gdb("python p = kretprobe('get_signal', lambda hit: None, entry_handler=entered)")
        during("for n in 1 2 3; do sleep 1000 & kill -9 $!; wait $!; done 2>/dev/null", 2.5)
        calls = gdb.probes()[0]["calls"]
        assert calls["entries"] >= 3 and kept() <= calls["active"]
        gdb("python p.delete()")
        assert kept() == 0
        assert "holds what we wrote" in gdb("optprobe check")


def test_a_handler_that_fails(linux: Guest) -> None:
    """As where a pre_handler does: that is told, and the guest stands where it was called."""
    with Console(linux) as gdb:
        gdb("python from gdb_optprobe import kretprobe")
        gdb("python def bad(hit): raise ValueError('oh')")
        for handlers, function in ("bad", "common_nsleep"), ("print, entry_handler=bad", "hrtimer_nanosleep"):
            gdb(f"python p = kretprobe('hrtimer_nanosleep', {handlers})")
            gdb.work = linux.spawn("sleep 0.01")
            said = gdb("continue")
            assert re.search(r"a handler of the probe at 0x[0-9a-f]+ failed: ValueError: oh", said), said
            assert gdb(f"info symbol {said.split(' at ')[1].split()[0]}").startswith("hrtimer_nanosleep")
            assert function in gdb("bt 2")
            gdb("python p.delete()")
            gdb.finish_work()


def test_the_user_stops_where_calls_return_to(each_linux: Guest) -> None:
    """Once for each return, with its value, whoever else returns meanwhile, however he goes on."""
    each = 100 if FULL else 2
    total, size = 4 * each, 7777
    reads = f"dd if=/dev/zero of=/dev/null bs={size} count={each} 2>/dev/null"
    each_linux.check(f"printf 'for i in 1 2 3 4; do {reads} & done; wait\\n' > /s")
    with Console(each_linux) as gdb:
        said = gdb(f"optprobe break vfs_read -return if $arg3 == {size} && $retval > 0")
        assert ": optimized" in said and "needs GDB" in said
        gdb(f"optprobe break ksys_read -return entry if $arg3 == {size} do save n = $arg3 if $retval == $saved.n")
        gdb("python from gdb_optprobe import kretprobe")
        gdb(f"python kretprobe('ksys_read', lambda hit: hit.stop(), when='$retval == {size}')")
        if each_linux.options.arch == "x86_64":
            gdb("optprobe add __x64_sys_read -return")  # it ends in a jump to ksys_read
        gdb.work = each_linux.spawn("sh /s")
        told: Counter[str] = Counter()
        turn = 0
        while sum(told.values()) < 3 * total:
            said = gdb(("continue", "nexti", "finish", "stepi", "advance vfs_read")[turn % 5])
            stopped = re.findall(r"optprobe (\d), ", said)
            told.update(stopped)
            turn += 1
            if stopped:
                place = gdb("bt 1")
                assert ("in ksys_read ()" in place) is ("1" in stopped), said
                assert gdb.value("$retval") == size and f"_read has returned {size} ($retval)" in said
        gdb.finish_work()
        assert told == {"1": total, "2": total, "3": total}
        assert [probe["hits"] for probe in gdb.probes()[:3]] == [total] * 3
        for probe in gdb.probes():
            assert probe["calls"]["entries"] == probe["calls"]["returns"] and probe["missed"] == 0
        assert "holds what we wrote" in gdb("optprobe check")


def test_a_stop_that_is_not_wanted_any_more(each_linux: Guest) -> None:
    """Of a probe that is deleted or switched off while the user stands there; nothing is left in the end."""
    each_linux.check("printf 'dd if=/dev/zero of=/dev/null bs=777 count=6 2>/dev/null\\n' > /s")
    with Console(each_linux) as gdb:
        for command in ("optprobe disable", "optprobe delete"):
            gdb("optprobe break vfs_read -return if $arg3 == 777")
            gdb.work = each_linux.spawn("sh /s")
            assert " has returned 777 " in gdb("continue")
            gdb(command)
            gdb.finish_work()
        gdb(f"source {GONE}")
        assert gdb("guest-gone") == ""
