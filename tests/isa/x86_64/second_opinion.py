"""What iced-x86 says of one instruction, against what we say: where it goes, where its parts are, what it uses."""

from __future__ import annotations

import functools

import iced_x86 as iced

from gdb_optprobe.isa.base import Flow
from gdb_optprobe.isa.x86_64 import X86_64, abi
from gdb_optprobe.isa.x86_64.decoder import LARGEST_OPERAND, memory_operand, shape
from gdb_optprobe.isa.x86_64.liveness import FLAGS_AT, uses_of

HERE = 0xFFFF_FFFF_8100_0000

FLOWS = {
    iced.FlowControl.NEXT: {Flow.NEXT},
    iced.FlowControl.UNCONDITIONAL_BRANCH: {Flow.JUMP},
    iced.FlowControl.INDIRECT_BRANCH: {Flow.INDIRECT_JUMP, Flow.SYSTEM},
    iced.FlowControl.CONDITIONAL_BRANCH: {Flow.BRANCH},
    iced.FlowControl.RETURN: {Flow.RETURN, Flow.SYSTEM},
    iced.FlowControl.CALL: {Flow.CALL, Flow.SYSTEM, Flow.NEXT},  # of a hypervisor: next
    iced.FlowControl.INDIRECT_CALL: {Flow.INDIRECT_CALL, Flow.SYSTEM},
    iced.FlowControl.INTERRUPT: {Flow.TRAP, Flow.SYSTEM},
    iced.FlowControl.EXCEPTION: {Flow.TRAP},
    iced.FlowControl.XBEGIN_XABORT_XEND: {Flow.BRANCH, Flow.NEXT},
}

_NAME = iced.Mnemonic
_READ_NOTHING = (_NAME.LEA, _NAME.NOP, _NAME.RESERVEDNOP, _NAME.INVLPG, _NAME.CLDEMOTE, _NAME.UD1)


def agrees_with_iced(data: bytes) -> None:
    """One instruction that both know and that are of the same length."""
    insns = X86_64.decode(data, HERE)
    decoder = iced.Decoder(64, data, ip=HERE)
    other = decoder.decode()
    if not insns or other.is_invalid or other.len != insns[0].size:
        return
    insn, parts = insns[0], shape(insns[0].data)
    # AMD's 16-bit near branches, 3DNow! with its opcode at the end, and 64-bit addresses are read otherwise.
    is_3dnow, is_moffs = (parts.map, parts.opcode) == (1, 0x0F), parts.map == 0 and 0xA0 <= parts.opcode <= 0xA3
    if (insn.target is not None and 0x66 in parts.prefixes) or is_3dnow or is_moffs:
        return
    assert insn.flow in FLOWS[other.flow_control], other
    assert insn.target is None or insn.target == other.near_branch_target
    operand = memory_operand(insn.data)
    if other.is_ip_rel_memory_operand and other.mnemonic not in _READ_NOTHING:
        size = iced.MemorySizeExt.size(other.memory_size)
        assert operand is not None and operand.is_relative and operand.size >= (size or LARGEST_OPERAND), other
    places = decoder.get_constant_offsets(other)
    if other.is_ip_rel_memory_operand:
        assert parts.is_rip_relative and (parts.disp, 4) == (places.displacement_offset, places.displacement_size)
    if places.has_displacement:
        assert (parts.disp, parts.disp_size) == (places.displacement_offset, places.displacement_size)
    if places.has_immediate:
        assert parts.imm == places.immediate_offset


_BITS = iced.RflagsBits
FLAGS = {_BITS.OF: abi.OF, _BITS.SF: abi.SF, _BITS.ZF: abi.ZF, _BITS.AF: abi.AF, _BITS.CF: abi.CF, _BITS.PF: abi.PF}
NUMBERS = {getattr(iced.Register, name.upper()): number for number, name in enumerate(abi.GENERAL)}
READS = {iced.OpAccess.READ, iced.OpAccess.COND_READ, iced.OpAccess.READ_WRITE, iced.OpAccess.READ_COND_WRITE}
WRITES = {iced.OpAccess.WRITE, iced.OpAccess.READ_WRITE}
LOGIC = {iced.Mnemonic.AND, iced.Mnemonic.OR, iced.Mnemonic.XOR, iced.Mnemonic.TEST}
facts = functools.cache(iced.InstructionInfoFactory)


def flags(bits: int) -> int:
    return sum(ours for theirs, ours in FLAGS.items() if bits & theirs)


def allowed_by_iced(data: bytes) -> set[str]:
    """Our tables claim no more than iced-x86's; the mnemonic, where a register is written whole that ours let live."""
    other = iced.Decoder(64, data).decode()
    if other.is_invalid:
        return set()
    insns = X86_64.decode(data[: other.len], 0)
    if not insns or insns[0].size != other.len:
        return set()
    ours = uses_of(insns[0].data)
    if ours is None:
        return set()
    written = flags(other.rflags_written | other.rflags_cleared | other.rflags_set)
    if other.mnemonic in LOGIC:
        written |= abi.AF  # "undefined", and cleared by all
    assert not flags(other.rflags_read) & ~(ours.reads >> FLAGS_AT), f"{other} reads flags"
    assert not ours.kills >> FLAGS_AT & ~written, f"{other} does not write these flags"
    reads = writes = 0
    for used in facts().info(other).used_registers():
        number = NUMBERS.get(iced.RegisterExt.full_register(used.register))
        if number is None or number == abi.GENERAL.index("rsp"):
            continue
        reads |= (used.access in READS) << number
        writes |= (used.access in WRITES and iced.RegisterExt.size(used.register) >= 4) << number
    assert not reads & ~ours.reads, f"{other} reads a register"
    assert not ours.kills & 0xFFFF & ~writes & ~(1 << abi.GENERAL.index("rsp")), f"{other} keeps a register"
    forgotten = writes & ~reads & ~(ours.kills | ours.reads) & ~(1 << abi.GENERAL.index("rsp"))
    return {insns[0].text.split()[0]} if forgotten else set()
