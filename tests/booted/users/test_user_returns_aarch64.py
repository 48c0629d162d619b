"""Return probes on programs on aarch64: calls are seen where their functions return, and programs run as before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qemu.guest import Guest
from tests.booted import returning_program
from tests.booted.answer import put
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import Boot
from tests.booted.gdb import Console, release
from tests.booted.returning_program import CROWD, DEPTH, RETURNS_AARCH64
from tests.booted.test_ppc64le import ATTEMPT, attempt
from tests.booted.users.every_return import FINE, PATH, SAID, WAITS, every_way

COUNT = 5
GO_ON = "killall sleep; touch /tmp/said; while ! grep -q said /tmp/said; do sleep 0.1; done; cat /tmp/said"


@pytest.fixture
def guest(arm_guest: Guest, tmp_path: Path) -> Iterator[Guest]:
    """It has the program."""
    put(arm_guest, returning_program.build(tmp_path, COUNT, "aarch64"), PATH)
    yield arm_guest
    arm_guest.run(f"rm -f {PATH} /tmp/said")


def check_every_way(guest: Guest) -> None:
    """Recursion, jumps out of functions and into them from signals, threads, fork, vfork; forks without room."""
    found, crowd = every_way(guest, {name: COUNT * count for name, count in RETURNS_AARCH64.items()}, "all of them")
    assert not any(probe["missed"] for probe in found.values())
    assert found["left"]["calls"]["dropped"] > 0
    assert [name for name, probe in found.items() if probe["active"]] == [], "their processes have ended"
    calls = crowd[-1]["calls"]
    assert CROWD < calls["returns"] < 2 * (CROWD + 1), "all of the parent's, and those of the child for which was room"
    assert calls["missed"] == 2 * (CROWD + 1) - calls["returns"] and calls["dropped"] == calls["active"] == 0
    assert guest.problems() == []


def test_every_way_to_return(guest: Guest) -> None:
    check_every_way(guest)


def test_every_way_to_return_with_signed_addresses(boot: Boot, tmp_path: Path) -> None:
    """Of Debian's 6.12, on four CPUs, with page tables of 52 bits."""
    guest = boot(arch="aarch64", suite="trixie", cpu="max,pauth-impdef=on", smp=4)
    put(guest, returning_program.build(tmp_path, COUNT, "aarch64"), PATH)
    check_every_way(guest)


def test_conditions_and_what_is_kept(guest: Guest) -> None:
    """Each call has its own words, however deep it is within others of the same function; switched off and on again."""
    script: list[str | Workload] = [
        f"optprobe add -user {PATH}:deep -return entry do save n = $arg1 if $retval == $saved.n do sum($retval)",
        f"optprobe add -user {PATH}:deep -return entry if $arg1 == 3 do save a = $arg1 do sum($saved.a)",
        f'optprobe add -user {PATH}:deep -return if $elapsed > 0 && $comm == "returns" do hist($elapsed)',
        f"optprobe add -user {PATH}:deep",
        f"optprobe add -user {PATH}:deep -return -maxactive {DEPTH - 9}",
        f"optprobe add -user {PATH}:leaf -pid 1 -return",
        Workload(SAID),
        keep("list", "optprobe list"),
        "optprobe report",
        "optprobe disable 1 2 3 5",
        Workload(SAID),
        keep("off", "optprobe list"),
        "optprobe enable 1",
        Workload(SAID),
        keep("on", "optprobe list"),
        "optprobe check",
    ]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    assert finished.workloads == (FINE,) * 3
    deep, some, timed, entered, bounded, nobody = finished.json("list")
    calls = RETURNS_AARCH64["deep"] * COUNT
    assert [deep["hits"], timed["hits"], entered["hits"]] == [calls] * 3
    assert (some["hits"], nobody["hits"]) == (3 * COUNT, 0)
    assert bounded["hits"] == calls and bounded["calls"]["missed"] == 0
    assert f"sum($saved.a): {3 * 3 * COUNT}" in finished.output
    assert [probe["hits"] for probe in finished.json("off")][:3] == [calls, 3 * COUNT, calls]
    assert [probe["hits"] for probe in finished.json("on")][:4] == [2 * calls, 3 * COUNT, calls, 3 * calls]
    assert "holds what we wrote" in finished.output


