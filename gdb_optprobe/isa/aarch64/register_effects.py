"""The effects of one instruction on general registers and NZCV, by the groups of the manual (C4.1).

Instructions that are not in the tables are not known: SVE, SME, memory copies, tags of memory. Too many reads and too
few writes are always safe, so NZCV that is written in part, or what a vector instruction writes, counts as not written.
Register 31 is the zero register or sp, neither of which ever is dead. Tests compare the tables with what Unicorn does.
"""

from __future__ import annotations

from functools import lru_cache

from gdb_optprobe.isa.aarch64.abi import GENERAL
from gdb_optprobe.isa.aarch64.decoder import CACHED
from gdb_optprobe.isa.aarch64.fields import (
    ZERO_OR_SP,
    is_b,
    is_b_cond,
    is_branch_register,
    is_cb,
    is_load_literal,
    is_pair,
    is_tb,
    links,
    moves_base,
    ra,
    rd,
    rm,
    rn,
    word_of,
)
from gdb_optprobe.isa.liveness import RegisterEffects

ALL_NAMES = GENERAL  # bit by bit
NZCV = 1 << 32
_LR, _X16, _X17 = 1 << 30, 1 << 16, 1 << 17

_Found = tuple[int, int] | None
_NOTHING = 0, 0


@lru_cache(CACHED)
def effects_of(data: bytes) -> RegisterEffects | None:
    """Return what one instruction reads and overwrites; None if the tables do not have it."""
    found = _by_group(word_of(data))
    return None if found is None else RegisterEffects(*found)


def _bit(number: int) -> int:
    return 0 if number == ZERO_OR_SP else 1 << number


def _rd(word: int) -> int:
    return _bit(rd(word))


def _rn(word: int) -> int:
    return _bit(rn(word))


def _ra(word: int) -> int:
    return _bit(ra(word))


def _rm(word: int) -> int:
    return _bit(rm(word))


def _nzcv(sets: int) -> int:
    return NZCV if sets else 0


def _by_group(word: int) -> _Found:
    group = word >> 25 & 15
    if group & 0b1110 == 0b1000:
        return _immediate(word)
    if group & 0b1110 == 0b1010:
        return _branch(word)
    if group & 0b0101 == 0b0100:
        return _memory(word)
    if group & 0b0111 == 0b0101:
        return _registers(word)
    # Vectors and floating point: a general register is the first operand of some, NZCV that of others.
    return (_rn(word) | NZCV, 0) if group & 0b0111 == 0b0111 else None


# --- data processing with an immediate --------------------------------------------------------------------------------


def _immediate(word: int) -> _Found:
    opc = word >> 29 & 3
    match word >> 23 & 7:
        case 0 | 1:  # adr adrp
            return 0, _rd(word)
        case 2:  # add sub adds subs
            return _rn(word), _rd(word) | _nzcv(opc & 1)
        case 4:  # and orr eor ands
            return _rn(word), _rd(word) | _nzcv(opc == 3)
        case 5:  # movn movz movk
            return (_rd(word) if opc == 3 else 0), _rd(word)
        case 6:  # sbfm bfm ubfm
            return _rn(word) | (_rd(word) if opc == 1 else 0), _rd(word)
        case 7:  # extr
            return _rn(word) | _rm(word), _rd(word)
    return None  # tags


# --- branches, system instructions ------------------------------------------------------------------------------------


def _branch(word: int) -> _Found:
    if is_b(word):
        return 0, _LR if word >> 31 else 0
    if is_b_cond(word):
        return NZCV, 0
    if is_cb(word) or is_tb(word):
        return _rd(word), 0
    if is_branch_register(word):
        authenticates = word >> 11 & 1  # with the modifier in Rd, or sp; retaa has its pointer in x30
        return _rn(word) | (_rd(word) | _LR if authenticates else 0), _LR if links(word) else 0
    return _system(word) if word >> 22 == 0b1101010100 else None


def _system(word: int) -> _Found:
    is_read, op0, place = word >> 21 & 1, word >> 19 & 3, word >> 5 & 0x3FFF
    if op0 >= 2:  # mrs msr; place: op1 CRn CRm op2
        of_nzcv = _nzcv(place == _NZCV_REGISTER)
        return (of_nzcv, _rd(word)) if is_read else (_rd(word), of_nzcv)
    if op0 == 1:  # sys sysl
        return (0, _rd(word)) if is_read else (_rd(word), 0)
    match word >> 12 & 15:
        case 2 if word & 31 == ZERO_OR_SP:
            return _hint(word >> 8 & 15, word >> 5 & 7)
        case 3:  # barriers
            return _NOTHING
        case 4:  # pstate; cfinv and its like change NZCV
            return NZCV, 0
    return _rd(word), 0  # waits with a timeout


_NZCV_REGISTER = 3 << 11 | 4 << 7 | 2 << 3


