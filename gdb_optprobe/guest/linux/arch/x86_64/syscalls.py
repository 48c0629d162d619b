"""Where the functions of system calls have their arguments: in the `pt_regs` to which %rdi points.

__x64_sys_read(regs) (arch/x86/include/asm/syscall_wrapper.h), x64_sys_call(regs, nr) (arch/x86/entry/syscall_64.c).
"""

from __future__ import annotations

from gdb_optprobe.guest.linux.current import plus
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.handlers.ir import Expr, Load, Register

DI, SI, DX, R10, R8, R9 = 112, 104, 96, 56, 72, 64
"""Offsets in pt_regs, which user programs rely on (arch/x86/include/uapi/asm/ptrace.h)."""
ARGUMENTS = (DI, SI, DX, R10, R8, R9)


class _Syscalls:
    prefix = "__x64_sys_"
    dispatcher = "x64_sys_call"

    def number(self) -> Expr:
        return Register("rsi")

    def argument(self, kernel: Kernel, name: str, index: int) -> Expr:
        return Load(plus(Register("rdi"), ARGUMENTS[index]), 8, signed=False, mapped=True)


SYSCALLS = _Syscalls()
