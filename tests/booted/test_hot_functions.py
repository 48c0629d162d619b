"""Every instruction of twenty hot functions probed at once: exact counts, no trace left, a guest that goes on working.

Each figure is for all probes of all functions together. Counts are compared at stops where every vCPU is halted, so
that nobody is between two instructions: what must be equal is then equal to the last hit.

What the guest counts itself is read from its memory at those stops, where its kernel's types say where it is. Where
they do not (ppc64le) it prints its counts just outside of what is counted, and once more just inside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qemu.guest import Guest
from tests.booted.batch import MARK, Finished, Workload, batch, keep
from tests.booted.conftest import EVERY_ISA, FULL, PARALLEL, Boot

HELPERS = Path(__file__).with_name("hot_code.py")
EVENTS = Path(__file__).with_name("guest_events.py")
TRACING = "/sys/kernel/tracing"

SOME: tuple[str, ...] = ("vfs_read", "ksys_read", "read_zero", "do_sys_openat2")
SOME += ("handle_softirqs", "run_timer_softirq", "run_rebalance_domains")
REST: tuple[str, ...] = ("vfs_write", "ksys_write", "path_openat", "kmem_cache_alloc", "kmem_cache_free")
REST += ("copy_page_range", "handle_mm_fault", "__schedule", "try_to_wake_up")
REST += ("__do_softirq", "__run_timers", "rcu_core", "net_rx_action")
FUNCTIONS = SOME + REST if FULL else SOME
# What the guest counts itself: a softirq of each vector is one call of its function.
SOFTIRQS = {"run_timer_softirq": "TIMER", "run_rebalance_domains": "SCHED"}
SOFTIRQS |= {"rcu_core": "RCU", "net_rx_action": "NET_RX"}
# The guest's own events on the only callers of a function of ours.
CALLERS = {
    "ksys_read": ("sys_read",),
    "ksys_write": ("sys_write",),
    "do_sys_openat2": ("sys_open", "sys_openat", "sys_openat2", "sys_creat"),
}
SYSTEM_CALL = {"x86_64": "__x64_", "ppc64le": "", "aarch64": "__arm64_"}
OPTIMIZED, HITS, SLOWER = 0.8, 10_000_000 if FULL else 1_000_000, 3.0
BYTES, FILES, FORKS, PINGS = (40_000, 4_000, 400, 1_000) if FULL else (6_000, 400, 40, 100)
ROUNDS = 3 if FULL else 2  # the first of them also translates


def work() -> Workload:
    """Single bytes, files, packets and processes, two at once."""
    loop = "i=0; while [ $i -lt {} ]; do {}; i=$((i+1)); done"
    dd = f"dd if=/dev/zero of=/dev/null bs=1 count={BYTES} 2>/dev/null"
    files = loop.format(FILES, "echo $i > /tmp/hot; read x < /tmp/hot")
    forks = loop.format(FORKS, "/bin/busybox stat / > /dev/null")
    ping = f"ping -q -c {PINGS} -i 0.001 127.0.0.1 > /dev/null"
    return Workload(f"({dd}; {files}; {ping}) & ({dd}; {forks}) & wait", 600)


def timed(guest: Guest, name: str) -> list[str | Workload]:
    """The work, some times, and what the cheapest of them took, in seconds of QEMU's processor time.

    Processor time, because it is the same whatever else the machine does; guest and host have no other work then.
    """
    read = f"python seconds.append(cpu_seconds([{guest.pid}]))"
    script: list[str | Workload] = ["python from qemu.processes import cpu_seconds; seconds = []", read]
    for _ in range(ROUNDS):
        script += [work(), read]
    return [*script, f'python print("{MARK}{name}"); print(min(b - a for a, b in zip(seconds, seconds[1:])))']


SNAPSHOT = f"echo {MARK}; cat /proc/softirqs {TRACING}/kprobe_profile"


def counting(arch: str) -> list[str | Workload]:
    """The work from an idle guest to an idle guest, with all counts of ours and of the guest's own."""
    clear = "python gdb.execute('optprobe report -clear', to_string=True)"
    if arch == "x86_64":
        before = [say("softirqs before", "softirqs-served"), say("events before", "guest-event-hits")]
        after = [say("softirqs", "softirqs-served"), say("events", "guest-event-hits")]
        return ["stop-idle", clear, *before, work(), "stop-idle", keep("list", "optprobe list"), *after]
    inside = Workload(f"{SNAPSHOT}; {work().command}; {SNAPSHOT}", work().timeout)
    outside = Workload(SNAPSHOT)
    return [outside, "stop-idle", clear, inside, "stop-idle", keep("list", "optprobe list"), outside]


def say(name: str, command: str) -> str:
    """A line that runs a command of the helpers', whose output is JSON."""
    return f'python print("{MARK}{name}"); gdb.execute("{command}")'


