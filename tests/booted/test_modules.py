"""Probes in modules that come and go: what they count is what the guest's own kprobe events count there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from qemu.guest import Guest
from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL
from tests.booted.gdb import Console
from tests.booted.progress import without_progress

TRACING = "/sys/kernel/tracing"
LOAD, UNLOAD = "insmod /lib/modules/dummy.ko", "rmmod dummy"
USE = "for i in 1 2 3; do cat /proc/net/dev > /dev/null; done"
STATISTICS = "dummy_get_stats64"
FUNCTIONS = ("dummy_setup", "dummy_dev_init", STATISTICS, "dummy_dev_uninit")
"""Called as it is loaded, twice; as somebody asks how many packets it had; as it is unloaded."""
ROUNDS = 50 if FULL else 3


@pytest.fixture
def events(linux: Guest) -> Any:
    """The guest's own events behind the tracer's sites of the functions; what they have counted, by function."""
    linux.check(LOAD)
    for name in FUNCTIONS:
        linux.check(f"echo 'p:{name} dummy:{name}+5' >> {TRACING}/kprobe_events")
    linux.check(f"{UNLOAD}; echo 1 > {TRACING}/events/kprobes/enable")

    def counted() -> dict[str, int]:
        rows = linux.check(f"cat {TRACING}/kprobe_profile").splitlines()
        return {name: int(hits) for name, hits, _ in (row.split() for row in rows)}

    yield counted
    linux.run(UNLOAD)
    linux.check(f"echo 0 > {TRACING}/events/enable; echo > {TRACING}/kprobe_events; echo > {TRACING}/trace")


def by_function(views: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {re.split("[:+]", view["symbol"])[1]: view for view in views if view["symbol"]}


def test_pending_gone_and_back_with_every_call_counted(linux: Guest, events: Any) -> None:
    before = events()
    found = batch(
        linux,
        [
            *(f"optprobe add {name} -pending" for name in FUNCTIONS[:2]),
            *(f"optprobe add dummy:{name} -pending" for name in FUNCTIONS[2:]),
            keep("pending", "optprobe list"),
            Workload(f"{LOAD}; {USE}"),
            keep("loaded", "optprobe list"),
            keep("explained", "optprobe explain dummy:dummy_xmit"),
            "optprobe check",
            Workload(f"for i in $(seq {ROUNDS}); do {UNLOAD}; {LOAD}; {USE}; done; {UNLOAD}", timeout=280),
            keep("gone", "optprobe list"),
            "optprobe check",
            "optprobe delete",
            "optprobe commit",
        ],
    )
    assert found.status == 0, found.output
    states = {(view["state"], view["reason"]["code"], view["hits"]) for view in found.json("pending")}
    assert states == {("pending", "PENDING", 0)}
    loaded = {name: (view["state"], view["tier"]) for name, view in by_function(found.json("loaded")).items()}
    assert loaded == dict.fromkeys(FUNCTIONS, ("armed", "optimized"))
    assert found.json("explained")["tier"] == "optimized"
    gone = by_function(found.json("gone"))
    assert {(view["state"], view["reason"]["code"]) for view in gone.values()} == {("gone", "MODULE_GONE")}
    after = events()
    assert {name: view["hits"] for name, view in gone.items()} == {name: after[name] - before[name] for name in after}
    assert gone["dummy_setup"]["hits"] == ROUNDS + 1
    assert "somebody" not in found.output


def test_what_its_module_lacks_is_told_while_that_is_loaded(linux: Guest) -> None:
    found = batch(
        linux,
        [
            "optprobe add dummy:absent -pending",
            keep("before", "optprobe list"),
            Workload(LOAD),
            keep("loaded", "optprobe list"),
            Workload(UNLOAD),
            keep("unloaded", "optprobe list"),
        ],
    )
    assert found.status == 0, found.output
    lacks = "the module dummy is loaded and has no such function"
    told = {name: found.json(name)[0]["reason"] for name in ("before", "loaded", "unloaded")}
    assert {reason["code"] for reason in told.values()} == {"PENDING"}
    assert [name for name, reason in told.items() if lacks in reason["text"]] == ["loaded"]


def test_without_pending_it_comes_back_at_the_next_stop(linux: Guest, events: Any) -> None:
    linux.check(LOAD)
    place = int(linux.check("grep ' dummy_get_stats64' /proc/kallsyms").split()[0], 16)
    found = batch(
        linux,
        [
            "optprobe add dummy_get_stats64",
            f"optprobe add *{place + 5:#x} -tier breakpoint",
            "optprobe add dummy:dummy_get_st* if $arg1 != 0 do count by $comm",
            "optprobe add dummy_get_stats64 -return",
            Workload(USE),
            Workload(f"{UNLOAD}; {LOAD}"),
            keep("back", "optprobe list"),
            Workload(USE),
            keep("after", "optprobe list"),
            "optprobe disable 1",
            Workload(UNLOAD),
            "optprobe enable 1",
            keep("gone", "optprobe list"),
        ],
    )
    assert found.status == 0, found.output
    back = found.json("back")
    there = ("armed", "optimized")
    assert [(view["state"], view["tier"]) for view in back] == [there, ("gone", ""), there, there]
    assert back[0]["hits"] == back[2]["hits"] == back[3]["hits"] and back[0]["hits"] >= 3
    assert found.json("gone")[0]["hits"] == back[0]["hits"] + 3
    assert [view["state"] for view in found.json("gone")] == ["gone"] * 4
    returns = found.json("after")[3]
    assert returns["hits"] == returns["calls"]["entries"] == returns["calls"]["returns"] == back[0]["hits"] + 3


def test_on_ppc64le_they_are_breakpoints(ppc_guest: Guest) -> None:
    """Beyond a branch's reach, in a kernel that does not tell what it rewrites: the first call is seen nevertheless."""
    found = batch(
        ppc_guest,
        [
            "optprobe add dummy:dummy_setup -pending",
            f"optprobe add {STATISTICS} -pending if $arg1 != 0 do count by $comm",
            Workload(LOAD),
            keep("loaded", "optprobe list"),
            Workload(f"cat /proc/net/dev > /dev/null; {UNLOAD}"),
            keep("gone", "optprobe list"),
            Workload(f"{LOAD}; {UNLOAD}"),
            keep("again", "optprobe list"),
        ],
    )
    assert found.status == 0, found.output
    loaded, gone, again = (found.json(name) for name in ("loaded", "gone", "again"))
    assert {(view["tier"], view["reason"]["code"]) for view in loaded} == {("breakpoint", "MODULE_TABLES")}
    assert [view["hits"] for view in loaded] == [1, loaded[1]["hits"]]
    assert gone[1]["hits"] > loaded[1]["hits"] and {view["state"] for view in gone} == {"gone"}
    assert again[0]["hits"] == 2 and again[1]["hits"] > gone[1]["hits"]


