"""What hits leave is the same whoever counts them, and however they are divided between guest and debugger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.handlers.interpreter import Done, Outcome
from gdb_optprobe.handlers.ir import (
    Action,
    Cell,
    Clock,
    Column,
    Constant,
    Emit,
    Form,
    HashMap,
    Program,
    Records,
    Register,
    Update,
)
from gdb_optprobe.maps.aggregate import Average, Count, Greatest, Least, Linear, Powers, Sum
from gdb_optprobe.maps.ring import HEADER, START, RingLayout
from gdb_optprobe.probes import probe_views
from gdb_optprobe.probes.handler import HITS, Handler
from gdb_optprobe.probes.results import Results, rows_of
from gdb_optprobe.probes.stops import Hit

WORD = Column("x", Form.UNSIGNED)
ACTIONS: tuple[Action, ...] = (
    Update(Cell("count", Count())),
    Update(Cell("sum", Sum(True)), Register("rdi")),
    Update(Cell("min", Least(True)), Register("rdi")),
    Update(Cell("max", Greatest(False)), Register("rdi")),
    Update(HashMap("avg by x", (WORD,), Average(False)), Register("rdi"), (Register("rsi"),)),
    Update(Cell("hist", Powers(False)), Register("rdi")),
    Update(HashMap("lhist by x", (WORD,), Linear(0, 100, 10, False)), Register("rdi"), (Register("rsi"),)),
    Emit(Records("record", (WORD, WORD)), (Register("rdi"), Register("rsi"))),
)
HANDLER = Handler.of(Program(Register("rdx"), ACTIONS), per_cpu=None, cpu=Constant(0))
registers = st.fixed_dictionaries(
    {"rdi": st.integers(0, 2**64 - 1), "rsi": st.integers(0, 3), "rdx": st.integers(0, 1)}
)


def hit(values: dict[str, int]) -> Hit:
    return Hit(0x1000, 0, values, lambda at, size: bytes(size), lambda _: None)


def seen(hits: Sequence[dict[str, int]]) -> Results:
    found = Results.empty(HANDLER)
    for each in hits:
        found = found.after_hit(HANDLER, HANDLER.run(hit(each)), 0)
    return found


@given(st.lists(registers, max_size=12), st.integers(0, 12))
def test_two_parts_together_are_the_whole(hits: list[dict[str, int]], cut: int) -> None:
    assert seen(hits[:cut]).merged(HANDLER, seen(hits[cut:])) == seen(hits)


@given(st.lists(registers, max_size=12))
def test_hits_are_those_where_the_condition_holds(hits: list[dict[str, int]]) -> None:
    found = seen(hits)
    assert found.head[0] == sum(each["rdx"] for each in hits) == len(found.records)
    assert sum(words[0] for words in found.tables[0].values()) == found.head[0]


def test_memory_begins_as_nothing_gathered() -> None:
    data = HANDLER.initial()
    assert len(data) == HANDLER.size
    assert Results.decode(HANDLER, data, START) == Results.empty(HANDLER)
    assert Results.decode(HANDLER, data[: HANDLER.head_size], START) == Results.empty(HANDLER)


def test_objects_stand_one_behind_the_other() -> None:
    addresses = list(HANDLER.addresses(0x1000))
    head = 0x1000 + HANDLER.head_size
    sizes = [layout.size for _, layout in HANDLER.tables]
    tables = [at for at, action in zip(addresses, HANDLER.program.actions, strict=True) if _is_table(action)]
    assert addresses[0] == 0x1000, "hits"
    assert tables == [head, head + sizes[0]]
    assert addresses[-1] == 0x1000 + HANDLER.ring_offset == head + sum(sizes)
    assert len(set(addresses)) == len(HANDLER.program.objects)


def _is_table(action: Action) -> bool:
    return isinstance(action, Update) and isinstance(action.target, HashMap)


def test_a_count_of_the_users_is_the_hits() -> None:
    plain = Handler.of(Program(None, (Update(Cell("count", Count())),)), None, None)
    assert plain.is_plain and plain.size == 8
    assert HITS in HANDLER.program.objects and len(HANDLER.cells) == 4
    found = Results.empty(plain).after_hit(plain, plain.run(hit({})), 0)
    assert found.head == (1,)


def test_the_clock_cannot_be_asked_while_the_guest_stands() -> None:
    timed = (Update(Cell("sum", Sum(False)), Clock()), Update(Cell("max", Greatest(False)), Register("rdi")))
    handler = Handler.of(Program(Register("rdx"), timed), None, None)
    some = {"rdx": 1, "rdi": 5}
    found = Results.empty(handler).after_hit(handler, handler.run(hit(some)), 0)
    assert found.head == (1, 1, 0, 5, 1), "the hit and the other action count"
    assert handler.run(hit({"rdx": 0})) == Outcome(held=False), "nobody asked for it"
    asked = Handler.of(Program(Clock(), timed), None, None)
    assert asked.run(hit(some)) == Outcome(held=False, faults=1)


def test_faults_are_counted_beside_hits() -> None:
    done = Outcome(True, (Done(HANDLER.program.actions[0]),), faults=2)
    assert Results.empty(HANDLER).after_hit(HANDLER, done, 0).head[:2] == (1, 2)


@pytest.mark.parametrize(
    ("action", "unit"),
    [
        *((typed, "ns") for typed in ("latency", "latency by $comm", "avg($elapsed)", "lhist( $elapsed , 0, 9, 3)")),
        *((typed, "") for typed in ("count", "sum($elapsed / 1000)", "hist(latency)", "entry hist(n)", "latencies")),
    ],
)
def test_what_is_known_to_be_a_time(action: str, unit: str) -> None:
    assert probe_views._unit(action) == unit


def test_what_the_ring_dropped_came_behind_its_newest_record() -> None:
    layout = RingLayout(1, 2)
    data = bytearray(layout.initial())
    for number in range(4):
        at = HEADER + number * layout.record_size
        data[at : at + layout.record_size] = b"".join(word.to_bytes(8, "little") for word in (number + 1, 9, 0, 5))
    data[:8] = (7).to_bytes(8, "little")
    assert [row.lost_after for row in rows_of(layout.decode(bytes(data)))] == [0, 0, 0, 3]
    assert rows_of(layout.decode(layout.initial())) == ()
    contents = replace(layout.decode(bytes(data)), overwrites=True)
    assert [row.lost_before for row in rows_of(contents)] == [3, 0, 0, 0], "that has the newest"


def test_a_record_of_another_kind_in_the_ring_is_none() -> None:
    """What the guest has there is its own affair: the report tells of a loss, and of nothing else."""
    assert HANDLER.ring is not None
    data, at = bytearray(HANDLER.initial()), HANDLER.ring_offset
    record = b"".join(word.to_bytes(8, "little") for word in (1, 9, 0x7777, 5, 6))
    data[at + HEADER : at + HEADER + len(record)] = record
    data[at : at + 8] = (1).to_bytes(8, "little")
    found = Results.decode(HANDLER, bytes(data), START)
    assert (found.records, found.dropped) == ((), 1)
