"""Return probes on x86-64: at the entry the stack pointer points to the return address.

    entry         rsp ─► return address
    trampoline           return address   popped by the `ret` that led here; `push` makes room for it again
                  rsp ─► …
    shared entry         return address
                  rsp ─► where the function continues, as the stub has pushed it
`ret`, and no indirect jump, leaves the trampoline: the kernel's callers have no landing pads behind their calls.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from struct import Struct, unpack_from
from struct import error as StructError

from gdb_optprobe.isa.base import Dead, Flow, Insn, OutOfReach, ReadMemory
from gdb_optprobe.isa.codegen import Address, EntryState, Label, MemoryValue
from gdb_optprobe.isa.return_codegen import (
    EntryStubs,
    ReturnBackend,
    ReturnEmitter,
    compare_in_memory,
    fold_by_two,
    insert_by_three,
)
from gdb_optprobe.isa.x86_64.abi import CARRY, FLAGS, SP
from gdb_optprobe.isa.x86_64.codegen import BACKEND, X86Emitter
from gdb_optprobe.isa.x86_64.writer import signed
from gdb_optprobe.maps.call_table import Homing


class _ReturnEmitter(X86Emitter):
    """Implements return_codegen.ReturnEmitter."""

    @property
    def _place(self) -> Address:
        return Address(SP, 8 * len(self._pushed))

    def key(self, to: str) -> None:
        self.address(to, Address(SP, self._place.offset + 1))

    def fold(self, to: str, key: str, by: int) -> None:
        fold_by_two(self, to, key, by)

    def insert(self, to: str, source: str, low: int, bits: int, into: int) -> None:
        insert_by_three(self, to, source, low, bits, into)

    def go_to_found(self, slot: str, key: str, to: str, label: Label) -> bool:
        return compare_in_memory(self, slot, key, label)

    def return_address(self, to: str) -> None:
        self.load(to, MemoryValue(self._place))

    def return_to(self, address: str | int) -> None:
        self.store(self._place, address)


class _SharedEmitter(_ReturnEmitter):
    """The same below what a stub has pushed."""

    @property
    def _place(self) -> Address:
        return Address(SP, 8 * (len(self._pushed) + 1))


class _X86ReturnBackend:
    begin = b"\x50"  # push rax
    end = b"\xc3"
    homing = Homing.PRODUCT
    link: str | None = None
    slot = "r9"
    pc = BACKEND.pc
    order = staticmethod(BACKEND.order)
    kept = staticmethod(BACKEND.kept)

    def __init__(self, emitter: type[_ReturnEmitter], stubs: EntryStubs | None) -> None:
        self._emitter, self.stubs = emitter, stubs

    def emitter(self, before: EntryState) -> ReturnEmitter:
        return self._emitter(before)

    def saved(self, kept: Collection[str]) -> Dead:
        flags = FLAGS in kept
        return Dead(flags, frozenset(kept).difference((FLAGS,)) | ({CARRY} if flags else set()))

    def returns(self, entry: int, code: Mapping[int, Insn]) -> bool:
        """Return False for `ret N`, which takes arguments off the stack."""
        return not any(insn.flow is Flow.RETURN and not insn.text.endswith("retq") for insn in code.values())

    def key_of(self, sp: int) -> int:
        return sp + 1

    def key_after(self, sp: int) -> int:
        return sp - 8 + 1

    def shown_at(self, key: int) -> int:
        return key - 1


# A return: behind what undoes a frame, or before the padding behind a function.
_RETURN = re.compile(
    rb"[\x58-\x5f\xc9]\xc3|\x48\x83\xc4.\xc3|\x48\x81\xc4....\xc3|\xc3(?:\xcc|\x90|\x66|\x0f\x1f|$)", re.DOTALL
)
_JUMP = re.compile(rb"\xe9(?=....)", re.DOTALL)


class _Stubs:
    """Implements return_codegen.EntryStubs: `push end; mov $number, %r10d; jmp shared`."""

    size = 16
    number = "r10"
    begin = b""
    kept: frozenset[str] = frozenset()

    @property
    def entry(self) -> ReturnBackend:
        return _X86ReturnBackend(_SharedEmitter, None)

    def end(self, displaced: bytes, text: int) -> bytes:
        return displaced + b"\xc3"

    def continues_at(self, registers: Mapping[str, int], sp: int, read: ReadMemory) -> tuple[int, int]:
        return int.from_bytes(read(sp, 8), "little"), sp + 8

    def encode(self, at: int, step: int, shared: int, ends: Sequence[int], first: int = 0) -> bytes:
        pack, rest = Struct(f"<BiHIBi{step - self.size}s").pack, b"\xcc" * (step - self.size)
        places = range(at + self.size, at + self.size + step * len(ends), step)
        try:
            return b"".join(
                [
                    pack(0x68, signed(end), 0xBA41, number, 0xE9, shared - place, rest)
                    for number, (place, end) in enumerate(zip(places, ends, strict=True), first)
                ]
            )
        except StructError:
            raise OutOfReach(at, shared) from None

    def may_return(self, code: bytes, start: int) -> bool:
        if _RETURN.search(code) is not None:
            return True
        ends = (found.end() for found in _JUMP.finditer(code))
        targets = (at + 4 + unpack_from("<i", code, at)[0] for at in ends)
        return any(not 0 <= target < len(code) for target in targets)


RETURN_BACKEND = _X86ReturnBackend(_ReturnEmitter, _Stubs())
_: ReturnBackend = RETURN_BACKEND