@dataclass(frozen=True)
class Between:
    """How often at least and at most, as the guest says."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least:,}" if self.least == self.most else f"{self.least:,} to {self.most:,}"


@dataclass(frozen=True)
class Seen:
    """What one guest's run gave: code by function, counts by address, the guest's own counts, processor time."""

    code: Mapping[str, Any]
    probes: Sequence[Mapping[str, Any]]
    softirqs: Mapping[str, Between]
    events: Mapping[str, Between]
    unprobed: float
    probed: float
    adding: Mapping[str, float]
    tier: str

    @property
    def hits(self) -> dict[int, int]:
        return {int(probe["address"], 16): probe["hits"] for probe in self.probes}

    @property
    def accepted(self) -> list[int]:
        return [address for code in self.code.values() for address in code["accepted"]]

    @property
    def reached(self) -> list[int]:
        """Probes that are in the wanted tier now."""
        return [int(probe["address"], 16) for probe in self.probes if probe["tier"] == self.tier]

    @property
    def share(self) -> float:
        return len(self.reached) / len(self.accepted)

    @property
    def slower(self) -> float:
        return self.probed / self.unprobed

    def of(self, name: str) -> int:
        """How often a function was called."""
        return self.hits[self.code[name]["entry"]]


def drive(guest: Guest, text: Path, events: Sequence[str] = (), tier: str = "optimized") -> Seen:
    """Probe everything, work, take everything out again, and look whether a trace is left."""
    arm = "; ".join(f"echo 'p:e{number} {place}' >> kprobe_events" for number, place in enumerate(events))
    switch = f"cd {TRACING}; {arm}; echo 1 > events/kprobes/enable; cat kprobe_events" if events else "true"
    script: list[str | Workload] = [f"source {HELPERS}", f"source {EVENTS}", "set optprobe max-probes 20000"]
    script += ["stop-idle", f"keep-text {text}", say("code", f"code-of {tier} {' '.join(FUNCTIONS)}")]
    script += [Workload(switch), *timed(guest, "unprobed")]
    script += [say("adding", "probe-accepted"), "optprobe commit -timeout 60", *timed(guest, "probed")]
    script += [*counting(guest.options.arch), "optprobe check", "optprobe delete", "optprobe commit -timeout 60"]
    script += [Workload(f"cd {TRACING}; echo 0 > events/enable; echo > kprobe_events") if events else "", "stop-idle"]
    finished = batch(guest, script, timeout=1800 if FULL else 240)
    assert finished.status == 0, finished.output
    assert "holds what we wrote" in finished.output
    assert left(guest, text) == []
    assert guest.problems() == []
    softirqs, served = own_counts(guest.options.arch, finished, events)
    return Seen(
        code=finished.json("code"),
        probes=finished.json("list"),
        softirqs=softirqs,
        events=served,
        unprobed=finished.json("unprobed"),
        probed=finished.json("probed"),
        adding=finished.json("adding"),
        tier=tier,
    )


def own_counts(
    arch: str, finished: Finished, events: Sequence[str]
) -> tuple[Mapping[str, Between], Mapping[str, Between]]:
    """What the guest counted meanwhile: softirqs by vector, events by place."""
    if arch == "x86_64":
        exact = [since(finished, "softirqs"), since(finished, "events")]
        told, served = ({name: Between(count, count) for name, count in each.items()} for each in exact)
        return told, served
    printed = "".join(finished.workloads).split(f"{MARK}\n")[1:]
    before, begun, ended, after = (dict(counters(text)) for text in printed)
    found = {name: Between(ended[name] - begun[name], after[name] - before[name]) for name in begun}
    softirqs = {name: count for name, count in found.items() if name.isupper()}
    return softirqs, {place: found[f"e{number}"] for number, place in enumerate(events)}


def counters(printed: str) -> Iterator[tuple[str, int]]:
    """Lines of /proc/softirqs, a column for each vCPU, and of kprobe_profile: name, hits, misses."""
    for line in printed.splitlines():
        name, *numbers = line.split()
        if name.endswith(":"):
            yield name[:-1], sum(map(int, numbers))
        elif len(numbers) == 2 and numbers[0].isdigit():
            yield name, int(numbers[0])


def since(finished: Finished, name: str) -> dict[str, int]:
    before = finished.json(f"{name} before")
    return {key: count - before.get(key, 0) for key, count in finished.json(name).items()}


def left(guest: Guest, text: Path) -> list[str]:
    """Where the kernel's text is not what it was, with no probe and no GDB of ours behind it."""
    finished = batch(guest, [f"source {HELPERS}", say("left", f"text-diff {text}")])
    assert finished.status == 0, finished.output
    return list(finished.json("left"))


def unequal(seen: Seen) -> list[str]:
    """Straight lines whose instructions were not hit equally often."""
    found = []
    for name, code in seen.code.items():
        for line in code["lines"]:
            counts = [(hex(at - code["start"]), seen.hits[at]) for at in line if at in seen.hits]
            if len({count for _, count in counts}) > 1:
                found.append(f"{name}: {counts}")
    return found


