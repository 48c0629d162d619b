"""Where the functions of system calls have their arguments: in registers, or in the `pt_regs` to which r3 points.

Without CONFIG_ARCH_HAS_SYSCALL_WRAPPER, sys_read is another name of __se_sys_read, which takes the arguments
themselves (include/linux/syscalls.h). With it, sys_read takes the registers (arch/powerpc/include/asm/
syscall_wrapper.h), and __se_sys_read is a function of its own, or is inlined.
"""

from __future__ import annotations

from gdb_optprobe.guest.linux.current import plus
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.handlers.ir import Expr, Load, Register

FIRST = 3
"""The register of the first argument."""


class _Syscalls:
    prefix = "sys_"
    dispatcher = ""

    def number(self) -> Expr:
        raise AssertionError("there is no dispatcher")

    def argument(self, kernel: Kernel, name: str, index: int) -> Expr:
        symbols = kernel.symbols
        if symbols.address(f"sys_{name}") == symbols.address(f"__se_sys_{name}"):
            return Register(f"r{FIRST + index}")
        # pt_regs begins with the general registers (arch/powerpc/include/uapi/asm/ptrace.h).
        return Load(plus(Register(f"r{FIRST}"), 8 * (FIRST + index)), 8, signed=False, mapped=True)


SYSCALLS = _Syscalls()
