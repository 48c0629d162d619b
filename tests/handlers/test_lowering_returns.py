"""Entry and trampoline in Unicorn: calls of many stacks, interrupted anywhere by calls deeper on the same stack.

What the guest's memory holds is compared with objects/instances.py, where a call returns to with where it came from.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import unicorn
from unicorn import x86_const

from gdb_optprobe.handlers.lowering_returns import Table, Way, entry, trampoline
from gdb_optprobe.isa.base import Dead
from gdb_optprobe.isa.emitter import Before
from gdb_optprobe.isa.x86_64 import X86_64, abi
from gdb_optprobe.isa.x86_64.returning import RETURNING
from gdb_optprobe.objects.instances import Instance, Instances, InstancesLayout

CODE, STACKS, CALLERS = 0xFFFF_FFFF_9BA3_D000, 0xFFFF_C900_0010_0000, 0xFFFF_FFFF_8100_0000
NEAR, FAR = 0xFFFF_FFFF_7FE0_0018, 0xFFFF_FFFF_9200_0000
ENTRY, LEFT, TRAMPOLINE = CODE + 1, CODE + 0x800, CODE + 0x801
PAGE = 4096
COUNTER = 0xFFFF_FFFF_7FE0_9000
NAMES = (*abi.GENERAL, abi.FLAGS)
NUMBERS = {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in NAMES}
NOTHING = Dead()
DEPTH, DEEPEST = 1000, STACKS + 0x8000
GROWN = 2048
"""Slots of a table that has grown once: these calls are less than half of it."""


@dataclass
class World:
    """One vCPU, and what a plain list says of the calls of each stack address."""

    layout: InstancesLayout
    table: int = NEAR
    dead: Dead = NOTHING
    seed: int = 0
    executed: int = 0

    def __post_init__(self) -> None:
        self.chosen = random.Random(self.seed)
        self.machine: Any = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
        self.machine.ctl_set_tlb_mode(unicorn.UC_TLB_VIRTUAL)
        self._frames: dict[int, int] = {}
        for start, size in ((CODE, 0x1000), (STACKS, 0x40000), (COUNTER, 0x1000), (self.table & -PAGE, 0x10000)):
            base = len(self._frames) * PAGE
            self._frames |= {start + page: base + page for page in range(0, size, PAGE)}
        self.machine.mem_map(0, len(self._frames) * PAGE)
        self.machine.hook_add(unicorn.UC_HOOK_TLB_FILL, self._fill)
        self.machine.hook_add(unicorn.UC_HOOK_CODE, self._count)
        table = Table(self.layout, self.table)
        made = trampoline(table, Before(X86_64.dead_at_return(), frozenset(("rax",))), RETURNING)
        code = entry(table, Way(TRAMPOLINE, (CODE, CODE + PAGE)), Before(self.dead), RETURNING)(ENTRY)
        self.end = ENTRY + len(code)
        assert self.end < LEFT
        self.write(ENTRY, code)
        self.write(TRAMPOLINE, made.code([lambda at: X86_64.count(COUNTER, at, made.dead)])(TRAMPOLINE))
        self.write(self.table, self.layout.initial())
        self.write(LEFT, b"\xc3")

    def _count(self, *_: object) -> None:
        self.executed += 1

    def _fill(self, _: object, address: int, access: int, entry: Any, __: object) -> bool:
        """Callers are not there: a return to one ends the run."""
        frame = self._frames.get(address & -PAGE)
        if frame is not None:
            entry.paddr, entry.perms = frame, unicorn.UC_PROT_ALL
        return frame is not None

    def write(self, at: int, data: bytes) -> None:
        self.machine.mem_write(self._frames[at & -PAGE] + at % PAGE, data)

    def read(self, at: int, size: int) -> bytes:
        return bytes(self.machine.mem_read(self._frames[at & -PAGE] + at % PAGE, size))

    def instances(self) -> Instances:
        return self.layout.decode(self.read(self.table, self.layout.size))

    def word(self, at: int) -> int:
        return int.from_bytes(self.read(at, 8), "little")

    # what a context does -------------------------------------------------------------------------------------------

    def enter(self, sp: int, back: int, interrupted: bool = False) -> bool:
        """A call with the stack pointer `sp` that returns to `back`; whether it is seen."""
        self.write(sp, back.to_bytes(8, "little"))
        before = self._registers(sp)
        self._run(ENTRY, self.end, sp, interrupted)
        after = {name: self.machine.reg_read(number) for name, number in NUMBERS.items()}
        clobbered = self.dead.registers | ({abi.FLAGS} if self.dead.flags else set())
        assert {name for name in NAMES if before[name] != after[name]} <= clobbered
        return self.word(sp) == TRAMPOLINE

    def leave(self, sp: int, interrupted: bool = False) -> int:
        """The call returns; where to."""
        target = self.word(sp)
        before = self._registers(sp)
        self._run(LEFT, None, sp, interrupted)
        assert target == TRAMPOLINE
        assert self.machine.reg_read(NUMBERS["rsp"]) == sp + 8
        kept = set(NAMES) - X86_64.dead_at_return().registers - {"rsp", abi.FLAGS}
        assert all(before[name] == self.machine.reg_read(NUMBERS[name]) for name in kept)
        return int(self.machine.reg_read(x86_const.UC_X86_REG_RIP))

    def _registers(self, sp: int) -> dict[str, int]:
        values = {name: self.chosen.getrandbits(64) for name in abi.GENERAL} | {"rsp": sp}
        values[abi.FLAGS] = 0x202 | self.chosen.getrandbits(12) & abi.ARITHMETIC_FLAGS
        for name, value in values.items():
            self.machine.reg_write(NUMBERS[name], value)
        return values

    def _run(self, start: int, end: int | None, sp: int, interrupted: bool) -> None:
        if not interrupted:
            self._go(start, end, 0)
            return
        self._go(start, end, self.chosen.randrange(1, 30))
        at = self.machine.reg_read(x86_const.UC_X86_REG_RIP)
        if at != end and not CALLERS <= at < CALLERS + PAGE:
            context = self.machine.context_save()
            below = int(self.machine.reg_read(NUMBERS["rsp"])) - 8 * self.chosen.randrange(1, 6)
            self.call(below, depth=2)
            self.machine.context_restore(context)
            self._go(int(at), end, 0)

    def _go(self, start: int, end: int | None, count: int) -> None:
        try:
            if count:  # code that was translated before would run on
                self.machine.ctl_flush_tb()
            self.machine.emu_start(start, CODE if end is None else end, count=count)
        except unicorn.UcError:
            at = self.machine.reg_read(x86_const.UC_X86_REG_RIP)
            assert end is None and (count or CALLERS <= at < CALLERS + PAGE), hex(int(at))

    def call(self, sp: int, depth: int) -> None:
        """A whole call, and calls within it."""
        back = CALLERS + self.chosen.randrange(0x1000)
        seen = self.enter(sp, back)
        if depth:
            self.call(sp - 8 * self.chosen.randrange(1, 6), depth - 1)
        if seen:
            assert self.leave(sp) == back
        else:
            assert self.word(sp) == back


def fill(world: World) -> None:
    """Callers are traps: nothing is run there."""
    world.machine.mem_write(CALLERS, b"\xf4" * 0x1000)


@pytest.mark.parametrize("dead", [NOTHING, X86_64.dead_at_entry()], ids=["live", "traced"])
@pytest.mark.parametrize(
    ("slots", "saved", "table"), [(512, 0, NEAR), (8, 0, NEAR), (3, 2, NEAR), (1, 0, FAR), (64, 1, FAR)]
)
def test_calls_on_many_stacks(slots: int, saved: int, table: int, dead: Dead) -> None:
    """Calls, tail calls, abandoned calls and returns in any order: the table is always what the model says."""
    world = World(InstancesLayout(slots, saved), table, dead, seed=slots + saved)
    model = world.layout.initial()
    chosen = random.Random(slots)
    under_way: dict[int, list[int]] = {}
    entries = returns = 0
    for _ in range(500):
        sp = STACKS + 0x2000 * chosen.randrange(1, 16) + 0x1E58
        calls = under_way.setdefault(sp, [])
        kind = chosen.choice(("return", "tail", "abandoned")) if calls else "call"
        if kind == "return":
            last = world.leave(sp)
            while (back := calls.pop()) == TRAMPOLINE:  # of a tail call: it returns for those before it too
                model, returns = world.layout.left(model, sp + 1), returns + 1
            model, returns = world.layout.left(model, sp + 1), returns + 1
            assert last == back
        else:
            back = TRAMPOLINE if kind == "tail" else CALLERS + chosen.randrange(0x1000)
            model, room = world.layout.entered(model, Instance(sp + 1, back), alive=kind == "tail")
            assert world.enter(sp, back) is (room or kind == "tail")
            entries += 1
            if kind == "abandoned":
                calls.clear()
            if room:
                calls.append(back)
        assert keys(world.instances()) == keys(world.layout.decode(model))
    found = world.instances()
    assert entries == found.returns + found.missed + found.dropped + len(found.active)
    assert found.returns == returns == world.word(COUNTER)
    assert found.dropped and bool(found.missed) is (slots < 15)


@pytest.mark.parametrize("slots", [512, 2])
def test_interrupted_anywhere(slots: int) -> None:
    """An interrupt's calls are deeper on the stack that it interrupts; in the end nobody is left in the table."""
    world = World(InstancesLayout(slots), seed=slots)
    for _ in range(150):
        sp = STACKS + 0x2000 * world.chosen.randrange(1, 16) + 0x1E58
        back = CALLERS + world.chosen.randrange(0x1000)
        if world.enter(sp, back, interrupted=True):
            assert world.leave(sp, interrupted=True) == back
        else:
            assert world.word(sp) == back
    found = world.instances()
    assert found.active == () and found.dropped == 0 and bool(found.missed) is (slots == 2)
    assert found.returns + found.missed > 300


