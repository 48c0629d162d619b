"""Names and roles of registers: what GDB calls them, what the System V ABI and the kernel do with them."""

from __future__ import annotations

from gdb_optprobe.isa.abi import Convention, ElfMachine, Holds, Part, SystemRegisters, UserFrames

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
SYSTEM = SystemRegisters({"cpl": Part("cs", 0, 2)}, per_cpu="gs_base")  # cpl: the privilege level
SEGMENT_BASES = {0x64: "fs_base", 0x65: "gs_base"}  # by prefix

# System V ABI, AMD64 supplement, 3.2.3.
ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
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
CARRY = "carry"  # CF in `Dead.registers`; GDB has no name for the single flag
RF, VM = 1 << 16, 1 << 17

MACHINE = ElfMachine("x86_64", 62, 0, bytes((1, 0, 1, 1, 16, 0x0C, 7, 0, 0x07, 16, 0, 0)))

COST = 137  # two page-table walks; counted in tests/handlers/test_lower_maps.py
# Registers by DWARF's numbers, called as in struct pt_regs, esp too. r10, or ecx, has the frame where a function aligns
# its stack.
_NUMBERS_64 = {3: "rbx", 6: "rbp", 7: SP, 10: "r10", 12: "r12", 13: "r13", 14: "r14", 15: "r15", 16: PC}
_NUMBERS_32 = {1: "rcx", 3: "rbx", 4: SP, 5: "rbp", 6: "rsi", 7: "rdi", 8: PC}
# System V ABI: AMD64 supplement, 3.6.2; Intel386 supplement, 2.4.2.
FRAMES = {
    64: UserFrames(8, COST, SP, PC, _NUMBERS_64, CALLEE_SAVED),
    32: UserFrames(4, COST, SP, PC, _NUMBERS_32, ("rbx", "rbp", "rsi", "rdi")),
}

_LEGACY = {"rax": "a", "rbx": "b", "rcx": "c", "rdx": "d"}
_INDEX = ("rsi", "rdi", "rbp", "rsp")


def _parts() -> dict[str, Part]:
    """Return the parts of registers by GDB's names: eax, ax, al, ah, sil, r8d, r8w, r8l."""
    found: dict[str, Part] = {}
    for name in GENERAL:
        if name in _LEGACY:
            letter = _LEGACY[name]
            names = (f"e{letter}x", f"{letter}x", f"{letter}l")
            found[f"{letter}h"] = Part(name, 8, 8)
        elif name in _INDEX:
            names = (f"e{name[1:]}", name[1:], f"{name[1:]}l")
        else:
            names = (f"{name}d", f"{name}w", f"{name}l")
        # `sp` is the stack pointer itself to GDB.
        found.update({part: Part(name, 0, bits) for part, bits in zip(names, (32, 16, 8), strict=True) if part != "sp"})
    return found


CONVENTION = Convention(
    registers={
        **dict.fromkeys(GENERAL, Holds.SIGNED),
        **dict.fromkeys(("rsp", "rbp"), Holds.UNSIGNED),
        PC: Holds.CODE,
        FLAGS: Holds.FLAGS,
    },
    parts=_parts(),
    pc=PC,
    sp=SP,
    arguments=ARGUMENTS,
    stacked=STACKED_ARGUMENTS,
    aggregate=16,
    result=RETURN_VALUES[0],
    signed_char=True,
)
