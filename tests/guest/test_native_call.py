"""A native call: its thunk, run on Unicorn; and the order in which the guest is brought to it and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import unicorn
from unicorn import x86_const

from gdb_optprobe.guest import native_call
from gdb_optprobe.guest.linux import safe_points
from gdb_optprobe.guest.linux.arch.x86_64.user_kernel import VCPUS
from gdb_optprobe.guest.linux.safe_points import SafePoints
from gdb_optprobe.guest.machine import Vcpu
from gdb_optprobe.guest.native_call import Caller, CallFailed
from gdb_optprobe.isa.base import OutOfReach
from gdb_optprobe.isa.calling import Thunk
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.isa.x86_64.calling import CALLING
from tests.guest.linux.fake_kernel import Clock, Machine, kernel

CODE = 0x82000040
FUNCTION, SAFE = 0x81001000, 0x81002000
STACK = 0x88003F08
IF = 1 << 9
ARGUMENTS = (0xFFFFC90000400000, 0xCC, 1 << 33)
CLOCK = Clock()
NAMES = ("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", *(f"r{n}" for n in range(8, 16)))
CHANGED = ("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_call, "time", CLOCK)


def thunk(arguments: Sequence[int] = ARGUMENTS) -> Thunk:
    return CALLING.thunk(CODE, FUNCTION, arguments, SAFE)


# the thunk -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", [STACK, STACK + 8])
def test_a_call_moves_nothing(stack: int) -> None:
    made = thunk()
    uc: Any = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    for page in {CODE // 4096, FUNCTION // 4096, SAFE // 4096, STACK // 4096, STACK // 4096 - 1}:
        uc.mem_map(page * 4096, 4096)
    uc.mem_write(CODE, made.data)
    uc.mem_write(FUNCTION, b"\xc3")
    register = {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in (*NAMES, "rsp", "eflags", "rip")}
    before = {name: 0x1111 * n for n, name in enumerate(NAMES, 1)} | {"rsp": stack, "eflags": 0x246 | 0x400 | 1}
    for name, value in before.items():
        uc.reg_write(register[name], value)
    uc.mem_write(stack, bytes(range(64)))
    seen: list[object] = []

    def at(_: object, address: int, size: int, user: object) -> None:
        value = {name: uc.reg_read(register[name]) for name in register}
        if address == FUNCTION:
            assert value["rsp"] % 16 == 8 and not value["eflags"] & 0x400, "as the ABI has it at an entry"
            seen.append((value["rdi"], value["rsi"], value["rdx"]))
            for name in CHANGED:
                uc.reg_write(register[name], 0xDEAD)
        elif address == made.returned:
            seen.append(value["rax"])
            assert value["rsp"] % 16 == 0
        elif address == made.done:
            seen.append({name: value[name] for name in before})
        elif address == SAFE:
            uc.emu_stop()

    uc.hook_add(unicorn.UC_HOOK_CODE, at)
    uc.emu_start(CODE, 0, count=100)
    assert seen == [ARGUMENTS, 0xDEAD, before]
    assert uc.reg_read(register["rip"]) == SAFE
    assert bytes(uc.mem_read(stack, 64)) == bytes(range(64))
    below = bytes(uc.mem_read(stack - 512, 512))
    assert not any(
        CODE <= int.from_bytes(below[n : n + 8], "little") < CODE + CALLING.size for n in range(0, 512, 8)
    ), "a scan of the stack finds no way into the thunk"


CELL = CODE + 0x10000


@pytest.mark.parametrize("held", [0, 0xFFFF_8880_0400_0000])
@pytest.mark.parametrize("gives", [False, True])
def test_a_cell_has_the_result_or_the_argument(gives: bool, held: int) -> None:
    """It is 0 before the function is called with what it had."""
    cell = {"gives" if gives else "takes": CELL}
    made = CALLING.thunk(CODE, FUNCTION, (9,), SAFE, **cell)
    assert len(made.data) <= CALLING.size
    uc: Any = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    for page in {at // 4096 for at in (CODE, FUNCTION, SAFE, STACK, STACK - 4096, CELL)}:
        uc.mem_map(page * 4096, 4096)
    uc.mem_write(CODE, made.data)
    uc.mem_write(FUNCTION, b"\xc3")
    uc.mem_write(CELL, held.to_bytes(8, "little"))
    before = {"rax": 1, "rdi": 2, "rsi": 3, "rsp": STACK, "eflags": 0x246}
    register = {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in before}
    for name, value in before.items():
        uc.reg_write(register[name], value)
    seen: list[int] = []

    def at(_: object, address: int, size: int, user: object) -> None:
        cell = int.from_bytes(uc.mem_read(CELL, 8), "little")
        if address == FUNCTION:
            seen.extend((uc.reg_read(register["rdi"]), uc.reg_read(register["rsi"]), cell))
            uc.reg_write(register["rax"], 0xDEAD)
        elif address == made.returned:
            seen.extend((uc.reg_read(register["rax"]), cell))
        elif address == SAFE:
            uc.emu_stop()

    uc.hook_add(unicorn.UC_HOOK_CODE, at)
    uc.emu_start(CODE, 0, count=100)
    assert seen == ([9, 3, held, 0xDEAD, 0xDEAD] if gives else [held, 9, 0, 0xDEAD, 0])
    assert {name: uc.reg_read(register[name]) for name in before} == before


def test_a_thunk_fits_where_room_is_sought_for_it() -> None:
    assert len(thunk([1 << 63] * CALLING.arguments).data) == CALLING.size
    insns = X86_64.decode(thunk().data, CODE)
    assert {insn.target for insn in insns if insn.target} == {FUNCTION, SAFE}
    assert insns[-1].address == thunk().done and insns[-1].end == CODE + len(thunk().data)


def test_target_out_of_reach() -> None:
    with pytest.raises(OutOfReach):
        CALLING.thunk(0xFFFF888000000000, FUNCTION, (), SAFE)


# the way there and back ----------------------------------------------------------------------------------------------


class Guest(Machine):
    """Runs to the address that is asked for next; what happens on the way is `steps`."""

    def __init__(self, *steps: Callable[[Guest], Vcpu | None], fill: int = 0xCC) -> None:
        super().__init__({"rip": 0}, {"rip": 0})
        self.steps = list(steps)
        self.fill = bytes([fill]) * CALLING.size
        self.put(CODE, self.fill)
        self.left = 0.0

    def run_until(self, addresses: Sequence[int], timeout: float) -> Vcpu | None:
        self.left = timeout
        return self.steps.pop(0)(self)

    @property
    def held(self) -> bytes:
        return self.read(CODE, CALLING.size)


class Points:
    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)

    def points(self) -> Sequence[int]:
        return (SAFE,)

    def may_call(self, vcpu: Vcpu) -> bool:
        return self.answers.pop(0) if self.answers else True


def caller(guest: Guest, points: Points | None = None) -> Caller:
    return Caller(guest, guest, CALLING, points or Points(), (CODE, CODE + CALLING.size))


def at_safe_point(guest: Guest) -> Vcpu:
    guest.state[0]["rip"] = SAFE
    return Vcpu(0, "1.1")


def returned_on_another_vcpu(guest: Guest) -> Vcpu:
    assert guest.state[0]["rip"] == CODE, "the call began"
    assert guest.held.startswith(thunk().data)
    guest.state[1] |= {"rip": thunk().returned, "rax": 0xFFFFC90000400000}
    return Vcpu(1, "1.2")


def done(guest: Guest) -> Vcpu:
    guest.state[1]["rip"] = thunk().done
    return Vcpu(1, "1.2")


def nothing(guest: Guest) -> None:
    CLOCK.now += guest.left


def another_stop(guest: Guest) -> None:
    """A breakpoint of the user's, a probe that stops, a hit that QEMU reports once more."""
    CLOCK.now += 1


