"""On aarch64, native code does what the interpreter says, and nothing else."""

from __future__ import annotations

import os
import random
import struct
from dataclasses import replace

import pytest
from hypothesis import strategies as st

from gdb_optprobe.handlers.ir import Binary, Cell, Constant, Emit, HashMap, Op, Program, Records, Register, Update
from gdb_optprobe.handlers.lower_maps import layout
from gdb_optprobe.handlers.lower_program import lower
from gdb_optprobe.isa.aarch64 import AARCH64, abi
from gdb_optprobe.isa.aarch64.codegen import BACKEND, BACKEND_LSE
from gdb_optprobe.isa.codegen import Backend
from gdb_optprobe.isa.paths import depth
from gdb_optprobe.maps import aggregate
from gdb_optprobe.maps.aggregate import Count
from tests.examples import examples

from . import running
from .arm import CODE, FAULTS, STACK, Processor, Trial, differences, processor
from .programs import drawn, programs, timed_programs, wild_programs
from .test_lower_program_ppc64le import AGGREGATES, COLUMNS, reached

EXAMPLES = int(os.environ.get("OPTPROBE_PROGRAMS", "10500" if os.environ.get("OPTPROBE_FULL") else examples(200)))
INNER = CODE + 0x8000
BY = (Register("x1"), Register("x28"))


def trials(number: int, made: st.SearchStrategy[Program], kind: type[Trial] = Trial) -> list[Trial]:
    """Return random programs, those that native code can do."""
    found = [trial for trial in (kind(*each) for each in drawn(number, made)) if trial.is_lowered]
    assert len(found) > number // 2
    return found


def check(number: int, made: st.SearchStrategy[Program], kind: type[Trial] = Trial) -> None:
    some = trials(number, made, kind)
    found = [f"{what}\n{trial.program}\n{trial.around}" for trial, what in differences(some)]
    assert not found, f"{len(found)} programs; the shortest:\n{min(found, key=len)}"


def test_same_as_the_interpreter() -> None:
    check(EXAMPLES, programs())


def test_wild_pointers_are_faults() -> None:
    check(EXAMPLES, wild_programs((running.DATA, running.DATA, running.ALIAS, 1 << 63)))


def test_all_of_a_hit_reads_the_clock_once() -> None:
    check(EXAMPLES, timed_programs())


