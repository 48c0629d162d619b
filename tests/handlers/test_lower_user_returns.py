"""The code over the table of calls in user programs, in Unicorn: every call returns where it would have returned."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import unicorn
from unicorn import x86_const

from gdb_optprobe.guest.linux.arch.x86_64.user_returns import RETURNING
from gdb_optprobe.guest.linux.arch.x86_64.user_traps import REGISTERS, USER
from gdb_optprobe.handlers import fold, lower_user_returns
from gdb_optprobe.handlers.ir import Load
from gdb_optprobe.handlers.lower_returns import EntryPart
from gdb_optprobe.handlers.lower_user_returns import PlacedUserCallTable, ProbedUserFunction
from gdb_optprobe.handlers.return_scope import EntryProgram
from gdb_optprobe.isa.base import Code
from gdb_optprobe.isa.codegen import EntryState
from gdb_optprobe.isa.x86_64 import abi
from gdb_optprobe.isa.x86_64.codegen import BACKEND
from gdb_optprobe.maps.aggregate import encode
from gdb_optprobe.maps.user_call_table import (
    COUNTERS_SIZE,
    MOST_SAVED,
    SAVED,
    SLOT,
    CallCounters,
    UserCallSlot,
    UserCallTableLayout,
    initial_counters,
)
from tests.examples import some

CODE, DATA, KERNEL, STACK, SPACES = (place << 20 for place in range(1, 6))
KERNELS, CALLER = KERNEL + 0x100, KERNEL + 0x200
TASK, WHERE, FAILS, FRAME, POINTS, TABLE = (DATA + 0x1000 * number for number in range(6))
SPACE = 0x4000
STACKS = 0x7F00_0000
"""Where a program has its stack, of a page; the kernel finds it in SPACES, by the space that runs."""
ENTRIES, TRAMPOLINE = (0x40_1000, 0x40_1100), 0x40_2000
CALLERS = 0x40_3000
FIRST_SPACE = 0xFFFF_8880_0000_0000
NUMBERS = {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in abi.GENERAL}
# push %rdi; mov $WHERE, %edx; test the word behind it; add it to rax; and what else is lost is lost
ROUTINE = bytes.fromhex("ba") + WHERE.to_bytes(4, "little") + bytes.fromhex(
    "837a0800 7404 f9 c3 9090 480302 49c7c001000000 4989c1 4989c2 4989c3 89c2 f8 c3"
)  # fmt: skip


class World:
    """Two functions of a program whose words have `size` bytes; spaces by their number."""

    def __init__(self, slots: int, size: int, most: int = 1 << 30) -> None:
        self.size, self.layout = size, UserCallTableLayout(slots)
        self.machine: Any = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
        for place in (CODE, DATA, KERNEL, STACK):
            self.machine.mem_map(place, 0x10_0000)
        self.machine.mem_map(SPACES, 64 * SPACE)
        mm = Load(fold.constant(TASK), 8, signed=False, mapped=True)
        table = PlacedUserCallTable(self.layout, TABLE, mm)
        self.counters = tuple(POINTS + 0x100 * number for number in range(2))
        self._at = CODE
        self.routine = self._put(lambda at: ROUTINE)
        self.ends: dict[int, int] = {}
        backs = [self._put(lower_user_returns.lower_return(each, (), USER, RETURNING)) for each in self.counters]
        self.entries = []
        for entry, counters, back in zip(ENTRIES, self.counters, backs, strict=True):
            way = ProbedUserFunction(counters, back, TRAMPOLINE - entry - 1, size, most)
            words = tuple(fold.constant(counters + word) for word in range(MOST_SAVED))
            parts = (EntryPart(EntryProgram(words=words), SAVED),)
            code = lower_user_returns.lower_call_entered(
                table, way, parts, EntryState(USER.scratch), USER, RETURNING, BACKEND, self.routine
            )
            self.entries.append(self._put(code))
        self.returned = self._put(lower_user_returns.lower_call_returned(table, size, KERNELS, USER, RETURNING))
        self.copied = self._put(lower_user_returns.lower_space_copied(table, self.routine, KERNELS, RETURNING, BACKEND))
        self.ended = self._put(lower_user_returns.lower_space_ended(table, KERNELS, USER, RETURNING))
        self.write(TABLE, self.layout.initial())
        for counters in self.counters:
            self.write(counters, initial_counters(size))

    # the guest

    def enter(self, function: int, space: int, at: int, writable: bool = True) -> None:
        """What is on the stack at `at` is where the call returns to."""
        self._running(space, writable)
        start = self.entries[function]
        assert self._run(start, ENTRIES[function] + 1, at) == self.ends[start]

    def leave(self, space: int, at: int) -> int:
        """The call with that stack address does `ret`: where it goes at last."""
        to = self.word(space, at)
        while to == TRAMPOLINE:
            self._running(space)
            assert self._run(self.returned, TRAMPOLINE + 1, at + self.size) == CALLER, "no such call"
            to = int.from_bytes(self.read(FRAME + REGISTERS["rip"], 8), "little")
        return to

    def fork(self, old: int, new: int) -> None:
        self._running(old)
        arguments = {"rdi": mm_of(old), "rsi": mm_of(new)}
        assert self._run(self.copied, 0, 0, arguments) == KERNELS
        self.write(place_of(new), self.read(place_of(old), SPACE))

    def end(self, space: int) -> None:
        assert self._run(self.ended, 0, 0, {"rdi": mm_of(space)}) == KERNELS

    # its memory

    def word(self, space: int, at: int) -> int:
        return int.from_bytes(self.read(place_of(space) + at - STACKS, self.size), "little")

    def put(self, space: int, at: int, word: int) -> None:
        self.write(place_of(space) + at - STACKS, word.to_bytes(self.size, "little"))

    def calls(self) -> list[UserCallSlot]:
        return list(self.layout.calls(self.read(TABLE, self.layout.size)))

    def counts(self) -> tuple[CallCounters, ...]:
        return tuple(CallCounters.decode(self.read(counters, COUNTERS_SIZE)) for counters in self.counters)

    def read(self, at: int, size: int) -> bytes:
        return bytes(self.machine.mem_read(at, size))

    def write(self, at: int, data: bytes) -> None:
        self.machine.mem_write(at, data)

    def _put(self, code: Code) -> int:
        at, data = self._at, code(self._at)
        self.write(at, data)
        self._at += len(data) + 16
        if hasattr(self, "ends"):
            self.ends[at] = at + len(data)
        return at

    def _running(self, space: int, writable: bool = True) -> None:
        self.write(TASK, encode((mm_of(space),)))
        self.write(WHERE, encode((place_of(space) - STACKS & (1 << 64) - 1, int(not writable))))

    def _run(self, start: int, pc: int, sp: int, arguments: dict[str, int] | None = None) -> int:
        """Where it goes; what a C function may not change is as it was."""
        frame = bytearray(random.Random(pc).randbytes(168))
        for name, value in (("rip", pc), ("rsp", sp)):
            frame[REGISTERS[name] : REGISTERS[name] + 8] = value.to_bytes(8, "little")
        self.write(FRAME, bytes(frame))
        before = {name: random.Random(name).getrandbits(64) for name in abi.GENERAL}
        before |= {"rsp": STACK + 0x8000, "rdi": FRAME} | (arguments or {})
        self.write(STACK + 0x8000, encode((CALLER,)))
        for name, value in before.items():
            self.machine.reg_write(NUMBERS[name], value)
        ends: list[int] = []

        def end(_: object, address: int, *__: object) -> None:
            if address in (KERNELS, CALLER, self.ends.get(start)):
                ends.append(address)
                self.machine.emu_stop()

        hook = self.machine.hook_add(unicorn.UC_HOOK_CODE, end)
        self.machine.emu_start(start, 0, count=200_000)
        self.machine.hook_del(hook)
        kept = {name: before[name] for name in (*abi.CALLEE_SAVED, *(arguments or {}))}
        kept["rsp"] += 8 * (ends == [CALLER])
        assert {name: self.machine.reg_read(NUMBERS[name]) for name in kept} == kept
        return ends[0]


def mm_of(space: int) -> int:
    return FIRST_SPACE + 0x440 * space


def place_of(space: int) -> int:
    return SPACES + SPACE * space


def addresses(size: int) -> list[int]:
    return [STACKS + 0x1000 - 0x60 * number - size for number in range(12)]


@pytest.mark.parametrize("size", [8, 4])
@pytest.mark.parametrize("slots", some([32, 1024, 4, 2]))
def test_calls_of_many_processes(slots: int, size: int) -> None:
    """Calls, tail calls, abandoned ones, forks and ends of processes in any order, in tables with and without room."""
    world, chosen = World(slots, size), random.Random(slots + size)
    spaces: dict[int, dict[int, int]] = {0: {}}  # where each call under way returns to at last, by its stack address
    callers: Iterator[int] = iter(range(CALLERS, CALLERS + 0x10000))
    free = list(range(1, 64))
    for _ in range(400):
        space = chosen.choice([*spaces])
        live, at = spaces[space], chosen.choice(addresses(size))
        kind = chosen.choice(("call", "call", "call", "tail", "return", "return", "abandoned", "fork", "end"))
        if kind in ("call", "abandoned") and at not in live:
            back = next(callers)
            world.put(space, at, back)
            world.enter(chosen.randrange(2), space, at)
            live[at] = back
            if kind == "abandoned":
                del live[at]
                world.put(space, at, chosen.getrandbits(8 * size - 8))
        elif kind == "tail" and at in live:
            world.enter(chosen.randrange(2), space, at)
        elif kind == "return" and live:
            at = chosen.choice([*live])
            assert world.leave(space, at) == live.pop(at)
        elif kind == "fork" and free:
            new = free.pop()
            world.fork(space, new)
            spaces[new] = dict(live)
        elif kind == "end" and len(spaces) > 1:
            world.end(space)
            del spaces[space]
            free.insert(0, space)
            assert all(call.mm != mm_of(space) for call in world.calls())
        assert sum(counters.active for counters in world.counts()) == len(world.calls())
    for space, live in spaces.items():
        for at, back in live.items():
            assert world.leave(space, at) == back
        world.end(space)
    assert world.calls() == []
    found = world.counts()
    assert all(counters.returns and counters.dropped and not counters.active for counters in found)
    assert any(counters.missed for counters in found) is (slots < 100)


def test_what_a_call_keeps_is_its_own() -> None:
    world = World(16, 8)
    at = addresses(8)[0]
    world.put(0, at, CALLERS)
    world.enter(1, 0, at)
    world.fork(0, 1)
    data = world.read(TABLE, world.layout.size)
    kept = [data[place + SAVED : place + SLOT] for place, _ in world.layout.places(data)]
    assert kept == [encode(tuple(POINTS + 0x100 + word for word in range(MOST_SAVED)))] * 2
    assert {call.mm for call in world.calls()} == {mm_of(0), mm_of(1)}
    assert [call.at for call in world.calls()] == [at, at]


@pytest.mark.parametrize("slots", [16, 1024])
def test_a_child_has_the_calls_with_one_stack_address_in_their_order(slots: int) -> None:
    """By tail calls: the newest comes first, here and there."""
    world, at = World(slots, 8), addresses(8)[0]
    world.put(0, at, CALLERS)
    order = [0, 1, 1, 0, 1]
    for function in order:
        world.enter(function, 0, at)
    world.fork(0, 1)
    for space in (0, 1):
        newest_first = [call.counters for call in world.calls() if call.mm == mm_of(space)]
        assert newest_first == [world.counters[function] for function in reversed(order)]
        assert world.leave(space, at) == CALLERS
    assert world.calls() == []


def test_no_stack_no_room_and_a_bound() -> None:
    """The call is missed, the program undisturbed."""
    world = World(1024, 8, most=3)
    first, *others = addresses(8)
    world.put(0, first, CALLERS)
    world.enter(0, 0, first, writable=False)
    assert world.word(0, first) == CALLERS
    for at in others:
        world.put(0, at, CALLERS)
        world.enter(0, 0, at)
    assert [world.word(0, at) for at in others] == [TRAMPOLINE] * 3 + [CALLERS] * (len(others) - 3)
    assert world.counts()[0] == CallCounters(0, 1 + len(others) - 3, 0, 3)


def test_a_return_that_takes_arguments_along() -> None:
    """`ret 8` of 32-bit code; and what returns to a trampoline without a call is the kernel's."""
    world = World(16, 4)
    at = addresses(4)[3]
    world.put(0, at, CALLERS)
    world.enter(0, 0, at)
    world._running(0)
    assert world._run(world.returned, TRAMPOLINE + 1, at + 4 + 8) == CALLER
    assert int.from_bytes(world.read(FRAME + REGISTERS["rip"], 8), "little") == CALLERS
    assert world._run(world.returned, TRAMPOLINE + 1, at + 4) == KERNELS
