"""Unwind the kernel's stack by its back chain (ELFv2 ABI, 2.2.2; arch/powerpc/kernel/stacktrace.c).

    r1 ──► ┌────────────────┐      ┌────────────────┐      ┌──────
           │ back chain     ├────► │ back chain     ├────► │
           │ CR             │      │ CR             │
           │ LR of callees  │      │ LR of this     │      16: where the frame below returns to
           │ …              │      │ one's callee   │
           └────────────────┘      └────────────────┘
Whether a function has made its frame follows from its code: the distance of r1 from its value at the entry, and whether
LR still holds the return address. An interrupt leaves a marker in its frame, and a pt_regs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.isa.base import Flow, Insn, ReadMemory
from gdb_optprobe.isa.ppc64le.abi import GENERAL, LR, LR_SAVE, PC, SP
from gdb_optprobe.isa.ppc64le.fields import MASK, opcode, ra, rb, rt, simm, word_of, xo
from gdb_optprobe.isa.ppc64le.register_effects import SPR_LR

__all__ = ["Frame", "Function", "State", "frame_at", "unwind"]

MARKER = 0x7265_6773_6865_7265  # "regshere": STACK_FRAME_REGS_MARKER of asm/ptrace.h until 6.0
SHORT_MARKER = 0x5347_4552  # "REGS": since then
# Where the marker is in a frame, and 16 bytes further the pt_regs: until 6.2, and since.
MARKERS = (96, 32)
# struct pt_regs: gpr[32], nip, msr, orig_gpr3, ctr, link, xer, ccr
PT_REGS = (*GENERAL, PC, "msr", "orig_r3", "ctr", LR, "xer", "cr")
PROBLEM_STATE = 1 << 14  # MSR[PR]
STEPS = 4000

Function = tuple[int, Mapping[int, Insn]]
"""Where a function starts, and its instructions by address."""


@dataclass(frozen=True, slots=True)
class State:
    """A frame: the registers known in it, by GDB's names; "pc" and "r1" always, "lr" where `exact`.

    exact: the PC is the instruction that comes next (innermost frame, or interrupted code), no return address.
    """

    registers: Mapping[str, int]
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Frame:
    """What a function has done to its stack before an instruction.
    size:  bytes from r1 to its value at the entry; None where that varies: the back chain has it.
    in_lr: LR holds the return address; else it is saved where the caller provides for that.
    copy:  a general register that holds it too, -1 for none.
    """

    size: int | None = 0
    in_lr: bool = True
    copy: int = -1
    saved: bool = False


def unwind(state: State, function: Callable[[int], Function | None], read: ReadMemory) -> State | None:
    """Return the caller's frame; None where the kernel's stack ends, or nothing is known.
    function: finds the function around a PC; returns None where there is none.
    """
    try:
        return _unwind(state, function, read)
    except (Unreadable, KeyError):
        return None


def _unwind(state: State, function: Callable[[int], Function | None], read: ReadMemory) -> State | None:
    pc, sp = state.registers[PC], state.registers[SP]
    if not sp or sp & 7:
        return None
    around = function(pc) if state.exact else None
    frame = frame_at(pc, *around) if around is not None else Frame(None, in_lr=False)
    interrupted = _interrupted(sp, read) if frame.size != 0 else None
    if interrupted is not None:
        return interrupted if not interrupted.registers["msr"] & PROBLEM_STATE else None
    # Where there is a frame its back chain says how large it is: a system call's may have grown by a random offset.
    caller_sp = sp if frame.size == 0 else _word(sp, read)
    if frame.size != 0 and caller_sp <= sp:
        return None
    back = state.registers[LR] if frame.in_lr else _word(caller_sp + LR_SAVE, read)
    # LR at a frame that a call has returned to is its return address. GDB 13 asks for LR of the outermost frame.
    return State({PC: back, SP: caller_sp, LR: back}, exact=False) if back else None


def _interrupted(sp: int, read: ReadMemory) -> State | None:
    """Return the interrupted code, where the frame at `sp` is an interrupt's."""
    for offset in MARKERS:
        if _word(sp + offset, read) in (MARKER, SHORT_MARKER):
            values = struct.unpack(f"<{len(PT_REGS)}Q", read(sp + offset + 16, 8 * len(PT_REGS)))
            return State(dict(zip(PT_REGS, values, strict=True)))
    return None


def frame_at(pc: int, start: int, code: Mapping[int, Insn]) -> Frame:
    """Return the frame that the function at `start` has before `pc`; only the back chain where no path to `pc` is
    found.
    """
    pending, seen = [(start, Frame())], set()
    for _ in range(STEPS):
        if not pending:
            break
        at, frame = pending.pop()
        if at == pc:
            return frame
        insn = code.get(at)
        if at in seen or insn is None:
            continue
        seen.add(at)
        after = _after(insn, frame)
        if insn.target is not None and insn.flow in (Flow.JUMP, Flow.BRANCH):
            pending.append((insn.target, after))
        if insn.falls_through:
            pending.append((insn.end, after))
    return Frame(None, in_lr=False)


def _after(insn: Insn, frame: Frame) -> Frame:
    word = word_of(insn.data)
    if insn.flow in (Flow.CALL, Flow.INDIRECT_CALL):
        return replace(frame, in_lr=False, copy=-1)
    saves_at = None if frame.size is None else frame.size + LR_SAVE
    match opcode(word):
        case 62 if ra(word) == 1 and word & 3 == 1 and rt(word) == 1:  # stdu r1
            return replace(frame, size=None if frame.size is None else frame.size - simm(word & ~3))
        case 62 if ra(word) == 1 and word & 3 == 0 and rt(word) == frame.copy and simm(word) == saves_at:
            return replace(frame, saved=True)
        case 58 if ra(word) == 1 and word & 3 == 0 and frame.saved and simm(word) == saves_at:
            return replace(frame, copy=rt(word))
        case 58 if rt(word) == 1 and ra(word) == 1:  # ld r1,0(r1)
            return replace(frame, size=0)
        case 14 if rt(word) == 1 and ra(word) == 1:
            return replace(frame, size=None if frame.size is None else frame.size - simm(word))
        case 31 if xo(word) == 181 and rt(word) == 1:  # stdux r1
            return replace(frame, size=None)
        case 31 if xo(word) in (339, 467) and ra(word) | rb(word) << 5 == SPR_LR:
            if xo(word) == 467:
                return replace(frame, in_lr=rt(word) == frame.copy)
            return replace(frame, copy=rt(word)) if frame.in_lr else frame
    return frame


def _word(address: int, read: ReadMemory) -> int:
    return int.from_bytes(read(address & MASK, 8), "little")
