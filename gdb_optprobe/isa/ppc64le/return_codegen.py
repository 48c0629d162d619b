"""Return probes on ppc64le: the return address is in LR, at the entry and after the return.

A call is identified by r1, which is the same at its entry and its return. Functions that call others store LR in their
caller's frame.

    stub    r12 := low half of where the function continues, r11 := its number ──► shared entry ──► CTR := that address
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from struct import Struct, unpack

from gdb_optprobe.isa.base import Dead, Flow, Insn, OutOfReach, ReadMemory
from gdb_optprobe.isa.codegen import Address, EntryState, Label
from gdb_optprobe.isa.ppc64le.abi import CR_FIELDS, FLAGS, LR, LR_SAVE, SP
from gdb_optprobe.isa.ppc64le.codegen import BACKEND, PowerEmitter
from gdb_optprobe.isa.ppc64le.encodings import logical, number, plain, rotate
from gdb_optprobe.isa.ppc64le.fields import B, fits, signed, to_bytes
from gdb_optprobe.isa.ppc64le.liveness import dead_at
from gdb_optprobe.isa.ppc64le.register_effects import LR_BIT, effects_of
from gdb_optprobe.isa.return_codegen import (
    EntryStubs,
    ReturnBackend,
    ReturnEmitter,
    compare_in_memory,
    fold_by_two,
    insert_by_three,
)
from gdb_optprobe.isa.words import places_of
from gdb_optprobe.maps.call_table import Homing

_BLR = 0x4E80_0020
_TRAP = 0x7FE0_0008
_NEXT = "r12"  # where a function continues, until CTR has it
_LOW = (1 << 32) - 1
_BY_LR = (Flow.RETURN, Flow.BRANCH)


class _ReturnEmitter(PowerEmitter):
    """Implements return_codegen.ReturnEmitter."""

    def key(self, to: str) -> None:
        self.address(to, Address(SP, self._keeping.depth + 1))

    def fold(self, to: str, key: str, by: int) -> None:
        fold_by_two(self, to, key, by)

    def insert(self, to: str, source: str, low: int, bits: int, into: int) -> None:
        insert_by_three(self, to, source, low, bits, into)

    def go_to_found(self, slot: str, key: str, to: str, label: Label) -> bool:
        return compare_in_memory(self, slot, key, label)

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
    homing = Homing.FOLD
    link: str | None = LR
    slot = "r8"
    pc = BACKEND.pc
    stubs: EntryStubs | None
    order = staticmethod(BACKEND.order)
    kept = staticmethod(BACKEND.kept)

    def __init__(self, stubs: EntryStubs | None) -> None:
        self.stubs = stubs

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


class _Stubs:
    """Implements return_codegen.EntryStubs: `lis r12; ori r12; li r11, number; b shared`."""

    size = 16
    number = "r11"
    kept = frozenset((_NEXT,))
    _blr = to_bytes(_BLR)

    @property
    def begin(self) -> bytes:
        return to_bytes(rotate("rldicl", self.number, self.number, 0, 48))  # li has extended the sign

    @property
    def entry(self) -> ReturnBackend:
        return _PowerReturnBackend(None)

    def end(self, displaced: bytes, text: int) -> bytes:
        high = text >> 32
        back = (
            rotate("rldicl", _NEXT, _NEXT, 0, 32),
            number("addis", "r0", "r0", high >> 16),
            logical("ori", "r0", "r0", high & 0xFFFF),
            rotate("rldicr", "r0", "r0", 32, 31),
            logical("or", _NEXT, _NEXT, "r0"),
            plain("mtctr", _NEXT),
        )
        return to_bytes(*back) + displaced + to_bytes(plain("bctr"))

    def continues_at(self, registers: Mapping[str, int], sp: int, read: ReadMemory) -> tuple[int, int]:
        return registers["pc"] >> 32 << 32 | registers[_NEXT] & _LOW, sp

    def encode(self, at: int, step: int, shared: int, ends: Sequence[int], first: int = 0) -> bytes:
        branch, behind = at + self.size - 4, first + len(ends)
        if behind > 1 << 16 or not all(fits(shared - one, 26) for one in (branch, branch + step * len(ends))):
            raise OutOfReach(at, shared)
        high, low = number("addis", _NEXT, "r0", 0), logical("ori", _NEXT, _NEXT, 0)
        load = number("addi", self.number, "r0", 0)
        rest = to_bytes(*[_TRAP] * ((step - self.size) // 4))
        pack = Struct(f"<4I{len(rest)}s").pack
        return b"".join(
            [
                pack(
                    high | end >> 16 & 0xFFFF, low | end & 0xFFFF, load | each,
                    B << 26 | (shared - branch - step * (each - first)) & 0x03FF_FFFC, rest,
                )
                for each, end in enumerate(ends, first)
            ]
        )  # fmt: skip

    def may_return(self, code: bytes, start: int) -> bool:
        if any(True for _ in places_of(self._blr, code)):
            return True
        size = len(code) & ~3
        for at, word in zip(range(0, size, 4), unpack(f"<{size // 4}I", code[:size]), strict=True):
            if word >> 26 == B and not word & 3 and not 0 <= at + signed(word & 0x03FF_FFFC, 26) < size:
                return True
        return False


RETURN_BACKEND = _PowerReturnBackend(_Stubs())
_: ReturnBackend = RETURN_BACKEND