def table(seen: Seen, title: str) -> str:
    reached = set(seen.reached)
    lines = [title, f"{'function':24}{'instructions':>13}{'accepted':>10}{seen.tier:>11}{'hits':>13}"]
    for name, code in seen.code.items():
        hits = sum(seen.hits[at] for at in code["accepted"])
        done = len(reached.intersection(code["accepted"]))
        lines.append(f"{name:24}{code['instructions']:13,}{len(code['accepted']):10,}{done:11,}{hits:13,}")
    total = sum(code["instructions"] for code in seen.code.values())
    hits = sum(seen.hits.values())
    lines.append(f"{'together':24}{total:13,}{len(seen.accepted):10,}{len(reached):11,}{hits:13,}")
    lines.append(f"{seen.tier} at once: {seen.share:.1%} of what explain accepts")
    lines.append(f"the work: {seen.unprobed:.2f} s unprobed, {seen.probed:.2f} s probed: 1/{seen.slower:.2f} as fast")
    lines.append(f"adding: {seen.adding['seconds']:.1f} s, its first half {seen.adding['first_half']:.1f} s")
    lines += [
        f"{name}: the guest itself counted {own}" for name, own in {**seen.softirqs, **seen.events}.items() if own.most
    ]
    lower = Counter(probe["reason"]["code"] for probe in seen.probes if probe["tier"] != seen.tier)
    lines += [f"not {seen.tier}: {dict(lower)}"] if lower else []
    return "\n".join(lines)


def tell(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """Print it: past pytest in the full form, which is run for its figures; else where a failure shows it."""
    with capsys.disabled() if FULL else nullcontext():
        print(text)


def check_counts(seen: Seen, arch: str) -> None:
    assert unequal(seen) == []
    wrong = {name: (seen.of(name), seen.softirqs[of]) for name, of in SOFTIRQS.items() if name in FUNCTIONS}
    # Nothing else reads /dev/zero.
    assert seen.of("read_zero") == 2 * BYTES
    if seen.events:
        called = {name: places for name, places in CALLERS.items() if name in FUNCTIONS}
        for name, places in called.items():
            counted = [seen.events[SYSTEM_CALL[arch] + place] for place in places]
            wrong[name] = seen.of(name), Between(sum(one.least for one in counted), sum(one.most for one in counted))
    assert {name for name, (ours, own) in wrong.items() if not own.least <= ours <= own.most} == set(), wrong


ONE, EACH = "one thread", "a thread each"
ACCELERATORS = {ONE: ("-accel", "tcg,thread=single"), EACH: PARALLEL}
CONFIGURATIONS = [
    ("x86_64", smp, append, threads) for append in ("preempt=full", "") for smp in (2, 4) for threads in ACCELERATORS
]
# Debian's ppc64le kernel is built without preemption in the kernel (PREEMPT_VOLUNTARY, and none to choose at boot).
POWER = [("ppc64le", smp, "", threads) for smp in (2, 4) for threads in ACCELERATORS]


# Nor is Debian's aarch64 kernel.
ARM = [("aarch64", smp, "", threads) for smp in (2, 4) for threads in ACCELERATORS]
SHORT = [CONFIGURATIONS[0], POWER[0], *(ARM[:1] if EVERY_ISA else ())]


@pytest.mark.parametrize(("arch", "smp", "append", "threads"), CONFIGURATIONS + POWER + ARM if FULL else SHORT)
def test_every_instruction_of_hot_functions(
    boot: Boot, tmp_path: Path, capsys: pytest.CaptureFixture[str], arch: str, smp: int, append: str, threads: str
) -> None:
    """vCPUs in one thread let the guest arm events of its own; with a thread each, its softirqs are what it counts."""
    guest = boot(arch=arch, smp=smp, append=append, extra=ACCELERATORS[threads])
    places = [SYSTEM_CALL[arch] + place for name in FUNCTIONS for place in CALLERS.get(name, ())]
    seen = drive(guest, tmp_path / "text", places if threads == ONE else [])
    tell(capsys, "\n" + table(seen, f"{arch}, {smp} vCPUs, {threads}, {append or 'default'}"))
    check_counts(seen, arch)
    assert seen.share >= OPTIMIZED
    assert sum(seen.hits.values()) >= HITS
    assert seen.slower <= SLOWER


TRAPPED = [(arch, threads) for arch in SYSTEM_CALL for threads in ACCELERATORS]


@pytest.mark.parametrize(("arch", "threads"), TRAPPED if FULL else TRAPPED[:1])
def test_every_instruction_of_hot_functions_trapped(
    boot: Boot, tmp_path: Path, capsys: pytest.CaptureFixture[str], arch: str, threads: str
) -> None:
    """A trap takes the kernel's way in and out: slower than a branch, and as exact."""
    append = "preempt=full" if arch == "x86_64" else ""
    guest = boot(arch=arch, smp=2, append=append, extra=ACCELERATORS[threads])
    places = [SYSTEM_CALL[arch] + place for name in FUNCTIONS for place in CALLERS.get(name, ())]
    seen = drive(guest, tmp_path / "text", places if threads == ONE else [], "trapped")
    tell(capsys, "\n" + table(seen, f"{arch}, 2 vCPUs, {threads}, {append or 'default'}"))
    check_counts(seen, arch)
    assert seen.share == 1.0
    assert sum(seen.hits.values()) >= 1_000_000
