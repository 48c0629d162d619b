"""The code over the table of calls where functions return by traps, in Unicorn: a return has its own call, or none."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
import unicorn
from unicorn import arm64_const

from gdb_optprobe.guest.linux.arch.aarch64.user_returns import ArmReturning
from gdb_optprobe.guest.linux.arch.aarch64.user_stops import Stopping
from gdb_optprobe.guest.linux.arch.aarch64.user_traps import REGISTERS, ArmUser
from gdb_optprobe.handlers import fold, lower_user_returns
from gdb_optprobe.handlers.ir import Load
from gdb_optprobe.handlers.lower_returns import EntryPart
from gdb_optprobe.handlers.lower_user_returns import PlacedUserCallTable, ProbedUserFunction
from gdb_optprobe.handlers.return_scope import EntryProgram
from gdb_optprobe.isa.aarch64.abi import CALLEE_SAVED, GENERAL, LR, PC, SP
from gdb_optprobe.isa.aarch64.codegen import BACKEND
from gdb_optprobe.isa.base import Code
from gdb_optprobe.isa.codegen import EntryState
from gdb_optprobe.maps.aggregate import decode, encode
from gdb_optprobe.maps.user_call_table import (
    COUNTERS_SIZE,
    SLOT,
    CallCounters,
    UserCallSlot,
    UserCallTableLayout,
    initial_counters,
)
from tests.examples import some

CODE, DATA, STACK = (place << 20 for place in range(1, 4))
CALLER = CODE + 0x8_0000
KERNELS = CALLER + 0x1000
TASK, WANTED, FRAME, POINTS, TABLE = (DATA + 0x1000 * number for number in range(5))
ENTRY, BACK = 0x40_1000, 0x40_3000
TOP = 0x7F00_0000
MM, CHILD = 0xFFFF_0000_0123_4400, 0xFFFF_0000_0765_4300
USER = ArmUser(0, Stopping(0, has_pan=False))
RETURNING = ArmReturning(USER)
NUMBERS = {name: getattr(arm64_const, f"UC_ARM64_REG_{name.upper()}") for name in (*GENERAL, SP)}


class World:
    """Two functions with return probes: the calls for which WANTED is set are looked at."""

    def __init__(self, slots: int, most: int = 1 << 30) -> None:
        self.layout = UserCallTableLayout(slots)
        self.machine: Any = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        self.machine.ctl_set_cpu_model(arm64_const.UC_CPU_ARM64_MAX)
        for place in (CODE, DATA, STACK):
            self.machine.mem_map(place, 0x10_0000)
        table = PlacedUserCallTable(self.layout, TABLE, Load(fold.constant(TASK), 8, signed=False, mapped=True))
        self.counters = tuple(POINTS + 0x100 * number for number in range(2))
        self._at, self.executed = CODE, 0
        leaving = RETURNING.leaving
        assert leaving is not None
        condition = Load(fold.constant(WANTED), 8, signed=False, mapped=True)
        self.entries, self.returns = list[tuple[int, int]](), list[tuple[int, int]]()
        for counters in self.counters:
            way = ProbedUserFunction(counters, 0, None, 8, most)
            parts = (EntryPart(EntryProgram(condition=condition)),)
            before = EntryState(USER.scratch)
            code = lower_user_returns.lower_call_entered(table, way, parts, before, USER, RETURNING, BACKEND, 0)
            self.entries.append(self._put(code))
            left = lower_user_returns.lower_call_left(table, counters, leaving, (), USER, RETURNING)
            self.returns.append(self._put(left))
            self.write(counters, initial_counters(8))
        self.copied = self._put(lower_user_returns.lower_space_copied(table, 0, KERNELS, RETURNING, BACKEND))
        self.write(TABLE, self.layout.initial())
        self.write(TASK, encode((MM,)))

    def run_in(self, space: int) -> None:
        self.write(TASK, encode((space,)))

    def fork(self, old: int, new: int) -> None:
        assert self._run(self.copied[0], TOP, {"x0": old, "x1": new}) == KERNELS

    def enter(self, at: int, wanted: bool = True, function: int = 0) -> None:
        self.write(WANTED, encode((int(wanted),)))
        start, end = self.entries[function]
        assert self._run(start, at) == end

    def leave(self, at: int, function: int = 0) -> bool:
        """Whether the return is seen; where it goes to is as without a probe."""
        before = self.counts(function).returns
        assert self._run(self.returns[function][0], at) == CALLER
        assert decode(self.read(FRAME + REGISTERS[PC], 8)) == (BACK,)
        return self.counts(function).returns > before

    def calls(self) -> list[UserCallSlot]:
        return list(self.layout.calls(self.read(TABLE, self.layout.size)))

    def counts(self, function: int = 0) -> CallCounters:
        return CallCounters.decode(self.read(self.counters[function], COUNTERS_SIZE))

    def home(self, at: int) -> int:
        return self.layout.home(2 * at + 1 + MM & (1 << 64) - 1)

    def read(self, at: int, size: int) -> bytes:
        return bytes(self.machine.mem_read(at, size))

    def write(self, at: int, data: bytes) -> None:
        self.machine.mem_write(at, data)

    def _put(self, code: Code) -> tuple[int, int]:
        at, data = self._at, code(self._at)
        self.write(at, data)
        self._at += len(data) + 16
        return at, at + len(data)

    def _run(self, start: int, sp: int, arguments: Mapping[str, int] = MappingProxyType({})) -> int:
        """Where it goes; what a C function may not change is as it was."""
        frame = bytearray(random.Random(sp).randbytes(0x120))
        for name, value in ((PC, ENTRY), (SP, sp), (LR, BACK)):
            frame[REGISTERS[name] : REGISTERS[name] + 8] = value.to_bytes(8, "little")
        self.write(FRAME, bytes(frame))
        before = {name: random.Random(name).getrandbits(64) for name in GENERAL}
        before |= {SP: STACK + 0x8000, USER.frame: FRAME, LR: CALLER, **arguments}
        for name, value in before.items():
            self.machine.reg_write(NUMBERS[name], value)
        ends, self.executed = list[int](), 0

        def step(_: object, address: int, *__: object) -> None:
            self.executed += 1
            if address in (CALLER, KERNELS) or any(address == end for _, end in self.entries):
                ends.append(address)
                self.machine.emu_stop()

        hook = self.machine.hook_add(unicorn.UC_HOOK_CODE, step)
        self.machine.emu_start(start, 0, count=200_000)
        self.machine.hook_del(hook)
        kept = {name: before[name] for name in (*CALLEE_SAVED, LR, USER.frame)}
        assert {name: self.machine.reg_read(NUMBERS[name]) for name in kept} == kept
        return ends[0]


def test_a_call_that_no_probe_looks_at_is_not_taken_for_one_that_never_returned() -> None:
    """That one has left by a jump, from the same depth of the stack."""
    world = World(64)
    world.enter(TOP)
    world.enter(TOP, wanted=False)
    assert not world.leave(TOP) and world.calls() == []
    assert world.counts() == CallCounters(0, 0, 1, 0)
    world.enter(TOP)
    assert world.leave(TOP) and world.counts() == CallCounters(1, 0, 1, 0)


def test_nor_is_a_call_without_room() -> None:
    world = World(64, most=1)
    world.enter(TOP)
    world.enter(TOP)
    assert not world.leave(TOP) and world.calls() == []
    assert world.counts() == CallCounters(0, 1, 1, 0)


def test_one_that_never_returned_is_found_behind_free_slots() -> None:
    """A return looks there too."""
    world = World(64)
    other = next(at for at in range(TOP - 16, 0, -16) if world.home(at) == world.home(TOP))
    world.enter(other)
    world.enter(TOP)
    assert world.leave(other)
    world.enter(TOP, wanted=False)
    assert not world.leave(TOP) and world.calls() == []


def test_calls_of_others_stay() -> None:
    """Of another function with the same stack pointer, and those that are under way."""
    world = World(64)
    world.enter(TOP, function=1)
    world.enter(TOP + 32)
    world.enter(TOP, wanted=False)
    assert not world.leave(TOP)
    assert world.leave(TOP, function=1) and world.leave(TOP + 32)
    assert not world.calls() and not world.counts().dropped


def test_a_return_without_calls_under_way_searches_nothing() -> None:
    """It is that of every process that runs the file."""
    world = World(1024)
    world.enter(TOP, function=1)
    assert not world.leave(TOP)
    assert world.executed < 12
    world.enter(TOP, wanted=False)
    assert world.executed < 50 and world.counts() == CallCounters()


@pytest.mark.parametrize("slots", some([64, 16, 4, 2]))
def test_a_child_returns_from_the_calls_that_it_was_forked_in(slots: int) -> None:
    """The last one first, each once, whatever the parent does: what finds no slot for its copy is missed."""
    world, chosen = World(slots), random.Random(slots)
    for _ in range(20):
        stack, entered = list[tuple[int, int]](), list[tuple[int, int]]()
        at = TOP
        for depth in range(6):
            function, missed = chosen.randrange(2), [world.counts(each).missed for each in range(2)]
            # The other function may have left the stack as it was.
            at -= 16 * chosen.randint((at, function) in entered, 1)
            entered.append((at, function))
            world.enter(at, function=function)
            if world.counts(function).missed == missed[function]:
                stack.append((at, function))
            assert depth or stack
        before = sum(world.counts(each).missed for each in range(2))
        world.fork(MM, CHILD)
        lost = sum(world.counts(each).missed for each in range(2)) - before
        assert len(world.calls()) == 2 * len(stack) - lost
        copied = {(call.at, call.counters) for call in world.calls() if call.mm == CHILD}
        for space in chosen.sample([MM, CHILD], 2):
            world.run_in(space)
            for at, function in reversed(stack):
                assert world.leave(at, function) is (space == MM or (at, world.counters[function]) in copied)
        world.run_in(MM)
        assert world.calls() == [] and not any(world.counts(each).active for each in range(2))


@pytest.mark.parametrize("slots", some([32, 256, 4, 2]))
def test_each_return_has_its_own_call(slots: int) -> None:
    """Calls within one another of both functions, looked at or not, with jumps out of them."""
    world, chosen = World(slots), random.Random(slots)
    stack: list[tuple[int, int, bool]] = []
    for _ in range(600):
        kind = chosen.choice(("call", "call", "call", "return", "return", "jump"))
        if kind == "call" and len(stack) < 12:
            function, wanted = chosen.randrange(2), chosen.random() < 0.5
            at = (stack[-1][0] if stack else TOP) - 16 * chosen.randint(1, 2)
            missed = world.counts(function).missed
            world.enter(at, wanted, function)
            stack.append((at, function, wanted and world.counts(function).missed == missed))
        elif kind == "return" and stack:
            at, function, seen = stack.pop()
            assert world.leave(at, function) is seen
        elif kind == "jump":
            del stack[chosen.randint(0, len(stack)) :]
        active = sum(world.counts(function).active for function in range(2))
        assert active == len(world.calls()) <= world.layout.end // SLOT
    assert all(world.counts(function).returns and world.counts(function).dropped for function in range(2))
