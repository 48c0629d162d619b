"""Entry and trampoline, on each architecture, of functions with a tracer's site and of others.

What the guest's memory holds is compared with maps/call_table.py, where a call returns to with where it came from;
registers that callers may rely on are what they were.
"""

from __future__ import annotations

import random

import pytest

from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import Cell, Constant, Expr, Load, Op, Program, Put, Register, Update
from gdb_optprobe.handlers.lower_program import LoweringContext
from gdb_optprobe.handlers.lower_returns import EntryPart
from gdb_optprobe.handlers.return_scope import EntryProgram
from gdb_optprobe.isa.paths import depth
from gdb_optprobe.maps.aggregate import Sum
from gdb_optprobe.maps.call_table import KEY, RETURN, SAVED, WORD, CallSlot, CallTable, CallTableLayout
from tests.examples import some
from tests.handlers.calling import SIDES, Side, World

DEPTH = 1000
GROWN = 2048
"""Slots of a table that has grown once: these calls are less than half of it."""

on_each_side = pytest.mark.parametrize("side", SIDES.values(), ids=SIDES)
whether_traced = pytest.mark.parametrize("traced", [False, True], ids=["live", "traced"])


@on_each_side
@whether_traced
@pytest.mark.parametrize(("slots", "saved", "number"), some([(64, 1, 1), (64, 0, 0), (8, 0, 0), (3, 2, 0), (1, 0, 1)]))
def test_calls_on_many_stacks(side: Side, slots: int, saved: int, number: int, traced: bool) -> None:
    """Calls, tail calls, abandoned calls and returns in any order: the table is always what the model says."""
    world = World(side, CallTableLayout(slots, saved), traced, slots + saved, number)
    model = world.layout.initial()
    chosen = random.Random(slots)
    under_way: dict[int, list[int]] = {}
    entries = returns = 0
    for _ in range(250):
        sp = side.stacks + 0x2000 * chosen.randrange(1, 16) + 0x1E50
        calls = under_way.setdefault(sp, [])
        kind = chosen.choice(("return", "tail", "abandoned")) if calls else "call"
        if kind == "return":
            last = world.leave(sp)
            while (back := calls.pop()) == side.trampoline:  # of a tail call: it returns for those before it too
                model, returns = world.layout.remove(model, sp + 1), returns + 1
            model, returns = world.layout.remove(model, sp + 1), returns + 1
            assert last == back
        else:
            back = side.trampoline if kind == "tail" else world.caller()
            model, room = world.layout.enter(model, CallSlot(sp + 1, back), alive=kind == "tail")
            assert world.enter(sp, back) is (room or kind == "tail")
            entries += 1
            if kind == "abandoned":
                calls.clear()
            if room:
                calls.append(back)
        assert keys(world.instances()) == keys(world.layout.decode(model))
    found = world.instances()
    assert entries == found.returns + found.missed + found.dropped + len(found.active)
    assert found.returns == returns == world.count()
    assert found.dropped and bool(found.missed) is (slots < 15)


@on_each_side
@whether_traced
@pytest.mark.parametrize("slots", some([512, 2]))
def test_interrupted_anywhere(side: Side, slots: int, traced: bool) -> None:
    """An interrupt's calls are deeper on the stack that it interrupts; in the end nobody is left in the table."""
    world = World(side, CallTableLayout(slots), traced, seed=slots)
    for _ in range(70):
        sp, back = world.stack(), world.caller()
        if world.enter(sp, back, interrupted=True):
            assert world.leave(sp, interrupted=True) == back
        else:
            assert world.returns_to(sp) == back
    found = world.instances()
    assert found.active == () and found.dropped == 0 and bool(found.missed) is (slots == 2)
    assert found.returns + found.missed > 140


