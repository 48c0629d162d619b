"""Names and roles of registers: what GDB calls them, what the System V ABI and the kernel do with them."""

from __future__ import annotations

# In the order of their numbers in instructions (SDM volume 2, table 2-4).
GENERAL = (
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
)  # fmt: skip
PC, SP, FLAGS = "rip", "rsp", "eflags"
REGISTERS = (*GENERAL, PC, FLAGS)
SHORT = ("eflags", "cs", "ss")  # of 4 bytes, as GDB has them
# In the stub's packets (QEMU, gdb-xml/i386-64bit.xml).
_IN_PACKETS = ("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", *GENERAL[8:], PC, FLAGS)
STUB_NUMBERS = {name: number for number, name in enumerate(_IN_PACKETS)}
SEGMENT_BASES = {0x64: "fs_base", 0x65: "gs_base"}  # by prefix

# System V ABI, AMD64 supplement, 3.2.3. A system call has r10 in place of rcx.
ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
SYSTEM_CALL_ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
STACKED_ARGUMENTS = 8  # from rsp at the entry, behind the return address: the seventh and those that follow
RETURN_VALUES = ("rax", "rdx")
CALLEE_SAVED = ("rbx", "rbp", "rsp", "r12", "r13", "r14", "r15")

# What ftrace's own entry leaves clobbered: arch/x86/kernel/ftrace_64.S `save_mcount_regs` keeps rax (the number of
# vector registers of a variadic call), rcx, rdx, rsi, rdi, r8, r9 and rbp; the tracer it then calls is C, which may
# change r10, r11 and the flags. GCC's -fipa-ra, by which a caller relies on more, is off wherever -pg is on.
CLOBBERED_BY_TRACER = frozenset(("r10", "r11", "carry"))
# And the function-graph tracer's `return_to_handler`, which keeps the return values and rdi in some kernels.
CLOBBERED_AT_RETURN = frozenset(("rcx", "rsi", "r8", "r9", "r10", "r11", "carry"))

CF, PF, AF, ZF, SF, TF, IF, DF, OF = (1 << bit for bit in (0, 2, 4, 6, 7, 8, 9, 10, 11))
ARITHMETIC_FLAGS = CF | PF | AF | ZF | SF | OF
COUNTER_FLAGS = ARITHMETIC_FLAGS & ~CF  # what `inc` changes
CARRY = "carry"  # CF: a name of ours, for what is dead; GDB knows the register as a whole
RF, VM = 1 << 16, 1 << 17