def test_call_that_returns_on_another_vcpu() -> None:
    guest = Guest(at_safe_point, returned_on_another_vcpu, done)
    calls = caller(guest)
    calls.reach(5)
    assert guest.held == guest.fill, "nothing is written before a thread is where it may call"
    assert calls.call(FUNCTION, ARGUMENTS, 5) == 0xFFFFC90000400000
    assert guest.state[1]["rip"] == SAFE and guest.held == guest.fill, "no trace of it is left"


def test_a_second_call_is_made_from_where_the_first_came_back() -> None:
    def again(guest: Guest) -> Vcpu:
        assert guest.state[1]["rip"] == CODE
        return returned_on_another_vcpu_with(guest, 7)

    def returned_on_another_vcpu_with(guest: Guest, value: int) -> Vcpu:
        guest.state[1] |= {"rip": thunk().returned, "rax": value}
        return Vcpu(1, "1.2")

    guest = Guest(at_safe_point, returned_on_another_vcpu, done, again, done)
    calls = caller(guest)
    calls.reach(5)
    calls.call(FUNCTION, ARGUMENTS, 5)
    assert calls.call(FUNCTION, ARGUMENTS, 5) == 7
    assert not guest.steps and guest.held == guest.fill


def test_no_thread_at_a_safe_point() -> None:
    guest = Guest(nothing)
    with pytest.raises(CallFailed) as failed:
        caller(guest).reach(5)
    assert not failed.value.unfinished and guest.held == guest.fill


def test_another_stop_is_not_the_end_of_the_time() -> None:
    others = [another_stop] * 3
    guest = Guest(*others, at_safe_point, *others, returned_on_another_vcpu, *others, done)
    calls = caller(guest)
    calls.reach(5)
    assert guest.left == 2, "what is left of the time"
    assert calls.call(FUNCTION, ARGUMENTS, 5) == 0xFFFFC90000400000
    assert guest.state[1]["rip"] == SAFE and guest.held == guest.fill and not guest.steps


