"""Tracepoints: counts and fields beside the guest's own histograms, its own users, and GDB killed at every step."""

from __future__ import annotations

import random
import re
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from qemu.guest import Guest
from qemu.kernels import WITH_TRACEPOINTS
from tests.booted.batch import Finished, Workload, batch, keep
from tests.booted.conftest import FULL, Boot
from tests.booted.gdb import Console
from tests.booted.test_bad_input import attempt
from tests.booted.test_exact import TRACING
from tests.booted.test_returns import rows

KILLS = Path(__file__).with_name("lending_kills.py")
EVENT = f"{TRACING}/events/sched/sched_switch"
TRIGGER = 'hist:keys=prev_state if prev_comm == "sleep"'
SLEEPS = 20
WORK = f"for n in $(seq {SLEEPS}); do sleep 0.01; done"
RAW = 'optprobe add rawtracepoint:sched_switch if $comm == "sleep"'
FIELDS = 'optprobe add tracepoint:sched:sched_switch if args->prev_comm == "sleep" do count by args->prev_state'
_ROW = re.compile(r"prev_state:\s*(\d+)\s*\}\s*hitcount:\s*(\d+)")
FUNCTIONS = (
    "python from gdb_optprobe.debugger.attach import current_session; "
    "from gdb_optprobe.guest.linux.event_name import EventName; "
    "_t = current_session().target.guest.tracepoints; "
    '_f = [f for f, _ in _t.functions(_t.find(EventName("", "sched_switch", True)))]; '
    'print("@@functions"); print(sum(_t.kernel.symbols.at(f).offset > 0 for f in _f))'
)
"""A line that prints how many functions are registered on sched_switch that are none of the kernel's own."""


CALLERS = ("x86_64", "aarch64")
"""What calls our functions in a kernel."""


@pytest.fixture(params=["linux", "arm_guest"])
def caller(request: pytest.FixtureRequest) -> Guest:
    """The session's guest of each of them."""
    guest: Guest = request.getfixturevalue(request.param)
    return guest


def by_state(states: Mapping[str, int]) -> dict[str, int]:
    """Hits by state. A thread that has ended is a zombie until its parent, on another CPU, makes it dead: one state."""
    found = Counter[str]()
    for state, hits in states.items():
        found["16 or 32" if state in ("16", "32") else state] += hits
    return dict(found)


def of_trigger(text: str) -> dict[str, int]:
    return by_state({key: int(hits) for key, hits in _ROW.findall(text)})


def gone(guest: Guest) -> None:
    """Nothing of ours is registered, and nothing is left in the guest that a GDB could take over."""
    script = ["set optprobe exit-on-error off", "optprobe list", FUNCTIONS, attempt("optprobe recover -remove")]
    finished = batch(guest, script)
    assert finished.json("functions") == 0, finished.output
    assert "no probes of an earlier GDB are in this guest" in finished.output, finished.output
    assert guest.problems() == []


def counted(finished: Finished) -> dict[str, int]:
    """Hits by state of the probe with fields; the raw one has as many."""
    raw, fields = finished.json("list")
    found: dict[str, int] = finished.json("rows 2")
    assert raw["hits"] == fields["hits"] == sum(found.values()), finished.output
    for probe in (raw, fields):
        told = probe["kind"], probe["tier"], probe["missed"], probe["faults"]
        assert told == ("tracepoint", "optimized", 0, 0), probe
    return by_state(found)


def test_counts_and_fields_are_those_of_the_guests_own_event(caller: Guest) -> None:
    """Its histogram is registered beside ours, first and after; both come and go without the other."""
    script: list[str | Workload] = [Workload(f"echo '{TRIGGER}' > {EVENT}/trigger"), RAW, FIELDS, Workload(WORK)]
    script += [keep("list", "optprobe list"), rows(2), Workload(f"cat {EVENT}/hist"), FUNCTIONS, "optprobe check"]
    script += ["optprobe show 2", "optprobe delete"]
    finished = batch(caller, script)
    assert finished.status == 0, finished.output
    theirs = of_trigger(finished.workloads[-1])
    assert sum(theirs.values()) >= SLEEPS
    assert counted(finished) == theirs, finished.output
    assert finished.json("functions") == 2, "one with fields, and one without"
    assert "holds what we wrote" in finished.output
    again = batch(caller, [Workload(f"cat {EVENT}/hist; echo '!{TRIGGER}' > {EVENT}/trigger")])
    assert again.status == 0, again.output
    gone(caller)


