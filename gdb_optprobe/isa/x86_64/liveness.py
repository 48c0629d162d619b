"""The effects of one instruction on general registers and arithmetic flags; for isa/liveness.py.

Instructions that are not in the tables are not known. rsp is never dead. Tests compare the tables with those of
iced-x86 over the kernel's text.
"""

from __future__ import annotations

from functools import lru_cache

import capstone

from gdb_optprobe.isa.base import Dead, Flow, Insn
from gdb_optprobe.isa.liveness import Liveness, RegisterEffects
from gdb_optprobe.isa.x86_64.abi import (
    AF,
    ARITHMETIC_FLAGS,
    CARRY,
    CF,
    CLOBBERED_AT_RETURN,
    CLOBBERED_BY_TRACER,
    COUNTER_FLAGS,
    GENERAL,
    OF,
    PF,
    SF,
    SP,
    ZF,
)
from gdb_optprobe.isa.x86_64.decoder import CACHED, Shape, engine, shape

# One bit each: general registers by number, then the flags register.
FLAGS_AT = 16


def dead_at_return() -> Dead:
    """Return what the ABI lets a tracer clobber at the return of a function that has an ftrace site.

    The function-graph tracer's `return_to_handler` (ftrace_64.S) keeps rax and rdx (and rdi in newer kernels).
    """
    return Dead(True, CLOBBERED_AT_RETURN)


def dead_at_entry() -> Dead:
    """Return what the ABI lets a tracer clobber at the entry of a function that has an ftrace site."""
    return Dead(True, CLOBBERED_BY_TRACER)


def _words(text: str) -> list[str]:
    return text.split()


# Per mnemonic, Intel syntax: flags read, flags certainly written (SDM volume 1, appendix A, and volume 2).
# AND, OR, XOR, TEST leave AF "undefined": every processor, and QEMU, clears it.
_ARITHMETIC = (0, ARITHMETIC_FLAGS)
_WITH_CARRY = (CF, ARITHMETIC_FLAGS)
_NEUTRAL = (0, 0)
_FLAGS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(_words("add sub cmp neg and or xor test xadd cmpxchg popcnt popfq"), _ARITHMETIC),
    **dict.fromkeys(_words("cmpsb cmpsw cmpsd cmpsq scasb scasw scasd scasq"), _ARITHMETIC),
    **dict.fromkeys(("adc", "sbb"), _WITH_CARRY),
    **dict.fromkeys(("inc", "dec"), (0, COUNTER_FLAGS)),
    **dict.fromkeys(_words("bt bts btr btc"), (0, CF)),
    **dict.fromkeys(("bsf", "bsr", "cmpxchg8b", "cmpxchg16b"), (0, ZF)),
    **dict.fromkeys(("tzcnt", "lzcnt"), (0, CF | ZF)),
    **dict.fromkeys(("mul", "imul"), (0, CF | OF)),
    **dict.fromkeys(("clc", "stc"), (0, CF)),
    **dict.fromkeys(("rcl", "rcr"), (CF, 0)),
    "cmc": (CF, CF),
    "lahf": (SF | ZF | AF | PF | CF, 0),
    "sahf": (0, SF | ZF | AF | PF | CF),
    "pushfq": (ARITHMETIC_FLAGS, 0),
    "andn": (0, OF | SF | ZF | CF),
    "adcx": (CF, CF),
    "adox": (OF, OF),
    **dict.fromkeys(
        _words(
            """
            mov movabs movzx movsx movsxd movbe lea push pop xchg bswap not div idiv nop endbr64 leave pause
            cdq cdqe cqo cwde lfence mfence sfence prefetcht0 prefetcht1 prefetcht2 prefetchnta prefetchw prefetch
            cld std cli sti clac stac movsb movsw movsd movsq stosb stosw stosd stosq lodsb lodsw lodsd lodsq
            rorx shlx shrx sarx mulx crc32 rdtsc rdtscp rdmsr wrmsr cpuid hlt in out swapgs movnti
            jmp jrcxz jecxz loop rol ror shl sal shr sar shld shrd
            """
        ),
        _NEUTRAL,
    ),
    **dict.fromkeys(("loope", "loopne"), (ZF, 0)),
}
_SHIFTS = frozenset(("shl", "sal", "shr", "sar", "shld", "shrd"))
_ROTATES = frozenset(("rol", "ror"))
# Registers written on a condition, or perhaps not: never killed.
_MAY_NOT_WRITE = frozenset(("bsf", "bsr", "cmpxchg", "cmpxchg8b", "cmpxchg16b"))
_STRINGS = frozenset(what + size for what in ("movs", "stos", "lods", "cmps", "scas") for size in "bwdq")
# The first operand is written and not read.
_ONLY_WRITES = frozenset(
    _words("mov movabs movzx movsx movsxd movbe lea pop popcnt lzcnt tzcnt rorx shlx shrx sarx andn mulx")
)
_ONLY_READS = frozenset(("test", "cmp"))
_SIGN_EXTENDS = frozenset(("cdq", "cqo"))
# A register with itself gives a constant.
_CLEARS = frozenset(("xor", "sub"))


