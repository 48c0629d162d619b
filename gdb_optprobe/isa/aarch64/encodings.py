"""Encode instructions: templates as in templates.py with registers by name, and branches to labels.

    bit   31       20  16     10 9    5 4    0
         ┌───────────┬────┬──────┬──────┬──────┐
         │           │ Rm │      │ Rn   │ Rd   │   plain(…); Ra, and Rt2 of a pair, at bit 10
         ├───────────┼────┴──────┼──────┼──────┤
         │           │ imm12     │ Rn   │ Rd   │   number(…): a sum; scaled(…): a load or store
         ├───────────┼────┬──────┼──────┼──────┤
         │         N │immr│ imms │ Rn   │ Rd   │   masked(…): a mask of 64 bits; bits(…): a field
         ├─────────┬─┴────┴──────┴──────┼──────┤
         │         │ imm16              │ Rd   │   constant(…)
         └─────────┴────────────────────┴──────┘
Register 31 is sp as a base, and in a sum with a number; elsewhere it is xzr. A program without a page address and
without a far branch is the same words at every address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from gdb_optprobe.isa.aarch64.fields import MASK, fits, signed, to_bytes
from gdb_optprobe.isa.aarch64.templates import assembled, checked
from gdb_optprobe.isa.base import WORD, OutOfReach
from gdb_optprobe.isa.codegen import Comparison, Label, labels_among_words

# Name: for keystone, and as capstone writes it. A name that ends in "w" is of 32 bits, in "i" of a number.
_SOURCES = {
    **{
        source.split()[0] + suffix: (source, source)
        for suffix, sources in (
            ("", (
                "add x0, x0, x0", "sub x0, x0, x0", "subs x0, x0, x0", "and x0, x0, x0", "orr x0, x0, x0",
                "eor x0, x0, x0", "bic x0, x0, x0", "orn x0, x0, x0", "madd x0, x0, x0, x0", "msub x0, x0, x0, x0",
                "umulh x0, x0, x0", "udiv x0, x0, x0", "sdiv x0, x0, x0", "lsl x0, x0, x0", "lsr x0, x0, x0",
                "asr x0, x0, x0", "clz x0, x0", "csel x0, x0, x0, eq",
                "ldrb w0, [x0]", "ldrsb x0, [x0]", "ldrh w0, [x0]", "ldrsh x0, [x0]", "ldrsw x0, [x0]", "ldr x0, [x0]",
                "ldurb w0, [x0]", "ldursb x0, [x0]", "ldurh w0, [x0]", "ldursh x0, [x0]", "ldursw x0, [x0]",
                "ldur x0, [x0]", "strb w0, [x0]", "strh w0, [x0]", "str x0, [x0]", "sturb w0, [x0]", "sturh w0, [x0]",
                "stur x0, [x0]", "ldxr x0, [x0]", "ldaxr x0, [x0]", "stlr x0, [x0]",
                "isb", "blr x0",
            )),
            ("w", (
                "add w0, w0, w0", "sub w0, w0, w0", "orn w0, w0, w0", "madd w0, w0, w0, w0", "ldr w0, [x0]",
                "ldur w0, [x0]", "str w0, [x0]", "stur w0, [x0]",
            )),
            ("i", (
                "add x0, x0, #0", "sub x0, x0, #0", "subs x0, x0, #0", "adds x0, x0, #0", "and x0, x0, #1",
                "orr x0, x0, #1", "eor x0, x0, #1", "movk x0, #0",
            )),
            ("iw", ("add w0, w0, #0", "sub w0, w0, #0")),
        )
        for source in sources
    },
    "movz": ("movz x0, #0", "mov x0, #0"),
    "movn": ("movn x0, #0", "mov x0, #-1"),
    "ret": ("ret x0",) * 2,
    "bfm": ("bfm x0, x0, #0, #0", "bfxil x0, x0, #0, #1"),
    "ccmp": ("ccmp x0, x0, #0, eq",) * 2,
    "csinc": ("csinc x0, x0, x0, eq", "cinc x0, x0, ne"),
    "ubfm": ("ubfm x0, x0, #0, #0", "ubfx x0, x0, #0, #1"),
    "sbfm": ("sbfm x0, x0, #0, #0", "sbfx x0, x0, #0, #1"),
    "ldr_index": ("ldr x0, [x0, x0, lsl #3]",) * 2,
    "ldr_sum": ("ldr x0, [x0, x0]",) * 2,
    "str_index": ("str x0, [x0, x0, lsl #3]",) * 2,
    "stxr": ("stxr w1, x0, [x0]",) * 2,
    "stlxr": ("stlxr w1, x0, [x0]",) * 2,
    "ldaxp": ("ldaxp x0, x1, [x0]",) * 2,
    "stxp": ("stxp w1, x0, x0, [x0]",) * 2,
    "push": ("str x0, [sp, #0]!",) * 2,
    "pop": ("ldr x0, [sp], #0",) * 2,
    "push_pair": ("stp x0, x0, [sp, #0]!",) * 2,
    "pop_pair": ("ldp x0, x1, [sp], #0",) * 2,
    "str_pair": ("stp x0, x0, [sp]",) * 2,
    "ldr_pair": ("ldp x0, x1, [sp]",) * 2,
    "zero_pair": ("stp xzr, xzr, [x0], #16",) * 2,
    "dmb_ishld": ("dmb ishld",) * 2,
    "get_nzcv": ("mrs x0, nzcv",) * 2,
    "set_nzcv": ("msr nzcv, x0",) * 2,
    "get_cntvct_el0": ("mrs x0, cntvct_el0",) * 2,
    "get_sp_el0": ("mrs x0, sp_el0",) * 2,
    "get_tpidr_el1": ("mrs x0, tpidr_el1",) * 2,
    "get_tpidr_el2": ("mrs x0, tpidr_el2",) * 2,
    "get_daif": ("mrs x0, daif",) * 2,
    "set_daif": ("msr daif, x0",) * 2,
    "mask_interrupts": ("msr daifset, #2",) * 2,
    "get_par_el1": ("mrs x0, par_el1",) * 2,
    "get_ttbr0_el1": ("mrs x0, ttbr0_el1",) * 2,
    "get_esr_el1": ("mrs x0, esr_el1",) * 2,
    "get_elr_el1": ("mrs x0, elr_el1",) * 2,
    "set_elr_el1": ("msr elr_el1, x0",) * 2,
    "eret": ("eret",) * 2,
    "set_par_el1": ("msr par_el1, x0",) * 2,
    "at_s1e1r": ("at s1e1r, x0",) * 2,
    "at_s1e0r": ("at s1e0r, x0",) * 2,
}  # fmt: skip
_SECOND = ("stxr", "stlxr", "stxp", "ldaxp", "pop_pair", "ldr_pair")
"""Templates with 1 in the field of another register, so that they are no instruction which is undefined."""
_NUMBERS: Mapping[str, int] = {f"x{number}": number for number in range(31)} | {"sp": 31, "xzr": 31}
# Of branches keystone takes the number for a target, and it does not know Armv8.1. Words, and as capstone writes them
# at address 0.
_WORDS = {
    "ldadd": (0xF820_0000, "ldadd x0, x0, [x0]"),
    "ldseta": (0xF8A0_3000, "ldseta x0, x0, [x0]"),
    "ldsmax": (0xF820_4000, "ldsmax x0, x0, [x0]"),
    "ldsmin": (0xF820_5000, "ldsmin x0, x0, [x0]"),
    "ldumax": (0xF820_6000, "ldumax x0, x0, [x0]"),
    "ldumin": (0xF820_7000, "ldumin x0, x0, [x0]"),
    "casa": (0xC8E0_7C00, "casa x0, x0, [x0]"),
    "casl": (0xC8A0_FC00, "casl x0, x0, [x0]"),
    "b": (0x1400_0000, "b #0"),
    "bl": (0x9400_0000, "bl #0"),
    "b.cond": (0x5400_0000, "b.eq #0"),
    "cbz": (0xB400_0000, "cbz x0, #0"),
    "cbnz": (0xB500_0000, "cbnz x0, #0"),
    "cbzw": (0x3400_0000, "cbz w0, #0"),
    "cbnzw": (0x3500_0000, "cbnz w0, #0"),
    "tbz": (0x3600_0000, "tbz w0, #0, #0"),
    "tbnz": (0x3700_0000, "tbnz w0, #0, #0"),
    "adrp": (0x9000_0000, "adrp x0, #0"),
    "ldr_literal": (0x5800_0000, "ldr x0, #0"),
}
PAGE = 4096

# Condition codes (DDI 0487, condition code). The lowest bit turns one into its opposite.
_UNSIGNED = {Comparison.EQ: 0, Comparison.NE: 1, Comparison.GE: 2, Comparison.LT: 3, Comparison.GT: 8, Comparison.LE: 9}
_SIGNED = _UNSIGNED | {Comparison.GE: 10, Comparison.LT: 11, Comparison.GT: 12, Comparison.LE: 13}


@dataclass(frozen=True, slots=True)
class LabelBranch:
    """A branch to a label, or a load from there: a word with the field of the distance zero, of so many bits, from a
    bit on.
    """

    label: Label
    word: int
    bits: int = 26
    low: int = 0


@dataclass(frozen=True, slots=True)
class FarBranch:
    """A branch out of the program, to an address. link: bl in place of b."""

    target: int
    link: bool = False


@dataclass(frozen=True, slots=True)
class PageAddress:
    """adrp: the address of a page, of 4 KiB, within 4 GiB."""

    to: str
    target: int


@dataclass(frozen=True, slots=True)
class NearAddress:
    """An address within 4 GiB: by its page, with a PageOffset behind it; or a word of a pool, and that is all."""

    to: str
    target: int


@dataclass(frozen=True, slots=True)
class PageOffset:
    """The addition of an address's place in its page."""

    to: str
    target: int


