"""Return probes: every call is seen to return, with its value, beside the guest's own kretprobe events."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from qemu.guest import Guest
from tests.booted.batch import Finished, Workload, batch, keep
from tests.booted.conftest import FULL, Boot
from tests.booted.test_exact import TRACING, quiet

READS = 12_500 if FULL else 1500
PROCESSES = 8
FUNCTIONS = ("__x64_sys_read", "ksys_read", "vfs_read")
TRIGGER = 'hist:keys=common_pid:vals=ret if comm == "dd"'
_ROW = re.compile(r"hitcount:\s*(\d+)\s+ret:\s*(\d+)")


@pytest.fixture
def traced(linux: Guest) -> Iterator[Guest]:
    """The session's guest; what a test switched on in its tracer is off afterwards."""
    yield linux
    untrace(linux)


def untrace(linux: Guest) -> None:
    # A trigger keeps its event from being removed.
    linux.check(f"for f in {TRACING}/events/kprobes/*/trigger; do [ -e $f ] && echo '!{TRIGGER}' > $f; done; true")
    quiet(linux)
    assert not linux.check(f"cat {TRACING}/kprobe_events").strip()


def many_dd(count: int, processes: int = PROCESSES) -> Workload:
    one = f"dd if=/dev/zero of=/dev/null bs=7 count={count} 2>/dev/null"
    return Workload(f"for n in $(seq {processes}); do {one} & done; wait")


def theirs(*functions: str) -> Workload:
    """The guest's own kretprobe events, with what they return summed up, of dd alone."""
    lines = [f"cd {TRACING}"]
    for number, function in enumerate(functions):
        lines += [
            f"echo 'r:r{number} {function} ret=$retval' >> kprobe_events",
            f"echo '{TRIGGER}' > events/kprobes/r{number}/trigger",
            f"echo 1 > events/kprobes/r{number}/enable",
        ]
    return Workload("; ".join(lines))


BESIDE = {"aarch64": "vfs_read"}
"""Where the guest's own is beside ours on `read_zero`, which this calls: its trap has an entry for itself."""


def theirs_of_read_zero(guest: Guest) -> Workload:
    return theirs(BESIDE.get(guest.options.arch, "read_zero"))


def read_theirs(number: int) -> Workload:
    return Workload(f"cat {TRACING}/events/kprobes/r{number}/hist")


def summed(text: str) -> tuple[int, int]:
    """Returns and the sum of their values, from the text of a hist trigger."""
    rows = [(int(hits), int(total)) for hits, total in _ROW.findall(text)]
    return sum(hits for hits, _ in rows), sum(total for _, total in rows) % (1 << 64)


def ours(finished: Finished, number: int) -> tuple[int, int]:
    (probe,) = [each for each in finished.json("list") if each["number"] == number]
    assert (probe["missed"], probe["dropped"]) == (0, 0)
    return probe["hits"], finished.json(f"sum {number}")


def total_of(number: int) -> str:
    """A line that prints what `sum` of probe `number` has, for `Finished.json`."""
    return (
        "python from gdb_optprobe.debugger.attach import current_session; "
        f"print('@@sum {number}'); "
        f"print(current_session().reports([{number}])[0].objects[0].rows[0].words[0])"
    )


def exact(guest: Guest, functions: Sequence[str], beside: Sequence[str] = ()) -> None:
    """Return probes on all of these, of what `dd` calls, see what the guest's own see, to the last call and value.

    beside: where the guest's own are, of functions that call these and return the same; where these are by default.
    """
    numbers = range(1, len(functions) + 1)
    script: list[str | Workload] = [theirs(*(beside or functions))]
    script += [f'optprobe add {function} -return if $comm == "dd" do count, sum($retval)' for function in functions]
    script += ["optprobe commit", many_dd(READS)]
    script += [keep("list", "optprobe list"), *(total_of(number) for number in numbers)]
    script += [read_theirs(number - 1) for number in numbers]
    script += ["optprobe check", "optprobe delete", "optprobe check"]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    assert "holds what we wrote" in finished.output
    probes: list[dict[str, Any]] = finished.json("list")
    assert {probe["tier"] for probe in probes} == {"optimized"}, finished.output
    for number, text in zip(numbers, finished.workloads[-len(functions) :], strict=True):
        assert ours(finished, number) == summed(text)
        assert ours(finished, number)[0] >= PROCESSES * READS


