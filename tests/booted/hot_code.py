"""Sourced into GDB by tests: probe whole functions by the command line, and know what their counts must be.

    code-of TIER NAME…     the functions' instructions, those that `explain` says can have this tier, and lines; JSON
    lines-of NAME          the function's start, where calls arrive, and its straight lines; JSON
    probe-accepted         `add` every address that the last `code-of` accepted, in its tier
    stop-idle              let the guest run until a stop finds every vCPU halted: nobody is inside any function then
    softirqs-served        what the guest itself counted: softirqs by vector, summed over its vCPUs; JSON
    keep-text FILE         write the kernel's whole text there
    text-diff FILE         where the text differs from that now, in words; JSON

A straight line is a run of instructions that execution can enter only at its first and leave only behind its last:
no branch, call or trap but as the last, no jump to any but the first, no fault that is recovered elsewhere.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gdb

from gdb_optprobe.debugger.attach import attachments
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.text import Fact, Function, Text
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.probes.session import Session
from tests.booted import bulk

IDLE_SLICE, IDLE_TRIES = 0.05, 200
VECTORS = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")
DIFFERENCES = 40


@dataclass
class Kept:
    """What one command leaves for the next."""

    tier: str = "optimized"
    accepted: list[int] = field(default_factory=list)


kept = Kept()


def session() -> Session:
    return attachments.session()


def kernel() -> Kernel:
    assert attachments.current is not None and attachments.current.linux is not None
    return attachments.current.linux.kernel


def function(name: str) -> Function:
    (start,) = session().target.debugger.resolve(name, False)
    found = session().target.guest.text.function(start)
    assert found is not None
    return found


def entry(function: int) -> int:
    """Where calls arrive: on ppc64le behind the code that only callers from elsewhere need."""
    assert attachments.current is not None and attachments.current.linux is not None
    return attachments.current.linux.entry(function)


def explained(address: int) -> Any:
    return json.loads(gdb.execute(f"optprobe explain *{address:#x} -tier {kept.tier} -json", to_string=True))


def straight_lines(code: Function, text: Text) -> Iterator[list[Insn]]:
    """The function's hot part in runs of instructions that run equally often."""
    landings = {jump.target for jump in code.whole.jumps} | {entry(code.start)}
    # A fault in the middle leaves the line; a place that the guest rewrites may be a jump at times.
    leaves = {mark.address for mark in text.marks(code.start, code.end) if mark.fact is not Fact.BUG}
    line: list[Insn] = []
    for insn in code.hot:
        if line and (insn.address in landings or line[-1].end != insn.address):
            yield line
            line = []
        line.append(insn)
        if insn.flow is not Flow.NEXT or insn.address in leaves:
            yield line
            line = []
    if line:
        yield line


def code_of(name: str) -> dict[str, object]:
    text = session().target.guest.text
    code = function(name)
    trap = session().target.guest.isa.breakpoint
    plans = {insn.address: explained(insn.address) for insn in code.hot if insn.data != trap}
    # What is behind a load that reserves memory has its probe there, and so one that is here already.
    accepted = [at for at, plan in plans.items() if plan["tier"] == kept.tier and int(plan["address"], 16) == at]
    kept.accepted += accepted
    return {
        "start": code.start,
        "entry": entry(code.start),
        "instructions": len(plans),
        "accepted": accepted,
        "several": [at for at in accepted if len(plans[at]["displaced"]) > 1],
        "lines": [[insn.address for insn in line] for line in straight_lines(code, text)],
    }


class CodeOf(gdb.Command):
    """code-of TIER NAME…"""

    def __init__(self) -> None:
        super().__init__("code-of", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        kept.tier, *names = argument.split()
        kept.accepted = []
        print(json.dumps({name: code_of(name) for name in names}))


class LinesOf(gdb.Command):
    """lines-of NAME"""

    def __init__(self) -> None:
        super().__init__("lines-of", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        text, code = session().target.guest.text, function(argument)
        lines = [[insn.address for insn in line] for line in straight_lines(code, text)]
        print(json.dumps({"start": code.start, "entry": entry(code.start), "lines": lines}))


class ProbeAccepted(gdb.Command):
    """probe-accepted"""

    def __init__(self) -> None:
        super().__init__("probe-accepted", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        begun = time.monotonic()
        seconds = []
        for address in kept.accepted:
            gdb.execute(f"optprobe add *{address:#x} -tier {kept.tier}", to_string=True)
            seconds.append(time.monotonic() - begun)
        print(json.dumps({"added": len(seconds), "seconds": seconds[-1], "first_half": seconds[len(seconds) // 2]}))


class StopIdle(gdb.Command):
    """stop-idle"""

    def __init__(self) -> None:
        super().__init__("stop-idle", gdb.COMMAND_RUNNING)

    def invoke(self, argument: str, from_tty: bool) -> None:
        for _ in range(IDLE_TRIES):
            gdb.execute(f"optprobe run -for {IDLE_SLICE}", to_string=True)
            if all(halted(line) for line in threads()):
                return
        raise gdb.GdbError("the guest was never idle")


def threads() -> Sequence[str]:
    lines = gdb.execute("info threads", to_string=True).splitlines()
    return [line for line in lines if "CPU#" in line]


def halted(line: str) -> bool:
    return "[halted" in line


class SoftirqsServed(gdb.Command):
    """softirqs-served"""

    def __init__(self) -> None:
        super().__init__("softirqs-served", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        print(json.dumps(softirqs()))


def softirqs() -> dict[str, int]:
    """include/linux/kernel_stat.h, struct kernel_stat: `softirqs` is an array of 32-bit counters, one for each vCPU."""
    known = kernel()
    assert attachments.current is not None
    cpus = len(attachments.current.machine.vcpus())
    offsets = known.address("__per_cpu_offset")
    totals = dict.fromkeys(VECTORS, 0)
    for cpu in range(cpus):
        at = known.word(offsets + 8 * cpu) + known.address("kstat") & (1 << 64) - 1
        at += known.offset("kernel_stat", "softirqs")
        data = known.read(at, at + 4 * len(VECTORS))
        for place, vector in enumerate(VECTORS):
            totals[vector] += int.from_bytes(data[4 * place : 4 * place + 4], "little")
    return totals


def whole_text() -> tuple[int, bytes]:
    session()
    start, end = kernel().range("_stext", "_etext")
    return start, bulk.read(start, end - start)


class KeepText(gdb.Command):
    """keep-text FILE"""

    def __init__(self) -> None:
        super().__init__("keep-text", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        Path(argument).write_bytes(whole_text()[1])


class TextDiff(gdb.Command):
    """text-diff FILE"""

    def __init__(self) -> None:
        super().__init__("text-diff", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        start, now = whole_text()
        places = [start + at for at in differing(Path(argument).read_bytes(), now)]
        spell = session().target.guest.text.spell
        print(json.dumps([spell(place) for place in places[:DIFFERENCES]]))


def differing(old: bytes, new: bytes, page: int = 4096) -> Iterator[int]:
    for base in range(0, len(old), page):
        if old[base : base + page] != new[base : base + page]:
            yield from (at for at in range(base, min(base + page, len(old))) if old[at] != new[at])


for command in (CodeOf, LinesOf, ProbeAccepted, StopIdle, SoftirqsServed, KeepText, TextDiff):
    command()