def _hint(crm: int, op2: int) -> _Found:
    """Return the effects of a hint. Those that sign and authenticate pointers change them."""
    if crm == 3 or (crm, op2) == (0, 7):  # paciasp … autibz, xpaclri
        return _LR, _LR
    return (_X16 | _X17, _X17) if crm == 1 else _NOTHING  # pacia1716 …


# --- loads and stores -------------------------------------------------------------------------------------------------


def _memory(word: int) -> _Found:
    if is_load_literal(word):
        return 0, 0 if word >> 26 & 1 or word >> 30 == 3 else _rd(word)  # vectors, prfm
    group = word >> 24 & 0x3F
    if group == 0b001000:
        return _exclusive(word)
    if group in (0b001100, 0b001101):  # of vectors' structures
        return _rn(word) | (_rm(word) if word >> 23 & 1 else 0), 0
    if group == 0b011001:  # ldapur stlur
        plain = not word >> 21 & 1 and not word >> 10 & 3
        return None if not plain else (_rn(word), _rd(word)) if word >> 22 & 3 else (_rn(word) | _rd(word), 0)
    if is_pair(word):
        return _moved(word, _rd(word) | _ra(word), bool(word >> 22 & 1))
    return _single(word) if word >> 27 & 7 == 7 else None


def _moved(word: int, registers: int, is_load: bool, also: int = 0) -> tuple[int, int]:
    """Return the effects of a load or store of these registers. also: what else it reads."""
    base, moved = _rn(word), _rn(word) if moves_base(word) is not None else 0
    if word >> 26 & 1:  # vectors
        return base | also, moved
    return (base | also, registers | moved) if is_load else (base | also | registers, moved)


def _exclusive(word: int) -> _Found:
    """Return the effects of exclusive access, ordered access, and compare and swap."""
    is_load, pair, ordered = word >> 22 & 1, word >> 21 & 1, word >> 23 & 1
    if ordered and pair:  # cas
        return _rn(word) | _rd(word) | _rm(word), _rm(word)
    if pair and not word >> 31:  # casp
        first, second = _rm(word) | _bit(rm(word) | 1), _rd(word) | _bit(rd(word) | 1)
        return _rn(word) | first | second, first
    registers = _rd(word) | (_ra(word) if pair else 0)
    if is_load:
        return _rn(word), registers
    return _rn(word) | registers, 0 if ordered else _rm(word)


def _single(word: int) -> _Found:
    is_vector, opc, size = word >> 26 & 1, word >> 22 & 3, word >> 30
    has_number = word >> 24 & 1 or not word >> 21 & 1
    if has_number or word >> 10 & 3 == 2:
        also = 0 if has_number else _rm(word)
        if size == 3 and opc == 2 and not is_vector:  # prfm
            return _rn(word) | also, 0
        return _moved(word, _rd(word), opc != 0, also)
    if word >> 10 & 1:  # ldraa ldrab; bit 11: they move the base
        return None if is_vector or size != 3 else (_rn(word), _rd(word) | (_rn(word) if word >> 11 & 1 else 0))
    kind = word >> 12 & 15
    if is_vector or (kind > 8 and kind != 12):  # of 64 bytes
        return None
    return _rn(word) | _rm(word), _rd(word)  # ldadd … ldumin, swp, ldapr


# --- data processing with registers -----------------------------------------------------------------------------------


def _registers(word: int) -> _Found:
    both, opc = _rn(word) | _rm(word), word >> 29 & 3
    match word >> 24 & 31:
        case 0b01010:  # and bic orr orn eor eon ands bics
            return both, _rd(word) | _nzcv(opc == 3)
        case 0b01011:  # add adds sub subs
            return both, _rd(word) | _nzcv(opc & 1)
        case 0b11011:  # madd … umulh
            return both | _ra(word), _rd(word)
    match word >> 21 & 7:
        case 0 if word >> 10 & 63:  # rmif setf8 setf16, which write some of NZCV
            return both | NZCV, 0
        case 0:  # adc adcs sbc sbcs
            return both | NZCV, _rd(word) | _nzcv(opc & 1)
        case 2:  # ccmp ccmn, with a number in Rm if bit 11 is set
            return both | NZCV, NZCV
        case 4:  # csel csinc csinv csneg
            return both | NZCV, _rd(word)
        case 6 if opc & 2:
            return _one_source(word)
        case 6:  # udiv … crc32 … pacga
            return both, _rd(word) | _nzcv(opc & 1)
    return None


def _one_source(word: int) -> _Found:
    match rm(word):
        case 0:  # rbit rev clz cls …
            return _rn(word), _rd(word)
        case 1 if word >> 10 & 63 <= 0b010001:  # pacia … xpacd
            return _rn(word) | _rd(word), _rd(word)
    return None
