"""The fields of a 32-bit instruction word, and words made of fields.

    bit   0    5 6   10 11  15 16  20 21        30 31        (the manual's order: 0 is the highest)
    D    ┌──────┬──────┬──────┬──────────────────────┐
         │ op   │ RT   │ RA   │ SI, D                │   DS: the last two bits are an extended opcode; DQ: four
    X    ├──────┼──────┼──────┼──────┬───────────┬───┤
         │ op   │ RT   │ RA   │ RB   │ XO        │ Rc│
    B    ├──────┼──────┼──────┼──────┴───────┬───┼───┤
         │ 16   │ BO   │ BI   │ BD           │ AA│ LK│
    I    ├──────┼──────┴──────┴──────────────┼───┼───┤
         │ 18   │ LI                         │ AA│ LK│
         └──────┴────────────────────────────┴───┴───┘
    prefix  ┌──────┬────┬────┬───┬────┬─────────────┐
            │ 1    │type│    │ R │    │ d0 (18 bits)│  then a suffix, a word as above: d0 above its 16 bits (1.6.3)
            └──────┴────┴────┴───┴────┴─────────────┘

Numbers of books and sections are those of Power ISA 3.1B.
"""

from __future__ import annotations

MASK = 0xFFFF_FFFF_FFFF_FFFF

PREFIX, BC, SC, B, CR_OPS, X31 = 1, 16, 17, 18, 19, 31  # primary opcodes
TDI, TWI = 2, 3
BCLR, BCCTR, BCTAR, ADDPCIS = 16, 528, 560, 2  # extended opcodes of 19
TW, TD, MTMSR, MTMSRD = 4, 68, 146, 178  # extended opcodes of 31
R_BIT = 1 << 20  # of a prefix: the displacement is from the instruction's own address
PREFIX_8LS, PREFIX_8RR, PREFIX_MLS, PREFIX_MRR = range(4)

# BO (Book I, 2.4): each bit set switches a test off, or chooses its sense.
BO_NO_CR, BO_CR_TRUE, BO_NO_CTR, BO_CTR_ZERO = 16, 8, 4, 2
BO_ALWAYS = BO_NO_CR | BO_NO_CTR
TRAP = 0x7FE0_0008  # trap


def word_of(data: bytes) -> int:
    """Return the first word of an instruction: of a prefixed one, the prefix."""
    return int.from_bytes(data[:4], "little")


def suffix_of(data: bytes) -> int:
    return int.from_bytes(data[4:8], "little")


def to_bytes(*words: int) -> bytes:
    return b"".join(word.to_bytes(4, "little") for word in words)


def signed(value: int, bits: int = 64) -> int:
    """Return `value` modulo 2**bits, as a two's complement number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def rotated(value: int, by: int) -> int:
    """Rotate 64 bits to the left."""
    value &= MASK
    return (value << by | value >> 64 - by) & MASK


def fits(value: int, bits: int) -> bool:
    """Return whether a signed field of `bits` holds `value`."""
    return -(1 << (bits - 1)) <= value < 1 << (bits - 1)


def opcode(word: int) -> int:
    return word >> 26


def rt(word: int) -> int:
    """Return bits 6 to 10: RT, RS, BO, TO, …"""
    return word >> 21 & 31


def ra(word: int) -> int:
    """Return bits 11 to 15: RA, BI, …"""
    return word >> 16 & 31


def rb(word: int) -> int:
    """Return bits 16 to 20: RB, SH, …"""
    return word >> 11 & 31


def xo(word: int) -> int:
    """Return bits 21 to 30: the extended opcode of X, XL and XFX forms."""
    return word >> 1 & 0x3FF


def simm(word: int) -> int:
    return signed(word, 16)


def links(word: int) -> bool:
    """Return LK: whether a branch leaves a return address in LR, taken or not."""
    return bool(word & 1)


def is_absolute(word: int) -> bool:
    """Return AA: whether the displacement of b or bc is an address."""
    return bool(word & 2)


def branches_always(word: int) -> bool:
    """Return whether a conditional branch always branches, by BO."""
    return rt(word) & BO_ALWAYS == BO_ALWAYS


def displacement(word: int) -> int:
    """Return the displacement of b or bc."""
    return signed(word & 0x03FF_FFFC, 26) if opcode(word) == B else signed(word & 0xFFFC, 16)


def d_of_addpcis(word: int) -> int:
    """Return d0, d1 and d2 of the DX-form as a number: 10, 5 and 1 bits (Book I, 3.3.9)."""
    return signed(word & 0xFFC0 | (word >> 16 & 31) << 1 | word & 1, 16)


def prefix_type(word: int) -> int:
    return word >> 24 & 3


def is_pc_relative(data: bytes) -> bool:
    """Return whether a prefixed instruction's operand is relative to its own address."""
    first = word_of(data)
    return len(data) == 8 and prefix_type(first) in (PREFIX_8LS, PREFIX_MLS) and bool(first & R_BIT)


# Bytes of memory, by the suffix's primary opcode (Book I, 3.3.2 and chapters 4 to 7).
_OPERANDS = {
    PREFIX_MLS: {14: 0, 32: 4, 34: 1, 36: 4, 38: 1, 40: 2, 42: 2, 44: 2, 48: 4, 50: 8, 52: 4, 54: 8},
    PREFIX_8LS: {
        41: 4, 42: 8, 43: 4, 46: 8, 47: 4, 50: 16, 51: 16, 54: 16, 55: 16, 56: 16, 57: 8, 58: 32, 60: 16, 61: 8, 62: 32,
    },
}  # fmt: skip
_LONGEST_OPERAND = 32


def operand_size(data: bytes) -> int:
    """Return an upper bound of the bytes of memory that a prefixed instruction reads or writes; 0 if it does not."""
    kind = _OPERANDS.get(prefix_type(word_of(data)))
    return kind.get(opcode(suffix_of(data)), _LONGEST_OPERAND) if kind is not None else 0


def displacement34(data: bytes) -> int:
    """Return the displacement of a prefixed D-form instruction."""
    return signed((word_of(data) & 0x3FFFF) << 16 | suffix_of(data) & 0xFFFF, 34)


def with_displacement34(data: bytes, value: int) -> bytes:
    prefix = word_of(data) & ~0x3FFFF | value >> 16 & 0x3FFFF
    return to_bytes(prefix, suffix_of(data) & ~0xFFFF | value & 0xFFFF)
