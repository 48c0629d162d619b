"""What programs cost at the entry of vfs_read on aarch64, in instructions above the unprobed run."""

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
    PerCpuBase,
    Program,
    Records,
    Register,
    Update,
)
from gdb_optprobe.handlers.lower_program import LoweringContext, lower
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.aarch64.codegen import BACKEND, BACKEND_LSE
from gdb_optprobe.isa.base import Dead, with_pool
from gdb_optprobe.isa.codegen import Backend
from gdb_optprobe.maps.aggregate import Count, Powers
from gdb_optprobe.maps.ring import RingLayout
from tests.handlers.test_costs_ppc64le import executed_of

VFS_READ = 0xFFFF_8000_0834_9A20
OBJECT = 0xFFFF_8000_0A34_5678
TO_AND_BACK = 3  # the branch in place of `mov x9, x30`, that instruction, and the branch behind it
NUMBER, PID = 0xFFFF_8000_0912_3008, 0xA0C  # cpu_number, and of struct task_struct

COUNT = Register("x2")
AT_77, AT_7777 = (Binary(Op.EQ, COUNT, Constant(number), 64, False) for number in (77, 7777))


def _per_cpu(offset: int, size: int) -> Expr:
    return Load(Binary(Op.ADD, PerCpuBase(), Constant(offset), 64, False), size, False, mapped=True)


THIS_PID = Load(Binary(Op.ADD, Register("SP_EL0"), Constant(PID), 64, False), 4, True, mapped=True)
COLUMN = Column("", Form.UNSIGNED)
HIST = Update(Cell("h", Powers(False)), COUNT)
COUNT_BY_PID = Update(HashMap("t", (COLUMN,), Count()), None, (THIS_PID,))
THREE_WORDS = Emit(Records("r", (COLUMN,) * 3), (Register("x0"), Register("x1"), COUNT))
COUNTED = Update(Cell("c", Count()))


def cost(program: Program, dead: Dead, taken: str, backend: Backend = BACKEND) -> int:
    around = LoweringContext(
        VFS_READ,
        (OBJECT,) * len(program.objects),
        OBJECT + 0x10000,
        dead,
        1,
        ring=RingLayout(8),
        cpu=_per_cpu(NUMBER, 4),
    )
    (code,) = with_pool([lower(program, around, backend)], VFS_READ)
    return executed_of(AARCH64, code(VFS_READ), taken) + TO_AND_BACK


@pytest.mark.parametrize(
    ("program", "taken", "usual", "most"),
    [
        (Program(AT_77, (COUNTED,)), "b.ne", 5, 7),
        (Program(AT_7777, (COUNTED,)), "b.ne", 6, 8),
        (Program(AT_7777, (COUNTED,)), "", 11, 15),
        (Program(None, (HIST,)), "", 11, 15),
        (Program(None, (COUNTED, HIST)), "", 16, 20),
        (Program(None, (COUNT_BY_PID,)), "b.eq", 29, 35),  # that is in the slot where its search begins
        (Program(None, (THREE_WORDS,)), "", 33, 43),
    ],
    ids=["false", "far", "count", "hist", "count-hist", "by-pid", "record"],
)
def test_instructions_of_a_hit(program: Program, taken: str, usual: int, most: int) -> None:
    """Usually there is a site of ftrace's; else all is kept, and the flags are left alone where that is as short."""
    assert cost(program, AARCH64.dead_at_entry(), taken) == usual
    assert cost(program, Dead(), taken.replace("b.ne", "cbnz").replace("b.eq", "cbz")) == most


@pytest.mark.parametrize(
    ("program", "taken", "usual"),
    [
        (Program(AT_7777, (COUNTED,)), "", 9),
        (Program(None, (HIST,)), "", 9),
        (Program(None, (COUNTED, HIST)), "", 12),
        (Program(None, (COUNT_BY_PID,)), "b.eq", 27),
        (Program(None, (THREE_WORDS,)), "", 31),
    ],
    ids=["count", "hist", "count-hist", "by-pid", "record"],
)
def test_instructions_with_the_atomics_of_newer_cpus(program: Program, taken: str, usual: int) -> None:
    assert cost(program, AARCH64.dead_at_entry(), taken, BACKEND_LSE) == usual
