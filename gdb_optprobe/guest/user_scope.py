"""The meaning of names in a user's program on Linux: its registers, the running thread, and the kernel's own names.

`UserScope` is a `handlers.scope.Scope`. A register is one of the program's; where it is kept is known elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

from gdb_optprobe.guest.linux.user import executable
from gdb_optprobe.guest.linux.user.executable import Offset
from gdb_optprobe.guest.scope import KernelScope
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ctype import INT, UNSIGNED_LONG
from gdb_optprobe.handlers.ir import Expr, Frame, Load, Op, Register
from gdb_optprobe.handlers.scope import Meaning, Missing, Rvalue
from gdb_optprobe.handlers.trap_frame import rename_registers
from gdb_optprobe.isa.user import UserTrapping

Node = TypeVar("Node")
NO_KERNEL_STACK = Missing("the kernel's stack is empty where a program is probed", "ustack is the program's")


@dataclass(frozen=True)
class UserScope(KernelScope):
    """bits: 32 or 64, of the program. frames: registers to unwind from. executable: identifies the running program."""

    bits: int = 64
    frames: tuple[str, ...] = ()
    executable: tuple[tuple[str, Expr], ...] = ()

    def frame(self) -> Frame | Missing:
        return Frame(self.frames, None, self.executable, self.abi.pc)

    def _register(self, name: str) -> Rvalue | None:
        if name in ("pc", self.abi.pc):
            return Rvalue(Register(self.abi.pc), self.abi.registers[self.abi.pc])
        return super()._register(name)

    def _result(self) -> Meaning | Missing:
        found = super()._result()
        if self.bits == 64 or not isinstance(found, Rvalue):
            return found
        return Rvalue(fold.convert(found.expr, 32, True), INT)

    def _word(self, slot: int) -> Expr:
        """Return a word of the arguments. The user's stack may not be mapped, so it is read as such memory."""
        registers = self.abi.arguments if self.bits == 64 else ()
        if slot < len(registers):
            return Register(registers[slot])
        size = self.bits // 8
        first = self.abi.stacked if self.bits == 64 else size
        offset = fold.constant(first + size * (slot - len(registers)))
        return Load(fold.binary(Op.ADD, Register(self.abi.sp), offset, 64, False), size, signed=False)

    def _argument(self, name: str) -> Meaning | Missing:
        found = super()._argument(name)
        return Rvalue(found.expr, UNSIGNED_LONG) if isinstance(found, Rvalue) else found


def user_scope(kernel: KernelScope, bits: int, isa: UserTrapping, offset: Offset) -> UserScope:
    """Return the scope, which adds a program's names to the kernel's. offset: returns a member's offset."""
    own = {each.name: getattr(kernel, each.name) for each in fields(kernel)}
    current = of_kernel(kernel.current, isa)
    runs = executable.words(current.task, offset)
    return UserScope(**(own | {"current": current}), bits=bits, frames=isa.frames[bits].registers, executable=runs)


def of_kernel(node: Node, isa: UserTrapping) -> Node:
    """Return a node with its registers named as those of the kernel, where the program has others of these names."""
    return rename_registers(node, {register: name for name, register in isa.resident.items()})
