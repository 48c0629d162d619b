"""Return probes on x86-64: at the entry the stack pointer points to the return address.

    entry         rsp ─► return address
    trampoline           return address   popped by the `ret` that led here; `push` makes room for it again
                  rsp ─► …
`ret`, and no indirect jump, leaves the trampoline: the kernel's callers have no landing pads behind their calls.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gdb_optprobe.isa.base import Dead, Flow, Insn
from gdb_optprobe.isa.codegen import Address, EntryState, MemoryValue
from gdb_optprobe.isa.return_codegen import ReturnBackend, ReturnEmitter
from gdb_optprobe.isa.x86_64.abi import CARRY, FLAGS, SP
from gdb_optprobe.isa.x86_64.codegen import BACKEND, X86Emitter


class _ReturnEmitter(X86Emitter):
    """Implements return_codegen.ReturnEmitter."""

    @property
    def _place(self) -> Address:
        return Address(SP, 8 * len(self._pushed))

    def key(self, to: str) -> None:
        self.address(to, Address(SP, self._place.offset + 1))

    def return_address(self, to: str) -> None:
        self.load(to, MemoryValue(self._place))

    def return_to(self, address: str | int) -> None:
        self.store(self._place, address)


class _X86ReturnBackend:
    begin = b"\x50"  # push rax
    end = b"\xc3"
    link: str | None = None
    slot = "r9"
    pc = BACKEND.pc
    order = staticmethod(BACKEND.order)
    kept = staticmethod(BACKEND.kept)

    def emitter(self, before: EntryState) -> ReturnEmitter:
        return _ReturnEmitter(before)

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


RETURN_BACKEND = _X86ReturnBackend()
_: ReturnBackend = RETURN_BACKEND
