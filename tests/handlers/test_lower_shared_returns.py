"""Functions that share the code of their entries and their trampoline: calls of all of them, in one table.

What the guest's memory holds is compared with maps/call_table.py and counted by function; registers that callers may
rely on are what they were.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import (
    Clock,
    Column,
    Constant,
    Expr,
    Form,
    HashMap,
    Load,
    Op,
    Program,
    Put,
    Register,
    Update,
)
from gdb_optprobe.handlers.lower_kernel_returns import ProbedFunction, Trampoline, lower_trampoline
from gdb_optprobe.handlers.lower_maps import layout
from gdb_optprobe.handlers.lower_program import LoweringContext
from gdb_optprobe.handlers.lower_shared_returns import (
    NUMBER,
    TIME,
    PlacedTallies,
    lower_shared_entry,
    lower_tally,
    lower_timed,
    saved_words,
)
from gdb_optprobe.isa.codegen import EntryState
from gdb_optprobe.maps.aggregate import Powers
from gdb_optprobe.maps.call_table import WORD, CallSlot, CallTableLayout
from tests.examples import some
from tests.handlers.calling import IBM, INTEL, SIDES, Side, World

FUNCTIONS, STEP, BITS = 8, 16, 4
CALLS = 400


TABLE = HashMap("latency", (Column("", Form.UNSIGNED),), Powers(signed=False))
EACH = pytest.mark.parametrize("name", ["x86_64", "ppc64le", "aarch64"])


def timed_program(side: Side) -> Program:
    def at(offset: int) -> Expr:
        return fold.binary(Op.ADD, Register(side.returning.slot), Constant(offset), 64, False)

    number, time = (Load(at(offset), WORD, signed=False, mapped=True) for offset in (NUMBER, TIME))
    took = fold.binary(Op.SUB, Clock(), time, 64, False)
    return Program(None, (Put(at(TIME), took), Update(TABLE, time, (number,))))


@dataclass
class Shared(World):
    """A world where several functions are probed. timed: whether their calls are. called: of the calls on each stack,
    which function, the newest last.
    """

    timed: bool = False
    called: dict[int, list[int]] = field(default_factory=dict)

    @property
    def tallies(self) -> PlacedTallies:
        counts = self.side.counter + 8
        return PlacedTallies(counts, counts + WORD * FUNCTIONS if self.timed else None)

    @property
    def histograms(self) -> int:
        return self.table + 0x1_0000 & -16

    def _entry(self, way: ProbedFunction) -> bytes:
        side, encoder = self.side, self.side.returning.stubs
        assert encoder is not None
        at = side.entry + FUNCTIONS * STEP
        made = lower_shared_entry(self._table, replace(way, pc=side.entry), self.dead, self.timed, encoder)(at)
        self.start, self.end = side.entry, at + len(made)
        return encoder.encode(side.entry, STEP, at, [self.end] * FUNCTIONS) + made

    @property
    def made(self) -> Trampoline:
        before = EntryState(self.dead_after, frozenset((self.side.isa.convention.result,)))
        return lower_trampoline(self._table, before, self.side.returning, counted=False)

    def _whole(self) -> bytes:
        made, isa = self.made, self.side.returning
        if not self.timed:
            return made.code([lower_tally(self.tallies, made, isa)])(self.side.trampoline)
        around = LoweringContext(self.side.entry, objects=(self.histograms,), table_bits=BITS)
        code = lower_timed(self.tallies, timed_program(self.side), around, made, isa, self.side.isa.codegen)
        return made.code([code])(self.side.trampoline)

    def choose(self, sp: int) -> None:
        """Have the next call with this stack pointer be one of some function."""
        number = self.chosen.randrange(FUNCTIONS)
        self.start = self.side.entry + STEP * number
        self.called.setdefault(sp, []).append(number)

    def call(self, sp: int, depth: int) -> None:
        before = self.start
        self.choose(sp)
        super().call(sp, depth)
        self.start = before

    def counts(self) -> list[int]:
        return [self.word(self.tallies.counts + WORD * number) for number in range(FUNCTIONS)]


@EACH
@pytest.mark.parametrize("timed", [False, True], ids=["counted", "timed"])
@pytest.mark.parametrize(("slots", "window", "number"), some([(64, 0, 0), (64, 4, 1), (8, 3, 0)]))
def test_calls_of_many_functions(name: str, timed: bool, slots: int, window: int, number: int) -> None:
    """Calls, tail calls from one to another, abandoned calls and returns in any order; each is its function's."""
    side = SIDES[name]
    world = Shared(side, CallTableLayout(slots, saved_words(timed), window), seed=slots, number=number, timed=timed)
    model = world.layout.initial()
    chosen = random.Random(slots)
    counted = Counter[int]()
    under_way: dict[int, list[tuple[int, int]]] = {}
    for _ in range(CALLS):
        sp = side.stacks + 0x2000 * chosen.randrange(1, 16) + 0x1E50
        calls = under_way.setdefault(sp, [])
        kind = chosen.choice(("return", "tail", "abandoned")) if calls else "call"
        if kind == "return":
            last = world.leave(sp)
            back = side.trampoline
            while back == side.trampoline:
                function, back = calls.pop()
                counted[function] += 1
                model = world.layout.remove(model, sp + 1)
            assert last == back
        else:
            back = side.trampoline if kind == "tail" else world.caller()
            world.choose(sp)
            function = world.called[sp][-1]
            model, room = world.layout.enter(model, CallSlot(sp + 1, back, (function,)), alive=kind == "tail")
            assert world.enter(sp, back) is (room or kind == "tail")
            if kind == "abandoned":
                calls.clear()
            if room:
                calls.append((function, back))
        found, wanted = world.instances(), world.layout.decode(model)
        assert found.missed == wanted.missed and found.dropped == wanted.dropped
        assert [(one.key, one.back, one.saved[0]) for one in found.active] == [
            (one.key, one.back, one.saved[0]) for one in wanted.active
        ]
    assert world.counts() == [counted[number] for number in range(FUNCTIONS)] and found.dropped
    assert bool(found.missed) is (slots == 8 or window == 4)
    if timed:
        _check_times(world, counted)


