"""On ppc64le, native code does what the interpreter says, and nothing else."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import strategies as st

from gdb_optprobe.handlers.ir import (
    Binary,
    Cell,
    Column,
    Constant,
    Emit,
    Form,
    HashMap,
    Op,
    Program,
    Records,
    Register,
    Update,
)
from gdb_optprobe.handlers.lower_maps import layout
from gdb_optprobe.handlers.lower_program import lower
from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.paths import depth
from gdb_optprobe.isa.ppc64le import PPC64LE, abi
from gdb_optprobe.isa.ppc64le.codegen import BACKEND
from gdb_optprobe.isa.ppc64le.fields import to_bytes
from gdb_optprobe.maps import aggregate
from gdb_optprobe.maps.aggregate import Average, Count, Greatest, Least, Linear, Powers, Sum
from tests.examples import examples

from ..isa.ppc64le.oracle import DATA, HERE, STACK, TRAP, Outcome, Step, execute, needs_oracle
from . import running
from .power import FAULTS, SIZE, Trial, differences
from .programs import drawn, programs, timed_programs, wild_programs

EXAMPLES = int(os.environ.get("OPTPROBE_PROGRAMS", "10500" if os.environ.get("OPTPROBE_FULL") else examples(200)))
TOGETHER = 1000  # as many are run at once, of a megabyte each


def trials(number: int, made: st.SearchStrategy[Program]) -> list[Trial]:
    """A process under QEMU takes long to start, so programs are made first and then run together."""
    return [Trial(*each) for each in drawn(number, made)]


def wrong(left: list[Trial]) -> list[str]:
    """Of trials, which are used up, those whose code did anything else."""
    found: list[str] = []
    while left:
        some, left[-TOGETHER:] = left[-TOGETHER:], []
        found += [f"{what}\n{trial.program}\n{trial.around}" for trial, what in differences(some)]
    return found


@needs_oracle
def test_same_as_the_interpreter() -> None:
    found = wrong(trials(EXAMPLES, programs()))
    assert not found, f"{len(found)} programs; the shortest:\n{min(found, key=len)}"


@needs_oracle
def test_wild_pointers_are_faults() -> None:
    found = wrong(trials(EXAMPLES, wild_programs((running.DATA, running.DATA, running.ALIAS, 1 << 63))))
    assert not found, f"{len(found)} programs; the shortest:\n{min(found, key=len)}"


@needs_oracle
def test_all_of_a_hit_reads_the_clock_once() -> None:
    found = wrong(trials(EXAMPLES, timed_programs()))
    assert not found, f"{len(found)} programs; the shortest:\n{min(found, key=len)}"


def test_all_of_it_is_instructions_and_the_stack_is_where_an_unwinder_reckons_it() -> None:
    """On every way through the code: before an instruction r1 is as much lower as those in front of it say."""
    for trial in trials(EXAMPLES // 3, programs()):
        insns = PPC64LE.decode(trial.code, HERE)
        assert sum(len(insn.data) for insn in insns) == len(trial.code)
        depths = {insn.address: depth(insns, insn.address, PPC64LE.pushed) for insn in insns}
        assert depth(insns, HERE + len(trial.code), PPC64LE.pushed) == 0
        for insn in reached(insns):
            if insn.target is not None:
                assert depths.get(insn.target, 0) == depths[insn.address]


def reached(insns: Sequence[Insn]) -> list[Insn]:
    """Those on any way from the first; behind a test of constants some code is on none, and its depth means nothing."""
    on_a_way = {HERE}
    for insn in insns:
        if insn.address in on_a_way:
            on_a_way |= {insn.end} if insn.falls_through else set()
            on_a_way |= {insn.target} if insn.target is not None else set()
    return [insn for insn in insns if insn.address in on_a_way]


BY = (Register("r4"), Register("r31"))
COLUMNS = (Column("a", Form.UNSIGNED), Column("b", Form.UNSIGNED))
@needs_oracle
def test_as_much_of_the_stack_as_there_surely_is() -> None:
    rooms = (0, 7, 8, 23, 24, 31, 32, 4096)
    stacks = [Emit(Records("stack", COLUMNS, stack=3), (Register("rdi"), Constant(room))) for room in rooms]
    assert not [found for found, _ in differences([Trial(Program(None, (stack,)), seed=1) for stack in stacks])]


@needs_oracle
def test_as_much_of_a_stack_as_is_there() -> None:
    starts = [running.DATA + at for at in (0, *range(running.PAGE - 40, running.PAGE + 1, 4))]
    target = Records("stack", COLUMNS, stack=3, tried=True)
    stacks = [Emit(target, (Constant(start), Constant(0))) for start in starts]
    assert not [found for found, _ in differences([Trial(Program(None, (stack,)), seed=1) for stack in stacks])]


AGGREGATES = (Count(), Sum(True), Least(True), Greatest(False), Average(True), Powers(True), Linear(0, 100, 10, False))


INNER = HERE + 0x8000


@needs_oracle
@pytest.mark.parametrize("hits", [1, 2])
def test_a_hit_inside_a_hit_of_a_ring_that_overwrites(hits: int) -> None:
    """Before each instruction of the one, as many others: a round of them may find its place taken, or take it."""
    outer, others = (Program(None, (Emit(Records("r", COLUMNS), BY),) * number) for number in (1, hits))
    contexts = [running.overwriting(running.surroundings(each, faults=FAULTS)) for each in (outer, others)]
    code, inner = (
        lower(each, replace(around, address=at), BACKEND)(at)
        for each, around, at in zip((outer, others), contexts, (HERE, INNER), strict=True)
    )
    ends = {HERE: HERE + len(code), INNER: INNER + len(inner)}
    before = {name: random.Random(name).getrandbits(64) for name in (*abi.GENERAL, abi.CTR, abi.LR)}
    before |= {abi.FLAGS: 0x1234_5678, abi.XER: 0, abi.PC: HERE, abi.SP: STACK, "r4": 5, "r31": 6}
    (ring_at,) = contexts[0].objects

    def step(registers: Mapping[str, int], memory: Mapping[int, int], stop: int = ends[HERE]) -> Step:
        """From there, with that memory, to the trap at `stop` or at the end of the others."""
        whole = {HERE + at: code[at : at + 4] for at in range(0, len(code), 4)}
        whole |= {INNER + at: inner[at : at + 4] for at in range(0, len(inner), 4)}
        whole |= {stop: to_bytes(TRAP), ends[INNER]: to_bytes(TRAP)}
        halves = [(at, word.to_bytes(8, "little")) for at, word in memory.items()]
        return registers, [*whole.items(), *((at + i, data[i : i + 4]) for at, data in halves for i in (0, 4))]

    def run(steps: Sequence[Step]) -> list[Outcome]:
        return execute(steps, 1000, SIZE, "power8")

    begun = [left for left in run([step(before, {}, at) for at in range(HERE, ends[HERE], 4)]) if left.pc != ends[HERE]]
    below = [before | {abi.SP: left.registers[abi.SP] - 512, abi.PC: INNER} for left in begun]
    between = run([step(registers, left.memory) for registers, left in zip(below, begun, strict=True)])
    found = set()
    for left in run([step(left.registers, other.memory) for left, other in zip(begun, between, strict=True)]):
        words = [left.memory.get(ring_at + at, 0) for at in range(0, running.NEWEST.size, 8)]
        contents = running.NEWEST.decode(struct.pack(f"<{len(words)}Q", *words))
        assert all(record.fields == struct.pack("<QQ", 5, 6) for record in contents.records)
        assert len(contents.records) + contents.dropped == 1 + hits
        assert {name: left.registers[name] for name in before} == before | {abi.PC: ends[HERE]}
        found.add(tuple(record.number for record in contents.records))
    assert found == {1: {(0, 1)}, 2: {(0, 1), (1, 2)}}[hits]


@needs_oracle
@pytest.mark.parametrize("kind", AGGREGATES, ids=str)
def test_a_hit_inside_a_hit(kind: aggregate.Aggregate) -> None:
    """Before each instruction of the one, all of the other: of one key, and of a record."""
    value = None if isinstance(kind, Count) else Register("r5")
    target = HashMap("t", COLUMNS, kind)
    program = Program(
        Binary(Op.EQ, Register("r4"), Constant(5), 64, False),
        (Update(target, value, BY), Emit(Records("r", COLUMNS), BY), Update(Cell("c", kind), value)),
    )
    around = replace(running.surroundings(program, faults=FAULTS), address=HERE)
    code = lower(program, around, BACKEND)(HERE)
    end = HERE + len(code)
    memory = {
        at + offset: int.from_bytes(data[offset : offset + 8], "little")
        for at, data in running.objects(program, FAULTS).items()
        for offset in range(0, len(data), 8)
    }
    before = {name: random.Random(name).getrandbits(64) for name in (*abi.GENERAL, abi.CTR, abi.LR)}
    before |= {abi.FLAGS: 0x1234_5678, abi.XER: 0, abi.PC: HERE, abi.SP: STACK, "r4": 5, "r31": 6, "r5": 77}

    def step(registers: Mapping[str, int], memory: Mapping[int, int], stop: int = end) -> Step:
        """From there, with that memory, to the trap at `stop`."""
        whole = bytearray(code + to_bytes(TRAP))
        whole[stop - HERE : stop - HERE + 4] = to_bytes(TRAP)
        patches = [(HERE + at, bytes(whole[at : at + 4])) for at in range(0, len(whole), 4)]
        halves = [(at, word.to_bytes(8, "little")) for at, word in memory.items() if word]
        return registers, [*patches, *((at + i, data[i : i + 4]) for at, data in halves for i in (0, 4))]

    def run(steps: Sequence[Step]) -> list[Outcome]:
        return execute(steps, 1000, SIZE, "power8")

    begun = [left for left in run([step(before, memory, stop) for stop in range(HERE, end, 4)]) if left.pc != end]
    assert len(begun) > 40
    below = [before | {abi.SP: left.registers[abi.SP] - 512} for left in begun]
    inner = run([step(registers, left.memory) for registers, left in zip(below, begun, strict=True)])
    ends = run([step(left.registers, other.memory) for left, other in zip(begun, inner, strict=True)])
    words = aggregate.update(kind, aggregate.update(kind, aggregate.initial(kind), 77), 77)
    table = layout(target, running.TABLE_BITS)
    for left in ends:
        data = b"".join(left.memory.get(at, 0).to_bytes(8, "little") for at in range(FAULTS, DATA + SIZE, 8))
        at, ring_at, cell = (place - FAULTS for place in around.objects)
        assert table.decode(data[at : at + table.size]).by_key == {struct.pack("<QQ", 5, 6): words}
        assert aggregate.decode(data[cell : cell + aggregate.size(kind)]) == words
        records = running.RING.decode(data[ring_at : ring_at + running.RING.size]).records
        assert [record.fields[:16] for record in records] == [struct.pack("<QQ", 5, 6)] * 2
        assert {name: left.registers[name] for name in before} == before | {abi.PC: end}
