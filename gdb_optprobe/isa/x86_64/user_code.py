"""Code of user programs of both word sizes: decoded, and copied to run elsewhere in the same program.

32 bits     all but branches are their own copies: nothing is relative to its address; `call *%eax` pushes its return
            address and jumps
64 bits     as in the kernel (relocator.py); and instructions that enter the kernel, which return behind themselves
Copies for a program that may be loaded anywhere must not depend on its load address.
"""

from __future__ import annotations

from functools import lru_cache

import capstone

from gdb_optprobe.isa.base import Dead, Flow, Hazard, Insn, Unrelocatable
from gdb_optprobe.isa.relocation import DisplacedRegion
from gdb_optprobe.isa.x86_64.decoder import decode, memory_operand
from gdb_optprobe.isa.x86_64.relocator import relocate
from gdb_optprobe.isa.x86_64.writer import branch

SYSTEM_CALLS = (b"\x0f\x05", b"\xcd\x80")
FAR = 1 << 28
_OF_GROUP = {
    capstone.CS_GRP_CALL: (Flow.CALL, Flow.INDIRECT_CALL),
    capstone.CS_GRP_RET: (Flow.RETURN, Flow.RETURN),
    capstone.CS_GRP_IRET: (Flow.SYSTEM, Flow.SYSTEM),
    capstone.CS_GRP_INT: (Flow.SYSTEM, Flow.SYSTEM),
}
_TRAPS = ("int3", "int1", "ud0", "ud1", "ud2", "hlt", "into")
_ENTERS = ("sysenter", "syscall", "lcall", "ljmp", "retf", "lret")


def decoded(code: bytes, address: int, bits: int) -> list[Insn]:
    """Decode code of a program of 32 or 64 bits, as Isa.decode."""
    return decode(code, address) if bits == 64 else _decoded(code, address)


@lru_cache(64)
def _decoded(code: bytes, address: int) -> list[Insn]:
    engine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_32)
    engine.detail, engine.syntax = True, capstone.CS_OPT_SYNTAX_ATT
    found = []
    for insn in engine.disasm(code, address):
        kind, direct = Flow.NEXT, insn.op_count(capstone.x86.X86_OP_IMM) == 1
        if insn.mnemonic in _TRAPS:
            kind = Flow.TRAP
        elif insn.mnemonic in _ENTERS:
            kind = Flow.SYSTEM
        elif insn.group(capstone.CS_GRP_JUMP):
            always = insn.mnemonic.split()[-1].startswith("jmp")  # bnd, notrack
            kind = Flow.INDIRECT_JUMP if not direct else Flow.JUMP if always else Flow.BRANCH
        else:
            for group, (to_place, elsewhere) in _OF_GROUP.items():
                if insn.group(group):
                    kind = to_place if direct else elsewhere
        if kind is Flow.NEXT and insn.group(capstone.CS_GRP_BRANCH_RELATIVE):  # loop, xbegin
            kind = Flow.BRANCH
        goes = direct and kind in (Flow.CALL, Flow.JUMP, Flow.BRANCH)
        target = insn.operands[0].imm & 0xFFFF_FFFF if goes else None
        found.append(Insn(insn.address, bytes(insn.bytes), f"{insn.mnemonic} {insn.op_str}".strip(), kind, target))
    return found


def copied(insn: Insn, at: int, bits: int, pie: bool) -> bytes:
    """Copy `insn` to run at `at`, with the branch back behind it. Raises Unrelocatable, OutOfReach."""
    data = _copied(insn, at, bits)
    if pie and _copied(insn._replace(address=insn.address + FAR, target=_moved(insn)), at + FAR, bits) != data:
        raise Unrelocatable(Hazard.READS_ITS_ADDRESS, insn)
    return data


def _moved(insn: Insn) -> int | None:
    return insn.target + FAR if insn.target is not None else None


def _copied(insn: Insn, at: int, bits: int) -> bytes:
    if bits == 32:
        _check_operand(insn)
    if insn.data in SYSTEM_CALLS or (bits == 32 and insn.flow is Flow.NEXT):
        return insn.data + branch(at + insn.size, insn.end)
    if bits == 64:
        return relocate([insn], at).data
    if insn.flow in (Flow.RETURN, Flow.INDIRECT_JUMP):
        return insn.data
    pushed = b"\x68" + insn.end.to_bytes(4, "little")
    # With a prefix they are others: 66 takes 16 bits of the register or the target, and pushes 16.
    if insn.data[0] == 0xE8 and insn.target is not None:
        return pushed + branch(at + len(pushed), insn.target)
    if insn.data[0] == 0xFF and len(insn.data) == 2 and 0xD0 <= insn.data[1] <= 0xD7 and insn.data[1] != 0xD4:
        return pushed + b"\xff" + bytes((insn.data[1] + 0x10,))  # call *%reg: jmp *%reg
    raise Unrelocatable(Hazard.TRAP if insn.flow is Flow.TRAP else Hazard.NOT_SUPPORTED, insn)


def _check_operand(insn: Insn) -> None:
    """Refuse an operand in the instruction itself, where the trap is."""
    operand = memory_operand(insn.data, 32)
    if operand is not None and operand.size:
        own = DisplacedRegion(insn.address, insn.end, insn.address, {}, Dead())
        own.check_operand(insn, operand.displacement & 0xFFFF_FFFF, operand.size)
