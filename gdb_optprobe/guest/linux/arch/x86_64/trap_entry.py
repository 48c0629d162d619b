"""Traps on x86-64: an invalid opcode of one byte, at which the saved PC is.

Ours runs in place of the kernel's handler, a C function with one argument, the address of struct pt_regs
(arch/x86/include/uapi/asm/ptrace.h).
"""

from __future__ import annotations

from gdb_optprobe.isa.base import Dead
from gdb_optprobe.isa.emitter import Before, Label, Memory, Pool, Value
from gdb_optprobe.isa.trapping import Entry, TrapEmitter, Trapping
from gdb_optprobe.isa.x86_64 import emitter
from gdb_optprobe.isa.x86_64.abi import CALLEE_SAVED, CARRY, GENERAL
from gdb_optprobe.isa.x86_64.emitter import MACHINE
from gdb_optprobe.isa.x86_64.trap import TRAPS

_FRAME = "rdi"
_IP, _CS = 128, 136
_USER = 3
_DEAD = Dead(True, frozenset((*GENERAL, CARRY)).difference(CALLEE_SAVED))
_BEFORE = Before(_DEAD, frozenset((_FRAME,)))


class _Emitter(emitter.Emitter):
    """See isa.trapping.TrapEmitter."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(_BEFORE)
        self._entry = entry
        usable = [name for name in MACHINE.order(_BEFORE) if name in _DEAD.registers and name != _FRAME]
        self.pool = Pool(usable)

    def begin(self, users: Label) -> None:
        self.branch_bits(Value(Memory(_FRAME, _CS), 1), _USER, True, users)

    def trapped_at(self) -> str:
        pc = self.pool.take()
        self.load(pc, Value(Memory(_FRAME, _IP)))
        return pc

    def go_on_at(self, address: str) -> None:
        self.store(Memory(_FRAME, _IP), address)

    def end(self) -> None:
        self._code(b"\xc3")

    def kernels(self) -> None:
        self.leave((), self._entry.kernels)


class _Trapping:
    traps: tuple[tuple[int, int], ...] = tuple((0xFF, trap[0]) for trap in TRAPS)
    size = 1

    def emitter(self, entry: Entry) -> TrapEmitter:
        return _Emitter(entry)


TRAPPING = _Trapping()
_: Trapping = TRAPPING
