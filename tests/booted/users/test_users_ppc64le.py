"""Probes on programs on ppc64le: what they gather, and what a GDB that dies leaves. Counts are in test_users.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.booted import answer, calls, library, stacked
from tests.booted.batch import Workload, batch, keep
from tests.booted.gdb import Console, release

COUNT, WAITING = 200, 2
PATH = "/tmp/calls"
ALL_SAID = f"while [ $(grep -c said /tmp/said) -lt {WAITING} ]; do sleep 0.1; done"
GO_ON = f"killall sleep; touch /tmp/said; {ALL_SAID}; cat /tmp/said"


@pytest.fixture
def waiting(ppc_guest: Guest, tmp_path: Path) -> Iterator[str]:
    """What the program says as it ends. WAITING processes run it, which wait; `killall sleep` has them go on."""
    answer.put(ppc_guest, calls.build(tmp_path, COUNT, "ppc64le"), PATH)
    said = ppc_guest.check(f"{PATH}; echo said $?")
    for _ in range(WAITING):
        ppc_guest.check(f"(sleep 300 | {PATH} and wait; echo said $? >> /tmp/said) > /dev/null 2>&1 &")
    yield said
    ppc_guest.run("killall sleep; sleep 0.2")
    ppc_guest.run(f"rm -f /tmp/said {PATH}")


def test_conditions_and_actions(ppc_guest: Guest, waiting: str) -> None:
    pids = [int(pid) for pid in ppc_guest.check("pidof calls").split()]
    script: list[str | Workload] = [
        "optprobe add ksys_read -tier trapped -name kernel",
        f'optprobe add -user {PATH}:test if $arg1 == 7 do count by $pid, print("%s %d at %lx", $comm, $pid, (long)$pc)',
        f"optprobe add -user {PATH}:test -pid {pids[0]}",
        f"optprobe add -user {PATH}:inner if $pid != {pids[0]} && *(long *)$r1 > $r1 && $lr != 0 do count",
        f'optprobe add -user {PATH}:test+0x14 if $comm != "calls" do count',
        f"optprobe add -user {PATH}:test if $arg1 <= 100 do sum($arg1), max($r3), sum(*(long *)0)",
        Workload(GO_ON),
        keep("list", "optprobe list"),
        "optprobe report",
        "optprobe disable",
        Workload(f"{PATH}; echo said $?"),
        keep("disabled", "optprobe list"),
        "optprobe check",
    ]
    finished = batch(ppc_guest, script)
    assert finished.status == 0, finished.output
    assert finished.workloads == (waiting * WAITING, waiting)
    read, *hits = [probe["hits"] for probe in finished.json("list")]
    assert read >= WAITING, "traps of both kinds come to their own"
    assert hits == [WAITING, COUNT, (WAITING - 1) * COUNT, 0, WAITING * 100]
    assert [probe["hits"] for probe in finished.json("disabled")][1:] == hits
    assert finished.json("list")[-1]["faults"] == WAITING * 100
    assert f"sum($arg1): {WAITING * 5050}" in finished.output and "max($r3): 100" in finished.output
    for pid in pids:
        assert f"calls {pid} at 1000" in finished.output
    assert "holds what we wrote" in finished.output


def test_emulation_off(ppc_guest: Guest, waiting: str) -> None:
    """Instructions run out of line then, with a second trap behind each, and jumps back again later."""
    places = ["test", *(f"test+{at:#x}" for at in range(0xC, 0x38, 4)), "leaf", "inner+0xc"]
    script: list[str | Workload] = [f"optprobe add -user {PATH}:{place}" for place in places]
    for emulation in ("off", "on"):
        script += [
            f"set optprobe emulation {emulation}",
            Workload(f"{PATH}; echo said $?"),
            keep(emulation, "optprobe list"),
            "optprobe check",
        ]
    script += [Workload(GO_ON), keep("all", "optprobe list")]
    finished = batch(ppc_guest, script)
    assert finished.status == 0, finished.output
    assert finished.workloads == (waiting, waiting, waiting * WAITING)
    for runs, name in enumerate(("off", "on", "all"), 1):
        runs = runs if name != "all" else 2 + WAITING
        assert [probe["hits"] for probe in finished.json(name)] == [runs * COUNT] * len(places)
    assert finished.output.count("holds what we wrote") == 2


def test_a_library_in_two_programs(ppc_guest: Guest, tmp_path: Path) -> None:
    """Those that wait have mapped it before; another library has the same bytes."""
    built, places = library.build(tmp_path, COUNT, "ppc64le"), [f"answer+{at:#x}" for at in range(8, 0x2C, 4)]
    ppc_guest.check("mkdir /tmp/one /tmp/other")
    answer.put(ppc_guest, built.library, f"/tmp/one/{library.NAME}")
    answer.put(ppc_guest, built.program, "/tmp/caller")
    ppc_guest.check(f"cp /tmp/one/{library.NAME} /tmp/other; cp /tmp/caller /tmp/another")
    for program in ("caller", "another"):
        wait = f"(cd /tmp/one; sleep 300 | /tmp/{program} wait; echo said $? >> /tmp/said)"
        ppc_guest.check(f"{wait} > /dev/null 2>&1 &")
    runs = ((folder, program) for folder in ("one", "other") for program in ("caller", "another"))
    later = "; ".join(f"(cd /tmp/{folder}; /tmp/{program}; echo said $?)" for folder, program in runs)
    try:
        script: list[str | Workload] = [f"optprobe add -user /tmp/one/{library.NAME}:{place}" for place in places]
        script += [
            f"optprobe add -user /tmp/one/{library.NAME}:answer do count by $comm, stack",
            Workload(GO_ON),
            Workload(later),
            keep("list", "optprobe list"),
            "optprobe report",
            "optprobe check",
        ]
        finished = batch(ppc_guest, script)
    finally:
        ppc_guest.run("killall sleep; sleep 0.2")
        ppc_guest.run("rm -rf /tmp/said /tmp/caller /tmp/another /tmp/one /tmp/other")
    assert finished.status == 0, finished.output
    assert finished.workloads == ("said 7\n" * 2, "said 7\n" * 4)
    assert [probe["hits"] for probe in finished.json("list")] == [4 * COUNT] * (len(places) + 1)
    assert f"[caller]: {2 * COUNT}" in finished.output and f"[another]: {2 * COUNT}" in finished.output
    for program in ("caller", "another"):
        assert f": answer.so:answer+0x8 / {program}:again+0xc\n" in finished.output, "who called, without a doubt"
    assert "holds what we wrote" in finished.output


def test_stacks(ppc_guest: Guest, tmp_path: Path) -> None:
    """Of processes that have ended; a function that says nothing of its frame has it linked to its caller's."""
    path, arch = "/tmp/stacked", "ppc64le"
    answer.put(ppc_guest, stacked.build(tmp_path, arch), path)
    middle, outer, bare = stacked.MIDDLE[arch], stacked.OUTER[arch], stacked.BARE[arch]
    script: list[str | Workload] = ["set optprobe ring-records 16"]
    script += [f"optprobe add -user {path}:{place} do stack" for place in ("inner+0xc", "inner", "bare+4")]
    script += [Workload(f"{path}; {path}"), "optprobe report -json -clear"]
    script += [f"optprobe add -user {path}:middle -return entry do stack do stack", Workload(path)]
    script += ["optprobe report -json", "optprobe check"]
    script += [Workload(f"cp {path} {path}.again; cat {path}.again > {path}"), "optprobe report 2"]
    try:
        finished = batch(ppc_guest, script)
    finally:
        ppc_guest.run(f"rm {path} {path}.again")
    assert finished.status == 0, finished.output
    assert "holds what we wrote" in finished.output and '"faults": 1' not in finished.output
    lines = [json.loads(line) for line in finished.output.splitlines() if line.startswith('{"type": "record"')]
    at_entry = [text.replace("inner+0xc", "inner") for text in (f"{middle} / {outer}", bare)]
    whole = [*[f"{middle} / {outer}", bare] * 2, *at_entry * 2, *["bare+0x4 / … / ? _start+0xc"] * 2]
    cut = f"{middle} / … / ? _start+0x8"
    returning = [cut, bare, cut.replace("inner+0xc", "inner"), at_entry[1], whole[-1], f"middle / {outer}", outer]
    assert [line["text"].replace("stacked:", "") for line in lines] == whole + returning
    written = "? inner / … / ? bare+0x10 / ? _start+0xc"
    assert finished.output.replace("stacked:", "").count(written) == 1, "as sure as the file is what it was"


