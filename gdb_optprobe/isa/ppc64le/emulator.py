"""Compute the effects of an instruction from its bits, for the tiers that stop the guest but need no step.

Only exact effects: branches, moves, additions, logic, rotations and comparisons, and the loads and stores from r1 that
a function's first and last instructions are. An operand elsewhere in memory may be a device's. Power ISA 3.1B, Book I,
for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from gdb_optprobe.isa.base import Effects, Flow, Insn, Pointer, ReadMemory
from gdb_optprobe.isa.ppc64le.abi import CTR, EQ, FLAGS, GENERAL, GT, LR, LT, PC, SO, SP, XER, XER_SO
from gdb_optprobe.isa.ppc64le.decoder import BCL_NEXT
from gdb_optprobe.isa.ppc64le.disassembly import CACHED
from gdb_optprobe.isa.ppc64le.fields import (
    ADDPCIS,
    BCCTR,
    BCLR,
    BO_CR_TRUE,
    BO_CTR_ZERO,
    BO_NO_CR,
    BO_NO_CTR,
    MASK,
    d_of_addpcis,
    displacement34,
    is_pc_relative,
    links,
    opcode,
    ra,
    rb,
    rt,
    signed,
    simm,
    suffix_of,
    word_of,
    xo,
)
from gdb_optprobe.isa.ppc64le.register_effects import SPR_CTR, SPR_LR

Registers = Mapping[str, int]


def emulate(insn: Insn, registers: Registers, read: ReadMemory) -> Effects | None:
    """Return the effects of `insn` on these registers; None if it is not emulated. Raises what `read` raises."""
    found = _emulator(insn.data)
    return None if found is None else found(_Hit(insn, registers, read))


def pointer(insn: Insn) -> Pointer | None:
    """Return where a call by the count register goes: r12 has the same address (ELFv2 ABI, 2.3.2.2); else None."""
    return Pointer("r12") if insn.flow in (Flow.INDIRECT_CALL, Flow.INDIRECT_JUMP) else None


class _Hit:
    """One instruction about to run."""

    __slots__ = ("insn", "read", "registers", "word")

    def __init__(self, insn: Insn, registers: Registers, read: ReadMemory) -> None:
        self.insn, self.registers, self.read = insn, registers, read
        self.word = word_of(insn.data)

    def gpr(self, number: int) -> int:
        return self.registers[GENERAL[number]]

    @property
    def rs(self) -> int:
        return self.gpr(rt(self.word))

    @property
    def ra(self) -> int:
        return self.gpr(ra(self.word))

    @property
    def ra0(self) -> int:
        return self.gpr(ra(self.word)) if ra(self.word) else 0

    @property
    def rb(self) -> int:
        return self.gpr(rb(self.word))

    def cr_bit(self, number: int) -> bool:
        return bool(self.registers[FLAGS] >> 31 - number & 1)

    def goes(self, to: int | None, **registers: int) -> Effects:
        """Return the effects of a jump to a direct target; None for the next instruction."""
        return Effects({PC: self.insn.end if to is None else to & MASK, **registers})

    def sets(self, number: int, value: int) -> Effects:
        return self.goes(None, **{GENERAL[number]: value & MASK})

    def compares(self, field: int, less: bool, equal: bool) -> int:
        """Return CR with a field set by a comparison."""
        bits = (LT if less else EQ if equal else GT) | (SO if self.registers[XER] & XER_SO else 0)
        shift = 28 - 4 * field
        return self.registers[FLAGS] & ~(0xF << shift) | bits << shift

    def results(self, number: int, value: int, record: bool) -> Effects:
        """Return the effects on a general register, and on CR0 if the instruction records."""
        value &= MASK
        changed = {GENERAL[number]: value}
        if record:
            changed[FLAGS] = self.compares(0, signed(value) < 0, value == 0)
        return self.goes(None, **changed)


Emulator = Callable[[_Hit], Effects | None]


# --- branches ---------------------------------------------------------------------------------------------------------


def _linked(hit: _Hit) -> dict[str, int]:
    return {LR: hit.insn.end} if links(hit.word) else {}


def _b(hit: _Hit) -> Effects:
    return hit.goes(hit.insn.target, **_linked(hit))


def _conditional(hit: _Hit, target: int | None) -> Effects:
    bo, changed = rt(hit.word), _linked(hit)
    taken = True
    if not bo & BO_NO_CTR:
        counter = changed[CTR] = hit.registers[CTR] - 1 & MASK
        taken = (counter == 0) == bool(bo & BO_CTR_ZERO)
    if not bo & BO_NO_CR:
        taken = taken and hit.cr_bit(ra(hit.word)) == bool(bo & BO_CR_TRUE)
    return hit.goes(target if taken else None, **changed)


def _bc(hit: _Hit) -> Effects:
    return hit.goes(None, **_linked(hit)) if hit.word == BCL_NEXT else _conditional(hit, hit.insn.target)


def _bclr(hit: _Hit) -> Effects:
    return _conditional(hit, hit.registers[LR] & ~3)


def _bcctr(hit: _Hit) -> Effects:
    return _conditional(hit, hit.registers[CTR] & ~3)


# --- immediates, rotations, comparisons -------------------------------------------------------------------------------


def _addi(hit: _Hit) -> Effects:
    return hit.sets(rt(hit.word), hit.ra0 + simm(hit.word))


def _addis(hit: _Hit) -> Effects:
    return hit.sets(rt(hit.word), hit.ra0 + (simm(hit.word) << 16))


def _addpcis(hit: _Hit) -> Effects:
    return hit.sets(rt(hit.word), hit.insn.end + (d_of_addpcis(hit.word) << 16))


def _immediate_logic(hit: _Hit) -> Effects:
    op = opcode(hit.word)
    value = (hit.word & 0xFFFF) << (16 if op & 1 else 0)
    result = hit.rs | value if op < 26 else hit.rs ^ value if op < 28 else hit.rs & value
    return hit.results(ra(hit.word), result, op >= 28)


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & MASK


def _mask(begin: int, end: int) -> int:
    """Return a mask of the bits `begin` to `end`, of which 0 is the highest; around the end if begin is greater."""
    from_begin, to_end = MASK >> begin, MASK << 63 - end & MASK
    return from_begin & to_end if begin <= end else from_begin | to_end


def _rlwinm(hit: _Hit) -> Effects:
    low = hit.rs & 0xFFFF_FFFF
    begin, end = hit.word >> 6 & 31, hit.word >> 1 & 31
    rotated = _rotated(low | low << 32, rb(hit.word))
    return hit.results(ra(hit.word), rotated & _mask(begin + 32, end + 32), bool(hit.word & 1))


def _rldi(hit: _Hit) -> Effects | None:
    """Emulate rldicl, rldicr, rldic; not rldimi, which inserts, and those that shift by a register."""
    by = rb(hit.word) | (hit.word >> 1 & 1) << 5
    edge = hit.word >> 6 & 31 | hit.word & 32
    kind = hit.word >> 2 & 7
    if kind > 2:
        return None
    mask = (_mask(edge, 63), _mask(0, edge), _mask(edge, 63 - by))[kind]
    return hit.results(ra(hit.word), _rotated(hit.rs, by) & mask, bool(hit.word & 1))


def _compared(hit: _Hit, other: int, is_signed: bool) -> Effects:
    bits = 64 if hit.word >> 21 & 1 else 32
    one, two = (signed(v, bits) if is_signed else v & (1 << bits) - 1 for v in (hit.ra, other))
    return hit.goes(None, **{FLAGS: hit.compares(hit.word >> 23 & 7, one < two, one == two)})


# --- memory at r1 -----------------------------------------------------------------------------------------------------


def _load(size: int) -> Emulator:
    def load(hit: _Hit) -> Effects:
        offset = simm(hit.word & ~3 if size == 8 else hit.word)
        return hit.sets(rt(hit.word), int.from_bytes(hit.read(hit.ra + offset & MASK, size), "little"))

    return load


def _store(size: int) -> Emulator:
    def store(hit: _Hit) -> Effects:
        updates = size == 8 and bool(hit.word & 1)
        where = hit.ra + simm(hit.word & ~3 if size == 8 else hit.word) & MASK
        data = (hit.rs & (1 << 8 * size) - 1).to_bytes(size, "little")
        return Effects(hit.goes(None, **({SP: where} if updates else {})).registers, ((where, data),))

    return store


def _of_stack(word: int) -> Emulator | None:
    """Return the emulator of ld, lwz, std, stdu or stw at r1."""
    if ra(word) != 1:
        return None
    match opcode(word), word & 3:
        case 32, _:
            return _load(4)
        case 36, _:
            return _store(4)
        case 58, 0:
            return _load(8)
        case 62, 0 | 1:
            return _store(8)
    return None


# --- primary opcode 31 ------------------------------------------------------------------------------------------------

_LOGIC: dict[int, Callable[[int, int], int]] = {
    28: lambda s, b: s & b,
    60: lambda s, b: s & ~b,
    124: lambda s, b: ~(s | b),
    284: lambda s, b: ~(s ^ b),
    316: lambda s, b: s ^ b,
    412: lambda s, b: s | ~b,
    444: lambda s, b: s | b,
    476: lambda s, b: ~(s & b),
    954: lambda s, _: signed(s, 8),
    922: lambda s, _: signed(s, 16),
    986: lambda s, _: signed(s, 32),
}


def _logic(hit: _Hit) -> Effects:
    result = _LOGIC[xo(hit.word)](hit.rs, hit.rb)
    return hit.results(ra(hit.word), result, bool(hit.word & 1))


def _add(hit: _Hit) -> Effects:
    return hit.results(rt(hit.word), hit.ra + hit.rb, bool(hit.word & 1))


def _subf(hit: _Hit) -> Effects:
    return hit.results(rt(hit.word), hit.rb - hit.ra, bool(hit.word & 1))


def _neg(hit: _Hit) -> Effects:
    return hit.results(rt(hit.word), -hit.ra, bool(hit.word & 1))


def _spr(word: int) -> str:
    return {SPR_LR: LR, SPR_CTR: CTR}.get(ra(word) | rb(word) << 5, "")


def _mfspr(hit: _Hit) -> Effects | None:
    name = _spr(hit.word)
    return hit.sets(rt(hit.word), hit.registers[name]) if name else None


def _mtspr(hit: _Hit) -> Effects | None:
    name = _spr(hit.word)
    return hit.goes(None, **{name: hit.rs}) if name else None


def _isel(hit: _Hit) -> Effects:
    return hit.sets(rt(hit.word), hit.ra0 if hit.cr_bit(hit.word >> 6 & 31) else hit.rb)


_X31: dict[int, Emulator] = {
    **dict.fromkeys(_LOGIC, _logic),
    0: lambda hit: _compared(hit, hit.rb, True),
    32: lambda hit: _compared(hit, hit.rb, False),
    266: _add,
    40: _subf,
    104: _neg,
    19: lambda hit: hit.sets(rt(hit.word), hit.registers[FLAGS]),
}

_FORMS: dict[int, Emulator] = {
    10: lambda hit: _compared(hit, hit.word & 0xFFFF, False),
    11: lambda hit: _compared(hit, simm(hit.word), True),
    14: _addi,
    15: _addis,
    16: _bc,
    18: _b,
    21: _rlwinm,
    **dict.fromkeys(range(24, 30), _immediate_logic),
}


def _paddi(hit: _Hit) -> Effects:
    suffix = suffix_of(hit.insn.data)
    base = hit.insn.address if is_pc_relative(hit.insn.data) else hit.gpr(ra(suffix)) if ra(suffix) else 0
    return hit.sets(rt(suffix), base + displacement34(hit.insn.data))


@lru_cache(CACHED)
def _emulator(data: bytes) -> Emulator | None:
    word = word_of(data)
    if len(data) == 8:
        return _paddi if opcode(suffix_of(data)) == 14 and word >> 24 == 6 else None
    match opcode(word):
        case 19 if word >> 1 & 31 == ADDPCIS:
            return _addpcis
        case 19:
            counts = not rt(word) & BO_NO_CTR  # CTR cannot be both
            return _bclr if xo(word) == BCLR else _bcctr if xo(word) == BCCTR and not counts else None
        case 30:
            return _rldi if word >> 2 & 7 <= 2 else None
        case 31 if word >> 1 & 31 == 15:
            return _isel
        case 31 if xo(word) in (339, 467):
            return (_mfspr if xo(word) == 339 else _mtspr) if _spr(word) else None
        case 31 if xo(word) == 19 and word >> 20 & 1:  # mfocrf: the other fields are undefined
            return None
        case 31:
            return _X31.get(xo(word))
    return _FORMS.get(opcode(word)) or _of_stack(word)
