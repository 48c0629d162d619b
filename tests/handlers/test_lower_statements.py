"""Statements as native code of x86-64: random ones beside the interpreter, what they cost, a hit inside a hit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import capstone
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gdb_optprobe.handlers import interpreter
from gdb_optprobe.handlers.ir import (
    Binary,
    Clock,
    Column,
    Constant,
    Delete,
    Form,
    Get,
    Load,
    Map,
    Modify,
    Op,
    PerCpuBase,
    Program,
    Register,
    Set,
    StringEquals,
    StringLoad,
    Update,
    Variable,
)
from gdb_optprobe.handlers.lower_expressions import NotLowered
from gdb_optprobe.handlers.lower_program import LoweringContext, lower
from gdb_optprobe.isa.base import Dead
from gdb_optprobe.isa.paths import depth
from gdb_optprobe.isa.x86_64 import X86_64, abi
from gdb_optprobe.isa.x86_64.codegen import BACKEND
from gdb_optprobe.maps.aggregate import Count, Powers
from tests.examples import examples
from tests.handlers import scripts
from tests.handlers.programs import words
from tests.handlers.running import (
    CODE,
    CPU,
    DATA,
    DEAD_NAMES,
    FAULTS,
    GS,
    NUMBERS,
    PAGE,
    PER_CPU,
    RING_AT,
    START,
    State,
    execute,
    hit,
    kept,
    memory_of,
    objects,
    ring_of,
    state,
    surroundings,
)

EXAMPLES = int(os.environ.get("OPTPROBE_PROGRAMS", examples(300)))
_numbers = st.fixed_dictionaries({name: words() for name in NUMBERS if name != abi.FLAGS})
_states = st.builds(state, _numbers, st.integers(0, 50), st.integers(0, (1 << 12) - 1))
_dead = st.builds(Dead, st.booleans(), st.frozensets(st.sampled_from(DEAD_NAMES)))
ANY = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


def around(program: Program, dead: Dead = Dead()) -> LoweringContext:  # noqa: B008
    return replace(surroundings(program, dead), maps=scripts.places(program, FAULTS))


def memory_before(program: Program, before: State) -> dict[int, bytes]:
    maps = scripts.contents(program)
    at = {place: bytes(maps[name].data) for name, place in scripts.places(program, FAULTS).items()}
    return memory_of(before, objects(program) | at)


def differences(program: Program, before: State, dead: Dead) -> Iterator[str]:
    """What two hits leave that is not as the interpreter says, or not as it was."""
    code = lower(program, around(program, dead), BACKEND)(START)
    memory, maps = memory_before(program, before), scripts.contents(program)
    emitted, faults = list[tuple[int, int, bytes]](), 0
    for _ in range(2):
        left = execute(code, before, memory)
        outcome = interpreter.run(program, replace(hit(before, memory), maps=maps))
        emitted += [(scripts.KIND, CPU.value, done.data) for done in outcome.done]
        faults += outcome.faults
        yield from kept(before, memory, left, dead, FAULTS)
        memory = dict(left.memory)
    counted = int.from_bytes(left.read(FAULTS, 8), "little")
    if counted != faults:
        yield f"{counted} faults for {faults}"
    ring = ring_of(program)
    contents = ring.decode(left.read(RING_AT, ring.size))
    found = [(each.kind, each.cpu, each.fields) for each in contents.records]
    wanted = [(kind, cpu, fields.ljust(8 * ring.words, b"\0")) for kind, cpu, fields in emitted]
    wanted = wanted[-ring.places :] if ring.overwrites else wanted[: ring.places]
    if found != wanted:
        yield f"{found} for {wanted}"
    yield from scripts.wrong_maps(program, left.read, FAULTS, maps)


@ANY
@given(scripts.scripts(), _states, _dead)
def test_same_as_the_interpreter(program: Program, before: State, dead: Dead) -> None:
    try:
        assert not [*differences(program, before, dead)]
    except NotLowered as refused:
        assert "registers" in refused.why or "stack" in refused.why


@settings(ANY, max_examples=EXAMPLES // 3)
@given(scripts.scripts(), _states, _dead)
def test_all_of_it_is_instructions_and_the_stack_is_known(program: Program, before: State, dead: Dead) -> None:
    try:
        make = lower(program, around(program, dead), BACKEND)
    except NotLowered as refused:
        assert "registers" in refused.why or "stack" in refused.why
        return
    code = make(CODE)
    engine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    assert sum(size for _, size, _, _ in engine.disasm_lite(code, CODE)) == len(code)
    insns = X86_64.decode(code, 0)
    reckoned = {insn.address: depth(insns, insn.address, X86_64.pushed) for insn in insns}
    depths = execute(make(START), before, memory_before(program, before)).depths
    assert {at: reckoned[at] for at in depths if at in reckoned} == {at: depths[at] for at in depths if at in reckoned}
    assert depth(insns, len(code), X86_64.pushed) == 0


# What a hit costs


TASK = Binary(Op.ADD, PerCpuBase(), Constant(PER_CPU + 64), 64, False)
CURRENT = Load(TASK, 8, False, mapped=True)
PID = Load(Binary(Op.ADD, CURRENT, Constant(0x40), 64, False), 4, False, mapped=True)
COMM = StringLoad(Binary(Op.ADD, CURRENT, Constant(0x50), 64, False), 16, True, True)
ONE, NAMED = (Column("", Form.UNSIGNED),), (Column("", Form.TEXT, 16),)
NUMBER = (Column("", Form.UNSIGNED),)
STARTS = Map("s", ONE, NUMBER, 8)
X = Variable("$x")
SINCE = Binary(Op.SUB, Clock(), X, 64, False)
LATENCY = Map("h", (), Powers(False))
ENTRY = Program(None, (Set(STARTS, (PID,), (Clock(),)),), quiet=True)
RETURN = Program(
    None, (Get(STARTS, (PID,), X), Update(LATENCY, SINCE), Delete(STARTS, (PID,))), quiet=True
)  # fmt: skip


def with_task(program: Program) -> tuple[State, dict[int, bytes]]:
    """A hit of a task, whose name and number are where CURRENT says."""
    before = state(dict.fromkeys((name for name in NUMBERS if name != abi.FLAGS), 0) | {"rdx": 4096})
    memory = memory_before(program, before)
    page, data = bytearray(memory[GS + PER_CPU]), bytearray(memory[DATA])
    page[64:72] = (DATA + 256).to_bytes(8, "little")
    data[256 + 0x40 : 256 + 0x44] = (77).to_bytes(4, "little")
    data[256 + 0x50 : 256 + 0x60] = b"dd".ljust(16, b"\0")
    assert len(page) == PAGE
    return before, memory | {GS + PER_CPU: bytes(page), DATA: bytes(data)}


def executed(program: Program) -> tuple[int, int]:
    """Instructions of the first hit at an entry, and of the next one."""
    code = lower(program, around(program, X86_64.dead_at_entry()), BACKEND)(START)
    before, memory = with_task(program)
    first = execute(code, before, memory)
    return first.executed, execute(code, before, first.memory).executed


@pytest.mark.parametrize(
    ("program", "most"),
    [
        (Program(None, (Update(Map("c", (), Count())),), quiet=True), 1),
        (Program(Binary(Op.EQ, PID, Constant(1), 64, False), (Update(Map("c", (), Count())),), quiet=True), 3),
        (Program(None, (Update(Map("h", (), Powers(False)), Register("rdx")),), quiet=True), 4),
        (Program(None, (Update(Map("c", ONE, Count(), 8), None, (PID,)),), quiet=True), 24),
        (Program(None, (Update(Map("c", NAMED, Count(), 8), None, (COMM,)),), quiet=True), 48),
        (Program(StringEquals(COMM.address, b"dd\0", True), (Update(Map("c", (), Count())),), quiet=True), 10),
        (Program(None, (Set(Map("x", (), NUMBER), (), (Register("rdx"),)),), quiet=True), 6),
        (Program(None, (Modify(Map("x", (), NUMBER), (), Op.ADD, Constant(1)),), quiet=True), 14),
        (ENTRY, 30),
    ],
    ids=["count", "false", "hist", "by pid", "by comm", "comm ==", "store", "++", "start"],
)
def test_instructions_at_an_entry(program: Program, most: int) -> None:
    """From the second hit on; bpftrace's own figures are 230 and more."""
    assert executed(program)[1] <= most