def test_while_every_vcpu_runs_a_program(ppc_guest: Guest, tmp_path: Path) -> None:
    """None of them sees the kernel's memory beyond the linear map then."""
    answer.put(ppc_guest, calls.build(tmp_path, 1 << 30, "ppc64le"), PATH)
    for _ in range(WAITING):
        ppc_guest.check(f"{PATH} > /dev/null 2>&1 &")
    in_a_program = 0
    try:
        with Console(ppc_guest) as gdb:
            for _ in range(4):
                gdb("optprobe run -for 0.2", 60)
                in_a_program += "0x000000001000" in gdb("p/z $pc")
                assert "trapped" in gdb(f"optprobe add -user {PATH}:leaf+0x10", 60)
                gdb("optprobe run -for 0.2", 60)
                in_a_program += "0x000000001000" in gdb("p/z $pc")
                assert "holds what we wrote" in gdb("optprobe check")
                gdb("optprobe delete", 60)
                assert "holds what we wrote" in gdb("optprobe check")
    finally:
        ppc_guest.run(f"killall calls; rm {PATH}")
    assert in_a_program


def test_another_gdb_finds_what_a_killed_one_left(ppc_guest: Guest, waiting: str) -> None:
    """Meanwhile hits are counted on, of an instruction that is emulated and of one that has a copy."""
    with Console(ppc_guest) as gdb:
        assert "trapped" in gdb(f"optprobe add -user {PATH}:test do count by $comm", 60)
        assert "trapped" in gdb(f"optprobe add -user {PATH}:test+0xc", 60)
        gdb.kill()
    release(ppc_guest)
    assert ppc_guest.check(GO_ON) == waiting * WAITING
    script: list[str | Workload] = [
        "optprobe recover",
        keep("list", "optprobe list"),
        Workload(f"{PATH}; echo said $?"),
        keep("after", "optprobe list"),
        "optprobe check",
    ]
    finished = batch(ppc_guest, script)
    assert finished.status == 0, finished.output
    assert finished.workloads == (waiting,)
    assert [probe["hits"] for probe in finished.json("list")] == [WAITING * COUNT] * 2
    assert [probe["hits"] for probe in finished.json("after")] == [(WAITING + 1) * COUNT] * 2


