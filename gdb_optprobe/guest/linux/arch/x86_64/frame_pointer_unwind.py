"""Unwind the kernel's stack by its frame pointers (CONFIG_UNWINDER_FRAME_POINTER; arch/x86/kernel/unwind_frame.c).

    rbp ──► ┌────────────────┐      ┌────────────────┐
            │ caller's rbp   ├────► │ its caller's   ├────►  0: the stack ends
            │ return address │      │ return address │      odd: a pt_regs, one byte below (ENCODE_FRAME_POINTER)
    CFA ──► └────────────────┘      └────────────────┘
Whether a function has not made its frame yet, or has removed it, follows from its code: the distance of rsp from its
value at the entry. Code that makes no frame (assembly) keeps its caller's rbp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.linux.arch.x86_64.orc_unwind import PT_REGS, State
from gdb_optprobe.isa.base import Flow, Insn, ReadMemory

__all__ = ["Frame", "balanced", "frame_at", "makes_frame", "unwind"]

WORD = 8
MASK = (1 << 64) - 1
KERNEL_HALF = 1 << 63
PUSH_RBP, POP_RBP, LEAVE = b"\x55", b"\x5d", b"\xc9"
SET_RBP = (b"\x48\x89\xe5", b"\x48\x8b\xec")  # mov %rsp, %rbp
MOVED = re.compile(r"(?P<what>add|sub)q \$(?P<by>-?(0x)?[0-9a-f]+), %rsp$")
FROM_RBP = re.compile(r"leaq (?P<offset>-?(0x)?[0-9a-f]*)\(%rbp\), %rsp$")
WRITES_RSP = re.compile(r".*[ ,]%[er]?spl?$")
STEPS = 4000
# By whole names: `popcntq` takes nothing off the stack, and `cmpxchgq` writes.
PUSH, POP = ("pushq", "pushfq"), ("popq", "popfq")
COMPARES = tuple(f"{name}{size}" for name in ("cmp", "test") for size in "bwlq")
OTHERWISE = ("pushw", "popw", "pushfw", "popfw", "enter", "leave")
EXCHANGES = re.compile(r"(xchg|xadd)\w .*(?<!\()%[er]?sp\b")


@dataclass(frozen=True, slots=True)
class Frame:
    """The stack before an instruction. size: bytes from rsp to the CFA; None where that varies.

    saved: how far below the CFA the caller's rbp is; 0 while it is in the register.
    set:   rbp points to it.
    """

    size: int | None = WORD
    saved: int = 0
    set: bool = False


SET = Frame(None, 2 * WORD, set=True)
"""Once the frame is made."""

Code = tuple[int, Mapping[int, Insn]]
"""Where a function starts, and its instructions by address."""


def unwind(state: State, function: Callable[[int], Code | None], read: ReadMemory) -> State | None:
    """Return the caller's frame; None where the stack ends, or nothing is known."""
    try:
        return _unwind(state, function, read)
    except Unreadable:
        return None


def frame_at(start: int, code: Mapping[int, Insn], pc: int) -> Frame | None:
    """Return the frame before the instruction at `pc`; None where no path from the start to it was found."""
    return _frames(start, code, pc).get(pc)


def makes_frame(start: int, code: Mapping[int, Insn]) -> bool:
    """Return whether the function pushes rbp and sets it to rsp: then a return address is on the stack at its entry."""
    return any(frame.set for frame in _frames(start, code).values())


def balanced(start: int, code: Mapping[int, Insn]) -> bool:
    """Return whether all returns that are found leave rsp and rbp as they were at the entry."""
    frames = _frames(start, code)
    ends = [frame for at, frame in frames.items() if code[at].flow is Flow.RETURN]
    return all(frame.size == WORD and not frame.saved for frame in ends)


