"""Native code does what the interpreter says, and nothing else."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product

import capstone
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gdb_optprobe.handlers import arithmetic
from gdb_optprobe.handlers.ir import (
    MASK,
    Binary,
    Cell,
    Choose,
    Clock,
    Column,
    Constant,
    Convert,
    Emit,
    Form,
    HashMap,
    Load,
    Op,
    Program,
    Records,
    Register,
    StringEquals,
    Update,
)
from gdb_optprobe.handlers.lower_expressions import NotLowered
from gdb_optprobe.handlers.lower_program import lower
from gdb_optprobe.isa.base import Dead
from gdb_optprobe.isa.paths import depth
from gdb_optprobe.isa.x86_64 import X86_64, abi
from gdb_optprobe.isa.x86_64.codegen import BACKEND
from gdb_optprobe.maps.aggregate import Count, Sum
from tests.examples import examples, some
from tests.handlers.programs import programs, timed_programs, wild_programs, words
from tests.handlers.running import (
    ALIAS,
    BELOW,
    CLOCK,
    CODE,
    DATA,
    DEAD_NAMES,
    FAULTS,
    NUMBERS,
    START,
    USER,
    State,
    differences,
    execute,
    memory_of,
    objects,
    places,
    state,
    surroundings,
)

EXAMPLES = int(os.environ.get("OPTPROBE_PROGRAMS", examples(300)))
_numbers = st.fixed_dictionaries({name: words() for name in NUMBERS if name != abi.FLAGS})
_states = st.builds(state, _numbers, st.integers(0, 50), st.integers(0, (1 << 12) - 1))
_dead = st.builds(Dead, st.booleans(), st.frozensets(st.sampled_from(DEAD_NAMES)))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), _states, _dead, st.sampled_from((FAULTS, BELOW)))
def test_same_as_the_interpreter(program: Program, before: State, dead: Dead, faults: int) -> None:
    assert not differences(program, before, dead, faults)


@settings(max_examples=EXAMPLES // 3, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), _states, _dead, st.sampled_from((FAULTS, BELOW)))
def test_all_of_it_is_instructions_and_of_one_size(program: Program, before: State, dead: Dead, faults: int) -> None:
    make = lower(program, surroundings(program, dead, faults), BACKEND)
    code = make(CODE)
    engine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    assert sum(size for _, size, _, _ in engine.disasm_lite(code, CODE)) == len(code)
    assert len(code) == len(make(CODE + 0x1234_5671)) == len(make(CODE - 0x1234_5678))
    # What an unwinder reckons from the code before an instruction is where the stack pointer is there.
    insns = X86_64.decode(code, 0)
    reckoned = {insn.address: depth(insns, insn.address, X86_64.pushed) for insn in insns}
    depths = execute(make(START), before, memory_of(before, objects(program, faults), faults)).depths
    assert {at: reckoned[at] for at in depths if at in reckoned} == {at: depths[at] for at in depths if at in reckoned}
    assert depth(insns, len(code), X86_64.pushed) == 0


@settings(max_examples=EXAMPLES // 2, deadline=None, suppress_health_check=list(HealthCheck))
@given(wild_programs((DATA, ALIAS, USER, 0x8000_0000_0000)), _states, _dead, st.sampled_from((FAULTS, BELOW)))
def test_wild_pointers_are_faults(program: Program, before: State, dead: Dead, faults: int) -> None:
    try:
        assert not differences(program, before, dead, faults)
    except NotLowered as refused:
        assert "registers" in refused.why


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(timed_programs(), _states, _dead, st.sampled_from((FAULTS, BELOW)))
def test_all_of_a_hit_reads_the_clock_once(program: Program, before: State, dead: Dead, faults: int) -> None:
    assert not differences(program, before, dead, faults)


def words_by(number: int) -> Update:
    """A count by so many words, for which registers are needed at once."""
    by = tuple(Binary(Op.MUL, Register("rsi"), Constant(factor), 64, False) for factor in range(3, 3 + number))
    return Update(HashMap("t", tuple(Column("", Form.UNSIGNED) for _ in by), Count()), None, by)


def most_words() -> int:
    """As many as there are registers for."""
    for number in range(1, 20):
        program = Program(None, (words_by(number),))
        try:
            lower(program, surroundings(program), BACKEND)
        except NotLowered:
            return number - 1
    raise AssertionError("there is no end")


@pytest.mark.parametrize("fewer", [0, 1, 2, 8])
def test_the_clock_is_kept_in_the_frame_where_no_register_is_left(fewer: int) -> None:
    program = Program(None, (CLOCK, words_by(most_words() - fewer), replace(CLOCK, target=Cell("again", Sum(False)))))
    texts = [insn.text for insn in X86_64.decode(lower(program, surroundings(program), BACKEND)(START), START)]
    assert texts.count("rdtsc") == 1 and texts.count("leaq -0x10(%rsp), %rsp") == (not fewer)
    assert not differences(program, state({"rsi": 77}))


TEXT = Register("rdi")
NOT_MAPPED = Load(TEXT, 8, False)


@pytest.mark.parametrize(
    ("program", "node"),
    [
        (Program(Binary(Op.EQ, NOT_MAPPED, Constant(1), 64, False)), NOT_MAPPED),
        (Program(StringEquals(TEXT, b"dd\0", False)), StringEquals(TEXT, b"dd\0", False)),
        (Program(Register("cr3")), Register("cr3")),
    ],
    ids=["load", "text", "register"],
)
def test_what_native_code_does_not_do_is_named(program: Program, node: object) -> None:
    with pytest.raises(NotLowered) as refused:
        lower(program, replace(surroundings(program), readers=None), BACKEND)
    assert refused.value.node == node


def test_a_record_where_the_cpu_is_not_known_is_refused_for_that() -> None:
    action = Emit(Records("r", (Column("", Form.UNSIGNED),)), (Register("rsi"),))
    program = Program(None, (action,))
    with pytest.raises(NotLowered, match="the CPU's number") as refused:
        lower(program, replace(surroundings(program), cpu=None), BACKEND)
    assert refused.value.node == action


def test_too_large_a_key_is_refused() -> None:
    by = tuple(Binary(Op.MUL, Register("rsi"), Constant(factor), 64, False) for factor in range(3, 20))
    action = Update(HashMap("t", tuple(Column("", Form.UNSIGNED) for _ in by), Count()), None, by)
    program = Program(None, (action,))
    with pytest.raises(NotLowered, match="registers") as refused:
        lower(program, surroundings(program), BACKEND)
    assert refused.value.node == action


def test_the_clock_is_the_time_stamp_counter() -> None:
    """Both its halves: twice read, it has not gone back, and not far."""
    later = Binary(Op.SUB, Binary(Op.SUB, Clock(), Constant(0), 64, False), Clock(), 64, False)
    program = Program(None, (Update(Cell("a", Sum(False)), Clock()), Update(Cell("b", Sum(True)), later)))
    before = state(dict.fromkeys((name for name in NUMBERS if name != abi.FLAGS), 0))
    code = lower(program, surroundings(program), BACKEND)(START)
    left = execute(code, before, memory_of(before, objects(program)))
    first, passed = (int.from_bytes(left.read(at, 8), "little", signed=True) for at in places(program))
    assert first > 1 << 32 and abs(passed) < 1 << 40
    assert left.registers == before.registers


def test_the_pc_is_the_probed_address() -> None:
    program = Program(None, (Update(Cell("a", Sum(False)), Register("rip")),))
    before = state(dict.fromkeys((name for name in NUMBERS if name != abi.FLAGS), 0))
    left = execute(lower(program, surroundings(program), BACKEND)(START), before, memory_of(before, objects(program)))
    assert int.from_bytes(left.read(places(program)[0], 8), "little") == CODE


EDGES = (0, 1, 2, 7, 1 << 31, (1 << 31) - 1, 1 << 63, (1 << 63) - 1, MASK, MASK - 1, MASK ^ (1 << 31) - 1)


@pytest.mark.parametrize("op", [Op.DIV, Op.MOD, Op.SHL, Op.SHR])
@pytest.mark.parametrize(("bits", "signed"), [(32, False), (32, True), (64, False), (64, True)])
def test_numbers_at_the_edges(op: Op, bits: int, signed: bool) -> None:
    """Both operands in registers, and the right one a constant: the smallest number by -1, counts of the width."""
    left, right = (Convert(Register(n), 32, signed) if bits == 32 else Register(n) for n in ("rsi", "rdx"))
    counts = op in (Op.SHL, Op.SHR)
    smallest = (1 << bits - 1, MASK)
    for one, other in (smallest, *some([*product(EDGES, (*EDGES, 31, 32, 33, 63, 64, 65))])):
        constant = Constant(other if counts else arithmetic.extend(other, bits, signed))
        divisor = Register("rdx") if counts else right
        values = (Binary(op, left, divisor, bits, signed), Binary(op, left, constant, bits, signed))
        program = Program(None, tuple(Update(Cell(str(n), Sum(True)), value) for n, value in enumerate(values)))
        assert not differences(program, state({"rsi": one, "rdx": other})), (one, other)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("op", [Op.AND, *(op for op in Op if op.compares)])
def test_memory_is_compared_where_it_stands(size: int, signed: bool, op: Op) -> None:
    """With constants that its size holds, and that it does not hold, of either sign."""
    edges = (0, 1, 1 << 8 * size - 1, (1 << 8 * size) - 1, 1 << 8 * size, MASK, 1 << 63, MASK << 8 * size)
    constants = [Constant(edge & MASK) for edge in edges]
    for at in some(range(0, 160, 16)):
        load = Load(Constant(DATA + at), size, signed, mapped=True)
        tests = [Binary(op, load, constant, 64, sign) for constant in constants for sign in (False, True)]
        chosen = [Choose(test, Constant(1), Constant(0)) for test in tests]
        program = Program(None, tuple(Update(Cell(str(n), Sum(True)), value) for n, value in enumerate(chosen)))
        assert not differences(program, state({}, seed=3))


@pytest.mark.parametrize("name", ["eflags", "r10", "rdx"])
def test_what_is_dead_but_read_is_as_it_was(name: str) -> None:
    """The condition overwrites flags, and registers with its quotient; the action reads them afterwards."""
    quotient = Binary(Op.DIV, Register("rdi"), Constant(10), 64, False)
    condition = Binary(Op.NE, Binary(Op.SUB, quotient, Register("rsi"), 64, False), Constant(5), 64, False)
    program = Program(condition, (Update(Cell("a", Sum(False)), Register(name)),))
    dead = Dead(True, frozenset({"carry", "r10", "rdx", "rax", "r11"}))
    assert not differences(program, state({"rsi": 3}, arithmetic_flags=abi.ARITHMETIC_FLAGS), dead)
