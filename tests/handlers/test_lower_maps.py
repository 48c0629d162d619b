"""Many hits of one program, and hits in the middle of hits: nothing is lost, nothing counted twice."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from gdb_optprobe.handlers.ir import (
    MASK,
    Binary,
    Cell,
    Column,
    Constant,
    Emit,
    Form,
    HashMap,
    Load,
    Op,
    Program,
    Records,
    Register,
    Update,
)
from gdb_optprobe.handlers.lower_maps import layout
from gdb_optprobe.handlers.lower_program import lower
from gdb_optprobe.isa.base import Dead
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.isa.x86_64.abi import COST
from gdb_optprobe.isa.x86_64.codegen import BACKEND
from gdb_optprobe.maps import aggregate
from gdb_optprobe.maps.aggregate import Average, Count, Greatest, Least, Linear, Powers, Sum
from gdb_optprobe.maps.hash_map import CLAIMED, PROBES
from gdb_optprobe.maps.ring import HEADER

from .running import (
    CPU,
    FAULTS,
    INNER,
    KIND,
    NEWEST,
    NUMBERS,
    PAGE,
    RING,
    RING_AT,
    START,
    TABLE_BITS,
    USER,
    differences,
    execute,
    memory_of,
    objects,
    overwriting,
    places,
    state,
    surroundings,
)

COLUMNS = (Column("a", Form.UNSIGNED), Column("b", Form.UNSIGNED))
BY = (Register("rsi"), Register("rdx"))
COUNT_BY = Program(None, (Update(HashMap("t", COLUMNS, Count()), None, BY),))
TABLE = layout(COUNT_BY.actions[0].target, TABLE_BITS)  # type: ignore[union-attr, arg-type]
RECORD = Program(None, (Emit(Records("r", COLUMNS), BY),))
ZEROS = dict.fromkeys((name for name in NUMBERS if name != "eflags"), 0)
SUM = Update(Cell("s", Sum(True)), Register("rsi"))


def code_of(program: Program) -> bytes:
    return lower(program, surroundings(program), BACKEND)(START)


def key(*words: int) -> bytes:
    return b"".join(word.to_bytes(8, "little") for word in words)


def test_every_value_is_under_its_key_or_in_the_overflow() -> None:
    code, (at,) = code_of(COUNT_BY), places(COUNT_BY)
    chosen = random.Random(1)
    hits = [(chosen.randrange(8), chosen.randrange(8)) for _ in range(200)]
    before = state(ZEROS)
    memory = memory_of(before, objects(COUNT_BY))
    for rsi, rdx in hits:
        memory = dict(execute(code, state(ZEROS | {"rsi": rsi, "rdx": rdx}), memory).memory)
    contents = TABLE.decode(memory[at & -4096][at % 4096 :])
    counts = Counter(key(*hit) for hit in hits)
    assert len(contents.by_key) >= PROBES and contents.overflow
    assert contents.by_key == {each: (counts[each],) for each in contents.by_key}
    assert contents.overflow == sum(number for each, number in counts.items() if each not in contents.by_key)


def test_a_slot_that_another_hit_has_claimed_is_passed_by() -> None:
    (at,) = places(COUNT_BY)
    data = bytearray(TABLE.initial())
    data[8 + TABLE.place((5, 6)) * TABLE.slot_size] = CLAIMED
    before = state(ZEROS | {"rsi": 5, "rdx": 6})
    left = execute(code_of(COUNT_BY), before, memory_of(before, objects(COUNT_BY) | {at: bytes(data)}))
    assert TABLE.decode(left.read(at, TABLE.size)).by_key == {key(5, 6): (1,)}


def test_a_full_ring_drops_and_counts() -> None:
    before = state(ZEROS)
    memory = memory_of(before, objects(RECORD))
    code = code_of(RECORD)
    for n in range(RING.places + 3):
        memory = dict(execute(code, state(ZEROS | {"rsi": n, "rdx": 2 * n}), memory).memory)
    contents = RING.decode(execute(b"", before, memory).read(RING_AT, RING.size))
    assert contents.dropped == 3 and len(contents.records) == RING.places
    for n, record in enumerate(contents.records):
        assert (record.number, record.kind, record.cpu) == (n, KIND, CPU.value)
        assert record.fields.startswith(key(n, 2 * n))
    times = [record.time for record in contents.records]
    assert times == sorted(times)


def test_a_ring_that_overwrites_has_the_newest_and_counts_the_others() -> None:
    before = state(ZEROS)
    memory = memory_of(before, objects(RECORD))
    code = lower(RECORD, overwriting(surroundings(RECORD)), BACKEND)(START)
    for n in range(7):
        memory = dict(execute(code, state(ZEROS | {"rsi": n, "rdx": 2 * n}), memory).memory)
    contents = NEWEST.decode(execute(b"", before, memory).read(RING_AT, NEWEST.size))
    assert contents.dropped == 7 - NEWEST.places
    assert [(record.number, record.kind, record.fields) for record in contents.records] == [
        (n, KIND, key(n, 2 * n)) for n in range(7 - NEWEST.places, 7)
    ]


def test_a_void_record_of_a_ring_that_overwrites_has_no_lock() -> None:
    fault = Program(None, (Emit(Records("r", COLUMNS), (Load(Constant(16), 8, False), Register("rdx"))),))
    code = lower(fault, overwriting(surroundings(fault)), BACKEND)(START)
    before = state(ZEROS)
    left = execute(code, before, memory_of(before, objects(fault)))
    data = left.read(RING_AT, NEWEST.size)
    assert NEWEST.decode(data).records == () and not NEWEST.decode(data).dropped
    assert data[HEADER + NEWEST.lock : HEADER + NEWEST.record_size] == bytes(8)
    assert int.from_bytes(left.read(FAULTS, 8), "little") == 1


@pytest.mark.parametrize("hits", [1, 2])
def test_a_hit_inside_a_hit_of_a_ring_that_overwrites(hits: int) -> None:
    """After each instruction of the one, as many others: a whole round of them may find its place taken, or take it."""
    program = Program(None, (Emit(Records("r", COLUMNS), BY),) * hits)
    code = lower(RECORD, overwriting(surroundings(RECORD)), BACKEND)(START)
    inner = lower(program, overwriting(surroundings(program)), BACKEND)(INNER)
    before = state(ZEROS | {"rsi": 5, "rdx": 6})
    found = set()
    for interrupted in range(1, execute(code, before, memory_of(before, objects(RECORD))).executed):
        left = execute(code, before, memory_of(before, objects(RECORD)), interrupted, inner)
        contents = NEWEST.decode(left.read(RING_AT, NEWEST.size))
        assert all(record.fields == key(5, 6) for record in contents.records), interrupted
        assert len(contents.records) + contents.dropped == 1 + hits, interrupted
        assert left.registers == before.registers
        found.add(tuple(record.number for record in contents.records))
    assert found == {1: {(0, 1)}, 2: {(0, 1), (1, 2)}}[hits]


@pytest.mark.parametrize(("first", "room"), [(0, False), (3, True), (10, True), (11, False), (MASK, False)])
def test_a_number_that_there_is_no_place_for_writes_nothing(first: int, room: bool) -> None:
    memory = memory_of(state(ZEROS), objects(RECORD) | {RING_AT: key(10, first) + bytes(RING.size - 16)})
    left = execute(code_of(RECORD), state(ZEROS), memory).read(RING_AT, RING.size)
    assert any(left[16:]) is room and left[:16] == key(11, first)


@pytest.mark.parametrize("room", [0, 7, 8, 23, 24, 31, 32, 4096])
def test_as_much_of_the_stack_as_there_surely_is(room: int) -> None:
    stack = Emit(Records("stack", COLUMNS, stack=3), (Register("rsp"), Constant(room)))
    for dead in (Dead(), X86_64.dead_at_entry()):
        assert not differences(Program(None, (stack, SUM)), state(ZEROS | {"rsi": 3}), dead)


def test_what_a_word_of_a_stack_costs() -> None:
    """What reports say of it."""
    costs = []
    for words in (2, 3):
        target = Records("stack", COLUMNS, stack=words, tried=True)
        program = Program(None, (Emit(target, (Register("rsi"), Constant(0))),))
        before = state(ZEROS | {"rsi": USER})
        costs.append(execute(code_of(program), before, memory_of(before, objects(program))).executed)
    assert costs[1] - costs[0] == COST


USER_END = USER + PAGE
@pytest.mark.parametrize(
    ("start", "words"),
    [(USER, 3), (USER_END - 24, 3), (USER_END - 12, 1), (USER_END - 8, 1), (USER_END, 0), (1, 0), (MASK - 15, 0)],
)
def test_as_much_of_a_stack_as_is_there(start: int, words: int) -> None:
    stack = Emit(Records("stack", COLUMNS, stack=3, tried=True), (Register("rsi"), Constant(0)))
    before = state(ZEROS | {"rsi": start, "rdx": 8})
    for dead in (Dead(), X86_64.dead_at_entry()):
        assert not differences(Program(None, (stack, SUM)), before, dead)
    code = code_of(Program(None, (stack,)))
    left = execute(code, before, memory_of(before, objects(Program(None, (stack,)))))
    (record,) = RING.decode(left.read(RING_AT, RING.size)).records
    assert int.from_bytes(record.fields[8:16], "little") == 8 * words


AGGREGATES = (Count(), Sum(True), Least(True), Greatest(False), Average(True), Powers(True), Linear(0, 100, 10, False))


@pytest.mark.parametrize("kind", AGGREGATES, ids=str)
def test_a_hit_inside_a_hit(kind: aggregate.Aggregate) -> None:
    """After each instruction of the one, all of the other: of one key, and of a record."""
    value = None if isinstance(kind, Count) else Register("rcx")
    target = HashMap("t", COLUMNS, kind)
    program = Program(
        Binary(Op.EQ, Register("rsi"), Constant(5), 64, False),
        (Update(target, value, BY), Emit(Records("r", COLUMNS), BY), Update(Cell("c", kind), value)),
    )
    code, (at, _, cell) = code_of(program), places(program)
    before = state(ZEROS | {"rsi": 5, "rdx": 6, "rcx": 77})
    memory = memory_of(before, objects(program))
    words = aggregate.update(kind, aggregate.update(kind, aggregate.initial(kind), 77), 77)
    whole = execute(code, before, memory).executed
    assert whole > 20
    for interrupted in range(1, whole):
        left = execute(code, before, memory, interrupted)
        table = layout(target, TABLE_BITS)
        assert table.decode(left.read(at, table.size)).by_key == {key(5, 6): words}, interrupted
        assert aggregate.decode(left.read(cell, aggregate.size(kind))) == words, interrupted
        records = RING.decode(left.read(RING_AT, RING.size)).records
        assert [record.fields[:16] for record in records] == [key(5, 6)] * 2, interrupted
        assert left.registers == before.registers


def executed(program: Program, **registers: int) -> int:
    """Instructions of a hit at an entry, beside the jump there, the displaced ones and the jump back."""
    before = state(ZEROS | registers)
    code = lower(program, surroundings(program, X86_64.dead_at_entry()), BACKEND)(START)
    return execute(code, before, memory_of(before, objects(program))).executed


COUNT = Update(Cell("c", Count()))
LARGE = Binary(Op.GT, Register("rdx"), Constant(4096), 64, False)


@pytest.mark.parametrize(
    ("program", "most"),
    [
        (Program(LARGE, (COUNT,)), 2),
        (Program(Binary(Op.LE, Register("rdx"), Constant(MASK), 64, False), (COUNT,)), 5),
        (Program(None, (Update(Cell("h", Powers(False)), Register("rdx")),)), 4),
        (Program(None, (Update(Cell("h", Powers(True)), Register("rdx")),)), 8),
        (Program(None, (Update(HashMap("t", COLUMNS[:1], Count()), None, BY[:1]),)), 24),
        (Program(None, (Emit(Records("r", COLUMNS), BY),)), 26),
    ],
    ids=["false", "true", "hist", "signed", "by", "record"],
)
def test_instructions_at_an_entry(program: Program, most: int) -> None:
    assert executed(program, rdx=1, rsi=3) <= most
