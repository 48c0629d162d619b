"""Return probes on aarch64: the return address is in x30, at the entry and after the return.

A call is identified by sp, which is the same at its entry and its return. Functions that call others store x30 in their
own frame, signed where the CPU authenticates pointers: the entry comes before `paciasp`.

    stub    x11 := where the function continues, x10 := its number ──► shared entry ──► ret x11
`ret`, and no `br`, goes back to a function, for there is no landing pad.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from struct import Struct, unpack

from gdb_optprobe.isa.aarch64.abi import FLAGS, LR, SP
from gdb_optprobe.isa.aarch64.codegen import BACKEND, A64Emitter
from gdb_optprobe.isa.aarch64.encodings import bits as bitfield
from gdb_optprobe.isa.aarch64.encodings import constant, lowered, number, pair, plain
from gdb_optprobe.isa.aarch64.fields import BRK, PAGE, B, fits, is_b, signed, to_bytes
from gdb_optprobe.isa.aarch64.liveness import dead_at
from gdb_optprobe.isa.base import Dead, Insn, OutOfReach, ReadMemory
from gdb_optprobe.isa.codegen import Address, Comparison, EntryState, Label
from gdb_optprobe.isa.return_codegen import EntryStubs, ReturnBackend, ReturnEmitter
from gdb_optprobe.maps.call_table import Homing

_RET = 0xD65F_03C0
_RETURNS = (_RET, 0xD65F_0BFF, 0xD65F_0FFF)  # ret, retaa, retab
_NEXT = "x11"  # where a function continues


class _ReturnEmitter(A64Emitter):
    """Implements return_codegen.ReturnEmitter."""

    def key(self, to: str) -> None:
        self.address(to, Address(SP, self._keeping.depth + 1))

    def fold(self, to: str, key: str, by: int) -> None:
        self._code(lowered("eor", to, key, key, by))

    def insert(self, to: str, source: str, low: int, bits: int, into: int) -> None:
        self.address(to, Address(offset=into, near=True))
        if bits:
            assert into % (1 << low + bits) == 0, "it has zeros there"
            self._code(bitfield("bfm", to, source, -low & 63, bits - 1))

    def go_to_found(self, slot: str, key: str, to: str, label: Label) -> bool:
        found = self._scratch()
        self._code(pair("ldr_pair", found, to, 0, slot))
        self.branch(Comparison.EQ, found, key, False, label)
        return True

    def return_address(self, to: str) -> None:
        self.read(to, LR)

    def return_to(self, address: str | int) -> None:
        if isinstance(address, str):
            self.copy(LR, address)
        else:
            self.address(LR, Address(offset=address, near=True))


class _A64ReturnBackend:
    begin = b""
    end = to_bytes(_RET)
    homing = Homing.PAGE
    link: str | None = LR
    slot = "x10"
    pc = BACKEND.pc
    stubs: EntryStubs | None
    order = staticmethod(BACKEND.order)
    kept = staticmethod(BACKEND.kept)

    def __init__(self, has_atomics: bool, stubs: EntryStubs | None) -> None:
        self._has_atomics, self.stubs = has_atomics, stubs

    def emitter(self, before: EntryState) -> ReturnEmitter:
        return _ReturnEmitter(before, self._has_atomics)

    def saved(self, kept: Collection[str]) -> Dead:
        return Dead(FLAGS in kept, frozenset(kept) - {FLAGS})

    def returns(self, entry: int, code: Mapping[int, Insn]) -> bool:
        """Return False if x30 is overwritten before it is read: the code returns for another function."""
        return LR not in dead_at(entry, code).registers

    def key_of(self, sp: int) -> int:
        return sp + 1

    def key_after(self, sp: int) -> int:
        return sp + 1

    def shown_at(self, key: int) -> int | None:
        return None  # in a frame of any size


class _Stubs:
    """Implements return_codegen.EntryStubs: `adrp x11; add x11, x11; movz x10, number; b shared`."""

    size = 16
    number = "x10"
    begin = b""
    kept = frozenset((_NEXT,))

    def __init__(self, has_atomics: bool) -> None:
        self._has_atomics = has_atomics

    @property
    def entry(self) -> ReturnBackend:
        return _A64ReturnBackend(self._has_atomics, None)

    def end(self, displaced: bytes, text: int) -> bytes:
        return displaced + to_bytes(plain("ret", n=_NEXT))

    def continues_at(self, registers: Mapping[str, int], sp: int, read: ReadMemory) -> tuple[int, int]:
        return registers[_NEXT], sp

    def encode(self, at: int, step: int, shared: int, ends: Sequence[int], first: int = 0) -> bytes:
        branch, behind, rest = at + self.size - 4, first + len(ends), to_bytes(*[BRK] * ((step - self.size) // 4))
        reached = [fits(shared - one, 28) for one in (branch, branch + step * len(ends))]
        pages = [signed((end & -PAGE) - (at + step * each & -PAGE)) // PAGE for each, end in enumerate(ends)]
        reached += [fits(page, 21) for page in (min(pages, default=0), max(pages, default=0))]
        if behind > 1 << 16 or not all(reached):
            raise OutOfReach(at, shared)
        page, low = plain("adrp", _NEXT), number("addi", _NEXT, _NEXT, 0)
        (load,) = constant(self.number, 0)
        pack = Struct(f"<4I{len(rest)}s").pack
        return b"".join(
            [
                pack(
                    page | (distance & 3) << 29 | (distance >> 2 & 0x7_FFFF) << 5, low | end % PAGE << 10,
                    load | each << 5, B | (shared - branch - step * (each - first)) >> 2 & 0x03FF_FFFF, rest,
                )
                for each, (distance, end) in enumerate(zip(pages, ends, strict=True), first)
            ]
        )  # fmt: skip

    def may_return(self, code: bytes, start: int) -> bool:
        size = len(code) & ~3
        for at, word in zip(range(0, size, 4), unpack(f"<{size // 4}I", code[:size]), strict=True):
            if word in _RETURNS:
                return True
            if is_b(word) and not word >> 31 and not 0 <= at + signed(word << 2, 28) < size:
                return True
        return False


RETURN_BACKEND, RETURN_BACKEND_LSE = (_A64ReturnBackend(atomics, _Stubs(atomics)) for atomics in (False, True))
_: ReturnBackend = RETURN_BACKEND