def test_eight_processes_and_tail_calls(traced: Guest) -> None:
    """`__x64_sys_read` ends in a jump to `ksys_read`, which calls `vfs_read`: all exact, the guest's own beside."""
    exact(traced, FUNCTIONS)


def rows(number: int) -> str:
    """A line that prints the first table of probe `number`, for `Finished.json`."""
    return (
        "python from gdb_optprobe.debugger.attach import current_session; from json import dumps; "
        f"print('@@rows {number}'); "
        f"_r = next(o for o in current_session().reports([{number}])[0].objects if o.rows and o.rows[0].key); "
        "print(dumps({row.key[0]: row.words[0] for row in _r.rows}))"
    )


def keeps_of_each_call(guest: Guest) -> None:
    """Arguments, time and what is saved are those of the same call, whoever else calls; a second probe has its own."""
    mine = "$saved.who == $pid && $saved.size == $retval && $arg3 == $retval && $elapsed > 0 && $elapsed < 60000000000"
    kept = "save size = $arg3, save who = $pid"
    script: list[str | Workload] = [
        f'optprobe add vfs_read -return entry if $comm == "dd" && $arg3 < 100 do {kept} if {mine} '
        "do count by $saved.size, latency",
        'optprobe add vfs_read -return if $comm == "dd" && $arg3 < 100 do count by $retval',
        "optprobe commit",
        Workload(
            f"for n in $(seq {PROCESSES}); do dd if=/dev/zero of=/dev/null bs=$n count={READS} 2>/dev/null & done; wait"
        ),
        rows(1),
        rows(2),
        keep("list", "optprobe list"),
        "optprobe check",
    ]
    finished = batch(guest, script, timeout=120)
    assert finished.status == 0, finished.output
    assert finished.json("rows 1") == finished.json("rows 2") == {str(n): READS for n in range(1, PROCESSES + 1)}
    for probe in finished.json("list"):
        assert (probe["tier"], probe["missed"], probe["faults"]) == ("optimized", 0, 0)


def test_what_an_entry_keeps(traced: Guest) -> None:
    keeps_of_each_call(traced)


def every_call_is_accounted_for(guest: Guest) -> None:
    """Where there is no room calls are missed, and counted; whatever they find taken, others return as they should."""
    script: list[str | Workload] = [
        "optprobe add ksys_read",
        "optprobe add ksys_read -return -maxactive 2",
        "optprobe add vfs_read -return -maxactive 1 do hist($elapsed)",
        # Its read takes the only slot for as long as it sleeps.
        Workload("(sleep 1000 | cat) </dev/null >/dev/null 2>&1 & sleep 0.3"),
        many_dd(READS, 4),
        keep("list", "optprobe list"),
        "optprobe check",
        Workload("killall sleep; sleep 0.1"),
    ]
    finished = batch(guest, script, timeout=120)
    assert finished.status == 0, finished.output
    entered, bounded, one = finished.json("list")
    assert entered["hits"] >= 4 * READS
    calls = bounded["calls"]
    assert calls["entries"] == entered["hits"]
    assert calls["entries"] == calls["returns"] + calls["active"] + calls["missed"] + calls["dropped"]
    assert (calls["returns"], calls["missed"]) == (bounded["hits"], bounded["missed"])
    assert bounded["active"] <= 2 and one["active"] <= 1 and one["missed"]


def test_every_call_is_accounted_for(traced: Guest) -> None:
    every_call_is_accounted_for(traced)


SLEEPERS = 50
STATE = (
    "python from gdb_optprobe.debugger.attach import current_session; "
    "from json import dumps; _o = current_session().optimizer; _a = _o.arena; "
    "print('@@{0}'); "
    "_k = _o.rethooks; _all = [_k.known, _k.retired_trampolines, _a.dirty()]; "
    "print(dumps([*map(len, _all), _a.code.used, _a.data.used]))"
)