def test_other_stops_until_the_time_is_up() -> None:
    guest = Guest(*[another_stop] * 5, at_safe_point, *[another_stop] * 5)
    with pytest.raises(CallFailed):
        caller(guest).reach(5)
    calls = caller(guest)
    calls.reach(5)
    with pytest.raises(CallFailed) as failed:
        calls.call(FUNCTION, ARGUMENTS, 5)
    assert failed.value.unfinished and not guest.steps


def test_a_thread_that_may_not_call_is_passed_over() -> None:
    guest = Guest(at_safe_point, at_safe_point, returned_on_another_vcpu, done)
    points = Points(False, True)
    calls = caller(guest, points)
    calls.reach(5)
    assert points.answers == [] and guest.state[0]["rip"] == SAFE
    calls.call(FUNCTION, ARGUMENTS, 5)


def test_none_but_threads_that_may_not_call() -> None:
    guest = Guest(*[at_safe_point] * 64)
    with pytest.raises(CallFailed):
        caller(guest, Points(*[False] * 64)).reach(5)
    assert guest.state[0]["rip"] == SAFE and guest.held == guest.fill


def test_call_that_does_not_return_in_time() -> None:
    guest = Guest(at_safe_point, nothing)
    calls = caller(guest)
    calls.reach(5)
    with pytest.raises(CallFailed) as failed:
        calls.call(FUNCTION, ARGUMENTS, 5)
    assert failed.value.unfinished and guest.held.startswith(thunk().data), "the thread returns to it"
    with pytest.raises(CallFailed):
        calls.call(FUNCTION, ARGUMENTS, 5)
    assert not guest.steps


def test_foreign_bytes_where_the_thunk_is_to_be() -> None:
    guest = Guest(at_safe_point)
    calls = caller(guest)
    calls.reach(5)
    guest.put(CODE + 3, b"\x90")
    with pytest.raises(CallFailed, match="not what it was"):
        calls.call(FUNCTION, ARGUMENTS, 5)
    assert guest.state[0]["rip"] == SAFE and guest.held[:3] == guest.fill[:3]


# safe points ---------------------------------------------------------------------------------------------------------

NAMED = {"ksys_read": SAFE, "schedule_timeout": SAFE + 0x100, "__preempt_count": 0x100, "current_task": 0x108}
BASE, TASK = 0xFFFF88800F000000, 0xFFFF888001000000
FLAGS = {"task_struct.flags": 0x2C}


def at(pc: int, flags: int = 0, count: int = 0x80000000, eflags: int = IF) -> tuple[Machine, SafePoints]:
    machine = Machine({"rip": pc, "eflags": eflags, "gs_base": BASE, "cpl": 0})
    machine.put(BASE + 0x100, count.to_bytes(8, "little"))
    machine.put_words(BASE + 0x108, TASK)
    machine.put(TASK + 0x2C, flags.to_bytes(4, "little"))
    return machine, SafePoints(machine, kernel(machine, NAMED, FLAGS), VCPUS)


@pytest.mark.parametrize(
    ("pc", "flags", "count", "eflags", "may"),
    [
        (SAFE, 0, 0x80000000, IF, True),
        (SAFE, 0, 0x80000000, 0, False),
        (SAFE, 0, 0x80000001, IF, False),
        (SAFE + 0x100, safe_points.KERNEL_THREAD, 0x80000000, IF, True),
        (SAFE + 0x100, 0, 0x80000000, IF, False),
        (SAFE + 0x100, safe_points.KERNEL_THREAD | safe_points.WORKER, 0x80000000, IF, False),
        (SAFE + 0x100, safe_points.KERNEL_THREAD | 0x10, 0x80000000, IF, False),
        (SAFE + 0x100, safe_points.KERNEL_THREAD | safe_points.RECLAIMS, 0x80000000, IF, False),
    ],
)
def test_a_thread_that_may_hold_a_lock_calls_nothing(pc: int, flags: int, count: int, eflags: int, may: bool) -> None:
    _, points = at(pc, flags, count, eflags)
    assert points.may_call(Vcpu(0, "1.1")) is may


def test_where_threads_cannot_be_told_only_system_calls_are_safe() -> None:
    machine, points = at(SAFE)
    assert points.points() == (SAFE, SAFE + 0x100)
    assert SafePoints(machine, kernel(machine, NAMED, {}), VCPUS).points() == (SAFE,)
    assert SafePoints(machine, kernel(machine, NAMED, FLAGS), VCPUS, avoid=lambda at: at == SAFE).points() == (
        SAFE + 0x100,
    )


def test_where_the_kernel_warns_of_a_thread_that_sleeps_while_it_waits_only_system_calls_are_safe() -> None:
    machine, _ = at(SAFE + 0x100, safe_points.KERNEL_THREAD)
    points = SafePoints(machine, kernel(machine, NAMED | {"__might_sleep": SAFE + 0x200}, FLAGS), VCPUS)
    assert points.points() == (SAFE,) and not points.may_call(Vcpu(0, "1.1"))
    machine.state[0]["rip"] = SAFE
    assert points.may_call(Vcpu(0, "1.1"))
