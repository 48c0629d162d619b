"""Traps on x86-64: an invalid opcode of one byte, at which the saved PC is.

No `int3`: GDB takes a breakpoint that it sets on one for a permanent one, which it never writes and steps over itself.

struct pt_regs (arch/x86/include/uapi/asm/ptrace.h), whose address is the argument of the handler, a C function.
"""

from __future__ import annotations

from ..base import Dead
from ..emitter import Before, Memory, Value
from ..trapping import Trapping
from .abi import CALLEE_SAVED, CARRY, GENERAL
from .emitter import MACHINE, Emitter

_IP, _CS = 128, 136


class _Trapping:
    frame = "rdi"
    pc = _IP
    mode = Value(Memory("rdi", _CS), 1)
    user = 3
    scratch = Dead(True, frozenset((*GENERAL, CARRY)).difference(CALLEE_SAVED))
    back = b"\xc3"
    order = staticmethod(MACHINE.order)
    kept = staticmethod(MACHINE.kept)

    def emitter(self, before: Before) -> Emitter:
        return Emitter(before)


TRAPPING = _Trapping()
_: Trapping = TRAPPING