def test_events_of_one_class_share_the_assignment_of_their_fields(caller: Guest) -> None:
    """One function of the kernel's assigns both; it is as it was when the last one has gone. Wildcards are each."""
    add = "optprobe add tracepoint:sch?d:sched_wakeup* do count by args->pid"
    script: list[str | Workload] = [add, Workload(WORK), keep("list", "optprobe list"), "optprobe check"]
    script += ["optprobe delete 1", Workload(WORK), keep("later", "optprobe list"), "optprobe check", "optprobe delete"]
    finished = batch(caller, script)
    assert finished.status == 0 and finished.output.count("holds what we wrote") == 2, finished.output
    found = {probe["location"]: probe["hits"] for probe in finished.json("list")}
    assert [*found] == ["tracepoint:sched:sched_wakeup", "tracepoint:sched:sched_wakeup_new"], finished.output
    assert all(hits >= SLEEPS for hits in found.values()), finished.output
    (later,) = finished.json("later")
    assert later["hits"] >= 2 * SLEEPS, "each sleep is a new process"
    gone(caller)


def test_the_guests_own_event_comes_and_goes_beside_ours(caller: Guest) -> None:
    """The kernel copies its list of functions each time: ours stays on it."""
    switch = f"echo 1 > {EVENT}/enable; {WORK}; echo 0 > {EVENT}/enable; {WORK}; echo > {TRACING}/trace"
    script: list[str | Workload] = [RAW, FIELDS, Workload(WORK), keep("before", "optprobe list"), Workload(switch)]
    script += [keep("list", "optprobe list"), rows(2), FUNCTIONS, "optprobe disable", Workload(WORK)]
    script += [keep("off", "optprobe list"), "optprobe enable", "optprobe delete", "optprobe check"]
    finished = batch(caller, script)
    assert finished.status == 0, finished.output
    before, after, off = (finished.json(name)[0]["hits"] for name in ("before", "list", "off"))
    assert before >= SLEEPS and after >= 3 * before // 2 + SLEEPS and off == after
    counted(finished)
    assert finished.json("functions") == 2
    gone(caller)


def test_dynamic_fields_and_what_is_refused(caller: Guest) -> None:
    refused = ("tracepoint:sched:sched_swich", "tracepoint:block:sched_switch", "tracepoint:block:sched_*",
               "rawtracepoint:*", "tracepoint:sched:sched_switch do count by args->pid",
               "rawtracepoint:sched_switch -return")  # fmt: skip
    script: list[str | Workload] = ["set optprobe exit-on-error off"]
    script += [attempt(f"optprobe add {each}") for each in refused]
    script += [FUNCTIONS, "optprobe add tracepoint:sched:sched_process_exec do count by str(args->filename)"]
    finished = batch(caller, [*script, Workload("/bin/busybox true; /bin/busybox true"), rows(1), "optprobe delete"])
    assert finished.status == 0, finished.output
    assert finished.json("functions") == 0, "what is refused registers nothing"
    for said in ("no tracepoint sched_swich", "is none of block", "matches tracepoint:block:sched_*",
                 "no more than 256", "no field 'pid'", "of functions"):  # fmt: skip
        assert said in finished.output, said
    assert finished.json("rows 1")["/bin/busybox"] == 2, finished.output
    gone(caller)


def moments(method: str) -> list[str]:
    """Every moment at which GDB is killed in a method: see lending_kills.py."""
    writes, runs = {"register": (15, 3), "release_unused": (27, 9)}[method]
    return [*map(str, range(1, writes + 1)), *(f"{number} during" for number in range(1, runs + 1))]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", ["register", "release_unused"])
def test_gdb_is_killed_at_every_step(caller: Guest, method: str) -> None:
    chosen = moments(method) if FULL else random.sample(moments(method), 2)
    for number, moment in enumerate(chosen, random.randrange(3)):
        try:
            die(caller, method, moment)
            take_over(caller, number % 3)
        except BaseException as error:
            error.add_note(f"{method}: killed at {moment}, then taken over in way {number % 3}")
            raise
    gone(caller)


def die(guest: Guest, method: str, moment: str) -> None:
    with Console(guest) as gdb:
        gdb(f"source {KILLS}")
        gdb(f"dies-at {method} {moment}")
        gdb.send(FIELDS)
        if method == "release_unused":
            gdb.until("optimized")
            gdb.send("optprobe delete")
        try:
            gdb.process.wait(60)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"GDB lives: {gdb.transcript[-2000:]}") from None
        assert gdb.process.returncode == -9, gdb.transcript[-2000:]
    time.sleep(0.5)
    guest.check(WORK)