STOP = 100
RETURNED = r"hit optprobe 3, .* in call_test \(\)\ntest has returned (\d+) \(\$retval\)$"


def test_stops(ppc_guest: Guest, tmp_path: Path) -> None:
    """In the kernel, with the program shown; GDB leaves there, and it ends as it would have."""
    built = calls.build(tmp_path, COUNT, "ppc64le")
    answer.put(ppc_guest, built, PATH)
    status = ppc_guest.run(PATH)[0]
    (test,) = (each.address for each in calls.elf(built, "ppc64le").symbols if each.name == "test")
    with Console(ppc_guest) as gdb:
        gdb(f"optprobe add -user {PATH}:test", 60)
        gdb(f"optprobe break -user {PATH}:test if $arg1 == {STOP}")
        gdb(f"optprobe add -user {PATH}:test -return entry do save which = $arg1 if $saved.which == {STOP} do stop", 60)
        gdb(f"add-symbol-file {built}")
        work = ppc_guest.spawn(PATH)
        told = gdb("continue").rstrip()
        assert re.search(r"hit optprobe 2, calls \(\d+\), 0x[0-9a-f]+ in test \(\)$", told), told
        assert gdb.hits(1) == COUNT - STOP + 1
        assert (gdb.value("$pc"), gdb.value("$r3")) == (test + 8, STOP)
        assert [line.partition(" in ")[2] for line in gdb("bt").splitlines()[2:4]] == ["test ()", "call_test ()"]
        gdb(f"tbreak *{test + 8 + 16}")
        assert "Temporary breakpoint" in gdb("continue")
        assert " in call_test ()" in gdb("bt"), "through the trampoline, from where the kernel's memory is not seen"
        returned = re.search(RETURNED, (told := gdb("continue").rstrip()))
        assert returned and int(returned[1]) == gdb.value("$r3") == gdb.value("$retval"), told
        assert [probe["hits"] for probe in gdb.probes()] == [COUNT - STOP + 1, 1, 1]
        gdb("set optprobe on-exit remove")
        gdb.send("quit")
        gdb.rest()
        assert work.wait(20)[0] == status
    finished = batch(ppc_guest, [keep("list", "optprobe list"), Workload(f"{PATH}; echo said $?")])
    ppc_guest.check(f"rm {PATH}")
    assert finished.status == 0, finished.output
    assert finished.json("list") == [] and finished.workloads == (f"said {status}\n",)
    assert ppc_guest.problems() == []