@lru_cache(CACHED)
def uses_of(data: bytes) -> RegisterEffects | None:
    """Return what one instruction reads and overwrites; None if the tables do not have it."""
    insn = next(engine(detail=True).disasm(data, 0, 1), None)
    if insn is None:
        return None
    parts = shape(data)
    if (
        0xF2 in parts.prefixes
        and parts.map == 0
        and (parts.opcode in range(0xA4, 0xB0) or parts.opcode in range(0x6C, 0x70))
    ):
        return None  # capstone confuses `repne movsd` with SSE2's
    *prefix, mnemonic = insn.mnemonic.split()
    repeated = any(word.startswith("rep") for word in prefix)
    conditional = _condition(parts)
    if conditional is not None:
        flags_read, flags_killed = conditional, 0
    elif parts.escape >= 0 and mnemonic not in ("andn", "rorx", "shlx", "shrx", "sarx", "mulx"):
        return None
    elif mnemonic in _FLAGS:
        flags_read, flags_killed = _FLAGS[mnemonic]
    else:
        return None
    if mnemonic in ("movsd", "cmpsd") and parts.map != 0:  # of SSE
        return None
    if mnemonic in _SHIFTS | _ROTATES:
        flags_killed = _shifted(mnemonic, data, parts)
    read, written = insn.regs_access()
    reads = kills = 0
    names = _REGISTERS
    for register in read:
        if register in names:
            reads |= 1 << names[register][0]
    for register in written:
        if register in names and names[register][1]:
            kills |= 1 << names[register][0]
    # capstone's own lists of what is read lack explicit operands here and there (`test`, `cmpxchg`).
    only_written = mnemonic in _ONLY_WRITES or (mnemonic == "imul" and len(insn.operands) == 3)
    for operand in insn.operands[1:] if only_written else insn.operands:
        if operand.type == capstone.x86.X86_OP_REG and operand.reg in names:
            reads |= 1 << names[operand.reg][0]
    if repeated:  # with rcx 0 nothing happens at all
        flags_killed, kills = 0, 0
    if conditional is not None or mnemonic in _MAY_NOT_WRITE:
        reads, kills = reads | kills, 0
    of_16_bits = 0x66 in parts.prefixes and mnemonic == "leave"
    if mnemonic in _ONLY_READS or mnemonic in _STRINGS or of_16_bits:  # capstone reports too many writes
        kills = 0
    elif mnemonic in _SIGN_EXTENDS:  # capstone reports a write of rax too
        reads, kills = 1 << GENERAL.index("rax"), 1 << GENERAL.index("rdx")
    elif mnemonic in _CLEARS and parts.imm_size == 0 and parts.is_register:
        this, other = (names[operand.reg] for operand in insn.operands)
        if this == other and this[1]:
            reads &= ~(1 << this[0])
    return RegisterEffects(reads | flags_read << FLAGS_AT, kills | flags_killed << FLAGS_AT)


_CONDITIONS = (OF, CF, ZF, CF | ZF, SF, PF, SF | OF, ZF | SF | OF)  # SDM volume 1, appendix B


def _condition(parts: Shape) -> int | None:
    """Return the flags that a jcc, setcc or cmovcc tests; None for any other."""
    if parts.escape >= 0:
        return None
    two_bytes = parts.map == 1 and parts.opcode & 0xF0 in (0x40, 0x80, 0x90)
    if two_bytes or (parts.map == 0 and parts.opcode & 0xF0 == 0x70):
        return _CONDITIONS[parts.opcode >> 1 & 7]
    return None


def _shifted(mnemonic: str, data: bytes, parts: Shape) -> int:
    """Return the flags that a shift or rotate certainly writes: none if its count may be 0."""
    if parts.map == 0 and parts.opcode in (0xD0, 0xD1):
        by = 1
    elif parts.imm_size == 1:
        wide = parts.rex >= 0 and data[parts.rex] & 8
        by = data[-1] & (0x3F if wide else 0x1F)
        byte_or_word = 0x66 in parts.prefixes or (parts.map == 0 and parts.opcode == 0xC0)
        if byte_or_word and by > 7:  # beyond the operand's size even CF is undefined
            return 0
    else:
        return 0
    if by == 0:
        return 0
    overflow = OF if by == 1 else 0
    return CF | overflow if mnemonic in _ROTATES else CF | SF | ZF | PF | overflow


def _registers() -> dict[int, tuple[int, bool]]:
    """Return, by capstone's number of a register, ours, and whether a write of it overwrites all 64 bits."""
    found: dict[int, tuple[int, bool]] = {}
    old = ("ax", "cx", "dx", "bx", "sp", "bp", "si", "di")
    for number, name in enumerate(GENERAL):
        if number < 8:
            short = old[number]
            names = [(f"r{short}", True), (f"e{short}", True), (short, False)]
            names += [(f"{short[0]}{half}", False) for half in "lh"] if number < 4 else [(f"{short}l", False)]
        else:
            names = [(name, True), (f"{name}d", True), (f"{name}w", False), (f"{name}b", False)]
        for text, whole in names:
            found[getattr(capstone.x86, f"X86_REG_{text.upper()}")] = (number, whole)
    return found


_REGISTERS = _registers()
_CONTINUES = frozenset((Flow.NEXT, Flow.JUMP, Flow.BRANCH))
_LEFT_TO_OTHERS = frozenset((Flow.CALL, Flow.RETURN))


def _uses(insn: Insn) -> RegisterEffects | None:
    if insn.flow in _LEFT_TO_OTHERS:
        return RegisterEffects(0, 0)
    return uses_of(insn.data) if insn.flow in _CONTINUES else None


dead_at = Liveness(
    registers={name: 1 << number for number, name in enumerate(GENERAL) if name != SP} | {CARRY: CF << FLAGS_AT},
    flags=COUNTER_FLAGS << FLAGS_AT,
    uses=_uses,
).dead_at
