"""Return probes on programs of the guest: every return is seen, however it comes, and no process is another for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gdb_optprobe.guest.linux.arch.x86_64.mmu import KIND
from gdb_optprobe.guest.linux.user.elf import Elf
from qemu.guest import Guest
from tests.booted import answer, returning_program
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL
from tests.booted.gdb import TRACING, Console, release
from tests.booted.returning_program import CROWD, DEPTH, RETURNS, RETURNS_I386, RETURNS_PPC64LE
from tests.booted.test_recover import fill
from tests.booted.users.every_return import FINE, PATH, SAID, WAITS, every_way

COUNT = 500 if FULL else 10
GO_ON = "killall sleep; while ! [ -s /tmp/said ]; do sleep 0.1; done; cat /tmp/said"


@pytest.fixture
def program(linux: Guest, tmp_path: Path) -> Iterator[Path]:
    """The program, which is in the guest too."""
    built = returning_program.build(tmp_path, COUNT)
    answer.put(linux, built, PATH)
    yield built
    linux.run(f"killall sleep; sleep 0.3; rm -f {PATH} /tmp/said")


def theirs(linux: Guest, program: Path) -> dict[str, int]:
    """By function, the returns that the guest's own events see."""
    data = program.read_bytes()
    elf = Elf.of(str(program), lambda offset, size: data[offset : offset + size], len(data), KIND)
    places = {each.name: elf.offset(each.address) for each in elf.symbols if each.name in RETURNS}
    events = "; ".join(f"echo 'r:{name} {PATH}:{at:#x}' >> uprobe_events" for name, at in places.items())
    linux.check(f"cd {TRACING}; echo > trace; {events}; echo 1 > events/uprobes/enable")
    try:
        assert linux.run(SAID)[1] == FINE
        seen = linux.check(f"cd {TRACING}; for i in {' '.join(places)}; do echo $i $(grep -c ' '$i: trace); done")
    finally:
        linux.check(f"cd {TRACING}; echo 0 > events/uprobes/enable; echo > uprobe_events; echo > trace")
    return {name: int(count) for name, count in (line.split() for line in seen.splitlines())}


def test_every_way_to_return(linux: Guest, program: Path) -> None:
    """Recursion, jumps to other functions, out of them and into them from signals, threads, fork, vfork."""
    script: list[str | Workload] = [f"optprobe add -user {PATH}:{name} -return" for name in RETURNS]
    script += [
        Workload(SAID),
        keep("one", "optprobe list"),
        Workload(f"for i in 1 2 3; do ({SAID}) & done; wait"),
        keep("all", "optprobe list"),
        "optprobe check",
        "optprobe delete",
        Workload(SAID),
        keep("none", "optprobe list"),
        "optprobe check",
    ]
    finished = batch(linux, script)
    assert finished.status == 0, finished.output
    assert finished.workloads == (FINE, FINE * 3, FINE)
    expected = {name: count * COUNT for name, count in RETURNS.items()}
    for name, factor in (("one", 1), ("all", 4)):
        found = {probe["location"].partition(":")[2]: probe for probe in finished.json(name)}
        assert {place: probe["hits"] for place, probe in found.items()} == {
            place: factor * count for place, count in expected.items()
        }
        for probe in found.values():
            calls = probe["calls"]
            assert (calls["active"], calls["missed"]) == (0, 0)
            assert calls["entries"] == calls["returns"] + calls["dropped"]
            assert bool(calls["dropped"]) == (probe["location"] == f"{PATH}:jumper")
    assert finished.json("none") == []
    assert finished.output.count("holds what we wrote") == 2
    assert theirs(linux, program) == expected
    assert linux.problems() == []


def test_every_way_to_return_in_32_bits(linux: Guest, tmp_path: Path) -> None:
    """The same without signals and threads; and functions that take arguments off the stack, by tail calls too."""
    answer.put(linux, returning_program.build(tmp_path, COUNT, "i386"), PATH)
    script: list[str | Workload] = [f"optprobe add -user {PATH}:{name} -return" for name in RETURNS_I386]
    script += [Workload(SAID), keep("all", "optprobe list"), "optprobe delete", Workload(SAID)]
    finished = batch(linux, script)
    linux.run(f"rm {PATH}")
    assert (finished.status, finished.workloads) == (0, (FINE, FINE)), finished.output
    found = {probe["location"].partition(":")[2]: probe["hits"] for probe in finished.json("all")}
    assert found == {name: COUNT * count for name, count in RETURNS_I386.items()}


