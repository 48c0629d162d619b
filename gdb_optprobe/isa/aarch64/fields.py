"""The fields of an instruction word, and words made of fields.

    bit   31       25 24  22 21    16 15    10 9     5 4     0
         ┌───────────┬──────┬────────┬────────┬───────┬───────┐
         │ group     │      │ Rm, Rs │  Ra    │  Rn   │  Rd   │    Rt in the place of Rd, Rt2 in that of Ra
         ├──────┬────┴──────┴────────┴────────┴───────┴───────┤
    B BL │  op  │                  imm26                      │
         ├──────┴────┬────────────────────────────────┬───────┤
B.cond CB│    op     │             imm19              │  Rt   │    Rt: the condition of B.cond
         ├───────────┼─────┬──────────────────────────┼───────┤
    TB   │ b5   op   │ b40 │          imm14           │  Rt   │
         ├──┬─────┬──┴─────┴──────────────────────────┼───────┤
ADR ADRP │op│immlo│  op                immhi          │  Rd   │
         └──┴─────┴───────────────────────────────────┴───────┘
Groups and fields are called as in the Arm Architecture Reference Manual for A-profile (DDI 0487), C4.1 and C6.2.
"""

from __future__ import annotations

MASK = 0xFFFF_FFFF_FFFF_FFFF
PAGE = 1 << 12
ZERO_OR_SP = 31
NOP = 0xD503_201F
BRK = 0xD420_0000  # brk #0, as GDB sets it
HLT = 0xD440_0000  # hlt #0
UDF = 0x0000_0000

# Names of masks with the value that a word has under them (C4.1).
B, BL = 0x1400_0000, 0x9400_0000
B_COND, CB, TB = 0x5400_0000, 0x3400_0000, 0x3600_0000
NEGATES = 1 << 24  # cbnz, tbnz
ADR, ADRP = 0x1000_0000, 0x9000_0000


def word_of(data: bytes) -> int:
    return int.from_bytes(data[:4], "little")


def to_bytes(*words: int) -> bytes:
    return b"".join(word.to_bytes(4, "little") for word in words)


def signed(value: int, bits: int = 64) -> int:
    """Return `value` modulo 2**bits, as a two's complement number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def fits(value: int, bits: int) -> bool:
    """Return whether a signed field of `bits` holds `value`."""
    return -(1 << (bits - 1)) <= value < 1 << (bits - 1)


def rd(word: int) -> int:
    """Return bits 4 to 0: Rd, Rt."""
    return word & 31


def rn(word: int) -> int:
    return word >> 5 & 31


def ra(word: int) -> int:
    """Return bits 14 to 10: Ra, Rt2."""
    return word >> 10 & 31


def rm(word: int) -> int:
    """Return bits 20 to 16: Rm, Rs."""
    return word >> 16 & 31


def is_b(word: int) -> bool:
    """Return whether a word is `b` or `bl`."""
    return word & 0x7C00_0000 == B


def is_b_cond(word: int) -> bool:
    """Return whether a word is `b.cond` or `bc.cond`, which has a hint."""
    return word >> 24 == B_COND >> 24


def is_cb(word: int) -> bool:
    """Return whether a word is `cbz` or `cbnz`."""
    return word & 0x7E00_0000 == CB


def is_tb(word: int) -> bool:
    """Return whether a word is `tbz` or `tbnz`."""
    return word & 0x7E00_0000 == TB


def is_adr(word: int) -> bool:
    """Return whether a word is `adr` or `adrp`."""
    return word & 0x1F00_0000 == ADR


def is_load_literal(word: int) -> bool:
    """Return whether a word is a load, or a prefetch, of an operand beside it: load register (literal)."""
    return word & 0x3B00_0000 == 0x1800_0000


def is_branch_register(word: int) -> bool:
    """Return whether a word is of the group of br, blr, ret, eret: unconditional branch (register)."""
    return word >> 25 == 0b1101011


def links(word: int) -> bool:
    """Return whether a branch to a register leaves a return address in x30: blr, blraa, …"""
    return is_branch_register(word) and word >> 21 & 0b0111 == 0b0001


def branch_offset(word: int) -> int:
    """Return how far a direct branch goes."""
    if is_b(word):
        return signed(word << 2, 28)
    return signed(word >> 3 & 0xFFFC, 16) if is_tb(word) else offset19(word)


def offset19(word: int) -> int:
    """Return how far b.cond and cbz go, and where the operand of a load beside it is."""
    return signed(word >> 3 & 0x1F_FFFC, 21)


def adr_target(word: int, address: int) -> int:
    """Return what `adr` or `adrp` at `address` computes."""
    number = signed(word >> 3 & 0x1F_FFFC | word >> 29 & 3, 21)
    return (address & -PAGE) + (number << 12) & MASK if word >> 31 else address + number & MASK


def is_pair(word: int) -> bool:
    """Return whether a word loads or stores two registers: load/store register pair."""
    return word & 0x3A00_0000 == 0x2800_0000


def pair_size(word: int) -> int:
    """Return the bytes of each register of a pair: of vector registers, 4, 8 or 16."""
    return 4 << (word >> 30) if word >> 26 & 1 else 4 << (word >> 31)


def is_indexed(word: int) -> bool:
    """Return whether a word loads or stores one register, at an offset that it adds to the base, before or after."""
    return word & 0x3B20_0400 == 0x3800_0400


def moves_base(word: int) -> int | None:
    """Return what a load or store adds to its base register; None of one that leaves it, and of others."""
    if is_pair(word):
        return signed(word >> 15, 7) * pair_size(word) if word >> 23 & 1 else None
    return signed(word >> 12, 9) if is_indexed(word) else None
