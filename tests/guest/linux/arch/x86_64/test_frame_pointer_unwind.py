"""Backtraces by frame pointers: wherever a function stands, its caller is the one that called it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.linux.arch.x86_64 import frame_pointer_unwind
from gdb_optprobe.guest.linux.arch.x86_64.orc_unwind import PT_REGS, State
from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.x86_64 import X86_64

START, BACK = 0xFFFF_FFFF_8100_0000, 0xFFFF_FFFF_8100_9999
SP, BP = 0xFFFF_8880_0000_7F00, 0xFFFF_8880_0000_7F80

# The branch leads to the second way, behind `ret`, which makes its frame later.
FRAMED = "f3 0f 1e fa 48 85 ff 74 0c 55 48 89 e5 41 54 48 83 ec 10 c9 c3"
FRAMED += " 31 c0 55 48 89 e5 53 48 83 ec 80 48 8d 65 f8 5b 5d c3"
LEAF = "31 c0 0f 1f 00 c3"
ENTRY = "0f 01 f8 57 48 89 e7 48 0f 07"  # swapgs; push; mov; sysretq


def code(text: str) -> dict[int, Insn]:
    return {insn.address: insn for insn in X86_64.decode(bytes.fromhex(text), START)}


class Stack:
    def __init__(self) -> None:
        self.words: dict[int, int] = {}

    def read(self, address: int, size: int) -> bytes:
        if any(at not in self.words for at in range(address, address + size, 8)):
            raise Unreadable(address, size)
        return b"".join(self.words[at].to_bytes(8, "little") for at in range(address, address + size, 8))


def run(text: str, stack: Stack) -> Iterator[tuple[int, int, int, dict[int, int]]]:
    """Carry out what of the code touches rsp and rbp, from the entry on: each place with its registers."""
    insns = code(text)
    ways = [(START, SP, BP, dict(stack.words))]
    seen: set[int] = set()
    while ways:
        at, sp, bp, words = ways.pop()
        if at in seen or at not in insns:
            continue
        seen.add(at)
        yield at, sp, bp, dict(words)
        insn = insns[at]
        match insn.text.split("#")[0].strip():
            case "pushq %rbp":
                sp -= 8
                words[sp] = bp
            case "movq %rsp, %rbp":
                bp = sp
            case "pushq %rbx" | "pushq %r12":
                sp -= 8
                words[sp] = 0x1111
            case "subq $0x10, %rsp":
                sp -= 16
            case "subq $-0x80, %rsp":
                sp += 128
            case "leaq -8(%rbp), %rsp":
                sp = bp - 8
            case "popq %rbx":
                sp += 8
            case "popq %rbp":
                bp, sp = words[sp], sp + 8
            case "leave":
                bp, sp = words[bp], bp + 8
        if insn.target is not None:
            ways.append((insn.target, sp, bp, words))
        if insn.falls_through:
            ways.append((insn.end, sp, bp, words))


@pytest.mark.parametrize("text", [FRAMED, LEAF])
def test_from_anywhere_in_a_function_to_its_caller(text: str) -> None:
    stack = Stack()
    stack.words[SP] = BACK
    insns = code(text)
    places = 0
    for at, sp, bp, words in run(text, stack):
        now = Stack()
        now.words = words
        state = State({"rip": at, "rsp": sp, "rbp": bp})
        found = frame_pointer_unwind.unwind(state, lambda _: (START, insns), now.read)
        assert found == State({"rip": BACK, "rsp": SP + 8, "rbp": BP}, exact=False), hex(at)
        places += 1
    assert places == len(insns), "every instruction is reached"


def test_interrupted_code_is_found_by_an_odd_frame_pointer() -> None:
    stack = Stack()
    values = {name: 0x100 + number for number, name in enumerate(PT_REGS)} | {"cs": 0x10}
    stack.words = {BP + 8 * number: values[name] for number, name in enumerate(PT_REGS)}
    entry = State({"rip": START + 4, "rsp": SP, "rbp": BP | 1}, exact=False)
    found = frame_pointer_unwind.unwind(entry, lambda _: (START, code(ENTRY)), stack.read)
    assert found is not None and found.exact
    assert found.registers["rip"] == values["rip"] and found.registers["rbp"] == values["rbp"]
    stack.words[BP + 8 * PT_REGS.index("cs")] = 0x33
    above = frame_pointer_unwind.unwind(entry, lambda _: (START, code(ENTRY)), stack.read)
    assert above is None, "a program was interrupted"


def test_the_chain_ends_where_there_is_no_frame() -> None:
    for bp in (0, 0x7FFF_1234_5678):
        state = State({"rip": START + 4, "rsp": SP, "rbp": bp}, exact=False)
        assert frame_pointer_unwind.unwind(state, lambda _: (START, code(ENTRY)), Stack().read) is None


def test_what_is_entered_by_calls_makes_a_frame_and_returns_as_it_was_entered() -> None:
    framed = code("55 48 89 e5 53 5b 5d c3")
    assert frame_pointer_unwind.makes_frame(START, framed) and frame_pointer_unwind.balanced(START, framed)
    assert not frame_pointer_unwind.makes_frame(START, code(LEAF))
    assert not frame_pointer_unwind.balanced(START, code("55 48 89 e5 c3"))


@pytest.mark.parametrize("text", ["f3 48 0f b8 c1", "48 0f b1 c8", "48 85 e4", "48 39 e0", "48 87 04 24"])
def test_what_begins_like_a_push_a_pop_or_a_compare_is_not_one(text: str) -> None:
    """popcnt takes nothing off the stack; test, cmp and an exchange with memory leave rsp."""
    insns = code(f"55 {text} 5d c3")
    assert [frame_pointer_unwind.frame_at(START, insns, at).size for at in insns] == [8, 16, 16, 8]  # type: ignore[union-attr]
    assert frame_pointer_unwind.balanced(START, insns)


@pytest.mark.parametrize("text", ["5c", "c8 10 00 00", "66 50", "48 94", "48 0f c1 e0", "48 0f b1 c4", "48 ff c4"])
def test_what_moves_rsp_otherwise_leaves_nothing_known(text: str) -> None:
    """pop %rsp, enter, push %ax, exchanges, cmpxchg, inc."""
    insns = code(f"53 {text} c3")
    assert frame_pointer_unwind.frame_at(START, insns, max(insns)).size is None  # type: ignore[union-attr]