def test_saved_ones_wait_for_their_module(linux: Guest, tmp_path: Path) -> None:
    linux.check(LOAD)
    file = tmp_path / "probes.gdb"
    with Console(linux) as gdb:
        counts = f"{STATISTICS}+5 do count by $comm"
        for line in ("dummy_setup", "dummy:dummy_dev_* -name devs", counts, "later -pending"):
            gdb(f"optprobe add {line}")
        assert "Saved 5 probes" in gdb(f"optprobe save {file}")
        lines = [line for line in file.read_text().splitlines() if line.startswith("optprobe")]
        assert lines == [
            "optprobe add dummy:dummy_setup -pending",
            "optprobe add dummy:dummy_dev_uninit -pending -name devs",
            "optprobe add dummy:dummy_dev_init -pending -name devs",
            "optprobe add dummy:dummy_get_stats64+0x5 -pending do count by $comm",
            "optprobe add later -pending",
        ]
        gdb("optprobe delete")
        gdb.send("continue")
        linux.check(UNLOAD)
        gdb.interrupt()
        gdb(f"source {file}")
        assert {view["state"] for view in gdb.probes()} == {"pending"}
        gdb.send("continue")
        linux.check(LOAD)
        gdb.interrupt()
        assert [(view["state"], view["tier"]) for view in gdb.probes()[:4]] == [("armed", "optimized")] * 4
        assert gdb.hits(gdb.probes()[0]["number"]) == 1
    linux.check(UNLOAD)