def test_functions_of_which_not_all_returns_are_known_are_refused(guest: Guest) -> None:
    """And what is probed where a function returns, in either order."""
    script: list[str | Workload] = [
        *ATTEMPT,
        attempt(f"-user {PATH}:first -return"),
        attempt(f"-user {PATH}:jumps -return"),
        attempt(f"-user {PATH}:_start -return"),
        f"optprobe add -user {PATH}:leaf -return",
        attempt(f"-user {PATH}:leaf+4"),
        f"optprobe add -user {PATH}:last+12",
        attempt(f"-user {PATH}:last -return"),
        f"optprobe add -user {PATH}:leaf",
        Workload(SAID),
        keep("list", "optprobe list"),
    ]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    said = " ".join(finished.output.split())
    assert "returns:first continues at returns:last, which returns in its place" in said
    assert "returns:jumps continues at returns:" in said
    assert "returns:_start is where the program begins" in said, finished.output
    assert "returns:leaf+0x4 is where returns:leaf returns, which is probed" in said
    assert "returns:last returns at returns:last+0xc, which is probed" in said
    assert finished.workloads == (FINE,)
    leaf = RETURNS_AARCH64["leaf"] * COUNT
    assert [probe["hits"] for probe in finished.json("list")] == [leaf, COUNT, leaf]


def test_calls_under_way_when_probes_go(guest: Guest) -> None:
    """They return as they would have, and nothing is left."""
    guest.check(WAITS)
    script: list[str | Workload] = [
        f"optprobe add -user {PATH}:waits -return do count by $comm",
        f"optprobe add -user {PATH}:deep -return do max($elapsed)",
        Workload(f"{WAITS} sleep 0.3; {SAID}"),
        keep("waits", "optprobe list"),
        "optprobe delete",
        keep("deleted", "optprobe list"),
        "optprobe check",
    ]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    assert finished.workloads == (FINE,)
    waits, _ = finished.json("waits")
    assert (waits["active"], [one["comm"] for one in waits["calls"]["out"]]) == (1, ["returns"])
    assert finished.json("deleted") == []
    said = guest.check(f"{GO_ON}; sleep 0.5; cat /tmp/said")
    assert said.splitlines()[-2:] == [FINE.strip()] * 2
    assert guest.problems() == []


@pytest.mark.parametrize("remove", [False, True])
def test_another_gdb_finds_calls_under_way(guest: Guest, remove: bool) -> None:
    """They return as they would have; later ones are seen again."""
    with Console(guest) as gdb:
        assert "trapped" in gdb(f"optprobe add -user {PATH}:waits -return do count by $pid", 60)
        assert "trapped" in gdb(f"optprobe add -user {PATH}:leaf -return do sum($retval)", 60)
        gdb.send("continue")
        guest.check(f"{WAITS} sleep 0.5")
        gdb.kill()
    release(guest)
    assert guest.check(SAID) == FINE
    script: list[str | Workload] = ["optprobe recover -remove" if remove else "optprobe recover"]
    script += [
        Workload(f"{GO_ON}; sleep 0.3; {SAID}"),
        keep("after", "optprobe list"),
        "optprobe check",
        "optprobe delete",
        "optprobe check",
    ]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    assert set(finished.workloads[0].split("\n")) == {FINE.strip(), ""}, finished.output
    hits = [probe["hits"] for probe in finished.json("after") if probe["kind"] == "uretprobe"]
    # The call of `waits` is one that the earlier GDB saw entered. What has waited runs its rounds then.
    assert hits == ([] if remove else [0, 3 * COUNT * RETURNS_AARCH64["leaf"]])
    assert guest.problems() == []


