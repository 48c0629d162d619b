"""What scripts cost a hit, in instructions of the guest, beside what bpftrace costs: scripts/bench --bpftrace.

    a run of few events, one of many ── their difference, an event ──┐ no probe
                                                                     ├ the script's probes
                                                                     └ bpftrace's, of the same script
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial

from .bpftrace_guest import is_running, running_bpftrace
from .debugger import Debugger
from .guest import Guest, GuestError
from .reads import PROGRAM, READ, WIDTH

__all__ = ["Costs", "Line", "as_json", "report"]

TIMEOUT = 300.0
RENAME = "dd if=/dev/zero of=/proc/self/comm bs=1 count=$1 2>/dev/null"
"""One event of task_rename for each count."""
SCRIPTS = {READ: "/tmp/reads", RENAME: "/tmp/named"}
"""Where the guest has the workloads: names of one length, see `_command`."""
SPENT = "/tmp/spent"


@dataclass(frozen=True, slots=True)
class Measured:
    """A program, and how many instructions a hit may take; None where there is no goal.

    work: has $1 hits. theirs: what bpftrace 0.17 has in its place, "" for the same.
    """

    name: str
    program: str
    most: int | None = None
    work: str = READ
    theirs: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """What a hit of a program takes: here, and by bpftrace. most: the goal."""

    name: str
    ours: float
    theirs: float
    most: int | None

    @property
    def is_met(self) -> bool:
        return self.ours < self.theirs and (self.most is None or round(self.ours) <= self.most)


CALL = "@s[tid] = nsecs; } kretprobe:vfs_read /@s[tid]/ { @ = hist(nsecs - @s[tid]); delete(@s[tid]);"
PROGRAMS = (
    Measured("predicate, false", "kprobe:vfs_read /pid == 1/ { @ = count(); }", 6),
    Measured("@ = count()", "kprobe:vfs_read { @ = count(); }", 4),
    Measured("@[pid] = count()", "kprobe:vfs_read { @[pid] = count(); }", 30),
    Measured("@[comm] = count()", "kprobe:vfs_read { @[comm] = count(); }", 60),
    Measured("@ = hist(arg2)", "kprobe:vfs_read { @ = hist(arg2); }", 12),
    Measured("@++", "kprobe:vfs_read { @++; }"),
    Measured("@ = stats(arg2)", "kprobe:vfs_read { @ = stats(arg2); }"),
    Measured("@[f_mode] = count()", "kprobe:vfs_read { @[((struct file *)arg0)->f_mode] = count(); }"),
    Measured("kretprobe, count", "kretprobe:vfs_read { @ = count(); }", 35),
    Measured("latency by @s[tid]", f"kprobe:vfs_read {{ {CALL} }}", 110),
    Measured("@[kstack] = count()", "kprobe:vfs_read { @[kstack] = count(); }", 900),
    Measured("kfunc, count", "kfunc:vfs_read { @ = count(); }"),
    Measured("syscalls:, count", "tracepoint:syscalls:sys_enter_read { @ = count(); }", 4),
    Measured("syscalls:, hist of ret", "tracepoint:syscalls:sys_exit_read { @ = hist(args->ret); }"),
    Measured("raw tracepoint, count", "rawtracepoint:task_rename { @ = count(); }", 25, RENAME,
             "tracepoint:task:task_rename { @ = count(); }"),
    Measured("tracepoint, a field", "tracepoint:task:task_rename { @ = sum(args->pid); }", 120, RENAME),
)


@dataclass(frozen=True)
class Costs:
    """Measures in a guest that has bpftrace, and a clock that counts instructions. tell: gets a line a program."""

    guest: Guest
    tell: Callable[[str], object]

    def run(self, hits: int) -> Iterator[Line]:
        """Yield what each program costs. Raises GuestError where bpftrace does not run one."""
        for work, script in SCRIPTS.items():
            lines = " ".join(f"'{line.replace('{workload}', work)}'" for line in PROGRAM)
            self.guest.check(f"printf '%s\\n' {lines} > {script}", TIMEOUT)
        bare = {work: _each(hits, partial(self._run, work)) for work in SCRIPTS}
        for one in PROGRAMS:
            self.tell(f"{one.name}: {hits:,} hits")
            with Debugger(self.guest.gdb_socket) as gdb:
                ours = _each(hits, partial(self._probed, gdb, one))
            with running_bpftrace(self.guest, f"-e '{one.theirs or one.program}'") as end:
                if not is_running(self.guest):
                    raise GuestError(f"bpftrace does not run {one.program}:\n{end()}")
                theirs = _each(hits, partial(self._run, one.work))
            yield Line(one.name, ours - bare[one.work], theirs - bare[one.work], one.most)

    def _run(self, work: str, hits: int) -> int:
        return int(self.guest.check(f"{_command(work, hits)}; cat {SPENT}", TIMEOUT))

    def _probed(self, gdb: Debugger, one: Measured, hits: int) -> int:
        gdb(f"optprobe script -guest '{_command(one.work, hits)}' -e '{one.program}'", TIMEOUT)
        return int(gdb.running(lambda: self.guest.check(f"cat {SPENT}", TIMEOUT)))


def _each(hits: int, run: Callable[[int], int]) -> float:
    """Return what one hit takes of a run: the least of two, for interrupts make one longer."""
    run(1)
    few, many = (min(run(count) for _ in range(2)) for count in (1, 1 + hits))
    return (many - few) / hits


def _command(work: str, hits: int) -> str:
    # The guest's init reads its commands byte by byte, and each byte is a hit: all are of one length.
    return f"sh {SCRIPTS[work]} {hits:<{WIDTH}} > {SPENT}"


def report(lines: list[Line]) -> list[str]:
    """Return a table."""
    table = [f"{'instructions a hit':26}{'optprobe':>10}{'bpftrace':>10}{'ratio':>8}{'goal':>8}"]
    for line in lines:
        goal = "" if line.most is None else f"≤ {line.most}"
        missed = "" if line.is_met else "  MISSED"
        ratio = f"{line.theirs / line.ours:.0f} ×" if line.ours >= 0.5 else ""
        table.append(f"{line.name:26}{line.ours:10.0f}{line.theirs:10.0f}{ratio:>8}{goal:>8}{missed}")
    return table


def as_json(lines: list[Line]) -> list[Mapping[str, object]]:
    return [{**asdict(line), "met": line.is_met} for line in lines]
