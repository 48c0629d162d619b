"""Where the functions of system calls have their arguments: in the `pt_regs` to which x0 points.

arch/arm64/include/asm/syscall_wrapper.h; pt_regs begins with the general registers (asm/ptrace.h).
"""

from __future__ import annotations

from gdb_optprobe.guest.linux.current import plus
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.handlers.ir import Expr, Load, Register


class _Syscalls:
    prefix = "__arm64_sys_"
    dispatcher = ""

    def number(self) -> Expr:
        raise AssertionError("there is no dispatcher")

    def argument(self, kernel: Kernel, name: str, index: int) -> Expr:
        return Load(plus(Register("x0"), 8 * index), 8, signed=False, mapped=True)


SYSCALLS = _Syscalls()
