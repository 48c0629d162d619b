"""`stop` for probes on programs: the guest stops in the kernel, the program is shown, and goes on as it would have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.booted import answer, calls
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL
from tests.booted.gdb import Console

COUNT = 5_000 if FULL else 500
AT_ONCE = 8 if FULL else 4
PATH = "/tmp/calls"
OTHER = "/tmp/answer64"
STOPS = 5 if FULL else 3
STEP = COUNT // STOPS
PROBES = (
    "",
    f" if $arg1 % {STEP} == 0 do count by $comm, stop",
    f" -return entry do save which = $arg1 if $saved.which % {STEP} == 0 do stop",
    f" if $arg1 % {STEP} == 0",
    " -return",
)
ENTERED = r"hit optprobe 2, calls \(\d+\), 0x[0-9a-f]+ in test \(\)$"
RETURNED = r"hit optprobe 3, calls \(\d+\), 0x[0-9a-f]+ in call_test \(\)\ntest has returned (\d+) \(\$retval\)$"


@pytest.fixture
def calling(linux: Guest, tmp_path: Path) -> Iterator[Path]:
    """The program, which is in the guest too."""
    built = calls.build(tmp_path, COUNT)
    answer.put(linux, built, PATH)
    yield built
    linux.check(f"rm -f {PATH}")


def test_stops_where_a_condition_holds(linux: Guest, calling: Path, tmp_path: Path) -> None:
    """And shows the program as it is there; counts are exact at each stop."""
    status = linux.run(PATH)[0]
    answer.put(linux, answer.build(tmp_path, 64), OTHER)
    linux.check(f"(sleep 300 | {OTHER} wait) > /dev/null 2>&1 &")
    (test,) = (each.address for each in calls.elf(calling).symbols if each.name == "test")
    with Console(linux) as gdb:
        told = [gdb(f"optprobe add -user {PATH}:test{probe}", 60) for probe in PROBES]
        said = " ".join(told[1].split())
        assert "and a trap where the condition is false, and stops the guest otherwise" in said
        gdb.work = linux.spawn(PATH)
        told = [gdb("continue")]
        assert " hit optprobe 2, calls (" in told[0] and told[0].rstrip().endswith(f"{test:#018x} <calls:test>")
        gdb(f"add-symbol-file {calling}")
        gdb("frame 2")
        for turn in range(STOPS):
            if turn:
                stopped = gdb("continue").rstrip()
                assert re.search(ENTERED, stopped), stopped
            which = (STOPS - turn) * STEP
            assert [gdb.hits(number) for number in (1, 2, 4)] == [COUNT - which + 1, turn + 1, min(turn + 1, STOPS - 1)]
            assert (gdb.value("$pc"), gdb.value("$rdi")) == (test, which), "the program's, whatever else was asked for"
            callers = [line.partition(" in ")[2] for line in gdb("bt").splitlines()[2:4]]
            assert callers == ["test ()", "call_test ()"]
            if not turn:
                assert_of_one_thread(gdb, test)
                assert_refused(gdb, f"optprobe add -user {OTHER}:answer")
                assert_refused(gdb, f"optprobe add -user {OTHER}:answer -return do stop")
            code = gdb("x/2i $pc")
            assert "# optprobe 1, 2, 3" in code and "int3" not in code
            if turn == STOPS - 2:
                gdb("optprobe disable 2")
                gdb("optprobe enable 2")
                gdb("optprobe disable 4")
            returned = re.search(RETURNED, (told := gdb("continue").rstrip()))
            assert returned and int(returned[1]) == gdb.value("$retval") == gdb.value("$rax"), told
            assert gdb.hits(5) == COUNT - which + 1, "the others at the return have counted"
            assert gdb("bt").splitlines()[2].endswith(" in call_test ()")
            assert "holds what we wrote" in gdb("optprobe check")
        seen = [(probe["hits"], probe["stops"]) for probe in gdb.probes()]
        assert seen == [(COUNT - STEP + 1, 0), (STOPS, STOPS), (STOPS, STOPS), (STOPS - 1, 0), (COUNT - STEP + 1, 0)]
        gdb("optprobe delete")
        work, gdb.work = gdb.work, None
        gdb.send("continue")
        assert work.wait()[0] == status
        gdb.interrupt()
        assert "everything is settled" in gdb("optprobe commit -timeout 20", 30)
    linux.check(f"killall sleep; rm {OTHER}")
    assert linux.problems() == []


def assert_of_one_thread(gdb: Console, address: int) -> None:
    """Whoever else is selected does not have the traps of the program that is shown; nor where one is overwritten."""
    other = 3 - gdb.value("$_thread")
    assert "# optprobe" not in gdb(f"thread apply {other} x/i {address:#x}")
    before = gdb.value(f"*(unsigned char *) {address:#x}")
    gdb(f"set var *(unsigned char *) {address:#x} = 0x90")
    code = gdb("x/i $pc")
    assert "nop" in code and "# optprobe" not in code
    gdb(f"set var *(unsigned char *) {address:#x} = {before}")


def assert_refused(gdb: Console, line: str) -> None:
    """Where a process runs that has no page of its own there: the guest would run on, past what is shown."""
    before = [(probe["number"], probe["hits"]) for probe in gdb.probes()], gdb("bt"), gdb("info threads")
    told = gdb(line)
    assert "a program is shown where it stopped" in told and "HINT: continue, interrupt the guest" in told
    assert ([(probe["number"], probe["hits"]) for probe in gdb.probes()], gdb("bt"), gdb("info threads")) == before


def test_many_that_stop_at_once(linux: Guest, calling: Path) -> None:
    """Each hit of each process stops the guest once, whichever vCPU it is on."""
    said = f"({PATH}; echo said $?)"
    expected = linux.run(said)[1] * AT_ONCE
    with Console(linux) as gdb:
        gdb(f"optprobe add -user {PATH}:inner if $arg1 % {STEP} == 0 do stop", 60)
        gdb(f"optprobe add -user {PATH}:test if $arg1 % {STEP} == 0 do count by $pid, stop")
        gdb(f"optprobe add -user {PATH}:test")
        gdb.work = linux.spawn(f"for i in $(seq {AT_ONCE}); do {said} & done; wait")
        told: list[str] = []
        while len(told) < 2 * AT_ONCE * STOPS:
            (one,) = re.findall(r"hit optprobe (\d, calls \(\d+\)), 0x", gdb("continue"))
            told.append(one)
        assert {told.count(one) for one in told} == {STOPS} and len({*told}) == 2 * AT_ONCE, told
        work, gdb.work = gdb.work, None
        gdb.send("continue")
        assert work.wait()[1] == expected
        gdb.interrupt()
        assert [probe["hits"] for probe in gdb.probes()] == [AT_ONCE * STOPS, AT_ONCE * STOPS, AT_ONCE * COUNT]
    assert linux.problems() == []


@pytest.mark.parametrize("how", ["quit", "detach", "kill -9"] if FULL else ["quit", "kill -9"])
def test_leaving_a_program_where_it_stopped(linux: Guest, calling: Path, how: str) -> None:
    """It ends as it would have, with all hits counted that are."""
    status = linux.run(PATH)[0]
    keep_them = how != "quit"
    with Console(linux) as gdb:
        gdb(f"set optprobe on-exit {'keep' if keep_them else 'remove'}")
        for probe in PROBES[1:3]:
            gdb(f"optprobe add -user {PATH}:test{probe}", 60)
        work = linux.spawn(PATH)
        assert "hit optprobe 1" in gdb("continue")
        assert "hit optprobe 2" in gdb("continue")
        if how == "kill -9":
            gdb.kill()
        elif how == "detach":
            gdb("detach")
        else:
            gdb.send("quit")
            gdb.rest()
        assert work.wait(20)[0] == status
    script: list[str | Workload] = ["optprobe recover"] if keep_them else []
    script += [keep("list", "optprobe list"), "optprobe delete", Workload(f"{PATH}; echo said $?"), "optprobe check"]
    finished = batch(linux, script)
    assert finished.status == 0, finished.output
    hits = [probe["hits"] for probe in finished.json("list")]
    assert hits == ([STOPS, STOPS] if keep_them else [])
    assert finished.workloads == (f"said {status}\n",)
    assert linux.problems() == []


def test_a_program_of_32_bits_stops(linux: Guest, tmp_path: Path) -> None:
    """Where its instructions are not emulated, too."""
    path = "/tmp/answer32"
    answer.put(linux, answer.build(tmp_path, 32), path)
    with Console(linux) as gdb:
        gdb("set optprobe emulation off")
        gdb(f"optprobe break -user {path}:answer if $esp % 4 == 0", 60)
        gdb(f"optprobe add -user {path}:answer -return do stop")
        gdb.work = linux.spawn(f"{path}; echo said $?")
        told = gdb("continue").rstrip()
        at = re.search(r"hit optprobe 1, answer32 \(\d+\), (0x[0-9a-f]+) <answer32:answer>$", told)
        assert at and gdb.value("$pc") == int(at[1], 16), told
        back = gdb.value("*(unsigned *) $sp")
        gdb("symbol-file")
        assert gdb.value("$pc") == int(at[1], 16), "the file of the frames is loaded again"
        told = gdb("python gdb.execute('symbol-file'); gdb.execute('continue')").rstrip()
        assert told.endswith("answer has returned 7 ($retval)") and gdb.value("$pc") == back, told
        gdb("optprobe disable")
        work, gdb.work = gdb.work, None
        gdb.send("continue")
        assert work.wait(20)[1] == "said 7\n"
        gdb.interrupt()
        assert [probe["hits"] for probe in gdb.probes()] == [1, 1]
    linux.check(f"rm {path}")
    assert linux.problems() == []
