"""Unwind an aarch64 kernel's stack: each frame has a record of its caller, and x29 leads to the innermost.

    x29 ─► ┌─────┬─────┐      ┌─────┬─────┐
           │ x29 │ x30 │ ───► │ x29 │ x30 │ ───► … ───► 0      (AAPCS64, 6.4.6; the kernel has -fno-omit-frame-pointer)
           └─────┴─────┘      └─────┴─────┘
    an exception   pt_regs has such a record, from which all registers of what was interrupted are found
    a function     has no record before `mov x29, sp`, and none behind `ldp x29, x30`: there x30 is its return address

Where the innermost function is, between these, follows from its code, and so does how far above its record a function
had the stack pointer when it was called. A return address may be signed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.aarch64.constants import access, added
from gdb_optprobe.guest.linux.arch.aarch64.stacks import unsigned
from gdb_optprobe.guest.linux.arch.aarch64.text import ArmText
from gdb_optprobe.isa.aarch64.abi import FP, GENERAL, LR, PC, SP
from gdb_optprobe.isa.aarch64.fields import word_of
from gdb_optprobe.isa.base import Flow, Insn, ReadMemory

FP_NUMBER, SP_NUMBER = 29, 31
RECORD = 16
INSTRUCTION = 4
SUB_REGISTER_MASK, SUB_REGISTER = 0xFFE0_E3FF, 0xCB20_63FF  # sub sp, sp, x…
SAVED_SP, SAVED_PC, SAVED_STATE = 31 * 8, 32 * 8, 33 * 8  # in pt_regs (asm/ptrace.h), behind x0 to x30
MODE = 0xF
"""Of PSTATE: the exception level; 0 is EL0."""
LARGEST_REGISTERS = 1 << 12
ENDS = frozenset((Flow.JUMP, Flow.INDIRECT_JUMP, Flow.RETURN, Flow.TRAP))


@dataclass(frozen=True, slots=True)
class Frame:
    """The stack before an instruction. depth: bytes from sp up to where it was at the entry; None where that varies.

    record: bytes from the function's record up to there, 16 where that varies; None while it has no record.
    """

    depth: int | None
    record: int | None


UNKNOWN = Frame(None, RECORD)
"""Of code that is in no function, or cannot be read."""


@dataclass(frozen=True, slots=True)
class FrameRecords:
    """Unwind by frame records. init: text that is freed after boot, from which idle threads were called.
    entry: text that exceptions lead to. record: where pt_regs has the record in it.
    """

    text: tuple[int, int]
    init: tuple[int, int]
    entry: tuple[int, int]
    record: int
    code: ArmText
    read: Callable[[int, int], bytes]
    how = "frame records"

    def knows(self, pc: int) -> bool:
        return any(start <= pc < end for start, end in (self.text, self.init))

    def caller(self, registers: Mapping[str, int], exact: bool) -> tuple[Mapping[str, int], bool] | None:
        pc, frame = registers[PC], registers[FP]
        if self.entry[0] <= pc < self.entry[1]:
            # In the middle of saving registers nothing is known.
            return self._interrupted(frame) if not exact else None
        found = self.frame(pc if exact else pc - INSTRUCTION)
        if exact and found.record is None:
            to, sp = unsigned(registers[LR]), registers[SP] + (found.depth or 0)
            return ({**registers, SP: sp, PC: to}, False) if to else None
        if not frame or frame % 8:
            return None
        try:
            data = self.read(frame, RECORD)
        except OptprobeError:
            return None
        above, to = int.from_bytes(data[:8], "little"), unsigned(int.from_bytes(data[8:], "little"))
        return ({**registers, FP: above, SP: frame + (found.record or RECORD), PC: to}, False) if to else None

    def over(self, read: ReadMemory) -> FrameRecords:
        return replace(self, read=read)

    def _interrupted(self, frame: int) -> tuple[Mapping[str, int], bool] | None:
        """Return the registers that an exception has saved; None of one from a program."""
        start = frame - self.record
        try:
            data = self.read(start, SAVED_STATE + 8)
        except OptprobeError:
            return None
        words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
        if not words[SAVED_STATE // 8] & MODE:
            return None
        general = dict(zip(GENERAL, words, strict=False))
        return {**general, SP: words[SAVED_SP // 8], PC: words[SAVED_PC // 8]}, True

    def frame(self, pc: int) -> Frame:
        """Return what the function around `pc` has done to its stack there, on a way from its start."""
        try:
            function = self.code.function(pc)
        except OptprobeError:
            return UNKNOWN
        if function is None:
            return UNKNOWN
        ahead, seen = [(function.start, Frame(0, None))], set[int]()
        while ahead:
            at, frame = ahead.pop()
            if at == pc:
                return frame
            insn = function.own.get(at)
            if insn is None or at in seen:
                continue
            seen.add(at)
            frame = _after(insn, frame)
            if insn.target is not None and insn.flow is not Flow.CALL:
                ahead.append((insn.target, frame))
            if insn.flow not in ENDS:
                ahead.append((insn.end, frame))
        return UNKNOWN


def _after(insn: Insn, frame: Frame) -> Frame:
    """Return the frame behind an instruction. frame: before it."""
    word, depth = word_of(insn.data), frame.depth
    if word & SUB_REGISTER_MASK == SUB_REGISTER:
        return Frame(None, frame.record)
    if (sum_ := added(word)) is not None:
        to, base, number = sum_
        if (to, base) == (FP_NUMBER, SP_NUMBER):  # add x29, sp, #…, or mov
            return Frame(depth, depth - number if depth is not None else RECORD)
        if (to, base) == (SP_NUMBER, FP_NUMBER):
            return Frame(frame.record - number if frame.record is not None else None, frame.record)
        if (to, base) == (SP_NUMBER, SP_NUMBER) and depth is not None:
            return Frame(depth - number, frame.record)
        return frame
    found = access(word)
    if found is None or found.base != SP_NUMBER:
        return frame
    record = None if FP_NUMBER in found.loaded else frame.record
    return Frame(depth - (found.moved or 0) if depth is not None else None, record)


def record_in_registers(code: ArmText, entry: tuple[int, int]) -> int:
    """Return where pt_regs has the record, from `add x29, sp, #…` in entry text; 0 where that does not tell."""
    data = code.originals.read(*entry)
    words = (int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data) & -4, 4))
    found = {sum_[2] for word in words if (sum_ := added(word)) is not None and sum_[:2] == (FP_NUMBER, SP_NUMBER)}
    offsets = [offset for offset in found if SAVED_STATE < offset < LARGEST_REGISTERS]
    return offsets[0] if len(offsets) == 1 else 0
