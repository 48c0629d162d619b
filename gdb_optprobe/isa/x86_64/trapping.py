"""Traps on x86-64: an invalid opcode of one byte, at which the saved PC is.

No `int3`: GDB takes a breakpoint that it sets on one for a permanent one, which it never writes and steps over itself.
A far jump or a far call, which the guest's own kprobes refuse (prepare_emulation in kprobes/core.c): a copy would trap
elsewhere.

Ours runs in place of the kernel's handler, a C function with one argument, the address of struct pt_regs
(arch/x86/include/uapi/asm/ptrace.h).
"""

from __future__ import annotations

from ..base import Dead
from ..emitter import Before, Label, Memory, Pool, Value
from ..trapping import Entry, TrapEmitter, Trapping
from . import emitter
from .abi import CALLEE_SAVED, CARRY, GENERAL
from .emitter import MACHINE

TRAPS: tuple[bytes, ...] = (b"\xea", b"\x9a")
"""jmp ptr16:32 and call ptr16:32: #UD in 64-bit mode (SDM volume 2, JMP, CALL)."""

LANDING = bytes.fromhex("48c74424d800000000 48c74424d000000000")  # movq $0, -40(%rsp); movq $0, -48(%rsp)
"""The PC of the frame that iretq has just left, of the two places that the stack's alignment gives it (SDM volume 3,
6.14.2): were it to stay, a thread that sleeps on it would seem to be in the detour. Below the stack pointer the kernel
has nothing (-mno-red-zone)."""
_FRAME = "rdi"
_IP, _CS = 128, 136
_USER = 3
_DEAD = Dead(True, frozenset((*GENERAL, CARRY)).difference(CALLEE_SAVED))
_BEFORE = Before(_DEAD, frozenset((_FRAME,)))


class _Emitter(emitter.Emitter):
    """See ..trapping.TrapEmitter."""

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