def _unwind(state: State, function: Callable[[int], Code | None], read: ReadMemory) -> State | None:
    registers = state.registers
    pc, sp, bp = (registers[name] for name in ("rip", "rsp", "rbp"))
    # A call at the very end of a function has a return address behind the function.
    at = pc - (not state.exact)
    found = function(at)
    frame = _frame(*found, at, state.exact) if found is not None else None
    if frame is not None and not frame.set and frame.size is not None:
        cfa = sp + frame.size & MASK
        caller_bp = _word(cfa - frame.saved, read) if frame.saved else bp
    elif frame is None and bp & 1 and bp >= KERNEL_HALF:
        return _interrupted(registers, bp - 1, read)
    elif bp % WORD or (frame is None and bp < KERNEL_HALF):
        return None
    else:
        cfa, caller_bp = bp + 2 * WORD, _word(bp, read)
    back = _word(cfa - WORD, read)
    if (back, cfa) == (pc, sp):
        return None
    return State({"rip": back, "rsp": cfa, "rbp": caller_bp}, exact=False)


def _frame(start: int, own: Mapping[int, Insn], at: int, exact: bool) -> Frame | None:
    """Return the frame at the instruction that covers `at`; None in assembly.
    exact: `at` is an instruction's first byte.
    """
    if makes_frame(start, own):
        at = at if at in own else max((each for each in own if each < at), default=at)
        return frame_at(start, own, at) or SET
    return frame_at(start, own, at) if exact and _is_leaf(own) else None


def _is_leaf(own: Mapping[int, Insn]) -> bool:
    """Return whether only pushes, pops and returns touch the stack, as far as can be seen."""
    return not any(insn.flow in (Flow.SYSTEM, Flow.INDIRECT_JUMP) for insn in own.values())


def _interrupted(registers: Mapping[str, int], place: int, read: ReadMemory) -> State | None:
    data = read(place, WORD * len(PT_REGS))
    words = (int.from_bytes(data[n : n + WORD], "little") for n in range(0, len(data), WORD))
    found = dict(zip(PT_REGS, words, strict=True))
    if found.pop("cs") & 3 or found["rsp"] == registers["rsp"]:
        return None
    return State({**registers, **found}, exact=True)


def _frames(start: int, code: Mapping[int, Insn], until: int | None = None) -> dict[int, Frame]:
    """Return the frame before each instruction that is reached from the start; the first path found counts."""
    found: dict[int, Frame] = {}
    ways = [(start, Frame())]
    while ways and len(found) < STEPS and until not in found:
        at, frame = ways.pop()
        if at in found or at not in code:
            continue
        found[at] = frame
        insn = code[at]
        ways += [(following, _after(insn, frame)) for following in _following(insn)]
    return found


def _following(insn: Insn) -> Iterator[int]:
    if insn.target is not None and insn.flow in (Flow.JUMP, Flow.BRANCH):
        yield insn.target
    if insn.falls_through:
        yield insn.end


def _after(insn: Insn, frame: Frame) -> Frame:
    size, data, text = frame.size, insn.data, insn.text
    if data == PUSH_RBP and not frame.saved and size is not None:
        return replace(frame, size=size + WORD, saved=size + WORD)
    if data in SET_RBP and frame.saved and size == frame.saved:
        return replace(frame, set=True)
    if data == POP_RBP and frame.saved:
        # rsp is where rbp was pushed, whatever is known of it.
        return Frame(frame.saved - WORD)
    if data == LEAVE and frame.set:
        return Frame(frame.saved - WORD)
    if (moved := FROM_RBP.match(text)) is not None and frame.set:
        return replace(frame, size=frame.saved - int(moved["offset"] or "0", 16))
    if size is None:
        return frame
    mnemonic = text.partition(" ")[0]
    if mnemonic in PUSH:
        return replace(frame, size=size + WORD)
    if mnemonic in POP and not WRITES_RSP.match(text):
        return replace(frame, size=size - WORD)
    if (moved := MOVED.match(text)) is not None:
        by = int(moved["by"], 16)
        return replace(frame, size=size + (by if moved["what"] == "sub" else -by))
    writes = WRITES_RSP.match(text) and mnemonic not in COMPARES
    if writes or mnemonic in OTHERWISE or EXCHANGES.match(text):
        return replace(frame, size=None)
    return frame


def _word(address: int, read: ReadMemory) -> int:
    return int.from_bytes(read(address & MASK, WORD), "little")
