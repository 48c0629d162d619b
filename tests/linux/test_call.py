from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from gdb_optprobe.guest.call import CELL_SIZE, DONE, RESULT, CallFailed, call, thunk
from gdb_optprobe.guest.machine import Vcpu
from gdb_optprobe.isa.x86_64 import X86_64
from tests.linux.fakes import Machine

CODE, CELL = 0xFFFFFFFF82000000, 0xFFFFFFFF7FE00000
FUNCTION, SAFE = 0xFFFFFFFF81001000, 0xFFFFFFFF81002000
IF = 1 << 9
THUNK = thunk(CODE, CELL, FUNCTION, SAFE)


class Guest(Machine):
    """Runs to the address that is asked for next; what happens on the way is `steps`."""

    def __init__(self, *steps: Callable[[Guest], Vcpu | None], flags: int = IF) -> None:
        super().__init__({"eflags": flags, "rip": 0}, {"eflags": flags, "rip": 0})
        self.steps = list(steps)
        self.put(CODE, THUNK.data)
        self.put(CELL, bytes(CELL_SIZE))

    def run_until(self, addresses: Sequence[int], timeout: float) -> Vcpu | None:
        return self.steps.pop(0)(self)


def at_safe_point(guest: Guest) -> Vcpu:
    guest.state[0]["rip"] = SAFE
    return Vcpu(0, "1.1")


def returned_on_another_vcpu(guest: Guest) -> Vcpu:
    assert guest.state[0]["rip"] == CODE, "the call began"
    assert int.from_bytes(guest.read(CELL, 8), "little") == 8192
    guest.state[1]["rip"] = THUNK.done
    guest.put_words(CELL + RESULT, 0xFFFFFFFFC0000000, 1)
    return Vcpu(1, "1.2")


def nothing(guest: Guest) -> None:
    return None


def test_thunk_saves_and_restores_everything() -> None:
    insns = X86_64.decode(THUNK.data, CODE)
    assert insns[-1].end == CODE + len(THUNK.data) and insns[-1].address == THUNK.done
    names = [insn.text.split() for insn in insns]
    pushed = [words[1] for words in names if words[0] == "pushq"]
    popped = [words[1] for words in names if words[0] == "popq"]
    assert pushed == popped[::-1] and len(pushed) == 15
    assert names[0][0] == "pushfq" and "popfq" in [words[0] for words in names]
    assert {insn.target for insn in insns if insn.target} == {FUNCTION, SAFE}


def test_nothing_is_changed_between_popfq_and_the_way_back() -> None:
    insns = X86_64.decode(THUNK.data, CODE)
    assert [insn.text.split()[0] for insn in insns[-3:]] == ["popfq", "movq", "jmp"]


def test_call_that_returns_on_another_vcpu() -> None:
    guest = Guest(at_safe_point, returned_on_another_vcpu)
    assert call(guest, THUNK, [8192], 5) == 0xFFFFFFFFC0000000
    assert guest.state[1]["rip"] == SAFE, "nobody is in the thunk any more"


def test_no_thread_at_the_safe_point() -> None:
    with pytest.raises(CallFailed) as failed:
        call(Guest(nothing), THUNK, [], 5)
    assert not failed.value.unfinished


def test_call_that_does_not_return_in_time() -> None:
    with pytest.raises(CallFailed) as failed:
        call(Guest(at_safe_point, nothing), THUNK, [], 5)
    assert failed.value.unfinished


def test_interrupts_off_is_passed_over() -> None:
    guest = Guest(*[at_safe_point] * 64, flags=0)
    with pytest.raises(CallFailed, match="interrupts"):
        call(guest, THUNK, [], 5)
    assert guest.state[0]["rip"] == SAFE


def test_preemption_off_is_passed_over() -> None:
    answers = [False, True]
    guest = Guest(at_safe_point, at_safe_point, returned_on_another_vcpu)
    assert call(guest, THUNK, [8192], 5, lambda vcpu: answers.pop(0))
    assert answers == []


def test_return_without_the_mark() -> None:
    def lost(guest: Guest) -> Vcpu:
        return Vcpu(0, "1.1")

    with pytest.raises(CallFailed, match="without having made it"):
        call(Guest(at_safe_point, lost), THUNK, [], 5)


def test_foreign_bytes_in_the_thunk() -> None:
    guest = Guest(at_safe_point)
    guest.put(CODE, b"\x90")
    with pytest.raises(CallFailed, match="not what was written"):
        call(guest, THUNK, [], 5)
    assert guest.steps, "the guest did not run"


def test_target_out_of_reach() -> None:
    with pytest.raises(CallFailed, match="cannot be reached"):
        thunk(0xFFFF888000000000, CELL, FUNCTION, SAFE)


def test_cell() -> None:
    assert DONE + 8 == CELL_SIZE