def test_the_guest_stops_where_a_call_has_returned(guest: Guest, tmp_path: Path) -> None:
    """The program is shown at its caller, with the value; the traps where functions return are not seen."""
    with Console(guest) as gdb:
        gdb(f"optprobe add -user {PATH}:last -return if $retval == 8 do stop", 60)
        gdb(f"optprobe add -user {PATH}:leaf if $arg1 == 5 do stop", 60)
        gdb(f"optprobe add -user {PATH}:leaf -return", 60)
        gdb.work = guest.spawn(SAID)
        assert "hit optprobe 2, returns (" in gdb("continue")
        code = gdb("x/2i $pc")
        assert "hlt" not in code and "ret" in code and "# optprobe 3" in code, code
        told = gdb("continue")
        assert "hit optprobe 1, returns (" in told and "last has returned 8 ($retval)" in told, told
        gdb(f"add-symbol-file {tmp_path / f'returns{COUNT}'}")
        gdb("frame 2")
        assert gdb.value("$pc") == gdb.value("&round") + 24 and gdb.value("$x0") == 8
        gdb("optprobe delete 1 2")
        work, gdb.work = gdb.work, None
        gdb.send("continue")
        assert work.wait()[1] == FINE
        gdb.interrupt()
        assert [probe["hits"] for probe in gdb.probes()] == [RETURNS_AARCH64["leaf"] * COUNT]
    assert guest.problems() == []


def test_a_probe_that_is_put_back_while_a_program_is_shown(guest: Guest) -> None:
    """It sees all returns, also once what the deleted one left is tidied."""
    with Console(guest) as gdb:
        gdb(f"optprobe add -user {PATH}:leaf -return do count", 60)
        gdb(f"optprobe add -user {PATH}:last if $arg1 == 5 do stop", 60)
        gdb.work = guest.spawn(SAID)
        assert "hit optprobe 2" in gdb("continue")
        gdb("optprobe delete 1")
        assert "trapped" in gdb(f"optprobe add -user {PATH}:leaf -return do count", 60)
        gdb("optprobe delete 2")
        for runs in 1, 2:
            work, gdb.work = gdb.work or guest.spawn(SAID), None
            gdb.send("continue")
            assert work.wait()[1] == FINE
            gdb.interrupt()
            gdb("optprobe commit")
            (probe,) = gdb.probes()
            assert (probe["hits"], probe["active"]) == (runs * RETURNS_AARCH64["leaf"] * COUNT, 0)
        gdb("optprobe delete")
        assert "holds what we wrote" in gdb("optprobe check")
    assert guest.problems() == []


@pytest.mark.parametrize("how", ["quit", "kill -9"])
def test_leaving_where_a_call_has_returned(guest: Guest, how: str) -> None:
    """The program ends as it would have, with all hits counted that are."""
    with Console(guest) as gdb:
        gdb(f"set optprobe on-exit {'keep' if how == 'kill -9' else 'remove'}")
        gdb(f"optprobe add -user {PATH}:last -return if $retval == 8 do count, stop", 60)
        gdb(f"optprobe add -user {PATH}:deep -return", 60)
        work = guest.spawn(SAID)
        assert "last has returned 8 ($retval)" in gdb("continue")
        if how == "kill -9":
            gdb.kill()
        else:
            gdb.send("quit")
            gdb.rest()
        assert work.wait(30)[1] == FINE
    script: list[str | Workload] = ["optprobe recover"] if how == "kill -9" else []
    script += [keep("list", "optprobe list"), "optprobe delete", Workload(SAID), "optprobe check"]
    finished = batch(guest, script)
    assert (finished.status, finished.workloads) == (0, (FINE,)), finished.output
    hits = [probe["hits"] for probe in finished.json("list")]
    assert hits == ([COUNT, COUNT * RETURNS_AARCH64["deep"]] if how == "kill -9" else [])
    assert guest.problems() == []