def emptied(guest: Guest) -> None:
    """Calls that an earlier test left under way have returned, and their memory is free."""
    script = ["optprobe add vfs_read", "optprobe delete", "optprobe commit", STATE.format("before")]
    states = (batch(guest, script).json("before") for _ in range(10))
    assert any(state == [0, 0, 0, 0, 0] for state in states)


def sleepers(count: int = SLEEPERS) -> Workload:
    return Workload(f"for n in $(seq {count}); do sleep 1000 </dev/null >/dev/null 2>&1 & done; sleep 0.3")


def sleeping(probe: dict[str, Any]) -> int:
    """How many threads called `sleep` are in calls that are under way."""
    out = probe["calls"]["out"]
    assert {one["who"] for one in out} == {f"thread {one['pid']} ({one['comm']})" for one in out}
    return len({one["pid"] for one in out if one["comm"] == "sleep"})


KILLED = 20


def test_calls_that_never_return(traced: Guest) -> None:
    """Who is killed ends in `get_signal`: its call is dropped once its stack is gone, and memory is as it was."""
    emptied(traced)
    script: list[str | Workload] = [
        "optprobe add get_signal -return",
        Workload(f"for n in $(seq {KILLED}); do sleep 1000 & kill -9 $!; done 2>/dev/null; wait; sleep 0.3"),
        keep("list", "optprobe list"),
        "optprobe delete",
        "optprobe commit",
        STATE.format("gone"),
    ]
    finished = batch(traced, script, timeout=60)
    assert finished.status == 0, finished.output
    (probe,) = finished.json("list")
    calls = probe["calls"]
    assert (calls["dropped"], calls["active"], calls["missed"]) == (KILLED, 0, 0)
    assert calls["entries"] == KILLED + calls["returns"]
    assert finished.json("gone") == [0, 0, 0, 0, 0]


@contextmanager
def busy(guest: Guest, command: str) -> Iterator[None]:
    """The guest runs it again and again meanwhile."""
    loop = f"until [ -e /tmp/over ]; do {command}; done; rm /tmp/over"
    guest.check(f"rm -f /tmp/over; ({loop}) </dev/null >/dev/null 2>&1 &")
    try:
        yield
    finally:
        guest.check("touch /tmp/over; while [ -e /tmp/over ]; do sleep 0.02; done")


EVERYWHERE = (
    "vfs_read ksys_read __x64_sys_read pipe_read do_wait kernel_clone copy_process handle_mm_fault mutex_lock dput "
    "schedule_timeout try_to_wake_up scheduler_tick hrtimer_interrupt release_task kmem_cache_free process_one_work"
)
STOPS = 1000 if FULL else 15
LOOKS = (
    "python from gdb_optprobe.debugger.attach import current_session; from random import Random; "
    "from json import dumps; _s, _r = current_session(), Random(6); _o = _s.optimizer; "
    "_k = _o.rethooks; "
    f"_a = [_s.run(0.05 * _r.random()) and len(_k.active_calls(_s.target.guest, _o.arena)) for _ in range({STOPS})]; "
    "print('@@looks'); print(dumps(_a))"
)


def nobody_is_dropped(guest: Guest, functions: str) -> None:
    """Calls that all return, of threads that come and go, in interrupts and at their end: none is taken for dead."""
    script: list[str | Workload] = [f"optprobe add {function} -return" for function in functions.split()]
    script += [LOOKS, keep("list", "optprobe list"), "optprobe check"]
    with busy(guest, "dd if=/dev/zero bs=64 count=20 2>/dev/null | cat >/dev/null"):
        finished = batch(guest, script, timeout=60 + STOPS)
    assert finished.status == 0, finished.output
    assert sum(finished.json("looks")) > STOPS, "calls were under way"
    for probe in finished.json("list"):
        calls = probe["calls"]
        assert (calls["dropped"], calls["missed"]) == (0, 0), probe
        assert calls["entries"] == calls["returns"] + calls["active"]
    assert not guest.problems()


