"""Names and roles of registers: what GDB calls them, what the ELFv2 ABI and the kernel do with them."""

from __future__ import annotations

from collections.abc import Mapping

from gdb_optprobe.isa.abi import Convention, ElfMachine, Holds, SystemRegisters, UserFrames
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.ppc64le.fields import MASK, simm, word_of

GENERAL = tuple(f"r{number}" for number in range(32))
PC, SP, FLAGS = "pc", "r1", "cr"
LR, CTR, XER = "lr", "ctr", "xer"
REGISTERS = (*GENERAL, PC, FLAGS, LR, CTR, XER)
SHORT = (FLAGS, XER)  # of 4 bytes, as GDB has them
# In the stub's packets (QEMU, gdb-xml/power64-core.xml).
STUB_NUMBERS = {name: number for number, name in enumerate(GENERAL)} | {PC: 64, FLAGS: 66, LR: 67, CTR: 68, XER: 69}
# Fields of CR in `Dead.registers`; GDB has no names for single fields.
CR_FIELDS = tuple(f"cr{number}" for number in range(8))

# 64-Bit ELF V2 ABI Specification, 2.2.2 and 2.2.3.
ARGUMENTS = tuple(f"r{number}" for number in range(3, 11))
RETURN_VALUES = ("r3", "r4")
CALLEE_SAVED = ("r1", *(f"r{number}" for number in range(14, 32)))
RED_ZONE = 288  # bytes below r1 that a function without a frame of its own may use; KERNEL_REDZONE_SIZE in the kernel
BACK_CHAIN, CR_SAVE, LR_SAVE = 0, 8, 16  # in a frame, from r1
HEADER = 32  # the smallest frame
STACKED_ARGUMENTS = HEADER + 64  # from r1 at the entry: the ninth and those that follow, in the caller's frame

TOC_SETUP = 8  # bytes of the two instructions that make a function's TOC (2.3.2.1)

PACA = "r13"  # arch/powerpc/include/asm/paca.h

# What always means something: the stack, the TOC, the PACA.
RESERVED = ("r1", "r2", PACA)

# What ftrace's entry leaves clobbered: arch/powerpc/kernel/trace/ftrace_mprofile.S keeps r3 to r10 and what the ABI
# has callees save, comes back through CTR with LR in r0, and calls a tracer in C that may change r0, r11, r12 and CR0.
CLOBBERED_BY_TRACER = frozenset(("r0", "r11", "r12", CTR))
# `return_to_handler` keeps r3 and r4 (in some kernels r3 alone); LR is the return address that was just used.
CLOBBERED_AT_RETURN = frozenset(("r0", *(f"r{number}" for number in range(5, 13)), CTR))

# Bits of a CR field, and XER's summary overflow that a comparison copies into it.
LT, GT, EQ, SO = 8, 4, 2, 1
XER_SO, XER_OV, XER_CA, XER_OV32, XER_CA32 = (1 << bit for bit in (31, 30, 29, 19, 18))

MACHINE = ElfMachine("ppc64le", 21, 2, bytes((1, 0, 1, 1, 65, 0x0C, 1, 0, 0x07, 65, 0, 0)))  # ELF ABI version 2

COST = 170  # measured in a guest that counts instructions, with radix page tables
_DWARF_NUMBERS = {number: f"r{number}" for number in (0, 1, 12, *range(28, 32))} | {65: LR}
FRAMES = {64: UserFrames(8, COST, SP, PC, _DWARF_NUMBERS, CALLEE_SAVED, LR, LR_SAVE)}

SYSTEM = SystemRegisters({}, printed=("srr0", "srr1"), evaluated=("pid",), fixed=frozenset((PACA,)))
CONVENTION = Convention(
    registers={
        **dict.fromkeys(GENERAL, Holds.UNSIGNED),
        PC: Holds.CODE,
        LR: Holds.CODE,
        CTR: Holds.UNSIGNED,
        FLAGS: Holds.FLAGS,
        XER: Holds.FLAGS,
    },
    parts={},
    pc=PC,
    sp=SP,
    arguments=ARGUMENTS,
    stacked=STACKED_ARGUMENTS,
    aggregate=64,
    result=RETURN_VALUES[0],
    signed_char=False,
)


def entry(address: int, code: Mapping[int, Insn]) -> int:
    """Return the local entry of the function at `address`: behind the two instructions that make its TOC, if any.

    A call through the global entry passes it, and a call inside the kernel arrives there (ELFv2 ABI, 2.3.2.1).
    """
    return address + TOC_SETUP if toc(address, code) is not None else address


def makes_toc(head: bytes) -> bool:
    """Return whether the first bytes of a function are the two instructions that make its TOC."""
    first, second = word_of(head), word_of(head[4:8])
    return first >> 16 == _ADDIS_R2_R12 and second >> 16 == _ADDI_R2_R2


def toc(address: int, code: Mapping[int, Insn]) -> int | None:
    """Return r2 in the function at `address`: `addis r2,r12,…; addi r2,r2,…`; None if it does not begin so."""
    first, second = (word_of(code[at].data) if at in code else 0 for at in (address, address + 4))
    if first >> 16 != _ADDIS_R2_R12 or second >> 16 != _ADDI_R2_R2:
        return None
    return address + (simm(first) << 16) + simm(second) & MASK


def bases(start: int, code: Mapping[int, Insn]) -> Mapping[int, int]:
    """Return, by instruction, the value of r2, the TOC, before it, in the function that begins at `start`.

    It is not known in the two instructions that make it, nor behind an indirect call until r2 is reloaded from its
    place in the frame (ELFv2 ABI, 2.2.3.1), and nowhere in a function that does anything else with it.
    """
    value = toc(start, code)
    if value is None:
        return {}
    body = [insn for at, insn in code.items() if at >= start + 8]
    reloads = {insn.address for insn in body if word_of(insn.data) == _LD_R2_24_R1}
    calls = {insn.end for insn in body if insn.flow is Flow.INDIRECT_CALL}
    if calls != reloads or any(insn.address not in reloads and _may_write_r2(insn) for insn in body):
        return {}
    return {insn.address: value for insn in body if insn.address not in reloads}


def _may_write_r2(insn: Insn) -> bool:
    """Return whether r2 is the destination, or is updated. The text names the destination first."""
    if word_of(insn.data) == _ORI_R2_R2_0:  # ends a dispatch group and changes nothing
        return False
    mnemonic, _, operands = insn.text.partition(" ")
    first = operands.split(",")[0].strip()
    reads = mnemonic != "cmpb" and mnemonic.startswith(("st", "cmp", "mt", "tw", "td"))
    writes = first == "r2" and not reads
    return writes or (mnemonic.endswith(("u", "ux")) and "r2" in operands.replace("(", " ").replace(")", " ").split())


_LD_R2_24_R1, _ORI_R2_R2_0 = 0xE8410018, 0x60420000
_ADDIS_R2_R12, _ADDI_R2_R2 = 0x3C4C, 0x3842