def _check_times(world: Shared, counted: Counter[int]) -> None:
    """The histograms have every return, by function."""
    assert world.tallies.times is not None
    places = layout(TABLE, BITS)
    rows = places.decode(world.read(world.histograms, places.size)).by_key
    by_function = {int.from_bytes(key, "little"): sum(words) for key, words in rows.items()}
    assert by_function == {number: count for number, count in counted.items() if count}
    stands_still = world.side is IBM  # Unicorn's time base
    assert stands_still or all(world.word(world.tallies.times + WORD * number) for number in by_function)


@EACH
@pytest.mark.parametrize("timed", [False, True], ids=["counted", "timed"])
@pytest.mark.parametrize("slots", some([512, 2]))
def test_interrupted_anywhere(name: str, timed: bool, slots: int) -> None:
    """An interrupt's calls, of the same functions, are deeper on the stack that it interrupts."""
    world = Shared(SIDES[name], CallTableLayout(slots, saved_words(timed), 8), seed=slots, timed=timed)
    for _ in range(100):
        sp, back = world.stack(), world.caller()
        world.choose(sp)
        if world.enter(sp, back, interrupted=True):
            assert world.leave(sp, interrupted=True) == back
        else:
            assert world.returns_to(sp) == back
    found = world.instances()
    assert found.active == () and found.dropped == 0 and bool(found.missed) is (slots == 2)
    assert sum(world.counts()) + found.missed > 150


@pytest.mark.parametrize(
    ("name", "timed", "most"),
    [("x86_64", False, 39), ("x86_64", True, 80), ("ppc64le", False, 78), ("ppc64le", True, 125),
     ("aarch64", False, 50), ("aarch64", True, 96)],
)
def test_what_a_call_costs(name: str, timed: bool, most: int) -> None:
    """Instructions of a call that finds its first slot free, from the stub to its end, and of the trampoline."""
    world = Shared(SIDES[name], CallTableLayout(512, saved_words(timed), 64), timed=timed)
    sp = world.stack()
    world.choose(sp)
    assert world.enter(sp, world.caller())
    world.leave(sp)
    world.executed = 0
    world.enter(sp, world.caller())
    world.leave(sp)
    assert world.executed <= most


@pytest.mark.parametrize("hook", [0, 1])
def test_tail_calls_beneath_a_tracer_of_the_guest(hook: int) -> None:
    """One function jumps to another, whose return a tracer hides, and that to a third: the first call is not dead."""
    world, side = Shared(INTEL, CallTableLayout(64, 1)), INTEL
    sp, caller = world.stack(), world.caller()
    world.choose(sp)
    assert world.enter(sp, caller)
    world.choose(sp)
    assert world.enter(sp, side.hooks[hook])
    assert world.leave(sp) == side.hooks[hook]
    world.write(sp, side.trampoline.to_bytes(8, "little"))  # as the tracer returns
    assert world.leave(sp) == caller
    found = world.instances()
    assert (sum(world.counts()), found.missed, found.dropped, found.active) == (2, 0, 0, ())
