"""Branches over several instructions come and go hundreds of times in code that every timer tick and every switch runs.

First in the softirqs' functions under timers that fire all the time, then in the scheduler with idle vCPUs. Each
round takes other addresses, so that each is a wait of its own for everybody to be outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from tests.booted.batch import Workload, batch, keep
from tests.booted.conftest import FULL, PARALLEL, Boot
from tests.booted.test_hot_functions import HELPERS, left, say, tell

SOFTIRQS: tuple[str, ...] = ("handle_softirqs", "run_timer_softirq", "__run_timers", "call_timer_fn", "rcu_core")
SOFTIRQS += ("net_rx_action", "run_rebalance_domains", "rebalance_domains", "__hrtimer_run_queues")
SCHEDULER = ("__schedule", "pick_next_task_fair", "update_curr")
ROUNDS = 200 if FULL else 3
EACH = 16
APART = 16
SEED = 20260

def background(name: str, command: str) -> str:
    """A part of a command line: `command` again and again, while the file /tmp/`name` is there."""
    return f"(while [ -e /tmp/{name} ]; do {command}; done) > /dev/null 2>&1 &"


SLEEPERS = " ".join(background("timers", f"usleep {period}") for period in (400, 500, 600, 700))
LOAD = Workload(f"touch /tmp/timers; {SLEEPERS} {background('timers', 'ping -q -c 20 -i 0.01 127.0.0.1')}")
NEARLY_IDLE = Workload(f"rm /tmp/timers; sleep 0.5; touch /tmp/pulse; {background('pulse', 'usleep 30000')}")
QUIET = Workload("rm /tmp/pulse; sleep 0.2")


def chosen(random: Random, addresses: Sequence[int]) -> list[int]:
    """Some of `addresses`, no two of which a branch could cover at once."""
    found: list[int] = []
    for address in random.sample(addresses, len(addresses)):
        if all(abs(address - other) >= APART for other in found):
            found.append(address)
        if len(found) == EACH:
            break
    return found


def one_round(name: str, addresses: Sequence[int]) -> Iterator[str]:
    yield from (f"python gdb.execute('optprobe add *{address:#x}', to_string=True)" for address in addresses)
    yield "optprobe run -for 0.05"
    yield "optprobe commit -timeout 30"
    yield "optprobe run -for 0.1"
    yield keep(name, "optprobe list")
    yield "optprobe check"
    yield "optprobe delete"
    yield "optprobe run -for 0.02"


@pytest.mark.parametrize("append", ["", "preempt=full"] if FULL else ["preempt=full"])
def test_branches_come_and_go(boot: Boot, tmp_path: Path, capsys: pytest.CaptureFixture[str], append: str) -> None:
    guest = boot(append=append, extra=PARALLEL)
    text = tmp_path / "text"
    names = " ".join(SOFTIRQS + SCHEDULER)
    code_of = say("code", f"code-of optimized {names}")
    first = batch(guest, [f"source {HELPERS}", "stop-idle", f"keep-text {text}", code_of])
    assert first.status == 0, first.output
    code = first.json("code")
    softirqs = [address for name in SOFTIRQS for address in code[name]["several"]]
    scheduler = [address for name in SCHEDULER for address in code[name]["several"]]
    random = Random(SEED)
    script: list[str | Workload] = [LOAD]
    for number in range(ROUNDS):
        script += one_round(f"timers {number}", chosen(random, softirqs))
    script += [NEARLY_IDLE]
    for number in range(ROUNDS):
        script += one_round(f"idle {number}", chosen(random, scheduler))
    script += [QUIET]
    finished = batch(guest, script, timeout=3000 if FULL else 200)
    assert finished.status == 0, finished.output
    for kind in ("timers", "idle"):
        rounds = [finished.json(f"{kind} {number}") for number in range(ROUNDS)]
        tiers = Counter(probe["tier"] for probes in rounds for probe in probes)
        hits = [sum(probe["hits"] for probe in probes) for probes in rounds]
        tell(capsys, f"\n{append or 'default'}, {kind}: {ROUNDS} rounds, {tiers.total()} branches, {sum(hits):,} hits")
        assert tiers == {"optimized": EACH * ROUNDS}
        assert min(hits) > 0
    assert left(guest, text) == []
    assert guest.problems() == []
