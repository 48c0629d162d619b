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
    MASK,
    Assign,
    Binary,
    Buffer,
    Clock,
    Column,
    Constant,
    ContainsText,
    Copy,
    Delete,
    Emit,
    Form,
    Get,
    If,
    Literal,
    Load,
    Map,
    Modify,
    Op,
    PerCpuBase,
    Program,
    Register,
    Set,
    Slice,
    Statement,
    Stop,
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
from gdb_optprobe.maps import aggregate
from gdb_optprobe.maps.aggregate import (
    Aggregate,
    Average,
    Count,
    Greatest,
    Least,
    Linear,
    Powers,
    Sum,
)
from gdb_optprobe.maps.session_map import ABSENT, ENTRY_BITS, HEADER, KEYS, SessionMap, SessionMapLayout
from tests.examples import examples
from tests.handlers import scripts
from tests.handlers.programs import words
from tests.handlers.running import (
    ALIAS,
    CODE,
    DATA,
    DEAD_NAMES,
    FAULTS,
    GS,
    INNER,
    NUMBERS,
    PAGE,
    PER_CPU,
    START,
    USER,
    Left,
    State,
    execute,
    hit,
    kept,
    memory_of,
    objects,
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
    at = {place: bytes(maps[name].data[:]) for name, place in scripts.places(program, FAULTS).items()}
    return memory_of(before, objects(program) | at)


def differences(program: Program, before: State, dead: Dead) -> Iterator[str]:
    """What two hits leave that is not as the interpreter says, or not as it was."""
    code = lower(program, around(program, dead), BACKEND)(START)
    memory, maps = memory_before(program, before), scripts.contents(program)
    outcomes = []
    for _ in range(2):
        left = execute(code, before, memory)
        outcomes.append(interpreter.run(program, replace(hit(before, memory), maps=maps)))
        yield from kept(before, memory, left, dead, FAULTS)
        memory = dict(left.memory)
    yield from scripts.wrong_results(program, left.read, FAULTS, outcomes, maps)


@ANY
@given(scripts.scripts(), _states, _dead)
def test_same_as_the_interpreter(program: Program, before: State, dead: Dead) -> None:
    try:
        assert not [*differences(program, before, dead)]
    except NotLowered as refused:
        assert "registers" in refused.why or "stack" in refused.why


@settings(ANY, max_examples=EXAMPLES // 2)
@given(scripts.wild_scripts((DATA, ALIAS, USER, 0x8000_0000_0000)), _states, _dead)
def test_wild_pointers_are_zeros_or_faults(program: Program, before: State, dead: Dead) -> None:
    try:
        assert not [*differences(program, before, dead)]
    except NotLowered as refused:
        assert "registers" in refused.why or "stack" in refused.why


@pytest.mark.parametrize("quiet", [True, False])
def test_a_variable_keeps_its_word_where_another_cannot_be_read(quiet: bool) -> None:
    """But for a program in which what cannot be read is 0."""
    nowhere = Load(Constant(0x8000_0000_0000), 8, False)
    read = (Assign(X, Register("rdx")), Assign(X, nowhere))
    program = Program(None, (*read, Set(STARTS, (Constant(1),), (X,))), quiet)
    before = with_task(program)[0]
    assert not [*differences(program, before, Dead())]


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
    some = insns[:: len(insns) // 20 + 1]
    reckoned = {insn.address: depth(insns, insn.address, X86_64.pushed) for insn in some}
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
    None, (Get(STARTS, (PID,), X), If(X, (Update(LATENCY, SINCE), Delete(STARTS, (PID,))))), quiet=True
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
        (Program(None, (Update(Map("c", ONE, Count(), 8), None, (PID,)),), quiet=True), 19),
        (Program(None, (Update(Map("c", NAMED, Count(), 8), None, (COMM,)),), quiet=True), 50),
        (Program(StringEquals(COMM.address, b"dd\0", True), (Update(Map("c", (), Count())),), quiet=True), 10),
        (Program(None, (Set(Map("x", (), NUMBER), (), (Register("rdx"),)),), quiet=True), 6),
        (Program(None, (Modify(Map("x", (), NUMBER), (), Op.ADD, Constant(1)),), quiet=True), 15),
        (ENTRY, 27),
    ],
    ids=["count", "false", "hist", "by pid", "by comm", "comm ==", "store", "++", "start"],
)
def test_instructions_at_an_entry(program: Program, most: int) -> None:
    """From the second hit on; bpftrace's own figures are 230 and more."""
    assert executed(program)[1] <= most


def test_latency() -> None:
    """The time of a call: one hit keeps it, the other finds the entry once, reads and removes it."""
    entry, back = (lower(each, around(each, X86_64.dead_at_entry()), BACKEND)(START) for each in (ENTRY, RETURN))
    before, memory = with_task(RETURN)
    starts, latency = (scripts.places(RETURN, FAULTS)[each.name] for each in (STARTS, LATENCY))
    first = execute(entry, before, memory)
    second = execute(back, before, first.memory)
    layout = SessionMapLayout(1, 1, 8)
    assert len(layout.decode(first.read(starts, layout.size)).by_key) == 1
    assert not layout.decode(second.read(starts, layout.size)).by_key
    (words_left,) = SessionMapLayout(0, Powers(False)).decode(second.read(latency, HEADER + 67 * 8)).by_key.values()
    assert sum(words_left) == 1 and second.executed <= 37


@pytest.mark.parametrize("more", [5, (1 << 31) - 1, 1 << 31, -5 & MASK, 1 << 63])
def test_the_clock_with_something_added(more: int) -> None:
    """Between two readings of it as it is."""
    readings = (Clock(), Binary(Op.ADD, Clock(), Constant(more), 64, False), Clock())
    maps = [Map(f"clock{number}", (), NUMBER) for number in range(3)]
    program = Program(None, tuple(Set(each, (), (now,)) for each, now in zip(maps, readings, strict=True)), quiet=True)
    before, memory = with_task(program)
    left = execute(lower(program, around(program), BACKEND)(START), before, memory)
    places = scripts.places(program, FAULTS)
    first, added, last = (int.from_bytes(left.read(places[each.name] + HEADER, 8), "little") for each in maps)
    assert 0 < first <= added - more & MASK <= last


# A hit inside a hit


AGGREGATES: tuple[Aggregate, ...] = (
    Count(), Sum(True), Least(True), Greatest(False), Average(True), Powers(True),
    Linear(0, 100, 10, False),
)  # fmt: skip
KEY = (Register("rsi"), Register("rdx"))
TWO = (Column("", Form.UNSIGNED), Column("", Form.UNSIGNED))
HIT = state(dict.fromkeys((name for name in NUMBERS if name != abi.FLAGS), 0) | {"rsi": 5, "rdx": 6, "rcx": 77})


def of_key(words: tuple[int, ...]) -> dict[bytes, tuple[int, ...]]:
    return {aggregate.encode((5, 6)): words}


def at_every_instruction(
    outer: Program, inner: Program, target: Map, before: tuple[tuple[int, ...], ...] = ()
) -> Iterator[tuple[Left, SessionMap]]:
    """The map after one hit with another inside it, at each instruction; before: words of the key, put one by one."""
    both = Program(None, (*outer.actions, *inner.actions), quiet=True)
    codes = [lower(each, around(each), BACKEND)(at) for each, at in ((outer, START), (inner, INNER))]
    memory = memory_before(both, HIT)
    ((_, at),) = scripts.places(both, FAULTS).items()
    one = scripts.contents(both)[target.name]
    for words_before in before:
        one.put(aggregate.encode((5, 6)), words_before)
    offset = at - FAULTS
    memory[FAULTS] = memory[FAULTS][:offset] + bytes(one.data[:]) + memory[FAULTS][offset + one.layout.size :]
    whole = execute(codes[0], HIT, memory).executed
    assert whole > 10
    for interrupted in range(1, whole):
        left = execute(codes[0], HIT, memory, interrupted, codes[1])
        assert left.registers == HIT.registers
        yield left, SessionMap(one.layout, bytearray(left.read(at, one.layout.size)))


def once(*statements: Statement) -> Program:
    return Program(None, statements, quiet=True)


@pytest.mark.parametrize("kind", AGGREGATES, ids=str)
@pytest.mark.parametrize("there", [False, True], ids=["new", "there"])
def test_an_update_inside_an_update(kind: Aggregate, there: bool) -> None:
    """Nothing is lost or counted twice; there is one key, and one entry more where both were adding it."""
    target = Map("m", TWO, kind, 2)
    program = once(Update(target, None if isinstance(kind, Count) else Register("rcx"), KEY))
    expected = aggregate.initial(kind)
    for value in (77, 77, *((3,) if there else ())):
        expected = aggregate.update(kind, expected, value)
    start = (aggregate.update(kind, aggregate.initial(kind), 3),) if there else ()
    for _, found in at_every_instruction(program, program, target, start):
        contents = found.layout.decode(found.data)
        assert contents.by_key == of_key(expected) and not contents.dropped
        assert contents.entries <= 2 and found.data[KEYS : KEYS + 8] == aggregate.encode((1,))


@pytest.mark.parametrize("kind", [Count(), Sum(True), Least(True), Greatest(False)], ids=str)
def test_an_update_and_a_delete_inside_one_another(kind: Aggregate) -> None:
    """The value is there as after the one update, or is not there: what was before is gone."""
    target = Map("m", TWO, kind, 2)
    more = once(Update(target, None if isinstance(kind, Count) else Register("rcx"), KEY))
    remove = once(Delete(target, KEY))
    before = (aggregate.update(kind, aggregate.initial(kind), 3),)
    after = aggregate.update(kind, aggregate.initial(kind), 77)
    for outer, inner in ((more, remove), (remove, more)):
        met = {found.get(aggregate.encode((5, 6))) for _, found in at_every_instruction(outer, inner, target, before)}
        assert met == {None, after}


WORDS = Map("m", TWO, NUMBER, 2)
STORE, REMOVE = once(Set(WORDS, KEY, (Register("rcx"),))), once(Delete(WORDS, KEY))
INCREMENT = once(Modify(WORDS, KEY, Op.ADD, Constant(1)))
OTHER = once(Set(WORDS, KEY, (Constant(3),)))


@pytest.mark.parametrize(
    ("outer", "inner", "before", "possible"),
    [
        (INCREMENT, INCREMENT, (), {2}),
        (INCREMENT, INCREMENT, ((40,),), {42}),
        (STORE, OTHER, (), {77, 3}),
        (STORE, REMOVE, (), {77, None}),
        (STORE, REMOVE, ((1,),), {77, None}),
        (REMOVE, STORE, ((1,),), {77, None}),
        (REMOVE, INCREMENT, ((1,),), {1, None}),
        (INCREMENT, REMOVE, ((1,),), {1, None}),
        (INCREMENT, STORE, ((1,),), {77, 78}),
    ],
    ids=["++ ++", "there ++ ++", "= =", "= delete", "there = delete", "delete =", "delete ++", "++ delete", "++ ="],
)
def test_stores_and_deletes_inside_one_another(
    outer: Program, inner: Program, before: tuple[tuple[int, ...], ...], possible: set[int | None]
) -> None:
    """What is left is what one after the other would leave, in one order or the other; each order is met."""
    met = set()
    for _, found in at_every_instruction(outer, inner, WORDS, before):
        words_left = found.get(aggregate.encode((5, 6)))
        assert not found.layout.decode(found.data).dropped
        met.add(None if words_left is None else words_left[0])
    assert met == possible


def test_every_key_of_a_full_map_is_there_and_the_others_are_counted() -> None:
    target = Map("m", TWO, Count(), 4)
    program = once(Update(target, None, KEY))
    code, memory = lower(program, around(program), BACKEND)(START), memory_before(program, HIT)
    for n in range(20):
        before = state({**HIT.registers, "rsi": n % 7})
        memory = dict(execute(code, before, memory).memory)
    layout = SessionMapLayout(2, Count(), 4)
    contents = layout.decode(Left({}, memory, 0, {}).read(scripts.places(program, FAULTS)["m"], layout.size))
    assert contents.by_key == {aggregate.encode((n, 6)): (3,) for n in range(4)}
    assert contents.dropped == 20 - 12


def test_an_entry_that_was_given_back_is_taken_first() -> None:
    target = Map("m", TWO, Count(), 2)
    program = once(Update(target, None, KEY))
    memory, (at,) = memory_before(program, HIT), scripts.places(program, FAULTS).values()
    layout = SessionMapLayout(2, Count(), 2)
    page = bytearray(memory[FAULTS])
    header = aggregate.encode((3, 0, 0, 9 << ENTRY_BITS | 2))  # entry 1 is free, and entry 2 behind it
    page[at - FAULTS : at - FAULTS + HEADER] = header
    behind = at - FAULTS + HEADER + layout.entry_size
    page[behind : behind + 8] = aggregate.encode((8 << ENTRY_BITS | 3,))
    memory |= {FAULTS: bytes(page)}
    seen = []
    for key in (5, 7, 8):
        before = state({**HIT.registers, "rsi": key})
        memory = dict(execute(lower(program, around(program), BACKEND)(START), before, memory).memory)
        data = Left({}, memory, 0, {}).read(at, layout.size)
        seen.append(aggregate.decode(data[:HEADER]))
    assert seen == [(3, 1, 0, 10 << ENTRY_BITS | 3), (3, 2, 0, 11 << ENTRY_BITS), (3, 2, 1, 11 << ENTRY_BITS)]
    assert layout.decode(data).by_key == {aggregate.encode((key, 6)): (1,) for key in (5, 7)}


def test_the_word_that_says_absent_is_dropped_and_counted() -> None:
    value = Binary(Op.XOR, Register("rcx"), Constant(ABSENT ^ 77), 64, False)
    for program in (
        once(Set(WORDS, KEY, (Constant(9),)), Set(WORDS, KEY, (value,))),
        once(Set(WORDS, KEY, (Constant(9),)), Modify(WORDS, KEY, Op.ADD, Constant(ABSENT - 9 & MASK))),
        once(Set(WORDS, KEY, (Constant(9),)), Modify(WORDS, KEY, Op.XOR, Constant(ABSENT ^ 9))),
    ):
        left = execute(lower(program, around(program), BACKEND)(START), HIT, memory_before(program, HIT))
        layout = SessionMapLayout(2, 1, 2)
        contents = layout.decode(left.read(scripts.places(program, FAULTS)["m"], layout.size))
        assert contents.by_key == of_key((9,)) and contents.dropped == 1


def test_a_script_that_stops_is_refused() -> None:
    program = once(Update(Map("m", (), Count())), Stop())
    with pytest.raises(NotLowered, match="does not stop"):
        lower(program, around(program), BACKEND)


def test_a_frame_is_small() -> None:
    large = Slice.whole(Buffer("$s", 520))
    program = once(Copy(large, Literal(bytes(8))))
    with pytest.raises(NotLowered, match="the stack of a hit has room for 512"):
        lower(program, around(program), BACKEND)


# Texts


TEXTS = (b"", b"a", b"abcdefghijklmnopqrstuvwx", b"aabaab\0cd", b"hello world")
PIECES = (b"", b"a", b"ab", b"aab", b"cd", b"x", b"uvwx", b"vwxy", b"hello", b"world", b"o w")


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_searched_up_to_its_end(text: bytes) -> None:
    """For a constant, for a text that fills its bytes, and for one that does not."""
    whole, piece = Slice.whole(scripts.S), Slice.whole(scripts.T)
    for wanted in PIECES:
        copies = (
            Copy(whole, Literal(text.ljust(24, b"\0"))),
            Copy(piece, Literal(wanted.ljust(8, b"\0"))),
        )
        found = [ContainsText(whole, each) for each in (Literal.text(wanted, 8), replace(piece, size=8), piece)]
        shown = tuple(Emit(scripts.RECORD, (each, Literal(bytes(16)))) for each in found)
        assert not [*differences(once(*copies, *shown), HIT, Dead())], wanted