def test_all_of_a_module(linux: Guest, events: Any) -> None:
    """Every function of one with jump labels and traps of WARN: all counted, at work and as it goes."""
    linux.check("insmod /lib/modules/brd.ko rd_nr=1")
    found = batch(
        linux,
        [
            "optprobe add brd:*",
            Workload("for i in 'ram0 of=/dev/null' 'zero of=/dev/ram0'; do dd if=/dev/$i bs=4k count=64; done; sync"),
            Workload("rmmod brd"),
            keep("gone", "optprobe list"),
        ],
    )
    assert found.status == 0, found.output
    hits = {name: view["hits"] for name, view in by_function(found.json("gone")).items()}
    assert hits["brd_do_bvec"] >= 128 and hits["brd_exit"] == 1 and hits["brd_free_pages"] == 1, hits


def test_a_glob_of_a_module_that_was_loaded_again(linux: Guest) -> None:
    """The tracer's records of it are at other addresses then, though its functions may be where they were."""
    linux.check(LOAD)
    glob = "optprobe add -glob dummy_*"
    again = f"for cpu in 0 1; do {UNLOAD}; taskset $((1 << cpu)) {LOAD}; done; {USE}"
    found = batch(
        linux,
        [
            glob,
            "optprobe delete",
            Workload(again),
            glob,
            Workload(USE),
            keep("there", "optprobe list"),
            Workload(again),
            keep("back", "optprobe list"),
            "optprobe check",
            "optprobe delete",
        ],
    )
    assert found.status == 0, found.output
    # The kernel has functions of such names too.
    there, back = ({view["symbol"]: view for view in found.json(name)} for name in ("there", "back"))
    views = there[f"dummy:{STATISTICS}"], back[f"dummy:{STATISTICS}"]
    assert [view["tier"] for view in views] == ["optimized"] * 2 and 3 <= views[0]["hits"] < views[1]["hits"]
    linux.check(f"echo function > {TRACING}/current_tracer; {USE}; echo nop > {TRACING}/current_tracer; {UNLOAD}")
    assert linux.check("dmesg | grep -Ec 'ftrace (bug|failed)|WARNING|Oops' || true").strip() == "0"


@pytest.mark.parametrize("meanwhile", [UNLOAD, *["true", f"{UNLOAD}; {LOAD}"] * FULL])
def test_another_gdb_takes_them_over(linux: Guest, events: Any, meanwhile: str) -> None:
    linux.check(LOAD)
    before = events()[STATISTICS]
    with Console(linux) as gdb:
        for line in (STATISTICS, f"{STATISTICS} if $arg1 do count by $comm", "vfs_fsync", "absent -pending"):
            assert "optprobe:" not in gdb(f"optprobe add {line}")
        lacks = "pending: dummy:absent is not there yet: the module dummy is loaded and has no such function"
        assert lacks in gdb("optprobe add dummy:absent -pending")
        gdb.send("continue")
        linux.check(USE)
        gdb.kill()
    linux.check(f"sleep 1; {USE}; {meanwhile}")
    with Console(linux) as gdb:
        said = gdb("optprobe recover")
        views = {view["number"]: view for view in gdb.probes()}
        assert gdb("optprobe check") == "The guest's memory holds what we wrote.\n"
    seen = events()[STATISTICS] - before
    # What another load of it has done before a GDB came is the event's alone.
    assert 6 <= views[1]["hits"] <= seen and (views[1]["hits"] == seen or LOAD in meanwhile)
    assert views[1]["state"] == ("gone" if meanwhile == UNLOAD else "armed")
    # Loaded again, it may lie where it did: then the program means what it meant.
    assert (2 in views) == (meanwhile == "true") or LOAD in meanwhile, said
    assert views[3]["state"] == "armed" and views[4]["state"] == "pending"