Item = int | Label | LabelBranch | FarBranch | PageAddress | NearAddress | PageOffset


@cache
def templates() -> Mapping[str, int]:
    """Return all templates by name. Raises OptprobeError if keystone cannot be loaded or is wrong."""
    found = {**assembled(_SOURCES), **checked(_WORDS)}
    for name in _SECOND:
        found[name] &= ~(1 << 16 if name.startswith("st") else 1 << 10)
    return found


def plain(name: str, d: str = "x0", n: str = "x0", m: str = "x0", a: str = "x0") -> int:
    """Encode an instruction with registers in the fields Rd (or Rt), Rn, Rm (or Rs) and Ra."""
    return templates()[name] | _NUMBERS[d] | _NUMBERS[n] << 5 | _NUMBERS[m] << 16 | _NUMBERS[a] << 10


def may_write(word: int, register: str) -> bool:
    """Return whether an instruction may write a register: only one in the fields Rd, Rs or Rt2."""
    return _NUMBERS[register] in (word & 31, word >> 16 & 31, word >> 10 & 31)


def number(name: str, d: str, n: str, value: int, shifted: bool = False) -> int:
    """Encode a sum with a number of 12 bits. shifted: it has 12 zeros below them."""
    return plain(name, d, n) | value << 10 | shifted << 22