@on_each_side
@pytest.mark.parametrize(("frame", "depth", "slots"), some([(48, 200, 200), (16, DEPTH, GROWN), (112, DEPTH, GROWN)]))
def test_a_factorial_of_depth_1000(side: Side, frame: int, depth: int, slots: int) -> None:
    """In a table that has grown for it no level is missed, nor in one that just has the room; each finds its own."""
    world = World(side, CallTableLayout(slots))
    frame = max(frame, side.frame)
    levels = [(side.stacks + 0x8000 + frame * (depth - level), side.callers + 4 * level) for level in range(depth)]
    assert all(world.enter(*level) for level in levels)
    assert {(each.key - 1, each.back) for each in world.instances().active} == set(levels)
    assert [world.leave(sp) for sp, _ in reversed(levels)] == [back for _, back in reversed(levels)]
    found = world.instances()
    assert (found.returns, found.missed, found.dropped, found.active) == (depth, 0, 0, ())


@on_each_side
def test_tail_recursion(side: Side) -> None:
    """Each level's call has the same stack address; what there is no room for runs unprobed, and is counted."""
    room, more = 96, 32
    world = World(side, CallTableLayout(room))
    sp, caller = world.stack(), world.caller()
    assert world.enter(sp, caller)
    assert all(world.enter(sp, side.trampoline) for _ in range(room + more - 1))
    backs = [each.back for each in world.layout.find(world.read(world.table, world.layout.size), sp + 1)]
    assert backs == [side.trampoline] * (room - 1) + [caller]
    assert world.leave(sp) == caller
    found = world.instances()
    assert (found.returns, found.missed, found.dropped, found.active) == (room, more, 0, ())
    assert world.count() == room


@on_each_side
@pytest.mark.parametrize("hook", [0, 1])
def test_tail_calls_beneath_a_tracer_of_the_guest(side: Side, hook: int) -> None:
    """f jumps to g, whose return a tracer hides, and g to f: the first call of f is not dead."""
    world = World(side)
    sp, caller = world.stack(), world.caller()
    assert world.enter(sp, caller)
    assert world.enter(sp, side.hooks[hook])
    assert world.leave(sp) == side.hooks[hook]
    world.write(sp + side.place, side.trampoline.to_bytes(8, "little"))  # as the tracer returns
    assert world.leave(sp) == caller
    found = world.instances()
    assert (found.returns, found.missed, found.dropped, found.active) == (2, 0, 0, ())


@on_each_side
@whether_traced
def test_what_programs_find(side: Side, traced: bool) -> None:
    """The stack pointer and the flags as the function left them, and the call's slot, whatever is saved around them."""
    slot = Register(side.returning.slot)
    key, back = (_word(fold.binary(Op.ADD, slot, Constant(at), 64, False)) for at in (KEY, RETURN))
    flags = (Register(side.isa.flags),) if side.reads_flags else ()
    words = (Register(side.isa.sp), key, back, *flags)
    programs = tuple(Program(None, (Update(Cell("", Sum(signed=False)), word),)) for word in words)
    world = World(side, CallTableLayout(8), traced, programs=programs)
    sp = world.stack()
    assert world.enter(sp, caller := world.caller())
    left = world.registers(sp)
    assert world.leave(sp, registers=left) == caller
    found = [world.word(side.counter + 8 * number) for number, _ in enumerate(words, 1)]
    assert found == [sp, sp + 1, caller, *(left[each.name] for each in flags)]


def _word(address: Expr) -> Expr:
    return Load(address, 8, signed=False, mapped=True)


@on_each_side
@whether_traced
def test_returns_that_stop(side: Side, traced: bool) -> None:
    """Where a program has set its flag a debugger can look, and the way leads by the pad: registers are as left."""
    flags, result = (SAVED, SAVED + WORD), Register(side.others[0])
    place = (fold.binary(Op.ADD, Register(side.returning.slot), Constant(flag), 64, False) for flag in flags)
    values = (fold.binary(Op.AND, result, Constant(bit), 64, False) for bit in (1, 2))
    programs = tuple(Program(None, (Put(at, value),)) for at, value in zip(place, values, strict=True))
    world = World(side, CallTableLayout(8, 2), traced, programs=programs, flags=flags)
    for wanted in (0, 1, 2, 3, 0):
        sp, caller = world.stack(), world.caller()
        assert world.enter(sp, caller)
        world.at_pad.clear()
        assert world.leave(sp, registers={**world.registers(sp), result.name: wanted}) == caller
        assert len(world.at_pad) == (wanted != 0)
        assert not traced or world.at_pad == [wanted] * (wanted != 0)
        assert world.looked == [number for number in range(len(flags)) if wanted & 1 << number]
        world.looked.clear()
    found = world.instances()
    assert (found.returns, found.active) == (5, ()) and world.count() == 5


