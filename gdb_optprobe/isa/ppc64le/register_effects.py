"""The effects of one instruction on general registers, the fields of CR, CTR and LR, by the manual's forms.

Instructions that are not in the tables are not known. XER is left out: no lowered program changes it. Too many reads
and too few writes are always safe, so a register that is written in part, or on a condition, counts as not written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, lru_cache

from gdb_optprobe.isa.liveness import RegisterEffects
from gdb_optprobe.isa.ppc64le.abi import CR_FIELDS, CTR, GENERAL, LR
from gdb_optprobe.isa.ppc64le.disassembly import CACHED
from gdb_optprobe.isa.ppc64le.fields import (
    ADDPCIS,
    BCCTR,
    BCLR,
    BCTAR,
    BO_NO_CR,
    BO_NO_CTR,
    PREFIX_8LS,
    PREFIX_MLS,
    links,
    opcode,
    prefix_type,
    ra,
    rb,
    rt,
    suffix_of,
    word_of,
    xo,
)

ALL_NAMES = (*GENERAL, *CR_FIELDS, CTR, LR)  # bit by bit
CR_AT = 32
CR0, CTR_BIT, LR_BIT = 1 << 32, 1 << 40, 1 << 41
ALL_CR = 0xFF << CR_AT
SPR_LR, SPR_CTR = 8, 9


@lru_cache(CACHED)
def effects_of(data: bytes) -> RegisterEffects | None:
    """Return what one instruction reads and overwrites; None if the tables do not have it."""
    found = _prefixed(data) if len(data) == 8 else _by_opcode(word_of(data))
    return None if found is None else RegisterEffects(*found)


_Found = tuple[int, int] | None


def _rt(word: int) -> int:
    return 1 << rt(word)


def _ra(word: int) -> int:
    return 1 << ra(word)


def _ra0(word: int) -> int:
    """Return the bit of RA|0: register 0 means 0."""
    return 1 << ra(word) if ra(word) else 0


def _rb(word: int) -> int:
    return 1 << rb(word)


def _bf(word: int) -> int:
    return 1 << CR_AT + (word >> 23 & 7)


def _field_of_bit(bit: int) -> int:
    return 1 << CR_AT + (bit >> 2)


def _rc(word: int) -> int:
    return CR0 if word & 1 else 0


def _by_opcode(word: int) -> _Found:
    op = opcode(word)
    if op in _FORMS:
        return _FORMS[op](word)
    return _memory(word, op) if op >= 32 else None


# --- fixed-point with an immediate, and memory ------------------------------------------------------------------------


def _logical(word: int) -> _Found:
    """Return the effects of `ori` and the like. `ori rX,rX,0` is a nop."""
    is_nop = not word & 0xFFFF and rt(word) == ra(word)
    return (0, 0) if is_nop else (_rt(word), _ra(word))


def _logical_cr0(word: int) -> _Found:
    return _rt(word), _ra(word) | CR0


def _rotate(word: int) -> _Found:
    by_register = opcode(word) == 23 or (opcode(word) == 30 and word & 0x10)
    inserts = opcode(word) == 20 or (opcode(word) == 30 and word >> 2 & 7 == 3)
    reads = _rt(word) | (_rb(word) if by_register else 0) | (_ra(word) if inserts else 0)
    return reads, _ra(word) | _rc(word)


# Primary opcodes of D-forms, by what RT is and whether RA gets the address.
_LOADS = {32, 34, 40, 42}
_LOADS_U = {33, 35, 41, 43}
_STORES = {36, 38, 44}
_STORES_U = {37, 39, 45}
_OF_OTHER_REGISTERS = {48, 50, 52, 54, 57, 61}  # floating point, vectors
_OF_OTHER_REGISTERS_U = {49, 51, 53, 55}


def _memory(word: int, op: int) -> _Found:
    if op == 58:  # ld ldu lwa
        return (
            (_ra(word), _rt(word) | _ra(word)) if word & 3 == 1 else (_ra0(word), _rt(word)) if word & 3 < 3 else None
        )
    if op == 62:  # std stdu; stq is of two registers
        return (_rt(word) | _ra(word), _ra(word)) if word & 3 == 1 else _store(word) if word & 3 == 0 else None
    if op in _LOADS:
        return _ra0(word), _rt(word)
    if op in _LOADS_U:
        return _ra(word), _rt(word) | _ra(word)
    if op in _STORES:
        return _store(word)
    if op in _STORES_U:
        return _rt(word) | _ra(word), _ra(word)
    if op in _OF_OTHER_REGISTERS:
        return _ra0(word), 0
    return (_ra(word), _ra(word)) if op in _OF_OTHER_REGISTERS_U else None


def _store(word: int) -> tuple[int, int]:
    return _rt(word) | _ra0(word), 0


_PREFIXED_LOADS = {PREFIX_MLS: {14, 32, 34, 40, 42}, PREFIX_8LS: {41, 57}}
_PREFIXED_STORES = {PREFIX_MLS: {36, 38, 44}, PREFIX_8LS: {61}}
_PREFIXED_OTHERS = {PREFIX_MLS: {48, 50, 52, 54}, PREFIX_8LS: {42, 43, 46, 47, 50, 51, 54, 55, 58, 62}}


def _prefixed(data: bytes) -> _Found:
    kind, suffix = prefix_type(word_of(data)), suffix_of(data)
    if kind not in _PREFIXED_LOADS:
        return 0, 0  # vectors and accumulators
    op = opcode(suffix)
    if op in _PREFIXED_LOADS[kind]:
        return _ra0(suffix), _rt(suffix)
    if op in _PREFIXED_STORES[kind]:
        return _store(suffix)
    return (_ra0(suffix), 0) if op in _PREFIXED_OTHERS[kind] else None


# --- branches and the condition register ------------------------------------------------------------------------------


def _b(word: int) -> _Found:
    return 0, LR_BIT if links(word) else 0


def _condition(word: int) -> int:
    bo = rt(word)
    counter = 0 if bo & BO_NO_CTR else CTR_BIT
    return counter | (0 if bo & BO_NO_CR else _field_of_bit(ra(word)))


def _bc(word: int) -> _Found:
    return _condition(word), LR_BIT if links(word) else 0


_CR_LOGIC = {257, 129, 289, 225, 33, 449, 193, 417}


def _cr_ops(word: int) -> _Found:
    if word >> 1 & 31 == ADDPCIS:
        return 0, _rt(word)
    match xo(word):
        case 16 | 528 | 560 as extended:
            where = {BCLR: LR_BIT, BCCTR: CTR_BIT, BCTAR: 0}[extended]
            return _condition(word) | where, LR_BIT if links(word) else 0
        case 0:  # mcrf
            return 1 << CR_AT + (word >> 18 & 7), _bf(word)
        case 150:  # isync
            return 0, 0
        case extended if extended in _CR_LOGIC:
            return _field_of_bit(ra(word)) | _field_of_bit(rb(word)), 0
    return None


_FORMS: dict[int, Callable[[int], _Found]] = {
    2: lambda word: (_ra(word), 0),  # tdi
    3: lambda word: (_ra(word), 0),  # twi
    4: lambda word: (_ra(word) | _rb(word) | 1 << (word >> 6 & 31), 0),  # vectors; a few have general registers
    6: lambda word: (_ra0(word), 0),
    7: lambda word: (_ra(word), _rt(word)),
    8: lambda word: (_ra(word), _rt(word)),
    10: lambda word: (_ra(word), _bf(word)),
    11: lambda word: (_ra(word), _bf(word)),
    12: lambda word: (_ra(word), _rt(word)),
    13: lambda word: (_ra(word), _rt(word) | CR0),
    14: lambda word: (_ra0(word), _rt(word)),
    15: lambda word: (_ra0(word), _rt(word)),
    16: _bc,
    18: _b,
    19: _cr_ops,
    20: _rotate,
    21: _rotate,
    23: _rotate,
    **dict.fromkeys((24, 25, 26, 27), _logical),
    **dict.fromkeys((28, 29), _logical_cr0),
    30: _rotate,
    31: lambda word: _x31(word),
    59: lambda word: (0, 0),
    60: lambda word: (_ra(word) | _rb(word), 0),  # vectors; a few have general registers
    63: lambda word: (0, 0),
}


# --- primary opcode 31: by the extended opcode, of 10 bits ------------------------------------------------------------


def _numbers(text: str) -> Iterable[int]:
    return (int(number) for number in text.split())


def _arithmetic(word: int) -> _Found:
    return _ra(word) | _rb(word), _rt(word) | _rc(word)


def _arithmetic_one(word: int) -> _Found:
    return _ra(word), _rt(word) | _rc(word)


def _modulo(word: int) -> _Found:
    return _ra(word) | _rb(word), _rt(word)


def _x_logical(word: int) -> _Found:
    return _rt(word) | _rb(word), _ra(word) | _rc(word)


def _x_logical_one(word: int) -> _Found:
    return _rt(word), _ra(word) | _rc(word)


def _x_bits(word: int) -> _Found:
    return _rt(word) | _rb(word), _ra(word)


def _x_bits_one(word: int) -> _Found:
    return _rt(word), _ra(word)


def _compare(word: int) -> _Found:
    return _ra(word) | _rb(word), _bf(word)


def _load_x(word: int) -> _Found:
    return _ra0(word) | _rb(word), _rt(word)


def _load_ux(word: int) -> _Found:
    return _ra(word) | _rb(word), _rt(word) | _ra(word)


def _store_x(word: int) -> _Found:
    return _rt(word) | _ra0(word) | _rb(word), 0


def _store_ux(word: int) -> _Found:
    return _rt(word) | _ra(word) | _rb(word), _ra(word)


def _store_conditional(word: int) -> _Found:
    return _rt(word) | _ra0(word) | _rb(word), CR0


def _address_x(word: int) -> _Found:
    return _ra0(word) | _rb(word), 0


def _address_ux(word: int) -> _Found:
    return _ra(word) | _rb(word), _ra(word)


def _mfcr(word: int) -> _Found:
    return (_fields(word) if word >> 20 & 1 else ALL_CR), _rt(word)


def _mtcrf(word: int) -> _Found:
    fields = _fields(word)
    several_of_one = word >> 20 & 1 and fields & (fields - 1)
    return _rt(word), 0 if several_of_one else fields


def _fields(word: int) -> int:
    """Return the fields in FXM: the first is its highest bit."""
    return sum(1 << CR_AT + number for number in range(8) if word >> 19 - number & 1)


def _spr(word: int) -> int:
    number = ra(word) | rb(word) << 5
    return {SPR_LR: LR_BIT, SPR_CTR: CTR_BIT}.get(number, 0)


_X_TABLE: tuple[tuple[str, Callable[[int], _Found]], ...] = (
    # With OE, which adds 512: subfc addc subf subfe adde mulld mullw add, and the divisions.
    ("8 10 40 136 138 233 235 266 457 459 489 491 393 395 425 427", _arithmetic),
    ("520 522 552 648 650 745 747 778 969 971 1001 1003 905 907 937 939", _arithmetic),
    ("9 11 73 75", _arithmetic),  # mulhdu mulhwu mulhd mulhw
    ("104 200 202 232 234 616 712 714 744 746", _arithmetic_one),  # neg subfze addze subfme addme
    ("265 267 777 779 74 170 426 682 938", _modulo),  # modud moduw modsd modsw addg6s addex
    ("28 60 124 284 316 412 444 476 24 536 792 27 539 794", _x_logical),
    ("26 58 538 570 954 922 986 824 826 827 890 891", _x_logical_one),
    ("508 252 156 188 220 59 571", _x_bits),  # cmpb bpermd pdepd pextd cfuged cntlzdm cnttzdm
    ("122 378 506 154 186 219 155 187 282 314", _x_bits_one),  # popcnt prty br
    ("0 32 192 224", _compare),
    ("87 279 343 23 341 21 790 534 532 52 116 20 84 853 821 789 885", _load_x),
    ("119 311 375 55 373 53", _load_ux),
    ("215 407 151 149 918 662 660 981 949 917 1013", _store_x),
    ("247 439 183 181", _store_ux),
    ("694 726 150 214", _store_conditional),
    # Of floating-point and vector registers, and caches.
    ("103 359 231 487 7 39 71 135 167 199 6 38 535 599 663 727 855 887 983", _address_x),
    ("844 780 588 332 76 12 524 716 972 908 140 652 268 269 301 396 397 429 876 812 1004 940", _address_x),
    ("781 813 909 941 364 300 333 461 13 45 77 109 141 173 205 237", _address_x),
    ("86 54 278 246 1014 982 22", _address_x),
    ("567 631 695 759", _address_ux),
    ("4 68", lambda word: (_ra(word) | _rb(word), 0)),
    ("598 854 30", lambda word: (0, 0)),  # sync eieio wait
    ("51 115 307", lambda word: (0, _ra(word))),  # from a vector register
    ("179 211 243 403", lambda word: (_ra(word), 0)),
    ("435", lambda word: (_ra0(word) | _rb(word), 0)),
    ("19", _mfcr),
    ("144", _mtcrf),
    ("576", lambda word: (0, _bf(word))),  # mcrxrx
    ("128", lambda word: (1 << CR_AT + (word >> 18 & 7), _rt(word))),  # setb
    ("384 416 448 480", lambda word: (_field_of_bit(ra(word)), _rt(word))),  # setbc setbcr setnbc setnbcr
    ("339", lambda word: (_spr(word), _rt(word))),
    ("467", lambda word: (_rt(word), _spr(word))),
    ("371 83 755", lambda word: (0, _rt(word))),  # mftb mfmsr darn
)


@cache
def _x_forms() -> dict[int, Callable[[int], _Found]]:
    return {number: form for numbers, form in _X_TABLE for number in _numbers(numbers)}


def _x31(word: int) -> _Found:
    if word >> 1 & 31 == 15:  # isel
        return _ra0(word) | _rb(word) | _field_of_bit(word >> 6 & 31), _rt(word)
    form = _x_forms().get(xo(word))
    return None if form is None else form(word)
