"""What code of a probe on a program finds where it runs: at a trap, over registers that this has saved."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import Expr, Load, Op
from gdb_optprobe.handlers.scope import Missing, Rvalue
from gdb_optprobe.handlers.trap_frame import TrapFrame
from gdb_optprobe.isa.base import Dead
from gdb_optprobe.isa.user import UserTrapping

INT_SIZE = 4


@dataclass(frozen=True, slots=True)
class TrapSite:
    """See probes.handler.Where."""

    address: int
    base: int | None = None


def saved_registers(isa: UserTrapping, pc: str) -> TrapFrame:
    return TrapFrame(isa.frame, isa.registers, pc, isa.behind, isa.resident)


def dead_at_trap(isa: UserTrapping) -> Dead:
    return replace(isa.scratch, registers=isa.scratch.registers - {isa.frame})


def is_process(names: NamesAt, pid: int) -> Expr:
    """Return whether the process of that number runs; its tgid is what user space calls its pid. Raises OptprobeError.
    """
    found = names.names.dollar("tgid")
    if isinstance(found, Missing):
        raise OptprobeError(found.message, found.hint)
    expr = found.expr if isinstance(found, Rvalue) else Load(found.address, INT_SIZE, signed=True, mapped=True)
    return fold.binary(Op.EQ, expr, fold.constant(pid), 64, False)