def take_over(guest: Guest, way: int) -> None:
    with Console(guest) as gdb:
        if way < 2:
            gdb("optprobe recover -remove" if way else "optprobe recover")
        if way:
            said = gdb(RAW)
            assert "optimized" in said, said
            gdb.send("continue")
            guest.check(WORK)
            gdb.interrupt()
            assert gdb("optprobe check") == "The guest's memory holds what we wrote.\n"
        gdb("optprobe delete")
        gdb.send("quit")
        said = gdb.rest()
        assert "stay" not in said, said


def test_another_gdb_takes_them_over_and_nothing_is_missed(caller: Guest) -> None:
    """The guest counts on while there is no GDB; what the next one adopts is counted further."""
    with Console(caller) as gdb:
        assert "optimized" in gdb(RAW) and "optimized" in gdb(FIELDS)
        gdb.kill()
    caller.check(WORK)
    script: list[str | Workload] = ["optprobe recover", Workload(WORK), keep("list", "optprobe list"), rows(2)]
    finished = batch(caller, [*script, "optprobe check", "optprobe delete"])
    assert finished.status == 0, finished.output
    assert sum(counted(finished).values()) >= 2 * SLEEPS
    gone(caller)


def test_a_guest_that_comes_to_no_safe_point_is_as_it_was(caller: Guest) -> None:
    script: list[str | Workload] = ["set optprobe exit-on-error off"]
    script += ["python import gdb_optprobe.probes.tracepoint_handlers as _h; _r, _h.REACHING = _h.REACHING, 0"]
    script += [attempt(FIELDS), FUNCTIONS, "optprobe list", "python _h.REACHING = _r", RAW, "optprobe delete"]
    finished = batch(caller, script)
    assert finished.status == 0, finished.output
    assert "no thread of the guest came to where it can call a function" in finished.output
    assert finished.json("functions") == 0 and "No probes." in finished.output
    gone(caller)


WATCHED = "rawtracepoint:watchdog_st*"
WITH_FIELDS = "tracepoint:watchdog:watchdog_st* if args->id == 0 do count by args->err"
OF_GUEST = f"{TRACING}/events/watchdog/enable"
LISTED = "cat /proc/modules"
LOAD = "; ".join(f"insmod /lib/modules/{name}.ko" for name in WITH_TRACEPOINTS)


@pytest.mark.parametrize("arch", CALLERS)
def test_a_module_stays_for_as_long_as_its_tracepoints_are_probed(boot: Boot, arch: str) -> None:
    """Also where GDB was killed. It goes afterwards without a warning of the kernel's, and comes back.

    The fields of its events are what the guest's own trace has.
    """
    guest = boot(arch=arch, modules=WITH_TRACEPOINTS)
    write = "printf V > /dev/watchdog"
    script: list[str | Workload] = ["set optprobe exit-on-error off", Workload(LOAD)]
    script += [f"optprobe add {WATCHED}", f"optprobe add {WITH_FIELDS}"]
    script += [Workload(f"echo 1 > {OF_GUEST}; {write}; {write}; echo 0 > {OF_GUEST}; cat {TRACING}/trace")]
    script += [keep("list", "optprobe list"), rows(3), rows(4), "optprobe delete 3", "optprobe check"]
    script += [Workload(f"{write}; rmmod softdog; rmmod watchdog; {LISTED}"), keep("later", "optprobe list")]
    script += ["optprobe delete", Workload(f"rmmod watchdog; {LISTED}")]
    script += [attempt(f"optprobe add {WATCHED}"), Workload(LOAD)]
    program = "tracepoint:*:watchdog_stop { @[probe, args.id, args.err] = count(); }"
    script += [f"optprobe script -json -guest '{write}' -e '{program}'", "optprobe check"]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    traced, held, gone = finished.workloads[1:4]
    assert "watchdog" in held and "softdog" not in held and gone == "", finished.workloads
    found = {probe["location"]: probe["hits"] for probe in finished.json("list")}
    for number, name in ((3, "watchdog_start"), (4, "watchdog_stop")):
        theirs = Counter(re.findall(rf"{name}: watchdog0 err=(-?\d+)", traced))
        assert finished.json(f"rows {number}") == theirs and theirs["0"] >= 2, finished.output + traced
        assert found[f"rawtracepoint:{name}"] == found[f"tracepoint:watchdog:{name}"] == sum(theirs.values()), found
    later = {probe["location"]: probe["hits"] for probe in finished.json("later")}
    of_class = "tracepoint:watchdog:watchdog_stop"
    assert later[of_class] == found[of_class] + 1, "the other event of the class has gone"
    for said in (f"no tracepoint matches {WATCHED}", f'"{of_class},0,0": 1'):
        assert said in finished.output, said
    with Console(guest) as gdb:
        assert "optimized" in gdb(f"optprobe add {WATCHED}") and "2 optimized" in gdb(f"optprobe add {WITH_FIELDS}")
        gdb.kill()
    assert "watchdog" in guest.run(f"{write}; rmmod softdog; rmmod watchdog; {LISTED}")[1], "ours are registered"
    recovered = batch(guest, ["optprobe recover", keep("list", "optprobe list"), rows(4), "optprobe delete"])
    assert recovered.status == 0, recovered.output
    assert len(recovered.json("list")) == 4 and recovered.json("rows 4") == {"0": 1}, recovered.output
    assert guest.run(f"rmmod watchdog; {LISTED}")[1] == "" and guest.problems() == []


