"""A GDB is killed, another one comes: it takes over all probes with what they have counted, or takes them out."""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import time
from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.booted import answer, calls
from tests.booted.batch import batch, keep
from tests.booted.conftest import EVERY_ISA, FULL, Boot
from tests.booted.gdb import TRACING, Console, release
from tests.booted.test_guardian import BUSY, killable, lines, lives, running
from tests.booted.test_hot_functions import tell
from tests.booted.test_returns import STATE

HOT_CODE = Path(__file__).with_name("hot_code.py")
GONE = Path(__file__).with_name("guest_gone.py")
JOURNAL = Path(__file__).with_name("guest_journal.py")
KILLS = int(os.environ.get("OPTPROBE_KILLS", "500"))
LONGEST = 3.0
SOON = 60.0


def test_code_that_somebody_was_in_is_in_nobody_s_way(linux: Guest) -> None:
    """What leads to it stays when a GDB leaves, who is in it is told, and the next one has it go."""
    inside = ["python from gdb_optprobe.probes import hooks", "python hooks.is_quiescent = lambda *_: False"]
    first = batch(linux, ["optprobe add vfs_read -tier trapped", *inside])
    assert first.status == 0 and "still in use" in first.output, first.output
    second = batch(linux, ["optprobe add vfs_write", keep("probes", "optprobe list"), "optprobe check"])
    assert (second.status, "earlier" in second.output) == (0, False), second.output
    assert [probe["number"] for probe in second.json("probes")] == [1]
    assert "holds what we wrote" in second.output and "still in use" not in second.output, second.output


def test_counts_go_on_across_a_kill(linux: Guest) -> None:
    """What our probes count is what the guest's own event counts, before, between and after."""
    linux.check(f"cd {TRACING}; echo 'p:recovered vfs_read+11' > kprobe_events; echo 1 > events/kprobes/enable")
    try:
        with Console(linux) as gdb:
            gdb("set optprobe guardian off")
            for line in ("vfs_read", "vfs_read if count > 5 do count by $comm", "vfs_read -return"):
                assert "optimized" in gdb(f"optprobe add {line}")
            (before,) = gdb.events().values()
            gdb.send("continue")
            linux.check("dd if=/dev/zero of=/dev/null bs=7 count=100 2>/dev/null")
            gdb.kill()
        linux.check("dd if=/dev/zero of=/dev/null bs=7 count=100 2>/dev/null")
        with Console(linux) as gdb:
            said = gdb("optprobe add vfs_write")
            assert "optimized" in gdb("optprobe explain __do_softirq"), "code behind our data is known"
            assert "optprobe: probes of an earlier GDB are in this guest" in said, said
            assert gdb("optprobe recover").count("optimized") == 3
            assert gdb("optprobe check") == "The guest's memory holds what we wrote.\n"
            (after,) = gdb.events().values()
            assert gdb.hits(1) == after - before >= 200
            gdb.send("continue")
            linux.check("dd if=/dev/zero of=/dev/null bs=7 count=100 2>/dev/null")
            gdb.interrupt()
            (after,) = gdb.events().values()
            views = gdb.probes()
            assert views[0]["hits"] == after - before >= 300
            assert [view["location"] for view in views] == ["vfs_read"] * 3
            returning = views[2]
            assert returning["hits"] + returning["active"] + returning["missed"] == after - before
            report = gdb("optprobe report 2")
            assert "[dd]: 30" in report, report
            assert "optimized" in gdb("optprobe add vfs_write")
            assert gdb.probes()[-1]["number"] == 4
    finally:
        linux.check(f"cd {TRACING}; echo 0 > events/enable; echo > kprobe_events; echo > trace")


def test_code_is_the_kernel_s_before_the_probes_on_it_are_taken_over(linux: Guest) -> None:
    """What was decoded with the earlier GDB's branch in it was compared with the text when the branch had gone."""
    with Console(linux) as gdb:
        gdb("set optprobe guardian off")
        said = gdb("optprobe explain vfs_read+5")
        assert "optimized" in gdb("optprobe add vfs_read+5"), "over several instructions"
        gdb.kill()
    with Console(linux) as gdb:
        displaced = [line for line in said.splitlines() if line.startswith("    0x")]
        told = gdb("optprobe explain vfs_read+5")
        assert all(line in told for line in displaced) and len(displaced) > 1, told
        assert "optimized" in gdb("optprobe recover")
        assert gdb("optprobe check") == "The guest's memory holds what we wrote.\n"