@on_each_side
@whether_traced
def test_actions_at_the_entry(side: Side, traced: bool) -> None:
    """They are carried out where a call has found room and its probe looks at it, and change no register."""
    summed, tested = map(Register, side.others)
    total, calls = side.counter + 0x100, side.counter + 0x108
    some = EntryProgram(fold.binary(Op.AND, tested, Constant(1), 64, False), actions=(_sum(summed),))
    parts = (
        EntryPart(some, area=SAVED + WORD, armed=SAVED, around=LoweringContext(0, (total,))),
        EntryPart(EntryProgram(actions=(_sum(Constant(1)),)), area=SAVED + WORD, around=LoweringContext(0, (calls,))),
    )
    world = World(side, CallTableLayout(2, 1), traced, parts=parts)
    expected, seen = 0, list[int]()
    for number in range(12):
        sp = side.stacks + 0x8000 + 0x100 * number
        arguments = {**world.registers(sp), tested.name: number, summed.name: number}
        if world.enter(sp, world.caller(), registers=arguments):
            expected += number * (number & 1)
            seen.append(sp)
        if number % 3 == 2:
            world.leave(seen[-1])
    assert (world.word(total), world.word(calls)) == (expected, len(seen))
    assert len(seen) == 5 and world.instances().missed == 7


def _sum(word: Expr) -> Update:
    return Update(Cell("", Sum(signed=False)), word)


@on_each_side
@whether_traced
def test_how_deep_the_stack_is(side: Side, traced: bool) -> None:
    """From every instruction of a trampoline an unwinder finds the stack pointer that its caller gets."""
    read = Register(side.isa.flags if side.reads_flags else side.isa.sp)
    world = World(side, traced=traced, programs=(Program(None, (_sum(read),)),))
    sp = world.stack()
    world.enter(sp, world.caller())
    passed = world.passed = []
    world.leave(sp)
    data = world.read(side.trampoline, 0x300)
    found = {
        now + depth(side.isa.decode(data[: at - side.trampoline], side.trampoline), at, side.isa.pushed)
        for at, now in passed
        if at >= side.trampoline
    }
    assert found == {sp + side.popped}


# Of an entry, of a trampoline, and how much less this takes where the program alone counts the return.
COSTS = {
    ("x86_64", True): (12, 15, 1),
    ("x86_64", False): (18, 23, 1),
    ("ppc64le_toc", True): (21, 28, 6),
    ("ppc64le_toc", False): (31, 42, 6),
    ("aarch64", True): (10, 19, 5),
    ("aarch64", False): (14, 23, 5),
    ("aarch64_lse", True): (10, 15, 3),
    ("aarch64_lse", False): (14, 19, 3),
}


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize(("name", "traced"), COSTS)
def test_what_a_call_costs(name: str, traced: bool, counted: bool) -> None:
    """Beside the branch and the way back; where nothing is dead, what is used is saved.

    counted: whether the table counts the return, beside the program.
    """
    side = SIDES[name]
    world = World(side, traced=traced, counted=counted)
    sp = world.stack()
    world.enter(sp, world.caller())
    entered, world.executed = world.executed, 0
    world.leave(sp)
    entry, trampoline, less = COSTS[name, traced]
    assert (entered, world.executed - 1) == (entry, trampoline if counted else trampoline - less)
    assert (world.instances().returns, world.count()) == (counted, 1)


def keys(found: CallTable) -> list[CallSlot]:
    """Without what was saved."""
    return [CallSlot(each.key, each.back) for each in found.active]