@pytest.mark.parametrize(("frame", "depth", "slots"), [(16, DEPTH, GROWN), (112, DEPTH, GROWN), (48, 200, 200)])
def test_a_factorial_of_depth_1000(frame: int, depth: int, slots: int) -> None:
    """In a table that has grown for it no level is missed, nor in one that just has the room; each finds its own."""
    world = World(InstancesLayout(slots), dead=X86_64.dead_at_entry())
    levels = [(DEEPEST + frame * (depth - level), CALLERS + level) for level in range(depth)]
    assert all(world.enter(*level) for level in levels)
    assert {(each.key - 1, each.back) for each in world.instances().active} == set(levels)
    assert [world.leave(sp) for sp, _ in reversed(levels)] == [back for _, back in reversed(levels)]
    found = world.instances()
    assert (found.returns, found.missed, found.dropped, found.active) == (depth, 0, 0, ())


def test_tail_recursion() -> None:
    """Each level's call has the same stack address; what there is no room for runs unprobed, and is counted."""
    room, more, sp = 96, 32, DEEPEST
    world = World(InstancesLayout(room), dead=X86_64.dead_at_entry())
    assert world.enter(sp, CALLERS)
    assert all(world.enter(sp, TRAMPOLINE) for _ in range(room + more - 1))
    backs = [each.back for each in world.layout.find(world.read(world.table, world.layout.size), sp + 1)]
    assert backs == [TRAMPOLINE] * (room - 1) + [CALLERS]
    assert world.leave(sp) == CALLERS
    found = world.instances()
    assert (found.returns, found.missed, found.dropped, found.active) == (room, more, 0, ())
    assert world.word(COUNTER) == room


def test_what_a_call_costs() -> None:
    """At a tracer's site: beside the branch, the way back and the count itself."""
    world = World(InstancesLayout(), dead=X86_64.dead_at_entry())
    world.enter(STACKS + 0x3E58, CALLERS)
    entered, world.executed = world.executed, 0
    world.leave(STACKS + 0x3E58)
    assert (entered, world.executed - 1) == (14, 16)


def keys(found: Instances) -> list[Instance]:
    """Without what was saved."""
    return [Instance(each.key, each.back) for each in found.active]