def shifted(name: str, d: str, n: str, m: str, by: int) -> int:
    """Encode an operation with Rm shifted to the left."""
    return plain(name, d, n, m) | by << 10


def lowered(name: str, d: str, n: str, m: str, by: int) -> int:
    """Encode an operation with Rm shifted to the right; the bits above it are 0."""
    return plain(name, d, n, m) | 1 << 22 | by << 10


def scaled(name: str, t: str, base: str, offset: int, size: int) -> int:
    """Encode a load or store of `size` bytes, with an offset that is a multiple of that."""
    return plain(name, t, base) | offset // size << 10


def unscaled(name: str, t: str, base: str, offset: int) -> int:
    """Encode a load or store with an offset of 9 bits; or one that moves the base by that."""
    return plain(name, t, base) | (offset & 0x1FF) << 12


def pair(name: str, first: str, second: str, offset: int, base: str = "") -> int:
    """Encode a load or store of two registers, at sp where no base is named, with an offset of 7 bits, in words of 8
    bytes.
    """
    word = plain(name, first, a=second) | (offset // 8 & 0x7F) << 15
    return word & ~(31 << 5) | _NUMBERS[base] << 5 if base else word


def moved(name: str, register: str, offset: int) -> int:
    """Encode a load or store of one register at sp that moves sp by `offset`."""
    return plain(name, register) | (offset & 0x1FF) << 12


def bits(name: str, d: str, n: str, immr: int, imms: int) -> int:
    return plain(name, d, n) | immr << 16 | imms << 10


def masked(name: str, d: str, n: str, mask: int) -> int | None:
    """Encode a bitwise operation with a mask; None if it is none of the masks that can be encoded."""
    fields = mask_fields(mask)
    return None if fields is None else templates()[name] & ~(0x1FFF << 10) | _NUMBERS[d] | _NUMBERS[n] << 5 | fields


@cache
def mask_fields(mask: int) -> int | None:
    """Return the fields N, immr and imms of a mask of 64 bits: equal parts, each a rotated run of ones; None if it is
    not of that form (DDI 0487, DecodeBitMasks).
    """
    size = 64
    while size > 2 and mask >> size // 2 & (1 << size // 2) - 1 == mask & (1 << size // 2) - 1:
        size //= 2
    part = mask & (1 << size) - 1
    ones = part.bit_count()
    if not 0 < ones < size:
        return None
    run = (1 << ones) - 1
    for turned in range(size):
        if (run >> turned | run << size - turned) & (1 << size) - 1 == part:
            return (size == 64) << 22 | turned << 16 | (-2 * size & 0x3F | ones - 1) << 10
    return None


def constant(to: str, value: int) -> list[int]:
    """Encode a load of 64 bits that changes nothing else: one to four words."""
    value &= MASK
    parts = [value >> at & 0xFFFF for at in range(0, 64, 16)]
    fill = 0xFFFF if parts.count(0xFFFF) > parts.count(0) else 0
    first, *others = [at for at, part in enumerate(parts) if part != fill] or [0]
    if others and (word := masked("orri", to, "xzr", value)) is not None:
        return [word]
    words = [_wide("movn" if fill else "movz", to, parts[first] ^ fill, first)]
    return [*words, *(_wide("movki", to, parts[at], at) for at in others)]


def _wide(name: str, to: str, part: int, at: int) -> int:
    return plain(name, to) | part << 5 | at << 21


def select(name: str, to: str, left: str, right: str, test: Comparison, signed: bool) -> int:
    """Encode csel or csinc: `left` if the comparison holds, else `right`, or that + 1."""
    return plain(name, to, left, right) | code_of(test, signed) << 12


def code_of(test: Comparison, signed: bool) -> int:
    """Return the condition code of a comparison."""
    return (_SIGNED if signed else _UNSIGNED)[test]


def branch_if(test: Comparison, label: Label, signed: bool = False) -> LabelBranch:
    """Return a branch to `label` if the flags hold the result of a comparison that satisfies `test`."""
    return LabelBranch(label, templates()["b.cond"] & ~0xF | code_of(test, signed), 19, 5)


def branch_on_zero(name: str, register: str, label: Label) -> LabelBranch:
    """Return cbz or cbnz."""
    return LabelBranch(label, plain(name, register), 19, 5)


def branch_on_bit(name: str, register: str, bit: int, label: Label) -> LabelBranch:
    """Return tbz or tbnz."""
    return LabelBranch(label, plain(name, register) | (bit & 31) << 19 | bit >> 5 << 31, 14, 5)


def literal(register: str, label: Label) -> LabelBranch:
    """Return the load of the word at `label`."""
    return LabelBranch(label, plain("ldr_literal", register), 19, 5)


def jump(label: Label, link: bool = False) -> LabelBranch:
    return LabelBranch(label, templates()["bl" if link else "b"])


def pool_words(items: Sequence[Item]) -> tuple[int, ...]:
    """Return what code reads of a pool, in the order in which that has it."""
    return tuple(dict.fromkeys(item.target for item in items if isinstance(item, NearAddress)))


def reading_pool(items: Sequence[Item]) -> list[Item]:
    """Return the items of the code that reads a pool."""
    return [item for item in items if not isinstance(item, PageOffset)]


def encode_items(items: Sequence[Item], at: int = 0, pool: int | None = None) -> bytes:
    """Return the code for an address. pool: where it has its words; None for none. Raises OutOfReach."""
    held = {} if pool is None else {word: pool + WORD * number for number, word in enumerate(pool_words(items))}
    items = items if pool is None else reading_pool(items)
    labels = {label: offset for offset, label in labels_among_words(items)}
    words: list[int] = []
    for item in items:
        place = 4 * len(words)
        match item:
            case LabelBranch(label, word, width, low):
                words.append(word | _distance(place, labels[label], width) << low)
            case FarBranch(target, link):
                words.append(templates()["bl" if link else "b"] | _distance(at + place, target, 26))
            case NearAddress(to, target) if target in held:
                words.append(plain("ldr_literal", to) | _distance(at + place, held[target], 19) << 5)
            case PageAddress(to, target) | NearAddress(to, target):
                words.append(_page_address(at + place, to, target))
            case PageOffset(to, target):
                words.append(number("addi", to, to, target % PAGE))
            case int():
                words.append(item)
    return to_bytes(*words)


def _distance(source: int, target: int, width: int) -> int:
    """Return a distance in words, as a field. Raises OutOfReach."""
    distance = signed(target - source)
    if distance & 3 or not fits(distance >> 2, width):
        raise OutOfReach(source, target)
    return distance >> 2 & (1 << width) - 1


def _page_address(source: int, to: str, target: int) -> int:
    pages = signed((target & -PAGE) - (source & -PAGE)) // PAGE
    if not fits(pages, 21):
        raise OutOfReach(source, target)
    return plain("adrp", to) | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
