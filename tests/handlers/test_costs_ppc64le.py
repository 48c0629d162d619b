"""What programs cost at the entry of vfs_read on ppc64le, in instructions above the unprobed run."""

from __future__ import annotations

import pytest

from gdb_optprobe.handlers.ir import (
    Binary,
    Cell,
    Column,
    Constant,
    Emit,
    Expr,
    Form,
    HashMap,
    Load,
    Op,
    Program,
    Records,
    Register,
    Update,
)
from gdb_optprobe.handlers.lower_program import LoweringContext, lower
from gdb_optprobe.isa.base import Dead, Flow
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.ppc64le.codegen import BACKEND
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.maps.aggregate import Count, Powers
from gdb_optprobe.maps.ring import RingLayout

VFS_READ = 0xC000_0000_0052_A678
TOC = 0xC000_0000_0212_C100
OBJECT = 0xC000_0000_0E34_5678
TO_AND_BACK = 2  # the branch at the probed address, and that behind the nop which ftrace has there
DATA_OFFSET, CURRENT, PID, NUMBER = 0x30, 0x938, 0xA0C, 0x8

COUNT = Register("r5")
AT_7777 = Binary(Op.EQ, COUNT, Constant(7777), 64, False)


def _paca(offset: int, size: int) -> Expr:
    return Load(Binary(Op.ADD, Register("r13"), Constant(offset), 64, False), size, False, mapped=True)


THIS_PID = Load(Binary(Op.ADD, _paca(CURRENT, 8), Constant(PID), 64, False), 4, True, mapped=True)
COLUMN = Column("", Form.UNSIGNED)
HIST = Update(Cell("h", Powers(False)), COUNT)
COUNT_BY_PID = Update(HashMap("t", (COLUMN,), Count()), None, (THIS_PID,))
THREE_WORDS = Emit(Records("r", (COLUMN,) * 3), (Register("r3"), Register("r4"), COUNT))


def code_of(program: Program, dead: Dead, base: int | None) -> bytes:
    around = LoweringContext(
        VFS_READ,
        (OBJECT,) * len(program.objects),
        OBJECT + 0x10000,
        dead,
        DATA_OFFSET,
        base,
        ring=RingLayout(8),
        cpu=_paca(NUMBER, 2),
    )
    return lower(program, around, BACKEND)(VFS_READ)


def executed(code: bytes, taken: str) -> int:
    return executed_of(PPC64LE, code, taken)


def executed_of(isa: Isa, code: bytes, taken: str) -> int:
    """Where every branch forward is taken that is called so, and no other one."""
    insns = {insn.address: insn for insn in isa.decode(code, 0)}
    at, number = 0, 0
    while at < len(code):
        insn, number = insns[at], number + 1
        goes = insn.flow is Flow.JUMP or (
            insn.text.split()[0] == taken and insn.target is not None and insn.target > at
        )
        at = insn.target if goes and insn.target is not None else insn.end
    return number


COUNTS = Program(AT_7777, (Update(Cell("c", Count())),))


@pytest.mark.parametrize(
    ("program", "taken", "usual", "most"),
    [
        (COUNTS, "bne", 4, 20),
        (COUNTS, "", 10, 26),
        (Program(None, (HIST,)), "", 14, 60),
        (Program(None, (COUNT_BY_PID,)), "beq", 35, 100),  # that is in the slot where its search begins
        (Program(None, (THREE_WORDS,)), "", 32, 90),
    ],
    ids=["false", "count", "hist", "by-pid", "record"],
)
def test_instructions_of_a_hit(program: Program, taken: str, usual: int, most: int) -> None:
    """Usually there is a site of ftrace's, and the TOC is known; else all is kept, and addresses are in full."""
    assert executed(code_of(program, PPC64LE.dead_at_entry(), TOC), taken) + TO_AND_BACK == usual
    assert executed(code_of(program, Dead(), None), taken) + TO_AND_BACK <= most
