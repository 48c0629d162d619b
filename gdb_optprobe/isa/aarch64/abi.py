"""Names and roles of registers: what GDB calls them, what the procedure call standard and the kernel do with them."""

from __future__ import annotations

from gdb_optprobe.isa.abi import Convention, ElfMachine, Holds, Part, SystemRegisters

GENERAL = tuple(f"x{number}" for number in range(31))
PC, SP, FLAGS = "pc", "sp", "cpsr"
FP, LR = "x29", "x30"
REGISTERS = (*GENERAL, SP, PC, FLAGS)
SHORT = (FLAGS,)  # of 4 bytes, as GDB has it
STUB_NUMBERS = {name: number for number, name in enumerate(REGISTERS)}  # QEMU, gdb-xml/aarch64-core.xml
N, Z, C, V = (1 << bit for bit in (31, 30, 29, 28))  # in cpsr
NZCV = N | Z | C | V

# Procedure Call Standard for the Arm 64-bit Architecture (AAPCS64): general-purpose registers, parameters.
ARGUMENTS = tuple(f"x{number}" for number in range(8))
RETURN_VALUES = ("x0", "x1")
CALLEE_SAVED = (*(f"x{number}" for number in range(19, 30)), SP)
STACKED_ARGUMENTS = 0  # from sp at the entry

# What always means something: the stack, its frames, the platform's register (a shadow stack, or the compiler's own).
RESERVED = (SP, FP, "x18")

# What ftrace's entry leaves clobbered: arch/arm64/kernel/entry-ftrace.S keeps x0 to x8, and calls a tracer in C, which
# keeps x19 to x29. It keeps no flags. x18 is the tracer's to change only where it is no platform register.
CLOBBERED_BY_TRACER = frozenset(f"x{number}" for number in range(9, 18))
# And `return_to_handler`, which keeps x0 to x7.
CLOBBERED_AT_RETURN = CLOBBERED_BY_TRACER | {"x8"}

# CIE: the return address is x30, DWARF's 30, and sp its 31 (DWARF for the Arm 64-bit Architecture, register names).
MACHINE = ElfMachine("aarch64", 183, 0, bytes((1, 0, 1, 1, 30, 0x0C, 31, 0, 0x07, 30, 0, 0)))

SYSTEM = SystemRegisters({"el": Part(FLAGS, 2, 2)}, per_cpu="TPIDR_EL1")  # el: the exception level
CONVENTION = Convention(
    registers={
        **dict.fromkeys(GENERAL, Holds.SIGNED),
        SP: Holds.UNSIGNED,
        PC: Holds.CODE,
        FLAGS: Holds.FLAGS,
    },
    parts={
        **{f"w{number}": Part(f"x{number}", 0, 32) for number in range(31)},
        **{name: Part(register, 0, 64) for name, register in (("lr", LR), ("fp", FP), ("ip0", "x16"), ("ip1", "x17"))},
    },
    pc=PC,
    sp=SP,
    arguments=ARGUMENTS,
    stacked=STACKED_ARGUMENTS,
    aggregate=16,
    result=RETURN_VALUES[0],
    signed_char=False,
)