def test_the_first_call_stops_where_a_condition_or_a_handler_says_so(linux: Guest) -> None:
    """What stops the guest is set as the module is loaded, too."""
    with Console(linux) as gdb:
        handler = "lambda hit: print('handled', hit.regs['rdi'] > 0)"
        gdb(f"python from gdb_optprobe import kprobe; kprobe('dummy:dummy_setup', pending=True, pre_handler={handler})")
        gdb("optprobe add dummy:dummy_dev_init -pending if $arg1 != 0 do stop")
        gdb("optprobe add dummy:dummy_dev_uninit -pending -tier boosted")
        gdb.send("continue")
        loading = linux.spawn(LOAD)
        said = gdb.until(r"hit optprobe 2[^$]*\(gdb\) $")
        assert "handled True" in said
        assert [(view["hits"], view["tier"]) for view in gdb.probes()] == [
            (1, "emulated"),
            (1, "optimized"),
            (0, "boosted"),
        ]
        assert "register_netdevice" in gdb("bt")
        assert "register_netdevice" in gdb("finish")
        gdb.send("continue")
        loading.wait(20)
        linux.check(UNLOAD)
        gdb.interrupt()
        assert [(view["hits"], view["state"]) for view in gdb.probes()] == [(1, "gone")] * 3


def test_backtraces_go_through_modules(linux: Guest) -> None:
    linux.check("insmod /lib/modules/brd.ko rd_nr=1")
    with Console(linux) as gdb:
        gdb("optprobe add brd_rw_page do stack")
        gdb("optprobe add page_endio do stack, stop")
        gdb.send("continue")
        reading = linux.spawn("dd if=/dev/ram0 of=/dev/null bs=4k count=1")
        gdb.until(r"hit optprobe 2[^$]*\(gdb\) $")
        frames = gdb("bt").splitlines()
        report = gdb("optprobe report")
        assert "bdev_read_page" in (gdb("finish"), gdb("bt"))[1].splitlines()[1]
        assert "bdev_read_page" in (gdb("finish"), gdb("bt"))[1].splitlines()[0]
        gdb("optprobe delete 2")
        gdb.send("continue")
        reading.wait(20)
        gdb.interrupt()
    linux.check("rmmod brd")
    entered, called = (line.split(": ", 1)[1] for line in report.splitlines() if " / " in line)
    assert re.match(r"brd:brd_rw_page / bdev_read_page\+", entered), report
    assert re.match(r"page_endio / brd:brd_rw_page\+\w+ / bdev_read_page\+", called), report
    assert [frame.split(" in ")[-1].split()[0] for frame in frames[1:3]] == ["??", "bdev_read_page"], frames
    assert "ksys_read" in "".join(frames), frames


def test_what_is_in_no_module_is_refused(linux: Guest) -> None:
    refused = {
        "*0xffffffffc0000000": "is in memory for modules",
        "*0xffffffffc0000000 -pending": "is in memory for modules",
        "nothing:at_all": "no module called nothing is loaded",
        "nothing_* -pending": "no function matches",
        "-glob 'nothing_*,vfs_*'": "leave the quotes out",
    }
    with Console(linux) as gdb:
        for line, why in refused.items():
            said = without_progress(gdb(f"optprobe add {line}"))
            assert said.startswith("optprobe: ") and why in said
