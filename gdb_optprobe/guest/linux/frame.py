"""The canonical frame address (CFA; DWARF 5, 6.4) of a probed function's frame.

The kernel's unwinder is run with made-up register values that lie far apart: its answer shows which register it used.
"""

from __future__ import annotations

from gdb_optprobe.guest.abi import Abi
from gdb_optprobe.guest.linux.arch.base import Unwinder
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import Expr, Op, Register

LARGEST = 1 << 20  # no kernel stack is larger
_APART = 1 << 32


def base(unwinder: Unwinder, address: int, abi: Abi) -> Expr | None:
    """Return the CFA (the caller's stack pointer) before the instruction at `address`; None where it is unknown."""
    made_up = {name: number * _APART for number, name in enumerate(abi.registers, 1)} | {abi.pc: address}
    found = unwinder.over(lambda at, size: bytes(size)).caller(made_up, True)
    if found is None:
        return None
    sp = found[0][abi.sp]
    for name, value in made_up.items():
        if name != abi.pc and 0 <= sp - value < LARGEST:
            return fold.binary(Op.ADD, Register(name), fold.constant(sp - value), 64, False)
    return None
