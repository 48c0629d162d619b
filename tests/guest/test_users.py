"""Probes on programs of the guest's: every hit is counted, in every process, and no process is another for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gdb_optprobe.guest.linux.user.elf import Elf
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.isa.x86_64.user import USER
from qemu.guest import Guest
from tests.guest import answer, calls
from tests.guest.batch import Workload, batch, keep
from tests.guest.conftest import FULL
from tests.guest.gdb import TRACING

COUNT = 20_000 if FULL else 2_000
AT_ONCE = 8
WAITING = 3
PATH = "/tmp/calls"


@pytest.fixture
def program(linux: Guest, tmp_path: Path) -> Iterator[Path]:
    """The program, which is in the guest too."""
    built = calls.build(tmp_path, COUNT)
    answer.put(linux, built, PATH)
    yield built
    linux.check(f"rm -f {PATH}")


def instructions(program: Path) -> Mapping[str, int]:
    """By place, how often each instruction of its functions runs in one process."""
    data = program.read_bytes()
    elf = Elf.of(str(program), lambda offset, size: data[offset : offset + size], len(data))
    found = {}
    for symbol in elf.symbols:
        for insn in X86_64.decode(elf.text(symbol.address, symbol.size), symbol.address):
            seldom = insn.text.startswith("nopl")
            found[f"{symbol.name}+{insn.address - symbol.address:#x}"] = calls.SELDOM if seldom else COUNT
    return found


def test_every_instruction_in_many_processes(linux: Guest, program: Path) -> None:
    """Those that are started before the probes are, and wait meanwhile, among them; and children that they fork."""
    expected = instructions(program)
    said = f"{PATH}; echo said $?"
    unprobed = linux.run(said)[1], linux.run(f"{PATH} fork; echo said $?")[1]
    digest = linux.check(f"md5sum {PATH}")
    linux.check(f"cd {TRACING}; echo 'p:theirs {PATH}:{calls.THEIRS}' > uprobe_events; echo 1 > events/uprobes/enable")
    try:
        script: list[str | Workload] = [f"optprobe add -user {PATH}:{place}" for place in expected]
        script += [
            Workload(said),
            keep("one", "optprobe list"),
            Workload(f"for i in $(seq {AT_ONCE}); do ({said}) & done; wait; md5sum {PATH}"),
            Workload(f"{PATH} fork; echo said $?"),
            keep("all", "optprobe list"),
            "optprobe check",
            "optprobe delete",
            "optprobe check",
            Workload(said),
        ]
        finished = batch(linux, script)
        assert finished.status == 0, finished.output
        (theirs,) = linux.check(f"cat {TRACING}/uprobe_profile").splitlines()
    finally:
        linux.check(f"cd {TRACING}; echo 0 > events/uprobes/enable; echo > uprobe_events")
    processes = 1 + AT_ONCE + 2
    one, several, forked, deleted = finished.workloads
    assert (one, forked, deleted) == (unprobed[0], unprobed[1], unprobed[0]), finished.output
    assert several == unprobed[0] * AT_ONCE + digest
    for name, factor in (("one", 1), ("all", processes)):
        hits = {probe["location"].partition(":")[2]: probe["hits"] for probe in finished.json(name)}
        assert hits == {place: factor * count for place, count in expected.items()}
    assert int(theirs.split()[-1]) == (processes + 1) * COUNT
    assert finished.output.count("holds what we wrote") == 2
    assert {(probe["kind"], probe["tier"]) for probe in finished.json("all")} == {("uprobe", "trapped")}
    assert linux.problems() == []


@pytest.mark.parametrize("bits", [64, 32])
def test_both_word_sizes(linux: Guest, tmp_path: Path, bits: int) -> None:
    """Where the processes are there before, and wait."""
    path = f"/tmp/answer{bits}"
    built = answer.build(tmp_path, bits)
    answer.put(linux, built, path)
    for _ in range(WAITING):
        linux.check(f"(sleep 300 | {path} wait; echo said $? >> /tmp/said) > /dev/null 2>&1 &")
    places = [f"answer+{insn.address:#x}" for insn in USER.decode(_code(built), 0, bits)]
    try:
        script: list[str | Workload] = [f"optprobe add -user {path}:{place}" for place in places]
        script += [
            Workload(f"for i in $(seq {AT_ONCE}); do ({path}; echo said $?) & done; wait"),
            Workload(f"killall sleep; while [ $(grep -c said /tmp/said) -lt {WAITING} ]; do sleep 0.1; done"),
            keep("list", "optprobe list"),
        ]
        finished = batch(linux, script)
    finally:
        linux.run("killall sleep; sleep 0.2")
        said = linux.check(f"cat /tmp/said; rm -f /tmp/said {path}")
    assert finished.status == 0, finished.output
    assert finished.workloads[0].splitlines() == ["said 7"] * AT_ONCE
    assert said.splitlines() == ["said 7"] * WAITING
    assert [probe["hits"] for probe in finished.json("list")] == [AT_ONCE + WAITING] * len(places)


def _code(program: Path) -> bytes:
    data = program.read_bytes()
    elf = Elf.of(str(program), lambda offset, size: data[offset : offset + size], len(data))
    (symbol,) = elf.symbols
    return elf.text(symbol.address, symbol.size)