RENAMES = 20_000
CLOCK = "sed -n '3{s/now at //;s/ nsecs//;p;q}' /proc/timer_list"
RENAMING = Workload(f"{CLOCK}; dd if=/dev/zero of=/proc/self/comm bs=1 count={RENAMES} 2>/dev/null; {CLOCK}")
COSTS = "optprobe add rawtracepoint:task_rename", "optprobe add tracepoint:task:task_rename do sum(args->pid)"
MOST = {"x86_64": (25, 120), "aarch64": (60, 220)}
"""What an event more costs with a probe, in instructions, at most."""


@pytest.mark.parametrize("arch", CALLERS)
def test_what_an_event_costs(boot: Boot, arch: str) -> None:
    """Beside the same event with no function registered: a clock that counts instructions tells."""
    guest = boot(arch=arch, icount="shift=0,sleep=off", smp=1, append="mitigations=off", extra=())
    script: list[str | Workload] = [RENAMING, RENAMING]
    for number, add in enumerate(COSTS):
        script += [add, "optprobe commit", RENAMING, RENAMING, keep(f"list {number}", "optprobe list")]
        script += ["optprobe delete"]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    times = [[int(each) for each in text.split()] for text in finished.workloads]
    spent = [min(one[1] - one[0], other[1] - other[0]) for one, other in zip(times[::2], times[1::2], strict=True)]
    for number, (add, most) in enumerate(zip(COSTS, MOST[arch], strict=True)):
        (probe,) = finished.json(f"list {number}")
        assert 2 * RENAMES <= probe["hits"] <= 2 * RENAMES + 50, finished.output
        cost = (spent[number + 1] - spent[0]) / RENAMES
        assert 5 < cost <= most, f"{add}: {cost:.1f} instructions"


def test_a_kernel_that_calls_none_of_ours_says_why(ppc_guest: Guest) -> None:
    script = ["set optprobe exit-on-error off", keep("doctor", "optprobe doctor"),
              keep("refused", "optprobe explain rawtracepoint:sched_switch")]  # fmt: skip
    finished = batch(ppc_guest, script)
    facilities: dict[str, Any] = {each["name"]: each for each in finished.json("doctor")["facilities"]}
    assert facilities["tracepoints"]["code"] == "TRACEPOINTS_MISSING"
    assert "no function can be registered on a tracepoint" in finished.output


@pytest.mark.skipif(not FULL, reason="a row of the matrix has scripts on tracepoints; OPTPROBE_FULL=1")
@pytest.mark.parametrize("arch", CALLERS)
def test_other_kernels(fresh: Boot, arch: str) -> None:
    guest = fresh(arch=arch, suite="trixie")
    guest.check(f"echo '{TRIGGER}' > {EVENT}/trigger")
    script: list[str | Workload] = [RAW, FIELDS, Workload(WORK), keep("list", "optprobe list"), rows(2)]
    finished = batch(guest, [*script, Workload(f"cat {EVENT}/hist"), "optprobe check", "optprobe delete"])
    assert finished.status == 0, finished.output
    assert counted(finished) == of_trigger(finished.workloads[-1])
    guest.check(f"echo '!{TRIGGER}' > {EVENT}/trigger")
    gone(guest)
