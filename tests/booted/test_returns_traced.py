"""Return probes beside the guest's own tracers of the same functions, which come and go in every order.

One thread for all vCPUs, in the full form too: QEMU 7.2 with a thread for each hangs where function_graph is switched
on and off, without us as with us (`OPTPROBE_FULL=1 -k control`; see conftest.PARALLEL).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from qemu.channel import ChannelError
from qemu.guest import Guest, Options
from tests.booted.batch import Finished, Workload, batch, keep
from tests.booted.conftest import FULL, running
from tests.booted.test_exact import TRACING
from tests.booted.test_returns import TRIGGER, untrace
from tests.booted.test_returns import theirs as their_events

ROUNDS = 25
READS = 50
SINGLE = ("-accel", "tcg,thread=single")
PARALLEL = ("-accel", "tcg,thread=multi")
FUNCTIONS = ("vfs_read", "hrtimer_nanosleep")
# It sleeps in a function that is probed and traced while one or the other comes or goes.
SLEEPER = "sleep 0.4 </dev/null >/dev/null 2>&1 &"
DD = Workload(f"{SLEEPER} dd if=/dev/zero of=/dev/null bs=7 count={READS} 2>/dev/null")
OURS = (
    'optprobe add vfs_read -return if $comm == "dd" do count',
    "optprobe add vfs_read",
    "optprobe add hrtimer_nanosleep -return",
    "optprobe commit",
)


@dataclass(frozen=True)
class Tracer:
    """How one of the guest's own is switched on and off, and prints how many calls of dd's it has seen since.

    ready, done: before all rounds, when nothing is probed, and after them.
    """

    on: Workload
    off: Workload
    count: Workload
    ready: str = "true"
    done: str = "true"


def switch(command: str, more: str = "") -> Workload:
    return Workload(f"{SLEEPER} cd {TRACING}; {command}; {more}")


TRACERS = {
    "kretprobe": Tracer(
        switch(their_events(*FUNCTIONS).command),
        switch(
            f"for e in r0 r1; do echo '!{TRIGGER}' > events/kprobes/$e/trigger; done",
            "echo 0 > events/kprobes/enable; echo > kprobe_events",
        ),
        switch("sed -n 's/ *Hits: //p' events/kprobes/r0/hist"),
    ),
    "function_graph": Tracer(
        switch("echo function_graph > current_tracer; echo funcgraph-proc > trace_options; echo > trace"),
        switch("echo nofuncgraph-proc > trace_options; echo nop > current_tracer"),
        # Reading the trace calls what is traced.
        switch("echo 0 > tracing_on; grep -c ' dd-.* vfs_read()' trace; echo 1 > tracing_on"),
        # With a probe of ours there the filter does not take the name.
        "; ".join(f"echo {name} >> set_ftrace_filter" for name in FUNCTIONS),
        "echo > set_ftrace_filter",
    ),
}
"""The guest's own, on the functions that we probe."""


@pytest.fixture(params=["linux", "ppc_guest"])
def traced(request: pytest.FixtureRequest) -> Iterator[Guest]:
    """The session's guest, or one that runs its vCPUs in one thread; what was switched on in its tracer is off then."""
    if not FULL:
        guest: Guest = request.getfixturevalue(request.param)
        yield guest
        untrace(guest)
        return
    with Guest.start(Options(arch="x86_64" if request.param == "linux" else "ppc64le", extra=SINGLE)) as guest:
        running.append(guest)
        yield guest
        running.remove(guest)
        assert guest.problems() == []


