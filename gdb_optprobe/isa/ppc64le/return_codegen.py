"""Return probes on ppc64le: the return address is in LR, at the entry and after the return.

A call is identified by r1, which is the same at its entry and its return. Functions that call others store LR in their
caller's frame.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gdb_optprobe.isa.base import Dead, Flow, Insn
from gdb_optprobe.isa.codegen import Address, EntryState
from gdb_optprobe.isa.ppc64le.abi import CR_FIELDS, FLAGS, LR, LR_SAVE, SP
from gdb_optprobe.isa.ppc64le.codegen import BACKEND, PowerEmitter
from gdb_optprobe.isa.ppc64le.encodings import plain
from gdb_optprobe.isa.ppc64le.fields import to_bytes
from gdb_optprobe.isa.ppc64le.liveness import dead_at
from gdb_optprobe.isa.ppc64le.register_effects import LR_BIT, effects_of
from gdb_optprobe.isa.return_codegen import EntryStubs, ReturnBackend, ReturnEmitter

_BLR = 0x4E80_0020
_BY_LR = (Flow.RETURN, Flow.BRANCH)


class _ReturnEmitter(PowerEmitter):
    """Implements return_codegen.ReturnEmitter."""

    def key(self, to: str) -> None:
        self.address(to, Address(SP, self._keeping.depth + 1))

    def return_address(self, to: str) -> None:
        self.read(to, LR)

    def return_to(self, address: str | int) -> None:
        if isinstance(address, str):
            self._code(plain("mtlr", address))
            return
        with self.pool.scratch() as register:
            self.address(register, Address(offset=address, near=True))
            self._code(plain("mtlr", register))


def is_leaf(code: Mapping[int, Insn]) -> bool:
    """Return whether code returns by the LR of its entry, and uses LR for nothing else: setjmp stores it."""
    others = [effects_of(insn.data) for insn in code.values() if insn.flow not in _BY_LR]
    touched = any(uses is not None and (uses.reads | uses.kills) & LR_BIT for uses in others)
    return not touched and any(insn.flow is Flow.RETURN for insn in code.values())


class _PowerReturnBackend:
    begin = b""
    end = to_bytes(_BLR)
    link: str | None = LR
    slot = "r8"
    pc = BACKEND.pc
    stubs: EntryStubs | None = None
    order = staticmethod(BACKEND.order)
    kept = staticmethod(BACKEND.kept)

    def emitter(self, before: EntryState) -> ReturnEmitter:
        return _ReturnEmitter(before)

    def saved(self, kept: Collection[str]) -> Dead:
        fields = CR_FIELDS if FLAGS in kept else [name for name in CR_FIELDS if name in kept]
        return Dead(CR_FIELDS[0] in fields, frozenset((*fields, *kept)).difference((CR_FIELDS[0], FLAGS)))

    def returns(self, entry: int, code: Mapping[int, Insn]) -> bool:
        """Return False if LR is overwritten before it is read: `_restgpr0_14` returns for the code that jumps there."""
        return LR not in dead_at(entry, code).registers

    def key_of(self, sp: int) -> int:
        return sp + 1

    def key_after(self, sp: int) -> int:
        return sp + 1

    def shown_at(self, key: int) -> int:
        return key - 1 + LR_SAVE


RETURN_BACKEND = _PowerReturnBackend()
_: ReturnBackend = RETURN_BACKEND
