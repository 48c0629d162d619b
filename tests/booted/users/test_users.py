"""Probes on programs of the guest's: every hit is counted, in every process, and no process is another for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdb_optprobe.guest.linux.arch.x86_64.user_traps import USER
from qemu.guest import Guest
from tests.booted import answer, calls, library, stacked
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL
from tests.booted.gdb import TRACING, Console, release
from tests.booted.progress import without_progress

COUNT = 20_000 if FULL else 500
AT_ONCE = 8 if FULL else 4
WAITING = 2
ALL_SAID = f"killall sleep; touch /tmp/said; while [ $(grep -c said /tmp/said) -lt {WAITING} ]; do sleep 0.1; done"
PATH = "/tmp/calls"
LIBRARY_CALLS = 100

# The table of traps begins with room for 4.
GROWING = (
    "python from gdb_optprobe.debugger.attach import attachments; "
    "attachments.session().uprobes.traps.dispatcher.slots = 8"
)


@pytest.fixture
def program(each_linux: Guest, tmp_path: Path) -> Iterator[Path]:
    """The program, which is in the guest too."""
    built = calls.build(tmp_path, COUNT, each_linux.options.arch)
    answer.put(each_linux, built, PATH)
    yield built
    each_linux.check(f"rm -f {PATH}")


def test_every_instruction_in_many_processes(each_linux: Guest, program: Path) -> None:
    """Those that are started before the probes are, and wait meanwhile, among them; and children that they fork."""
    linux, arch = each_linux, each_linux.options.arch
    expected, their_place = calls.instructions(program, COUNT, arch), calls.theirs(program, arch)
    said = f"{PATH}; echo said $?"
    unprobed = linux.run(said)[1], linux.run(f"{PATH} fork; echo said $?")[1]
    digest = linux.check(f"md5sum {PATH}")
    event = f"p:theirs {PATH}:{their_place:#x}"
    linux.check(f"cd {TRACING}; echo '{event}' > uprobe_events; echo 1 > events/uprobes/enable")
    try:
        script: list[str | Workload] = [GROWING, *(f"optprobe add -user {PATH}:{place}" for place in expected)]
        script += [
            Workload(said),
            keep("one", "optprobe list"),
            Workload(f"for i in $(seq {AT_ONCE}); do ({said}) & done; wait; md5sum {PATH}"),
            Workload(f"{PATH} fork; echo said $?"),
            keep("all", "optprobe list"),
            "optprobe check",
            "optprobe delete",
            "optprobe check",
            Workload(said),
        ]
        finished = batch(linux, script)
        assert finished.status == 0, finished.output
        (theirs,) = linux.check(f"cat {TRACING}/uprobe_profile").splitlines()
    finally:
        linux.check(f"cd {TRACING}; echo 0 > events/uprobes/enable; echo > uprobe_events")
    processes = 1 + AT_ONCE + 2
    one, several, forked, deleted = finished.workloads
    assert (one, forked, deleted) == (unprobed[0], unprobed[1], unprobed[0]), finished.output
    assert several == unprobed[0] * AT_ONCE + digest
    for name, factor in (("one", 1), ("all", processes)):
        hits = {probe["location"].partition(":")[2]: probe["hits"] for probe in finished.json(name)}
        assert hits == {place: factor * count for place, count in expected.items()}
    assert int(theirs.split()[-1]) == (processes + 1) * COUNT
    assert finished.output.count("holds what we wrote") == 2
    assert {(probe["kind"], probe["tier"]) for probe in finished.json("all")} == {("uprobe", "trapped")}
    assert linux.problems() == []


def test_emulation_off_and_on(each_linux: Guest, program: Path) -> None:
    """While probes are there; a trap behind each copy, and the same hits and results."""
    linux = each_linux
    expected = calls.instructions(program, COUNT, linux.options.arch)
    expected = expected if FULL else dict([*expected.items()][::2])
    said = f"{PATH}; echo said $?"
    unprobed = linux.run(said)[1], linux.run(f"{PATH} fork; echo said $?")[1]
    script: list[str | Workload] = [f"optprobe add -user {PATH}:{place}" for place in expected]
    for emulation in ("off", "on", "off"):
        script += [f"set optprobe emulation {emulation}", Workload(said), "optprobe check"]
    script += [
        Workload(f"{PATH} fork; echo said $?"),
        keep("list", "optprobe list"),
        "optprobe delete",
        Workload(said),
        "optprobe check",
        "optprobe commit -timeout 20",
    ]
    finished = batch(linux, script)
    assert finished.status == 0, finished.output
    *once, forked, deleted = finished.workloads
    assert {*once, deleted} == {unprobed[0]} and forked == unprobed[1], finished.output
    hits = {probe["location"].partition(":")[2]: probe["hits"] for probe in finished.json("list")}
    assert hits == {place: 5 * count for place, count in expected.items()}
    assert finished.output.count("holds what we wrote") == 4
    assert linux.problems() == []


@pytest.mark.parametrize("bits", [64, 32] if FULL else [32])
def test_both_word_sizes(linux: Guest, tmp_path: Path, bits: int) -> None:
    """Where the processes are there before, and wait."""
    path = f"/tmp/answer{bits}"
    built = answer.build(tmp_path, bits)
    answer.put(linux, built, path)
    for _ in range(WAITING):
        linux.check(f"(sleep 300 | {path} wait; echo said $? >> /tmp/said) > /dev/null 2>&1 &")
    places = [f"answer+{insn.address:#x}" for insn in USER.decode(_code(built), 0, bits)]
    try:
        script: list[str | Workload] = [f"optprobe add -user {path}:{place}" for place in places]
        script += [
            Workload(f"for i in $(seq {AT_ONCE}); do ({path}; echo said $?) & done; wait"),
            Workload(ALL_SAID),
            keep("list", "optprobe list"),
        ]
        finished = batch(linux, script)
    finally:
        linux.run("killall sleep; sleep 0.2")
        said = linux.check(f"cat /tmp/said; rm -f /tmp/said {path}")
    assert finished.status == 0, finished.output
    assert finished.workloads[0].splitlines() == ["said 7"] * AT_ONCE
    assert said.splitlines() == ["said 7"] * WAITING
    assert [probe["hits"] for probe in finished.json("list")] == [AT_ONCE + WAITING] * len(places)


def _code(program: Path) -> bytes:
    elf = calls.elf(program)
    (symbol,) = (symbol for symbol in elf.symbols if symbol.name == "answer")
    return elf.text(symbol.address, symbol.size)


@pytest.fixture
def waiting(linux: Guest, tmp_path: Path) -> Iterator[str]:
    """The path of a program that WAITING processes run, which wait; `killall sleep` has them go on."""
    path = "/tmp/answer64"
    answer.put(linux, answer.build(tmp_path, 64), path)
    for _ in range(WAITING):
        linux.check(f"(sleep 300 | {path} wait; echo said $? >> /tmp/said) > /dev/null 2>&1 &")
    yield path
    linux.run("killall sleep; sleep 0.2")
    linux.run(f"rm -f /tmp/said {path}")


def test_libraries(linux: Guest, tmp_path: Path) -> None:
    """Two with the same bytes: who has mapped one before, and who maps it later, is counted in that one alone."""
    built = library.build(tmp_path, LIBRARY_CALLS)
    paths = [f"{folder}/{library.NAME}" for folder in ("/tmp/one", "/tmp/other")]
    linux.check("mkdir /tmp/one /tmp/other")
    answer.put(linux, built.library, paths[0])
    linux.check(f"cp {paths[0]} {paths[1]}")
    answer.put(linux, built.program, "/tmp/caller")
    one, other = (f"(cd {path.rpartition('/')[0]}; /tmp/caller; echo said $?)" for path in paths)
    wait = "(cd /tmp/one; sleep 300 | /tmp/caller wait; echo said $? >> /tmp/said)"
    elf = calls.elf(built.library)
    (symbol,) = (symbol for symbol in elf.symbols if symbol.name == "answer")
    code = USER.decode(elf.text(symbol.address, symbol.size), 0, 64)
    digests = linux.check(f"md5sum {' '.join(paths)}")
    for _ in range(WAITING):
        linux.check(f"{wait} > /dev/null 2>&1 &")
    try:
        places = [f"{path}:answer+{insn.address}" for path in paths for insn in code]
        script: list[str | Workload] = [f"optprobe add -user {place}" for place in places]
        script += [
            f"optprobe add -user {paths[1]}:answer do stack",
            Workload(f"{one}; {other}; {one} | grep -v 7; md5sum {' '.join(paths)}"),
            Workload(GO_ON),
            f"optprobe report {len(places) + 1}",
            Workload("cp /tmp/caller /tmp/other/kept; rm /tmp/caller; mv /tmp/other/kept /tmp/caller"),
            f"optprobe report {len(places) + 1}",
            "optprobe check",
            keep("list", "optprobe list"),
            "optprobe delete",
            Workload(one),
            "optprobe check",
        ]
        finished = batch(linux, script)
    finally:
        linux.run("killall sleep; sleep 0.2")
        linux.run("rm -rf /tmp/said /tmp/caller /tmp/one /tmp/other")
    assert finished.status == 0, finished.output
    assert finished.workloads == ("said 7\n" * 2 + digests, "said 7\n" * WAITING, "", "said 7\n")
    hits = [probe["hits"] for probe in finished.json("list")]
    assert hits == [LIBRARY_CALLS * (2 + WAITING)] * len(code) + [LIBRARY_CALLS] * (len(code) + 1)
    assert finished.output.count(": answer.so:answer / caller:again+0x2\n") == LIBRARY_CALLS, "no doubt in it"
    nameless = re.findall(r": answer\.so:answer / 0x[0-9a-f]+ / …\n", finished.output)
    assert len(nameless) == LIBRARY_CALLS, "the program that ran is no more, and what has its name is another file"
    assert finished.output.count("holds what we wrote") == 2
    assert linux.problems() == []


GO_ON = f"{ALL_SAID}; cat /tmp/said"


def test_conditions_and_actions(linux: Guest, waiting: str) -> None:
    pids = [int(pid) for pid in linux.check("pidof answer64").split()]
    seen = 'print("%s %d %s", $comm, $pid, str(*(char **)($sp + 16)))'
    script: list[str | Workload] = [
        f"optprobe add -user {waiting}:answer do count by $pid, {seen}",
        f"optprobe add -user {waiting}:answer -pid {pids[0]}",
        f"optprobe add -user {waiting}:answer if $pid != {pids[0]} && $sp % 16 == 8 do hist((long)$pc)",
        f"optprobe add -user {waiting}:answer+4 if $rbp != $sp",
        f"optprobe add -user {waiting}:answer do sum(*(long *)0)",
        Workload(GO_ON),
        keep("list", "optprobe list"),
        "optprobe report 1",
        keep("report", "optprobe report"),
    ]
    finished = batch(linux, script)
    assert finished.status == 0, finished.output
    assert finished.workloads[0].splitlines() == ["said 7"] * WAITING
    everyone, one, others, never, faulty = finished.json("list")
    assert [probe["hits"] for probe in (everyone, one, others, never, faulty)] == [WAITING, 1, WAITING - 1, 0, WAITING]
    assert faulty["faults"] == WAITING
    assert "instructions where the condition is false, about " in finished.output
    for pid in pids:
        assert f"answer64 {pid} {waiting}" in finished.output


def test_switched_off_and_on_killed_and_left(linux: Guest, waiting: str) -> None:
    """What GDB leaves behind as it quits is nothing."""
    ask = Workload(f"{waiting}; echo said $?")
    kill = Workload(f"kill -9 $(pidof answer64 | cut -d' ' -f1); {waiting}; {waiting}; echo said $?")
    script: list[str | Workload] = [
        f"optprobe add -user {waiting}:answer",
        ask,
        "optprobe disable",
        ask,
        "optprobe enable",
        kill,
        "optprobe check",
        keep("list", "optprobe list"),
    ]
    finished = batch(linux, script)
    assert finished.status == 0, finished.output
    assert "holds what we wrote" in finished.output
    assert {*finished.workloads} == {"said 7\n"}
    (probe,) = finished.json("list")
    assert (probe["hits"], probe["stops"]) == (3, 0)
    assert sorted(linux.check(GO_ON).splitlines()) == ["said 137", *["said 7"] * (WAITING - 1)]
    assert linux.problems() == []


@pytest.mark.parametrize("arch", ["x86_64", "i386"])
def test_stacks(linux: Guest, tmp_path: Path, arch: str) -> None:
    """Processes that have ended, each loaded elsewhere; where returns are probed; and where the stack ends."""
    path = "/tmp/stacked"
    answer.put(linux, stacked.build(tmp_path, arch), path)
    middle, outer, bare = stacked.MIDDLE[arch], stacked.OUTER[arch], stacked.BARE[arch]
    twice, once = Workload(f"{path}; {path}"), Workload(path)
    script: list[str | Workload] = ["set optprobe ring-records 16", "set optprobe stack-size 8192"]
    script += [f"optprobe add -user {path}:_start do stack", "set optprobe stack-size 512"]
    script += [f"optprobe add -user {path}:inner+2 do stack", twice, "optprobe report -json -clear"]
    returns = "-return entry do stack if $retval == 1 do stack, count by (int)$retval"
    script += [f"optprobe add -user {path}:middle {returns}", once, "optprobe report -json"]
    script += ["optprobe delete", "set optprobe stack-size 64", f"optprobe add -user {path}:inner+2 do stack"]
    script += [once, "optprobe report -json", "optprobe report", "optprobe check"]
    script += [Workload(f"cp {path} {path}.again; cat {path}.again > {path}"), "optprobe report"]
    try:
        finished = batch(linux, script)
    finally:
        linux.run(f"rm {path} {path}.again")
    assert finished.status == 0, finished.output
    assert "holds what we wrote" in finished.output and '"faults": 1' not in finished.output
    lines = [json.loads(line) for line in finished.output.splitlines() if line.startswith('{"type": "record"')]
    whole = ["_start", "_start", *[f"{middle} / {outer}", bare] * 2]
    returning = ["_start", f"{middle} / … / ? _start+0x6", bare, f"middle / {outer}", outer]
    short = [f"{middle} / …", bare]
    assert [line["text"].replace("stacked:", "") for line in lines] == whole + returning + short
    assert [line["cut"] for line in lines] == ["…" in line["text"] for line in lines]
    assert len({line["stack"][0]["address"] for line in lines if line["text"].startswith("stacked:inner")}) == 4
    unsure = [frame for line in lines for frame in line["stack"] if "sure" in frame]
    assert [(frame["symbol"], frame["sure"]) for frame in unsure] == [
        (f"stacked:_start+{at:#x}", False) for at in (0xB, 0xB, 6, 0xB, 0xB)
    ]
    written = " / ".join(["? inner+0x2", "…", "? " + bare.split(" / ")[1], "? _start+0xb"])
    assert finished.output.replace("stacked:", "").count(written) == 1, "as sure as the file is what it was"
    assert linux.problems() == []


ON_A_HOOK = """python import gdb_optprobe.debugger.attach as attach; \
gdb.execute(f"optprobe add *{attach.current_session().registry.hooks[0].address:#x}")"""
"""A probe on the kernel, where a call of its own leads to our code."""
@pytest.mark.skipif(not FULL, reason="the guest takes its time to merge pages; OPTPROBE_FULL=1")
def test_hits_on_a_page_that_the_guest_has_merged(linux: Guest, tmp_path: Path) -> None:
    path, ksm = "/tmp/merged", "/sys/kernel/mm/ksm"
    answer.put(linux, answer.build(tmp_path, 64, mergeable=True), path)
    for _ in range(WAITING):
        linux.check(f"(sleep 300 | {path} wait; echo said $? >> /tmp/said) > /dev/null 2>&1 &")
    merge = f"echo 1000 > {ksm}/pages_to_scan; echo 20 > {ksm}/sleep_millisecs; echo 1 > {ksm}/run"
    merged = f"for i in $(seq 100); do [ $(cat {ksm}/pages_sharing) -gt 0 ] && break; sleep 0.1; done"
    try:
        script: list[str | Workload] = [
            f"optprobe add -user {path}:answer",
            f"optprobe add -user {path}:answer+4",
            Workload(f"{merge}; {merged}; cat {ksm}/pages_sharing"),
            Workload(GO_ON),
            keep("list", "optprobe list"),
            "optprobe check",
        ]
        finished = batch(linux, script)
    finally:
        linux.run(f"echo 2 > {ksm}/run; echo 0 > {ksm}/run; killall sleep; sleep 0.2; rm -f /tmp/said {path}")
    assert finished.status == 0, finished.output
    assert int(finished.workloads[0]) > 0, "nothing was merged"
    assert finished.workloads[1] == "said 7\n" * WAITING
    assert [probe["hits"] for probe in finished.json("list")] == [WAITING, WAITING]
    assert linux.problems() == []


def test_explained_and_shown(linux: Guest, waiting: str) -> None:
    """Before there is a probe, and with one."""
    with Console(linux) as gdb:
        told = gdb(f"optprobe explain -user {waiting}:answer", 60)
        assert "<answer64:answer>: would be trapped; a hit costs" in told and "push" in told
        assert gdb("optprobe list").strip() == "No probes."
        assert "in the middle of" in gdb(f"optprobe explain -user {waiting}:answer+2")
        assert "-file needs -user" in gdb("optprobe explain vfs_read -file /tmp/x")
        gdb(f"optprobe add -user {waiting}:answer do count by $pid", 60)
        shown = gdb("optprobe show 1")
        program = ("the program of probe 1: count by $pid", ";   key $pid", ";   lookup", ";   update")
        for part in ("push", "int3", *program, "done to the saved registers", "copy of"):
            assert part in shown, shown
        assert len(json.loads(gdb("optprobe show 1 -json"))["detour"]) > 20


BAD = {
    "/nothing:main": "/nothing",
    "{path}:nothing": "nothing",
    "{path}:0x999999": "0x999999",
    "{path}:answer+2": "in the middle of the instruction at",
    "/bin/busybox:main": "busybox",
    "{path}": "no place in a program",
    "{path}:answer -tier optimized": "probed by traps",
    "{path}:answer+4 -return": "is not where a function is entered",
    "{path}:_start -return": "has no caller",
    "{path}:answer if nothing == 1": "nothing",
}


def test_what_cannot_be_is_told_in_a_line(linux: Guest, waiting: str) -> None:
    """And nothing is left in the guest."""
    with Console(linux) as gdb:
        for typed, told in BAD.items():
            line, *_ = without_progress(gdb(f"optprobe add -user {typed.format(path=waiting)}")).strip().splitlines()
            assert line.startswith("optprobe: ") and told in line, line
            assert "internal error" not in line
        assert "-pid needs -user" in gdb("optprobe add vfs_read -pid 3")
        assert gdb("optprobe list").strip() == "No probes."
        gdb(f"optprobe add -user {waiting}:answer", 60)
        assert "not what they were" in gdb(ON_A_HOOK)
        assert "holds what we wrote" in gdb("optprobe check")


@pytest.mark.parametrize("remove", [False, True] if FULL else [False])
def test_another_gdb_finds_what_a_killed_one_left(linux: Guest, waiting: str, remove: bool) -> None:
    """Meanwhile hits are counted on, of programs too that are started while there is none."""
    with Console(linux) as gdb:
        gdb("set optprobe emulation off")
        assert "trapped" in gdb(f"optprobe add -user {waiting}:answer do count by $comm, stack", 60)
        assert "trapped" in gdb(f"optprobe add -user {waiting}:answer+9", 60)
        gdb.kill()
    release(linux)
    assert linux.check(f"{GO_ON}; {waiting}; echo said $?").splitlines() == ["said 7"] * (WAITING + 1)
    script: list[str | Workload] = ["optprobe recover -remove"] if remove else [
        "optprobe recover", keep("list", "optprobe list"), "optprobe report"
    ]  # fmt: skip
    script += [Workload(f"{waiting}; echo said $?"), keep("after", "optprobe list"), "optprobe check"]
    finished = batch(linux, script)
    assert finished.status == 0, finished.output
    assert finished.workloads == ("said 7\n",)
    if not remove:
        assert finished.output.count(": answer64:answer / … / ? answer64:ask+0x5\n") == WAITING + 1
        assert [probe["hits"] for probe in finished.json("list")] == [WAITING + 1] * 2
    assert [probe["hits"] for probe in finished.json("after")] == ([] if remove else [WAITING + 2] * 2)
    assert linux.problems() == []
