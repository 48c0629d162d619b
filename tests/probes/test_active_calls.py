"""Which calls never return: whoever is in doubt is held to be under way."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import pytest

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.saved_pcs import SavedWords, Stack
from gdb_optprobe.isa.base import ReadMemory
from gdb_optprobe.probes.active_calls import UNKNOWN_STACK, ArenaCode, Caller, CallStacks, call_stacks

STACK, SP, GONE, CPU = 0xFFFF_C900_0010_0000, 0xFFFF_C900_0010_3000, 0xFFFF_C900_0020_0000, 0xFFFF_C900_0000_0000
OURS, TRAMPOLINE, TRACER = 0xFFFF_FFFF_9BA3_D000, 0xFFFF_FFFF_9BA3_D040, 0xFFFF_FFFF_9B00_1230
CODE = ArenaCode([(OURS, OURS + 0x1000)], {TRAMPOLINE}, 1 << 31)
THREAD = Stack(STACK, STACK + 0x4000, 412, "sleep")
INTERRUPT = Stack(CPU, CPU + 0x4000)


def memory(words: Mapping[int, int], mapped: Sequence[int] = (STACK, CPU)) -> ReadMemory:
    def read(address: int, size: int) -> bytes:
        if not any(start <= address < start + 0x4000 for start in mapped):
            raise Unreadable(address, size)
        return b"".join(words.get(at, 0).to_bytes(8, "little") for at in range(address, address + size, 8))

    return read


def scan(*words: int) -> list[SavedWords]:
    """A thread's stack from SP up, with these words, and a CPU's stack, which is in use from its middle up."""
    return [
        SavedWords("vCPU 0", 0, array("Q", ())),
        SavedWords("thread 412 (sleep)", SP, array("Q", words), THREAD),
        SavedWords("an interrupt on CPU 0", CPU + 0x2000, array("Q"), INTERRUPT),
    ]


def test_whose_a_call_is() -> None:
    found = CallStacks(scan(), memory({}))
    assert found.caller(SP + 8) == Caller("thread 412 (sleep)", 412, "sleep")
    assert found.caller(CPU + 0x3000) == Caller("an interrupt on CPU 0")
    assert found.caller(GONE) == Caller(UNKNOWN_STACK)


@pytest.mark.parametrize(
    ("at", "over"),
    [
        (SP + 0x100, False),
        (SP, False),
        (SP - 8, False),  # it has returned, and its trampoline has not begun
        (SP - 16, True),
        (STACK, True),
        (STACK - 8, True),  # a guard page
        (GONE, True),
        (CPU + 0x3000, False),
        (CPU + 8, False),
    ],
)
def test_a_frame_that_is_gone_is_known_by_the_stack_pointer(at: int, over: bool) -> None:
    assert CallStacks(scan(), memory({})).is_over(at) is over


def test_a_stack_that_nobody_tells_of_may_be_somebodys() -> None:
    assert not CallStacks(scan(), memory({}, (STACK, GONE))).is_over(GONE)
    whole = CallStacks(scan(), memory({}, (STACK, GONE)), may_miss_stacks=False)
    assert whole.is_over(GONE), "but for where all are told of"


@pytest.mark.parametrize("back", [TRAMPOLINE, TRACER])
def test_a_return_address_that_is_code_may_lead_to_us(back: int) -> None:
    """A tracer of the guest's puts its own in the place of ours."""
    found = call_stacks(scan(TRAMPOLINE), memory({SP + 0x100: back}), True, CODE)
    assert not found.is_over(SP + 0x100)


def test_a_return_address_that_is_no_code_was_overwritten() -> None:
    at = SP + 0x100
    found = call_stacks(scan(TRAMPOLINE), memory({at: 0xFFFF_8880_0123_4560}), True, CODE)
    assert found.is_over(at) and not found.is_over(SP - 8)


def test_while_somebody_is_in_our_code_the_word_on_the_stack_is_his() -> None:
    at = SP + 0x100
    found = call_stacks(scan(TRAMPOLINE + 1), memory({at: 0}), True, CODE)
    assert not found.is_over(at) and found.is_over(SP - 16)


def test_who_is_interrupted_where_a_trampoline_starts_has_pushed_words_there() -> None:
    """x86-64 aligns the stack to 16 bytes, then pushes SS, RSP, RFLAGS, CS and RIP."""
    at = SP + 0x100
    pushed = {at: 0x18, at - 8: at + 8, at - 16: 0x202, at - 24: 0x10, at - 32: TRAMPOLINE}
    assert not call_stacks(scan(TRAMPOLINE), memory(pushed), True, CODE).is_over(at)
    assert call_stacks(scan(TRAMPOLINE), memory({**pushed, at - 32: TRACER}), True, CODE).is_over(at)


def test_where_the_stack_need_not_show_return_addresses_it_proves_nothing() -> None:
    assert not CallStacks(scan(), memory({SP + 0x100: 0})).is_over(SP + 0x100)


AT = SP + 0x100


@pytest.mark.parametrize("below", [AT, CPU + 0x3000])
def test_who_is_interrupted_where_a_trampoline_starts_is_not_at_rest(below: int) -> None:
    """Its call has returned by the word at its stack address. Below: where its registers were pushed."""
    pushed = {below - 8: 0x18, below - 16: AT + 8, below - 24: 0x202, below - 32: 0x10, below - 40: TRAMPOLINE}
    on_thread = below == AT

    def scanned() -> list[SavedWords]:  # as quiescence has it: what may be in the text alone
        vcpu, thread, interrupt = scan(TRAMPOLINE)
        words = array("Q", [TRAMPOLINE][on_thread:])
        return [vcpu, thread, SavedWords(interrupt.owner, interrupt.address, words, INTERRUPT)]

    there = {AT: TRAMPOLINE, AT + 0x40: TRAMPOLINE}
    assert CallStacks(scanned(), memory({**there, **pushed})).at_rest([AT, AT + 0x40], TRAMPOLINE) == []
    resting = CallStacks(scanned(), memory({**there, **pushed, below - 16: AT - 0x80}))
    assert resting.at_rest([AT, AT + 0x40], TRAMPOLINE) == [AT, AT + 0x40]


def test_nobody_is_known_to_be_at_rest_while_a_cpu_may_be_at_the_trampoline() -> None:
    vcpu, *others = scan(TRAMPOLINE)
    there = SavedWords(vcpu.owner, 0, array("Q", [TRAMPOLINE]))
    assert CallStacks([there, *others], memory({AT: TRAMPOLINE})).at_rest([AT], TRAMPOLINE) == []
    assert CallStacks([vcpu, *others], memory({AT: TRAMPOLINE})).at_rest([AT], TRAMPOLINE) == [AT]
