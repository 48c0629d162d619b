"""Return probes on ppc64le: the return address is in LR, at the entry and where the function has returned.

A call is known by r1, which is at its return what it was at its entry. Functions that call others keep LR in their
caller's frame.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..base import Dead, Flow, Insn
from ..emitter import Before, Memory
from ..returning import ReturnEmitter, Returning
from .abi import CR_FIELDS, FLAGS, LR, LR_SAVE, SP
from .emitter import MACHINE, Emitter
from .forms import plain
from .liveness import dead_at
from .uses import LR_BIT, uses_of
from .words import to_bytes

_BLR = 0x4E80_0020
_BY_LR = (Flow.RETURN, Flow.BRANCH)


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


def is_leaf(code: Mapping[int, Insn]) -> bool:
    """Whether code returns by LR as it finds it, and LR is not looked at by anything else: setjmp keeps it."""
    others = [uses_of(insn.data) for insn in code.values() if insn.flow not in _BY_LR]
    touched = any(uses is not None and (uses.reads | uses.kills) & LR_BIT for uses in others)
    return not touched and any(insn.flow is Flow.RETURN for insn in code.values())


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

    def saved(self, kept: Collection[str]) -> Dead:
        fields = CR_FIELDS if FLAGS in kept else [name for name in CR_FIELDS if name in kept]
        return Dead(CR_FIELDS[0] in fields, frozenset((*fields, *kept)).difference((CR_FIELDS[0], FLAGS)))

    def returns(self, entry: int, code: Mapping[int, Insn]) -> bool:
        """Not where LR is overwritten before it is read: `_restgpr0_14` returns for who jumps there."""
        return LR not in dead_at(entry, code).registers

    def key_of(self, sp: int) -> int:
        return sp + 1

    def key_after(self, sp: int) -> int:
        return sp + 1

    def shown_at(self, key: int) -> int:
        return key - 1 + LR_SAVE


RETURNING = _Returning()
_: Returning = RETURNING