def test_a_returning_thread_is_not_dropped(fresh: Boot) -> None:
    """In a guest of its own: a thread of the kernel's that sleeps for long is still in a call when GDB leaves."""
    nobody_is_dropped(fresh(), EVERYWHERE)


def test_probes_are_removed_while_calls_are_under_way(traced: Guest) -> None:
    """The trampoline and the table stay until the last of them has returned; a second probe does not disturb them."""
    emptied(traced)
    script: list[str | Workload] = [
        "optprobe add hrtimer_nanosleep -return",
        sleepers(),
        keep("list", "optprobe list"),
        "optprobe add hrtimer_nanosleep -return do hist($retval)",
        "optprobe delete",
        STATE.format("deleted"),
        keep("left", "optprobe list"),
        "optprobe list",
        "optprobe commit",
        Workload("dd if=/dev/zero of=/dev/null bs=1 count=300 2>/dev/null"),
        STATE.format("waiting"),
        Workload("killall sleep; sleep 0.2; sleep 0.01"),
        "optprobe commit",
        STATE.format("gone"),
        "optprobe add vfs_read -return",
        Workload("dd if=/dev/zero of=/dev/null bs=1 count=300 2>/dev/null"),
    ]
    finished = batch(traced, script)
    assert finished.status == 0, finished.output
    (probe,) = finished.json("list")
    assert (probe["active"], probe["missed"]) == (SLEEPERS, 0)
    assert sleeping(probe) == SLEEPERS
    (left,) = finished.json("left")
    assert (left["number"], left["state"], left["symbol"]) == (0, "deleted", "hrtimer_nanosleep")
    assert (left["active"], sleeping(left)) == (SLEEPERS, SLEEPERS)
    assert f"{SLEEPERS} calls under way: sleep (" in finished.output
    assert f"hrtimer_nanosleep: {SLEEPERS} calls are under way that deleted probes saw entered" in finished.output
    for name in ("deleted", "waiting"):
        points, left, dirty, code, data = finished.json(name)
        assert points == 1 and left and dirty and code and data, finished.output
    assert finished.json("waiting")[1:3] == [1, 1], "of two trampolines the one that calls return to"
    assert finished.json("gone") == [0, 0, 0, 0, 0]


def test_from_python(traced: Guest) -> None:
    """The same in Python."""
    script: list[str | Workload] = [
        "python from gdb_optprobe import kretprobe; p = kretprobe('vfs_read', when='$retval == $saved.size', "
        "do='hist($elapsed), max($saved.size)', entry_when='$comm == \"dd\" && count == 77', save={'size': 'count'})",
        Workload("dd if=/dev/zero of=/dev/null bs=77 count=300 2>/dev/null"),
        "python print('@@hits'); print(p.hits)",
    ]
    finished = batch(traced, script, timeout=60)
    assert finished.status == 0, finished.output
    assert finished.json("hits") == 300


def test_clearing_starts_anew(traced: Guest) -> None:
    dd = Workload("dd if=/dev/zero of=/dev/null bs=77 count=300 2>/dev/null")
    script: list[str | Workload] = [
        'optprobe add vfs_read -return entry if $comm == "dd" && count == 77 do save n = count do count by $saved.n',
        dd,
        "optprobe report -clear",
        dd,
        rows(1),
    ]
    finished = batch(traced, script, timeout=60)
    assert finished.status == 0, finished.output
    assert finished.json("rows 1") == {"77": 300}


