"""Traps on x86-64: an invalid opcode of one byte, at which the saved PC is.

Our handler runs in place of the kernel's, a C function with one argument, the address of struct pt_regs
(arch/x86/include/uapi/asm/ptrace.h).
"""

from __future__ import annotations

from gdb_optprobe.isa.base import Dead
from gdb_optprobe.isa.codegen import Address, EntryState, Label, MemoryValue, RegisterPool
from gdb_optprobe.isa.trapping import Entry, TrapEmitter, Trapping
from gdb_optprobe.isa.x86_64 import X86_64, codegen
from gdb_optprobe.isa.x86_64.abi import CALLEE_SAVED, CARRY, GENERAL
from gdb_optprobe.isa.x86_64.codegen import BACKEND

_FRAME = "rdi"
_IP, _CS = 128, 136
_USER = 3
_DEAD = Dead(True, frozenset((*GENERAL, CARRY)).difference(CALLEE_SAVED))
_BEFORE = EntryState(_DEAD, frozenset((_FRAME,)))


class _TrapEmitter(codegen.X86Emitter):
    """See isa.trapping.TrapEmitter."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(_BEFORE)
        self._entry = entry
        usable = [name for name in BACKEND.order(_BEFORE) if name in _DEAD.registers and name != _FRAME]
        self.pool = RegisterPool(usable)

    def begin(self, users: Label) -> None:
        self.branch_bits(MemoryValue(Address(_FRAME, _CS), 1), _USER, True, users)

    def trapped_at(self) -> str:
        pc = self.pool.allocate()
        self.load(pc, MemoryValue(Address(_FRAME, _IP)))
        return pc

    def continue_at(self, address: str) -> None:
        self.store(Address(_FRAME, _IP), address)

    def end(self) -> None:
        self._code(b"\xc3")

    def kernels(self) -> None:
        self.restore_and_jump((), self._entry.kernels)


class _Trapping:
    traps: tuple[tuple[int, int], ...] = tuple((0xFF, trap[0]) for trap in X86_64.traps)
    size = 1

    def emitter(self, entry: Entry) -> TrapEmitter:
        return _TrapEmitter(entry)


TRAPPING = _Trapping()
_: Trapping = TRAPPING