@pytest.mark.parametrize("tracer", TRACERS.values(), ids=TRACERS)
def test_beside_a_tracer_in_every_order(traced: Guest, tracer: Tracer) -> None:
    """Ours sees every call, whoever came first and whoever goes first, and every call returns where it should.

    A tracer that was there first sees every call too. One that comes later does so on ppc64le, where our branch is not
    at its site; on x86-64 it sees those of this function when it is switched on without us there.
    """
    traced.check(f"cd {TRACING}; {tracer.ready}")
    orders = [*itertools.product((True, False), repeat=2)] * ROUNDS if FULL else [(True, False), (False, True)]
    script = [step for number, order in enumerate(orders) for step in one_round(tracer, number, *order)]
    script += [Workload("sleep 0.5"), "optprobe commit", "optprobe check", keep("end", "optprobe list")]
    finished = batch(traced, script, timeout=60 + 30 * len(orders))
    traced.check(f"cd {TRACING}; {tracer.done}")
    assert finished.status == 0, finished.output
    assert "holds what we wrote" in finished.output and finished.json("end") == []
    told = "a tracer of the guest's own is running and does not see hrtimer_nanosleep, vfs_read: it will once"
    goes_later = sum(ours_first and not ours_last for ours_first, ours_last in orders)
    passed_over = traced.options.arch == "x86_64"
    assert finished.output.count(told) == goes_later * passed_over
    seen = iter([int(text) for text in finished.workloads if text.strip().isdigit()])
    for number, (ours_first, ours_last) in enumerate(orders):
        hits = READS if not ours_first else 2 * READS
        theirs = 3 * READS - hits if not (ours_first and passed_over) else 0
        assert ours(finished, f"both {number}") == hits
        assert next(seen) == theirs, f"round {number}"
        if ours_last:
            assert ours(finished, f"left {number}") == hits + READS
        else:
            assert next(seen) == (theirs + READS if theirs else 0), f"round {number}"
    assert list(seen) == []


def one_round(tracer: Tracer, number: int, ours_first: bool, ours_last: bool) -> Iterator[str | Workload]:
    """The other one comes second, or goes first."""
    yield from [*OURS, DD, tracer.on] if ours_first else [tracer.on, DD, *OURS]
    yield from [DD, tracer.count, keep(f"both {number}", "optprobe list")]
    if ours_last:
        yield from [tracer.off, DD, keep(f"left {number}", "optprobe list"), "optprobe delete"]
    else:
        yield from ["optprobe delete", DD, tracer.count, tracer.off]


def ours(finished: Finished, name: str) -> int:
    """How many returns of dd's our probe has counted; every call is accounted for."""
    returned, entered, slept = (probe for probe in finished.json(name) if probe["state"] != "deleted")
    for probe in returned, slept:
        calls = probe["calls"]
        assert (probe["tier"], calls["missed"], calls["dropped"]) == ("optimized", 0, 0)
        assert calls["entries"] == calls["returns"] + calls["active"]
    assert returned["calls"]["entries"] == entered["hits"]
    return int(returned["hits"])


def test_a_tracer_that_still_runs_when_we_leave(linux: Guest) -> None:
    """It goes on passing over our site, which GDB says; a probe there that comes and goes without it gives it back."""
    takes_the_name = f"cd {TRACING}; echo vfs_read > set_ftrace_filter"
    linux.check(f"cd {TRACING}; echo ksys_read > set_ftrace_filter")
    left = batch(linux, ["optprobe add vfs_read -return", Workload(f"echo function > {TRACING}/current_tracer"), DD])
    assert left.output.count("running and does not see vfs_read: it will once it is switched on anew") == 1
    linux.check(f"echo nop > {TRACING}/current_tracer")
    assert linux.run(takes_the_name)[0] != 0
    after = batch(linux, ["optprobe add vfs_read", "optprobe delete", "optprobe check"])
    assert left.status == after.status == 0, after.output
    assert "does not see" not in after.output
    linux.check(f"{takes_the_name}; grep -q vfs_read set_ftrace_filter; echo > set_ftrace_filter")


CONTROL_ROUNDS = 40
BUSY = "while :; do dd if=/dev/zero of=/dev/null bs=7 count=50 2>/dev/null; done"
SWITCH = f"cd {TRACING}; echo function_graph > current_tracer; echo nop > current_tracer"


@pytest.mark.skipif(not FULL, reason="a control of QEMU, in the full form")
@pytest.mark.parametrize("threads", [SINGLE, PARALLEL], ids=["single", "multi"])
def test_the_control_without_us(threads: tuple[str, str]) -> None:
    """function_graph on and off, no debugger: whether that guest hangs is QEMU's affair, and depends on its threads."""
    with Guest.start(Options(extra=threads)) as guest:
        guest.check(f"cd {TRACING}; echo vfs_read > set_ftrace_filter; ({BUSY}) >/dev/null 2>&1 </dev/null &")
        done = 0
        try:
            while done < CONTROL_ROUNDS:
                guest.check(SWITCH, timeout=20)
                done += 1
        except ChannelError:
            assert threads is PARALLEL, guest.log()[-2000:]
            print(f"a thread for each vCPU: hung after {done} rounds")
        else:
            print(f"{' '.join(threads)}: {done} rounds")