def test_every_way_to_return_on_ppc64le(ppc_guest: Guest, tmp_path: Path) -> None:
    """The same without signals and threads; and forks for whose calls there is no room, in code without a frame."""
    answer.put(ppc_guest, returning_program.build(tmp_path, COUNT, "ppc64le"), PATH)
    _, crowd = every_way(ppc_guest, {name: COUNT * count for name, count in RETURNS_PPC64LE.items()}, "more")
    ppc_guest.run(f"rm {PATH}")
    *_, crowds = crowd
    assert 0 < crowds["hits"] < 2 * CROWD and crowds["calls"]["dropped"]
    assert not any(probe["active"] or probe["missed"] for probe in crowd)


def test_a_fork_for_whose_calls_there_is_no_room(linux: Guest, program: Path) -> None:
    """Parent and child return all the same; what is not seen of that is never said to have returned."""
    script: list[str | Workload] = [
        f"optprobe add -user {PATH}:crowds -return",
        f"optprobe add -user {PATH}:leaf -return",
        Workload(f"{PATH} all of them; echo said $?; {SAID}"),
        keep("list", "optprobe list"),
        "optprobe delete",
        keep("none", "optprobe list"),
    ]
    finished = batch(linux, script)
    assert (finished.status, finished.workloads) == (0, (FINE * 2,)), finished.output
    crowds, leaf = finished.json("list")
    calls = crowds["calls"]
    assert (calls["active"], calls["missed"]) == (0, 0) and calls["dropped"] > 0
    assert 0 < calls["returns"] < 2 * CROWD and calls["entries"] == calls["returns"] + calls["dropped"] > CROWD
    assert (leaf["hits"], leaf["calls"]["missed"]) == (RETURNS["leaf"] * COUNT, 0)
    assert finished.json("none") == []


def test_a_backtrace_shows_who_called(linux: Guest, program: Path) -> None:
    """Between them stands where calls return to us. What that leaves, once they have, is in no other GDB's way."""
    with Console(linux) as gdb:
        gdb(f"add-symbol-file {program}")
        assert "trapped" in gdb(f"optprobe add -user {PATH}:deep -return", 60)
        gdb("tbreak *&bottom")
        # Nobody waits for the shell: where the guest stops, it may have yet to say that it has begun this.
        gdb.work = linux.spawn(f"({SAID}) > /tmp/said &")
        gdb.send("continue")
        gdb.until("Temporary breakpoint")
        lines = [line for line in gdb("backtrace").splitlines() if line.startswith("#")]
        frames = [line.partition(" in ")[2].split(" ")[0] for line in lines]
        assert frames[1::2] == ["??"] * (DEPTH + 1), lines
        assert frames[2::2] == ["deep"] * DEPTH + ["round"], lines
        gdb("optprobe delete")
    assert linux.check("while ! [ -s /tmp/said ]; do sleep 0.1; done; cat /tmp/said") == FINE
    script = [f"optprobe add -user {PATH}:leaf", Workload(SAID), keep("probes", "optprobe list"), "optprobe check"]
    finished = batch(linux, script)
    assert (finished.status, finished.workloads) == (0, (FINE,)), finished.output
    assert [probe["hits"] for probe in finished.json("probes")] == [COUNT * RETURNS["leaf"]]
    assert "holds what we wrote" in finished.output and "still in use" not in finished.output, finished.output


