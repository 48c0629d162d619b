"""Return probes on ppc64le: the return address is in LR, at the entry and where the function has returned.

A call is known by r1, which is at its return what it was at its entry. Functions that call others keep LR in their
caller's frame.
"""

from __future__ import annotations

from ..emitter import Before, Memory
from ..returning import ReturnEmitter, Returning
from .abi import LR, LR_SAVE, SP
from .emitter import MACHINE, Emitter
from .forms import plain
from .words import to_bytes

_BLR = 0x4E80_0020


class _Emitter(Emitter):
    """See ..returning.ReturnEmitter."""

    def key(self, to: str) -> None:
        self.address(to, Memory(SP, self._keeping.depth + 1))

    def return_address(self, to: str) -> None:
        self.read(to, LR)

    def return_to(self, address: str | int) -> None:
        if isinstance(address, str):
            self._code(plain("mtlr", address))
            return
        with self.pool.borrowed() as register:
            self.address(register, Memory(offset=address, near=True))
            self._code(plain("mtlr", register))


class _Returning:
    begin = b""
    end = to_bytes(_BLR)
    link: str | None = LR
    slot = "r8"
    pc = MACHINE.pc
    order = staticmethod(MACHINE.order)
    kept = staticmethod(MACHINE.kept)

    def emitter(self, before: Before) -> ReturnEmitter:
        return _Emitter(before)

    def key_of(self, sp: int) -> int:
        return sp + 1

    def key_after(self, sp: int) -> int:
        return sp + 1

    def shown_at(self, key: int) -> int:
        return key - 1 + LR_SAVE


RETURNING = _Returning()
_: Returning = RETURNING
