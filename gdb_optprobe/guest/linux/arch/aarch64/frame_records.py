"""Unwind an aarch64 kernel's stack: each frame has a record of its caller, and x29 leads to the innermost.

    x29 ─► ┌─────┬─────┐      ┌─────┬─────┐
           │ x29 │ x30 │ ───► │ x29 │ x30 │ ───► … ───► 0      (AAPCS64, 6.4.6; the kernel has -fno-omit-frame-pointer)
           └─────┴─────┘      └─────┴─────┘
    an exception   pt_regs has such a record, from which all registers of what was interrupted are found
    a function     has no record before `mov x29, sp`, and none behind `ldp x29, x30`: there x30 is its return address

Where the innermost function is, between these, follows from its code. A caller's stack pointer is taken for the end of
the record that leads to it: no code says more. A return address may be signed.
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
SAVED_SP, SAVED_PC, SAVED_STATE = 31 * 8, 32 * 8, 33 * 8  # in pt_regs (asm/ptrace.h), behind x0 to x30
MODE = 0xF
"""Of PSTATE: the exception level; 0 is EL0."""
LARGEST_REGISTERS = 1 << 12
ENDS = frozenset((Flow.JUMP, Flow.INDIRECT_JUMP, Flow.RETURN, Flow.TRAP))


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
        if exact and not self.has_record(pc):
            to = unsigned(registers[LR])
            return ({**registers, PC: to}, False) if to else None
        if not frame or frame % 8:
            return None
        try:
            data = self.read(frame, RECORD)
        except OptprobeError:
            return None
        above, to = int.from_bytes(data[:8], "little"), unsigned(int.from_bytes(data[8:], "little"))
        return ({**registers, FP: above, SP: frame + RECORD, PC: to}, False) if to else None

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

    def has_record(self, pc: int) -> bool:
        """Return whether the function around `pc` has made its record before, and not taken it away, on a way there."""
        function = self.code.function(pc)
        if function is None:
            return True
        ahead, seen = [(function.start, False)], set[int]()
        while ahead:
            at, has = ahead.pop()
            if at == pc:
                return has
            insn = function.own.get(at)
            if insn is None or at in seen:
                continue
            seen.add(at)
            has = _changes(insn, has)
            if insn.target is not None and insn.flow is not Flow.CALL:
                ahead.append((insn.target, has))
            if insn.flow not in ENDS:
                ahead.append((insn.end, has))
        return True


def _changes(insn: Insn, has: bool) -> bool:
    """Return whether there is a record behind an instruction. has: before it."""
    word = word_of(insn.data)
    sum_ = added(word)
    if sum_ is not None and sum_[:2] == (FP_NUMBER, SP_NUMBER):  # add x29, sp, #…, or mov
        return True
    found = access(word)
    return has and not (found is not None and found.base == SP_NUMBER and FP_NUMBER in found.loaded)


def record_in_registers(code: ArmText, entry: tuple[int, int]) -> int:
    """Return where pt_regs has the record, from `add x29, sp, #…` in entry text; 0 where that does not tell."""
    data = code.originals.read(*entry)
    words = (int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data) & -4, 4))
    found = {sum_[2] for word in words if (sum_ := added(word)) is not None and sum_[:2] == (FP_NUMBER, SP_NUMBER)}
    offsets = [offset for offset in found if SAVED_STATE < offset < LARGEST_REGISTERS]
    return offsets[0] if len(offsets) == 1 else 0