def test_all_of_it_is_instructions_and_the_stack_is_where_an_unwinder_reckons_it() -> None:
    """On every way through the code: before an instruction sp is as much lower as those in front of it say."""
    for trial in trials(EXAMPLES // 3, programs()):
        insns = AARCH64.decode(trial.code, CODE)
        assert sum(len(insn.data) for insn in insns) == len(trial.code)
        depths = {insn.address: depth(insns, insn.address, AARCH64.pushed) for insn in insns}
        assert depth(insns, CODE + len(trial.code), AARCH64.pushed) == 0
        assert all(below % 16 == 0 for below in depths.values())
        for insn in reached(insns):
            if insn.target is not None:
                assert depths.get(insn.target, 0) == depths[insn.address]


def test_as_much_of_the_stack_as_there_surely_is() -> None:
    rooms = (0, 7, 8, 23, 24, 31, 32, 4096)
    stacks = [Emit(Records("stack", COLUMNS, stack=3), (Register("rdi"), Constant(room))) for room in rooms]
    assert not [found for found, _ in differences([Trial(Program(None, (stack,)), seed=1) for stack in stacks])]


def test_as_much_of_a_stack_as_is_there() -> None:
    starts = [running.DATA + at for at in (0, *range(running.PAGE - 40, running.PAGE + 1, 4))]
    target = Records("stack", COLUMNS, stack=3, tried=True)
    stacks = [Emit(target, (Constant(start), Constant(0))) for start in starts]
    assert not [found for found, _ in differences([Trial(Program(None, (stack,)), seed=1) for stack in stacks])]


class Interrupted:
    """A program that is interrupted before one of its instructions, and others that run there, below its stack."""

    def __init__(self, code: bytes, inner: bytes, objects: dict[int, bytes]) -> None:
        self.code, self.inner, self.objects = code, inner, objects
        self.before = {name: random.Random(name).getrandbits(64) for name in abi.GENERAL}
        self.before |= {abi.FLAGS: 0x3000_0000, abi.SP: STACK, "x1": 5, "x28": 6, "x2": 77}

    def run(self, after: int) -> Processor | None:
        """Run so many instructions, then the others, then the rest; None if that is longer than the program."""
        machine, end = processor(), CODE + len(self.code)
        machine.uc.ctl_flush_tb()
        machine.write(CODE, self.code)
        machine.write(INNER, self.inner)
        for at, data in self.objects.items():
            machine.write(at, data)
        machine.set_registers(self.before)
        if after:
            machine.uc.emu_start(CODE, end, count=after)
        if (at := machine.pc if after else CODE) == end:
            return None
        left = machine.registers()
        machine.set_registers(self.before | {abi.SP: left[abi.SP] - 288})
        machine.uc.emu_start(INNER, INNER + len(self.inner))
        assert machine.pc == INNER + len(self.inner)
        machine.set_registers(left)
        machine.uc.emu_start(at, end)
        assert machine.pc == end and machine.registers() == self.before
        return machine


each_backend = pytest.mark.parametrize("backend", [BACKEND, BACKEND_LSE], ids=["exclusive", "atomic"])


@each_backend
@pytest.mark.parametrize("hits", [1, 2])
def test_a_hit_inside_a_hit_of_a_ring_that_overwrites(hits: int, backend: Backend) -> None:
    """Before each instruction of the one, as many others: a round of them may find its place taken, or take it."""
    outer, others = (Program(None, (Emit(Records("r", COLUMNS), BY),) * number) for number in (1, hits))
    contexts = [running.overwriting(running.surroundings(each, faults=FAULTS)) for each in (outer, others)]
    code, inner = (
        lower(each, replace(around, address=at), backend)(at)
        for each, around, at in zip((outer, others), contexts, (CODE, INNER), strict=True)
    )
    (ring_at,) = contexts[0].objects
    interrupted = Interrupted(code, inner, {ring_at: running.NEWEST.initial()})
    found = set()
    for after in range(len(code)):
        if (machine := interrupted.run(after)) is None:
            break
        contents = running.NEWEST.decode(machine.read(ring_at, running.NEWEST.size))
        assert all(record.fields == struct.pack("<QQ", 5, 6) for record in contents.records)
        assert len(contents.records) + contents.dropped == 1 + hits
        found.add(tuple(record.number for record in contents.records))
    assert found == {1: {(0, 1)}, 2: {(0, 1), (1, 2)}}[hits]


@each_backend
@pytest.mark.parametrize("kind", AGGREGATES, ids=str)
def test_a_hit_inside_a_hit(kind: aggregate.Aggregate, backend: Backend) -> None:
    """Before each instruction of the one, all of the other: of one key, and of a record."""
    value = None if isinstance(kind, Count) else Register("x2")
    target = HashMap("t", COLUMNS, kind)
    program = Program(
        Binary(Op.EQ, Register("x1"), Constant(5), 64, False),
        (Update(target, value, BY), Emit(Records("r", COLUMNS), BY), Update(Cell("c", kind), value)),
    )
    around = running.surroundings(program, faults=FAULTS)
    code, inner = (lower(program, replace(around, address=at), backend)(at) for at in (CODE, INNER))
    interrupted = Interrupted(code, inner, running.objects(program, FAULTS))
    words = aggregate.update(kind, aggregate.update(kind, aggregate.initial(kind), 77), 77)
    table = layout(target, running.TABLE_BITS)
    at, ring_at, cell = around.objects
    number = 0
    while (machine := interrupted.run(number)) is not None:
        assert table.decode(machine.read(at, table.size)).by_key == {struct.pack("<QQ", 5, 6): words}
        assert aggregate.decode(machine.read(cell, aggregate.size(kind))) == words
        records = running.RING.decode(machine.read(ring_at, running.RING.size)).records
        assert [record.fields[:16] for record in records] == [struct.pack("<QQ", 5, 6)] * 2
        number += 1
    assert number > 40