@pytest.mark.skipif(not FULL, reason="kills GDB many times: OPTPROBE_FULL=1")
@pytest.mark.parametrize("guest", ["linux", "arm_guest"])
def test_killed_at_any_instant_and_recovered_or_removed(
    request: pytest.FixtureRequest, guest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed_many_times(request.getfixturevalue(guest), tmp_path, capsys, KILLS)


@pytest.mark.skipif(not FULL, reason="kills GDB many times: OPTPROBE_FULL=1")
def test_killed_with_probes_on_programs_and_recovered_or_removed(
    linux: Guest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = "/tmp/killed"
    answer.put(linux, calls.build(tmp_path, 2000), program)
    expected = linux.run(program)[0]
    try:
        runs = f"{program}; [ $? = {expected} ] || echo died >> /tmp/died;"
        killed_many_times(linux, tmp_path, capsys, KILLS // 5, program, runs)
        assert linux.run("cat /tmp/died")[0] != 0, "every process ended as it does unprobed"
    finally:
        linux.check(f"rm -f {program} /tmp/died")


def killed_many_times(
    linux: Guest, tmp_path: Path, capsys: pytest.CaptureFixture[str], kills: int, program: str = "", runs: str = ""
) -> None:
    """program: on which the probes are. runs: what is run all the time."""
    text, chance, freed = tmp_path / "text", random.Random(11), list[float]()
    batch(linux, [f"source {HOT_CODE}", f"keep-text {text}"])
    busy = BUSY.replace("do ", f"do {runs} ", 1)
    work = linux.check(f"({busy}) > /dev/null 2>&1 & echo $!").strip()
    for kill in range(kills):
        notes = tmp_path / str(kill)
        gdb = killable(linux, notes, kill, program)
        try:
            ready = lines(notes, gdb)[0]
            time.sleep(chance.uniform(0, LONGEST))
        finally:
            gdb.kill()
            gdb.wait()
        killed = time.monotonic()
        while lives(ready["guardian"]) or not running(linux):
            assert time.monotonic() < killed + SOON, "the guest does not run"
            time.sleep(0.01)
        freed.append(time.monotonic() - killed)
        take_out = ["optprobe recover -remove"] if kill % 2 else ["optprobe recover", keep("all", "optprobe list")]
        script = ["set optprobe on-exit remove", f"source {HOT_CODE}", *take_out]
        script += ["optprobe check", "optprobe run -for 0.1", f"source {GONE}", "guest-gone"]
        done = batch(linux, [*script, f"text-diff {text}"])
        what = f"kill {kill}, at {lines(notes)[-1]}\n{done.output}"
        assert done.status == 0, what
        assert "is not recovered" not in done.output, what
        assert done.output.rstrip().endswith("[]\n[Inferior 1 (process 1) detached]"), what
        if not kill % 2:
            probes = done.json("all")
            assert probes[0]["location"] == "vfs_read" and probes[0]["hits"] > 0, what
        assert linux.problems() == [], what
    linux.check(f"kill {work}")
    tell(capsys, f"\n{kills} kills: the guest ran after {statistics.median(freed):.2f} s, at most {max(freed):.2f} s")


def test_what_is_asked_without_reason(linux: Guest) -> None:
    with Console(linux) as gdb:
        assert "no probes of an earlier GDB" in gdb("optprobe recover")
        assert "optimized" in gdb("optprobe add vfs_write")
        assert "no probes of an earlier GDB" in gdb("optprobe recover -remove")
        assert len(json.loads(gdb("optprobe list -json"))) == 1
    release(linux)


def state(gdb: Console) -> list[int]:
    """Tables of calls, trampolines that are left, released code, bytes of code and of data that are in use."""
    found = json.loads(gdb(STATE.format("state")).splitlines()[-1])
    assert isinstance(found, list)
    return found


KILLED = 3
DEREFERENCES = "read_zero -return entry do save f = $arg1 do hist(*(int *)$saved.f), count by $comm"
PROBES = ("__schedule -return", "vfs_read -return", DEREFERENCES)


@pytest.mark.parametrize("arch", ["x86_64", *["ppc64le"] * FULL, *["aarch64"] * EVERY_ISA])
def test_memory_of_calls_that_never_end_does_not_grow_with_kills(fresh: Boot, arch: str) -> None:
    """The tables, the trampolines and the routines that are there go on: a kill and `recover` take nothing more.

    In guests of their own, for their threads of the kernel's are in such calls ever after.
    """
    guest, before = fresh(arch=arch), list[list[int]]()
    for kill in range(KILLED + 1):
        with Console(guest) as gdb:
            gdb("set optprobe guardian off")
            if kill:
                assert gdb("optprobe recover").count("optimized") == len(PROBES)
            else:
                for line in PROBES:
                    assert "optimized" in gdb(f"optprobe add {line}")
            gdb.send("continue")
            guest.check("dd if=/dev/zero of=/dev/null bs=7 count=100 2>/dev/null")
            gdb.interrupt()
            probes = gdb.probes()
            assert probes[0]["active"] > 0 and probes[1]["hits"] >= 100 * (kill + 1), "some sleep, and all are counted"
            for probe in probes:
                calls = probe["calls"]
                assert (calls["missed"], calls["returns"]) == (0, probe["hits"]), probe
                assert calls["entries"] == calls["returns"] + calls["active"] + calls["dropped"], probe
            assert gdb("optprobe check") == "The guest's memory holds what we wrote.\n"
            gdb("optprobe commit")
            before.append(state(gdb))
            if kill < KILLED:
                gdb.kill()
                continue
            gdb("optprobe delete")
            told = gdb("optprobe commit")
            assert "__schedule" in told and "their memory stays until they have returned" in told, told
            assert "vfs_read" not in told, told
            points, left, dirty, _, data = state(gdb)
            (row,) = gdb.probes()
            assert (row["symbol"].split("+")[0], row["state"]) == ("__schedule", "deleted")
            assert (points, left) == (1, 1) and dirty == 1, "of __schedule alone"
            assert data < before[0][4] // 2, "the table of a function whose calls have ended is free"
    assert before == [before[0]] * (KILLED + 1), before


def test_calls_of_tables_that_are_gone_count_after_a_kill(linux: Guest) -> None:
    """And those of a deleted probe, whose calls are under way, do not count with those of the next one."""
    sleep, small = "sleep 1000 </dev/null >/dev/null 2>&1 &", "from gdb_optprobe.probes import rethook"
    counts: list[dict[str, int]] = []
    with Console(linux) as gdb:
        gdb("set optprobe guardian off")
        gdb(f"python {small}; rethook.SLOTS = 16")
        gdb("optprobe add hrtimer_nanosleep -return do hist($elapsed)")
        gdb("python from gdb_optprobe.debugger.attach import current_session as s; s().optimizer.throttle.share = 1")
        for _ in range(3):
            gdb.send("continue")
            linux.check(f"for n in $(seq 12); do {sleep} done; sleep 0.3")
            gdb.interrupt()
        gdb.send("continue")
        linux.check("killall sleep; sleep 0.3")
        gdb.interrupt()
        gdb("optprobe commit")
        points, *_ = state(gdb)
        calls = gdb.probe(1)["calls"]
        assert points == 1 and calls["entries"] >= 36 and calls["entries"] == calls["returns"] + calls["active"]
        counts.append(calls)
        gdb.kill()
    with Console(linux) as gdb:
        gdb("set optprobe guardian off")
        assert "optimized" in gdb("optprobe recover")
        counts.append(gdb.probe(1)["calls"])
        gdb.send("continue")
        linux.check(f"{sleep} sleep 0.3")
        gdb.interrupt()
        gdb("optprobe delete")
        gdb("optprobe add hrtimer_nanosleep -return do hist($elapsed)")
        gdb.kill()
    with Console(linux) as gdb:
        assert "optimized" in gdb("optprobe recover")
        counts.append(gdb.probe(2)["calls"])
        gdb.send("continue")
        linux.check("sleep 0.01; killall sleep; sleep 0.3")
        gdb.interrupt()
        probe = gdb.probe(2)
        assert probe["calls"]["returns"] == probe["hits"] > 0
        gdb("optprobe commit")
        assert state(gdb)[:2] == [1, 0]
    for calls in counts[:2]:
        calls.pop("out")
    assert counts[0] == counts[1], counts
    assert counts[2]["entries"] == 0, counts


HOSTILE = {
    "tier": '"bogus"',
    "sizes": '{"nosuch": 1}',
    "maxactive": "-7",
    "at": str(1 << 80),
    "location": '"vfs_read\\nshell touch /tmp/recovered-by-a-guest\\n#"',
}


def test_a_journal_that_cannot_be_leaves_the_guest_as_it_is(linux: Guest) -> None:
    """All of it is looked at before anything is changed; with the first journal back, the probes come back."""
    with Console(linux) as gdb:
        gdb("set optprobe guardian off")
        assert "optimized" in gdb("optprobe add vfs_read do hist(count)")
        assert "optimized" in gdb("optprobe add vfs_write")
        gdb.kill()
    with Console(linux) as gdb:
        gdb(f"source {JOURNAL}")
        for field, value in HOSTILE.items():
            gdb(f"guest-journal probe_1 {field} {value}")
            before = gdb("guest-digest").splitlines()[-1]
            for command in ("recover", "recover", "recover -remove", "add vfs_open"):
                said = gdb(f"optprobe {command}")
                if command.startswith("recover"):
                    assert "the journal of an earlier GDB's probes is damaged: probe 1" in said, said
                assert said.count("optprobe:") == 1 and "rror" not in said and "Traceback" not in said, said
            assert gdb("guest-digest").strip() == before, field
        gdb("guest-journal")
        assert gdb("optprobe recover").count("optimized") == 2
        assert "holds what we wrote" in gdb("optprobe check")
    assert not Path("/tmp/recovered-by-a-guest").exists()


HIDDEN = """python
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.linux import LinuxGuest
def hide(for_runs):
    saved, forget, runs = LinuxGuest.saved, LinuxGuest.forget, []
    def hidden(self):
        if len(runs) < for_runs:
            raise OptprobeError("2 of 2 threads that are just ending cannot be found")
        return saved(self)
    def ran(self):
        runs.append(1)
        forget(self)
    LinuxGuest.saved, LinuxGuest.forget = hidden, ran
end
"""


def test_the_guest_runs_for_recover_while_threads_that_end_cannot_be_found(
    each_linux: Guest, tmp_path: Path
) -> None:
    """Under fork load that is so at some stops, and stays so for as long as the guest stands: it runs on, in slices."""
    guest, program, hidden = each_linux, "/tmp/ending", tmp_path / "hidden.gdb"
    answer.put(guest, calls.build(tmp_path, 20, guest.options.arch), program)
    hidden.write_text(HIDDEN)
    try:
        with Console(guest) as gdb:
            gdb("set optprobe guardian off")
            assert "trapped" in gdb(f"optprobe add -user {program}:test")
            gdb.kill()
        with Console(guest) as gdb:
            said = gdb(f"source {hidden}") + gdb("python hide(1 << 30)") + gdb("optprobe recover", 60)
            assert "2 of 2 threads that are just ending cannot be found, and so 20 times while the guest ran" in said
            assert "continue for a moment, then try again" in said
            gdb.kill()
        with Console(guest) as gdb:
            gdb(f"source {hidden}")
            gdb("python hide(5)")
            assert "trapped" in gdb("optprobe recover", 60)
            gdb.send("continue")
            guest.run(program)
            gdb.interrupt()
            assert gdb.hits(1) > 0
            assert gdb("optprobe check") == "The guest's memory holds what we wrote.\n"
    finally:
        guest.check(f"rm -f {program}")


def test_memory_of_probes_on_programs_does_not_grow_with_kills(linux: Guest, tmp_path: Path) -> None:
    """What the killed GDB's code used is free, and another GDB knows it, before the guest runs on."""
    program, states = "/tmp/killed", list[list[int]]()
    answer.put(linux, calls.build(tmp_path, 20, linux.options.arch), program)
    try:
        for kill in range(KILLED + 1):
            with Console(linux) as gdb:
                gdb("set optprobe guardian off")
                if kill:
                    assert gdb("optprobe recover", 60).count("trapped") == 2
                else:
                    assert "trapped" in gdb(f"optprobe add -user {program}:test")
                    assert "trapped" in gdb(f"optprobe add -user {program}:inner -return")
                states.append(state(gdb))
                gdb.send("continue")
                linux.run(program)
                if kill < KILLED:
                    gdb.kill()
                else:
                    gdb.interrupt()
                    assert gdb.hits(1) > 0
        assert states == [states[0]] * (KILLED + 1), states
    finally:
        linux.check(f"rm -f {program}")


RINGS = [1 << bits for bits in range(14, 0, -1)]
FILLED = (
    "kfree", "vfs_write", "ksys_read", "dput", "path_openat", "vfs_open", "do_exit", "vfs_statx", "iput", "ksys_write",
    "vfs_getattr", "vfs_fsync", "vfs_unlink",
)  # fmt: skip
USED = (
    "python from gdb_optprobe.debugger.attach import attachments as a; r = a.current.session.optimizer.arena; "
    "print('@used', r.data.size - r.data.used, r.code.used)"
)
ROOM = (
    "python from gdb_optprobe.detours.arena import Arena; "
    "Arena.earlier_table = lambda self, kind: None; Arena.adopt_table = lambda self, kind, fits: None"
)
BREAKS = (
    "python from gdb_optprobe.probes.user.uprobes import Uprobes; from gdb_optprobe.errors import OptprobeError\n"
    "python take_over = Uprobes.adopt_trampolines\n"
    "python Uprobes.adopt_trampolines = lambda *_: (_ for _ in ()).throw(OptprobeError('broken off'))"
)


def fill(gdb: Console) -> None:
    """With records, until no ring of the least size fits. The kernel lends nothing."""
    gdb("set optprobe max-memory 0")
    for function in FILLED:
        for records in RINGS:
            gdb(f"set optprobe ring-records {records}")
            if "Probe" in gdb(f"optprobe add {function} do record($pid, $comm)"):
                break


def used(gdb: Console) -> list[int]:
    """Bytes of data that are free, bytes of code in use."""
    return [int(word) for word in gdb(USED).split()[-2:]]


def test_full_memory_is_recovered_from_again_and_again(each_linux: Guest, tmp_path: Path) -> None:
    """What takes an earlier GDB's probes over needs no memory that there is not; nor does what takes them out.

    With none, it would find out after the branches into the code that it then gave back had been left.
    """
    guest, program = each_linux, "/tmp/full"
    answer.put(guest, calls.build(tmp_path, 200, guest.options.arch), program)
    expected, places = guest.run(program)[0], (f"-user {program}:test", f"-user {program}:test -return")
    before = list[list[int]]()
    for kill in range(3):
        with Console(guest) as gdb:
            gdb("set optprobe guardian off")
            if kill:
                said = gdb("optprobe recover", 120)
                assert "optprobe:" not in said and "not recovered" not in said, said
                assert " ".join(said.split()).count("two traps") == 1, said
            else:
                for place in (*places, "vfs_read -tier trapped"):
                    assert "trapped" in gdb(f"optprobe add {place}", 120)
                fill(gdb)
            before.append(used(gdb))
            # On aarch64 it is in several pieces, none of which is as large.
            assert before[-1][0] < (2048 if guest.options.arch == "aarch64" else 1024), before
            assert "holds what we wrote" in gdb("optprobe check")
            gdb.kill()
        release(guest)
        assert guest.run(program)[0] == expected
    assert before[1] == before[2], before
    taken_out(guest)
    assert guest.run(program)[0] == expected
    guest.check(f"rm -f {program}")
    assert guest.problems() == []


def taken_out(guest: Guest) -> None:
    """And memory is as it was before."""
    script = ["optprobe recover -remove", "optprobe check", f"source {GONE}", "guest-gone"]
    done = batch(guest, script)
    assert done.status == 0 and "of an earlier GDB removed" in done.output, done.output


@pytest.mark.parametrize("how", [*[ROOM] * FULL, BREAKS])
def test_a_recovery_that_fails_can_be_tried_again(linux: Guest, tmp_path: Path, how: str) -> None:
    """For want of memory nothing is changed; broken off, what is there by then is looked at anew. The guest lives."""
    program = "/tmp/full"
    answer.put(linux, calls.build(tmp_path, 200), program)
    expected = linux.run(program)[0]
    with Console(linux) as gdb:
        gdb("set optprobe guardian off")
        assert "trapped" in gdb(f"optprobe add -user {program}:test", 60)
        fill(gdb)
        gdb.kill()
    with Console(linux) as gdb:
        gdb("optprobe doctor")
        for line in how.splitlines():
            gdb(line)
        for command in ("recover", "recover -remove", "recover"):
            said = gdb(f"optprobe {command}", 60)
            assert ("nothing was changed" if how is ROOM else "broken off") in said, said
            assert "no probes of an earlier GDB" not in said, said
        said = gdb("optprobe add vfs_lseek")
        assert "optprobe: probes of an earlier GDB are in this guest" in said, said
    assert linux.run(program)[0] == expected, "GDB has ended, and the guest runs"
    with Console(linux) as gdb:
        said = gdb("optprobe recover", 60)
        found = re.search(r" addresses, (\d+) optimized, 1 trapped\n", said)
        assert found is not None and int(found[1]) >= 3, said
        assert "holds what we wrote" in gdb("optprobe check")
        gdb.kill()
    release(linux)
    taken_out(linux)
    assert linux.run(program)[0] == expected
    linux.check(f"rm -f {program}")