def test_conditions_and_what_is_kept(linux: Guest, program: Path) -> None:
    """Each call has its own words, however deep it is within others of the same function; 32-bit programs have too."""
    other = "/tmp/answer32"
    answer.put(linux, answer.build(program.parent, 32), other)
    script: list[str | Workload] = [
        f"optprobe add -user {PATH}:deep -return entry do save n = $arg1 if $retval == $saved.n do sum($retval)",
        f"optprobe add -user {PATH}:deep -return entry if $arg1 == 3 do save a = $arg1 do sum($saved.a)",
        f'optprobe add -user {PATH}:deep -return if $elapsed > 0 && $comm == "returns" do hist($elapsed)',
        f"optprobe add -user {PATH}:deep",
        f"optprobe add -user {PATH}:deep -return -maxactive {DEPTH - 9}",
        f"optprobe add -user {PATH}:leaf -pid 1 -return",
        f"optprobe add -user {other}:answer -return if $retval == 7 do count by (int)$sp & 3",
        Workload(f"{SAID}; {other}; echo said $?"),
        keep("list", "optprobe list"),
        keep("report", "optprobe report"),
    ]
    finished = batch(linux, script)
    linux.check(f"rm {other}")
    assert finished.status == 0, finished.output
    assert finished.workloads == (FINE + "said 7\n",)
    deep, some, timed, entered, bounded, nobody, short = finished.json("list")
    calls = RETURNS["deep"] * COUNT
    assert [deep["hits"], timed["hits"], entered["hits"]] == [calls] * 3
    assert (some["hits"], nobody["hits"], short["hits"]) == (3 * COUNT, 0, 1)
    assert bounded["hits"] == calls and bounded["calls"]["missed"] == 0
    assert not any(probe["faults"] for probe in finished.json("list"))


def test_what_calls_are_under_way_when_probes_go(linux: Guest, program: Path) -> None:
    """They return as they would have, whether GDB is there by then or not, and then nothing is left."""
    linux.check(WAITS)
    script: list[str | Workload] = [
        f"optprobe add -user {PATH}:waits -return do count by $comm",
        f"optprobe add -user {PATH}:deep -return do max($elapsed)",
        Workload(f"{WAITS} sleep 0.2; {SAID}"),
        keep("waits", "optprobe list"),
        "optprobe delete",
        keep("deleted", "optprobe list"),
    ]
    finished = batch(linux, script)
    assert finished.status == 0, finished.output
    assert finished.workloads == (FINE,)
    waits, _ = finished.json("waits")
    (deleted,) = finished.json("deleted")
    for probe in (waits, deleted):
        assert (probe["active"], [one["comm"] for one in probe["calls"]["out"]]) == (1, ["returns"])
    assert (deleted["number"], deleted["state"], deleted["kind"]) == (0, "deleted", "uretprobe")
    assert linux.check(f"{GO_ON}; sleep 0.3; cat /tmp/said").splitlines()[-2:] == [FINE.strip()] * 2
    finished = batch(linux, ["optprobe recover -remove", keep("after", "optprobe list"), Workload(SAID)])
    assert (finished.status, finished.workloads) == (0, (FINE,)), finished.output
    assert finished.json("after") == []


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("remove", [False, True] if FULL else [False])
def test_another_gdb_finds_calls_under_way(linux: Guest, program: Path, remove: bool, full: bool) -> None:
    """Those that a killed one saw entered return to where they were to, and are told of till then.

    full: where there is no memory left but what was set aside for it.
    """
    with Console(linux) as gdb:
        assert "trapped" in gdb(f"optprobe add -user {PATH}:waits -return do count by $pid", 60)
        if full:
            fill(gdb)
        gdb.send("continue")
        linux.check(f"{WAITS} sleep 0.3")
        gdb.kill()
    release(linux)
    script: list[str | Workload] = ["optprobe recover -remove" if remove else "optprobe recover"]
    script += [
        keep("found", "optprobe list"),
        Workload(f"{WAITS} sleep 0.2; {GO_ON}; sleep 0.3; cat /tmp/said"),
        keep("after", "optprobe list"),
        "optprobe check",
    ]
    finished = batch(linux, script)
    assert finished.status == 0, finished.output
    assert finished.workloads[0].splitlines()[-2:] == [FINE.strip()] * 2, finished.output
    assert [probe["active"] for probe in finished.json("found") if probe["state"] == "deleted"] == [1]
    assert [probe["hits"] for probe in finished.json("after") if probe["kind"] != "kprobe"] == [1] * (not remove)
    assert linux.problems() == []