def test_the_table_grows_with_the_calls_under_way(traced: Guest) -> None:
    """At stops that occur anyway; calls that were entered before return through the old one, and count."""
    emptied(traced)
    script: list[str | Workload] = [
        "python from gdb_optprobe.probes import rethook; rethook.SLOTS = 16",
        "optprobe add hrtimer_nanosleep -return do hist($elapsed)",
        "python from gdb_optprobe.debugger.attach import current_session as s; s().optimizer.throttle.share = 1",
        *(sleepers(count) for count in (14, 40, 60)),
        keep("list", "optprobe list"),
        Workload("killall sleep; sleep 0.3"),
        "optprobe commit",
        keep("gone", "optprobe list"),
        STATE.format("state"),
    ]
    finished = batch(traced, script, timeout=120)
    assert finished.status == 0, finished.output
    (probe,), (after,) = finished.json("list"), finished.json("gone")
    assert (probe["calls"]["active"], probe["missed"]) == (14 + 40 + 60, 0)
    assert (after["calls"]["active"], after["calls"]["dropped"]) == (0, 0)
    assert after["calls"]["entries"] == after["calls"]["returns"] == after["hits"] >= 14 + 40 + 60
    assert finished.json("state")[:2] == [1, 0], "one table, and no trampoline that is left"


def test_quit_while_calls_are_under_way(traced: Guest) -> None:
    """A GDB leaves, another one comes and uses what is left of the memory; then the calls return."""
    first = batch(traced, ["optprobe add hrtimer_nanosleep -return", sleepers(), "optprobe list"])
    assert first.status == 0, first.output
    dd = Workload("dd if=/dev/zero of=/dev/null bs=1 count=300 2>/dev/null")
    second = batch(traced, ["optprobe add vfs_read -return", dd, "optprobe check", keep("list", "optprobe list")])
    assert second.status == 0, second.output
    assert second.json("list")[0]["hits"] >= 300
    assert traced.check("killall sleep; sleep 0.2; echo fine").strip().endswith("fine")


def test_backtraces_show_where_calls_really_return(traced: Guest) -> None:
    script = [f"optprobe add {function} -return" for function in FUNCTIONS]
    script += [
        "tbreak read_zero",
        "continue",
        "python print('@@bt'); gdb.execute('bt')",
        "finish",
        "finish",
        "python print('@@finished'); gdb.execute('bt')",
        "delete",
        "python from gdb_optprobe.debugger.attach import current_session; "
        "gdb.execute('tbreak *%#x' % current_session().optimizer.rethooks.known[-1].trampoline.detour.address)",
        "continue",
        "python print('@@trampoline'); gdb.execute('bt')",
        "finish",
        "python print('@@behind'); gdb.execute('bt')",
        "optprobe check",
    ]
    with busy(traced, "dd if=/dev/zero of=/dev/null bs=1 count=20; sleep 0.05"):
        finished = batch(traced, script, timeout=60)
    assert finished.status == 0, finished.output

    def frames(name: str) -> list[str]:
        lines = finished.output.split(f"@@{name}\n")[1].splitlines()
        return [found[1] for line in lines if (found := re.match(r"#\d+ .* in (\S+) \(\)", line))]

    assert frames("bt")[:4] == ["read_zero", "vfs_read", "ksys_read", "do_syscall_64"]
    assert frames("finished")[:2] == ["ksys_read", "do_syscall_64"]
    assert frames("trampoline")[1:3] == ["ksys_read", "do_syscall_64"]
    assert frames("behind")[:2] == ["ksys_read", "do_syscall_64"]


def test_functions_that_do_not_return_to_their_caller(traced: Guest) -> None:
    """Each is refused with a reason, and nothing is in the guest."""
    wanted = {
        "do_exit": "do_exit never returns",
        "__switch_to": "__switch_to returns on another stack than its caller's",
        "*(char *)&vfs_read+9": "is not where a function is entered",
        "'do_exit.cold'": "is not where a function is entered",
        "arch_rethook_trampoline": "arch_rethook_trampoline returns on another stack than its caller's",
        "return_to_handler": "return_to_handler has no tracer's site, and nothing shows",
    }
    script: list[str | Workload] = ["set language c", "set optprobe exit-on-error off"]
    script += [
        f"python\ntry:\n    gdb.execute({f'optprobe add {place} -return'!r})\nexcept gdb.error as e: print(e)\nend"
        for place in wanted
    ]
    script.append(keep("list", "optprobe list"))
    finished = batch(traced, script, timeout=60)
    for message in wanted.values():
        assert message in finished.output
    assert "@@list\n[]" in finished.output, finished.output
