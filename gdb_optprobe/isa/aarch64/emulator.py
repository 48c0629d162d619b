"""Compute the effects of an instruction from its bits, for the tiers that stop the guest but need no step.

Only exact effects: branches, moves, additions, logic, bit fields, selections, products, and the loads and stores from
sp that a function's first and last instructions are. An operand elsewhere in memory may be a device's. What signs and
authenticates pointers depends on keys. C6.2 for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from gdb_optprobe.isa.aarch64.abi import FLAGS, GENERAL, LR, NZCV, PC, SP, C, N, V, Z
from gdb_optprobe.isa.aarch64.decoder import CACHED
from gdb_optprobe.isa.aarch64.fields import (
    MASK,
    ZERO_OR_SP,
    adr_target,
    is_adr,
    is_b,
    is_b_cond,
    is_branch_register,
    is_cb,
    is_pair,
    is_tb,
    links,
    moves_base,
    pair_size,
    ra,
    rd,
    rm,
    rn,
    signed,
    word_of,
)
from gdb_optprobe.isa.base import Effects, Flow, Insn, Pointer, ReadMemory

Registers = Mapping[str, int]


def emulate(insn: Insn, registers: Registers, read: ReadMemory) -> Effects | None:
    """Return the effects of `insn` on these registers; None if it is not emulated. Raises what `read` raises."""
    found = _emulator(insn.data)
    return None if found is None else found(_Hit(insn, registers, read))


def pointer(insn: Insn) -> Pointer | None:
    """Return where an indirect call or jump goes; None of any other, or of one that authenticates its pointer."""
    word = word_of(insn.data)
    if insn.flow not in (Flow.INDIRECT_CALL, Flow.INDIRECT_JUMP) or _authenticates(word):
        return None
    return Pointer(GENERAL[rn(word)]) if rn(word) != ZERO_OR_SP else None


def _authenticates(word: int) -> bool:
    return bool(word >> 11 & 1)


class _Hit:
    """One instruction about to run. bits: of its operands."""

    __slots__ = ("bits", "insn", "read", "registers", "word")

    def __init__(self, insn: Insn, registers: Registers, read: ReadMemory) -> None:
        self.insn, self.registers, self.read = insn, registers, read
        self.word = word_of(insn.data)
        self.bits = 64 if self.word >> 31 else 32

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1

    def get(self, number: int, or_sp: bool = False) -> int:
        """Return a register as wide as the operands. or_sp: 31 is sp, not zero."""
        if number == ZERO_OR_SP:
            return self.registers[SP] & self.mask if or_sp else 0
        return self.registers[GENERAL[number]] & self.mask

    def goes(self, to: int | None, **registers: int) -> Effects:
        """Return the effects of a jump to a target; None for the next instruction."""
        return Effects({PC: self.insn.end if to is None else to & MASK, **registers})

    def sets(self, value: int, or_sp: bool = False, flags: int | None = None) -> Effects:
        """Return the effects on Rd, and on NZCV."""
        changed = {} if flags is None else {FLAGS: self.registers[FLAGS] & ~NZCV | flags}
        if rd(self.word) != ZERO_OR_SP or or_sp:
            name = SP if rd(self.word) == ZERO_OR_SP else GENERAL[rd(self.word)]
            changed[name] = value & self.mask
        return self.goes(None, **changed)

    def holds(self, condition: int) -> bool:
        """Return whether a condition holds (C1.2.4)."""
        n, z, c, v = (bool(self.registers[FLAGS] & flag) for flag in (N, Z, C, V))
        holds = (z, c, n, v, c and not z, n == v, n == v and not z, True)[condition >> 1]
        return holds != bool(condition & 1) or condition >> 1 == 7

    def sum(self, one: int, two: int, carry: int) -> tuple[int, int]:
        """Return a sum and its NZCV."""
        whole = (one & self.mask) + (two & self.mask) + carry
        result = whole & self.mask
        overflows = signed(result, self.bits) != signed(one, self.bits) + signed(two, self.bits) + carry
        return result, self.sign(result) | (C if whole > self.mask else 0) | (V if overflows else 0)

    def sign(self, result: int) -> int:
        """Return N and Z of a result."""
        return (N if result >> self.bits - 1 else 0) | (0 if result else Z)


Emulator = Callable[[_Hit], Effects | None]


# --- branches ---------------------------------------------------------------------------------------------------------


def _b(hit: _Hit) -> Effects:
    return hit.goes(hit.insn.target, **({LR: hit.insn.end} if hit.word >> 31 else {}))


def _b_cond(hit: _Hit) -> Effects:
    return hit.goes(hit.insn.target if hit.holds(hit.word & 15) else None)


def _cb(hit: _Hit) -> Effects:
    is_zero = not hit.get(rd(hit.word))
    return hit.goes(hit.insn.target if is_zero != bool(hit.word >> 24 & 1) else None)


def _tb(hit: _Hit) -> Effects:
    bit = hit.word >> 31 << 5 | hit.word >> 19 & 31
    number = rd(hit.word)
    value = 0 if number == ZERO_OR_SP else hit.registers[GENERAL[number]]
    return hit.goes(hit.insn.target if (value >> bit & 1) == (hit.word >> 24 & 1) else None)


def _branch_register(hit: _Hit) -> Effects:
    return hit.goes(hit.get(rn(hit.word)), **({LR: hit.insn.end} if links(hit.word) else {}))


# --- an immediate -----------------------------------------------------------------------------------------------------


def _adr(hit: _Hit) -> Effects:
    hit.bits = 64
    return hit.sets(adr_target(hit.word, hit.insn.address))


def _added(hit: _Hit, one: int, two: int, or_sp: bool) -> Effects:
    subtracts, sets_flags = hit.word >> 30 & 1, hit.word >> 29 & 1
    result, flags = hit.sum(one, ~two if subtracts else two, subtracts)
    return hit.sets(result, or_sp and not sets_flags, flags if sets_flags else None)


def _add_number(hit: _Hit) -> Effects:
    number = (hit.word >> 10 & 0xFFF) << (12 if hit.word >> 22 & 1 else 0)
    return _added(hit, hit.get(rn(hit.word), or_sp=True), number, or_sp=True)


def _bitmask(word: int, bits: int) -> int:
    """Return the number in a logical instruction: a rotated run of ones, again and again (DecodeBitMasks)."""
    ones, turn = word >> 10 & 63, word >> 16 & 63
    size = 1 << ((word >> 22 & 1) << 6 | ~ones & 63).bit_length() - 1
    element = (1 << (ones & size - 1) + 1) - 1
    turn &= size - 1
    element = (element >> turn | element << size - turn) & (1 << size) - 1
    return sum(element << at for at in range(0, bits, size))


def _logic(hit: _Hit, one: int, two: int, or_sp: bool) -> Effects:
    opc = hit.word >> 29 & 3
    result = (one & two, one | two, one ^ two, one & two)[opc]
    return hit.sets(result, or_sp and opc != 3, hit.sign(result) if opc == 3 else None)


def _logic_number(hit: _Hit) -> Effects:
    return _logic(hit, hit.get(rn(hit.word)), _bitmask(hit.word, hit.bits), or_sp=True)


def _move_wide(hit: _Hit) -> Effects:
    shift = (hit.word >> 21 & 3) * 16
    part, opc = (hit.word >> 5 & 0xFFFF) << shift, hit.word >> 29 & 3
    if opc == 3:
        return hit.sets(hit.get(rd(hit.word)) & ~(0xFFFF << shift) | part)
    return hit.sets(part if opc else ~part)


def _bit_field(hit: _Hit) -> Effects:
    """Move bits to the lowest place, or from it; sbfm extends the sign, bfm keeps the other bits."""
    turn, last, opc = hit.word >> 16 & 63, hit.word >> 10 & 63, hit.word >> 29 & 3
    from_, to, width = (turn, 0, last - turn + 1) if last >= turn else (0, hit.bits - turn, last + 1)
    ones = (1 << width) - 1
    field = hit.get(rn(hit.word)) >> from_ & ones
    if opc == 1:
        return hit.sets(hit.get(rd(hit.word)) & ~(ones << to) | field << to)
    return hit.sets((field if opc else signed(field, width)) << to)


def _extract(hit: _Hit) -> Effects:
    both = hit.get(rn(hit.word)) << hit.bits | hit.get(rm(hit.word))
    return hit.sets(both >> (hit.word >> 10 & 63))


# --- registers --------------------------------------------------------------------------------------------------------


def _shifted(hit: _Hit) -> int:
    """Return Rm, shifted by a number."""
    value, by = hit.get(rm(hit.word)), hit.word >> 10 & 63
    match hit.word >> 22 & 3:
        case 0:
            return value << by & hit.mask
        case 1:
            return value >> by
        case 2:
            return signed(value, hit.bits) >> by & hit.mask
    return (value >> by | value << hit.bits - by) & hit.mask


def _add_shifted(hit: _Hit) -> Effects:
    return _added(hit, hit.get(rn(hit.word)), _shifted(hit), or_sp=False)


def _add_extended(hit: _Hit) -> Effects:
    size, by = 8 << (hit.word >> 13 & 3), hit.word >> 10 & 7
    value = hit.get(rm(hit.word)) & (1 << size) - 1
    value = (signed(value, size) if hit.word >> 15 & 1 else value) << by
    return _added(hit, hit.get(rn(hit.word), or_sp=True), value, or_sp=True)


def _logic_shifted(hit: _Hit) -> Effects:
    value = _shifted(hit)
    return _logic(hit, hit.get(rn(hit.word)), ~value & hit.mask if hit.word >> 21 & 1 else value, or_sp=False)


def _select(hit: _Hit) -> Effects:
    """Emulate csel, csinc, csinv and csneg."""
    if hit.holds(hit.word >> 12 & 15):
        return hit.sets(hit.get(rn(hit.word)))
    other, increments = hit.get(rm(hit.word)), hit.word >> 10 & 1
    return hit.sets((~other if hit.word >> 30 & 1 else other) + increments)


def _compare_if(hit: _Hit) -> Effects:
    """Emulate ccmp and ccmn."""
    flags = (hit.word & 15) << 28
    if hit.holds(hit.word >> 12 & 15):
        subtracts, two = hit.word >> 30 & 1, rm(hit.word) if hit.word >> 11 & 1 else hit.get(rm(hit.word))
        _, flags = hit.sum(hit.get(rn(hit.word)), ~two if subtracts else two, subtracts)
    return hit.goes(None, **{FLAGS: hit.registers[FLAGS] & ~NZCV | flags})


def _multiply(hit: _Hit) -> Effects:
    """Emulate madd and msub."""
    product, addend = hit.get(rn(hit.word)) * hit.get(rm(hit.word)), hit.get(ra(hit.word))
    return hit.sets(addend - product if hit.word >> 15 & 1 else addend + product)


# --- memory at sp -----------------------------------------------------------------------------------------------------


def _pair(hit: _Hit) -> Effects:
    size, moved = pair_size(hit.word), moves_base(hit.word)
    offset = signed(hit.word >> 15, 7) * size
    comes_first = hit.word >> 23 & 3 != 1  # 1: the base moves afterwards
    at = hit.registers[SP] + (offset if comes_first else 0)
    return _transfers(hit, at & MASK, size, (rd(hit.word), ra(hit.word)), moved)


def _single(hit: _Hit) -> Effects:
    size, moved = 1 << (hit.word >> 30), moves_base(hit.word)
    if hit.word >> 24 & 1:
        offset = (hit.word >> 10 & 0xFFF) * size
    else:
        offset = 0 if hit.word >> 10 & 3 == 1 else signed(hit.word >> 12, 9)
    return _transfers(hit, hit.registers[SP] + offset & MASK, size, (rd(hit.word),), moved)


def _transfers(hit: _Hit, at: int, size: int, numbers: tuple[int, ...], moved: int | None) -> Effects:
    """Return the effects of a load or store of these registers."""
    hit.bits = 8 * size
    changed = {} if moved is None else {SP: hit.registers[SP] + moved & MASK}
    if not hit.word >> 22 & 1:
        data = b"".join(hit.get(number).to_bytes(size, "little") for number in numbers)
        return Effects(hit.goes(None, **changed).registers, ((at, data),))
    data = hit.read(at, size * len(numbers))
    for place, number in enumerate(numbers):
        if number != ZERO_OR_SP:
            changed[GENERAL[number]] = int.from_bytes(data[size * place :][:size], "little")
    return hit.goes(None, **changed)


def _of_stack(word: int) -> Emulator | None:
    """Return the emulator of ldp, stp, ldr, str, ldur and stur of general registers at sp, 32 and 64 bits."""
    if rn(word) != ZERO_OR_SP or word >> 26 & 1:
        return None
    if is_pair(word):
        # Not ldpsw and stgp, nor those that hint at no use of caches.
        return _pair if word >> 30 in (0, 2) and word >> 23 & 3 else None
    is_plain = word >> 30 >= 2 and not word >> 23 & 1 and word >> 27 & 7 == 7
    has_number = word >> 24 & 3 == 1 or (word >> 24 & 3 == 0 and not word >> 21 & 1 and word >> 10 & 3 != 2)
    return _single if is_plain and has_number else None


_NEXT: Emulator = lambda hit: hit.goes(None)  # noqa: E731


def _by_immediate(word: int) -> Emulator | None:
    if is_adr(word):
        return _adr
    return {2: _add_number, 4: _logic_number, 5: _move_wide, 6: _bit_field, 7: _extract}.get(word >> 23 & 7)


def _by_registers(word: int) -> Emulator | None:
    match word >> 24 & 31:
        case 0b01010:
            return _logic_shifted
        case 0b01011:
            return _add_extended if word >> 21 & 1 else _add_shifted
        case 0b11011:
            return None if word >> 21 & 7 else _multiply
        case 0b11010 if word >> 21 & 7 == 4:
            return _select
        case 0b11010 if word >> 21 & 7 == 2:
            return _compare_if
    return None


@lru_cache(CACHED)
def _emulator(data: bytes) -> Emulator | None:
    word = word_of(data)
    if word & 0xFFFF_F01F == 0xD503_201F:  # hints, but for those that sign pointers, and wait
        return _NEXT if word in _NOTHING else None
    if is_b(word):
        return _b
    if is_b_cond(word):
        return _b_cond
    if is_cb(word) or is_tb(word):
        return _cb if is_cb(word) else _tb
    if is_branch_register(word):
        return None if _authenticates(word) or word >> 21 & 15 > 2 else _branch_register
    group = word >> 25 & 15
    if group & 0b1110 == 0b1000:
        return _by_immediate(word)
    if group & 0b0111 == 0b0101:
        return _by_registers(word)
    return _of_stack(word) if group & 0b0101 == 0b0100 else None


_NOTHING = frozenset(0xD503_201F | number << 5 for number in (0, 20))  # nop, csdb
