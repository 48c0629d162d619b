"""Instructions, assembled once by keystone and decoded again by capstone.

keystone sees only the package's own sources. Every instruction is one word with its variable fields zero;
registers and numbers go in afterwards, into their fields (fields.py):

    "ldarx 0, 0, 0"  ──keystone──►  7c0000a8  ──RT, RB──►  7d8058a8  ldarx r12, 0, r11

keystone assembles some text wrongly without an error, so its code is used only if capstone reads the same instruction
back. Instructions that neither of them knows are words here, checked with our own decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from gdb_optprobe.isa.assemble import assemble, check
from gdb_optprobe.isa.ppc64le.decoder import decode, engine
from gdb_optprobe.isa.ppc64le.fields import MASK, fits, rotated, signed, to_bytes

# Name: for keystone, and as capstone writes it.
SOURCES = {
    # The first, at address 0: keystone takes the number for a target.
    "repeat": ("bne- 0, -12", "bne- 0xfffffffffffffff4"),
    "add_one": ("addi 0, 0, 1", "li r0, 1"),  # with RA 0 that is li
    "addi": ("addi 0, 1, 0", "addi r0, r1, 0"),
    "addis": ("addis 0, 2, 0", "addis r0, r2, 0"),
    "li": ("li 0, 0", "li r0, 0"),
    "lis": ("lis 0, 0", "lis r0, 0"),
    "ori": ("ori 0, 0, 1", "ori r0, r0, 1"),  # with 0 it would be a nop
    "oris": ("oris 0, 0, 0", "oris r0, r0, 0"),
    "shift_left_32": ("sldi 0, 0, 32", "sldi r0, r0, 0x20"),
    "rotate_left_62": ("rotldi 0, 0, 62", "rotldi r0, r0, 0x3e"),
    "open_frame": ("stdu 1, 0(1)", "stdu r1, 0(r1)"),
    "save": ("std 0, 0(1)", "std r0, 0(r1)"),
    "restore": ("ld 0, 0(1)", "ld r0, 0(r1)"),
    "load_reserved": ("ldarx 0, 0, 0", "ldarx r0, 0, r0"),
    "store_conditional": ("stdcx. 0, 0, 0", "stdcx. r0, 0, r0"),
    "get_cr0": ("mfocrf 0, 128", "mfocrf r0, 0x80"),
    "set_cr0": ("mtocrf 128, 0", "mtocrf 0x80, r0"),
    "copy_cr0": ("mcrf 7, 0", "mcrf cr7, cr0"),
    "copy_to_cr0": ("mcrf 0, 7", "mcrf cr0, cr7"),
    "mtctr": ("mtctr 0", "mtctr r0"),
    "mfctr": ("mfctr 0", "mfctr r0"),
    "mtlr": ("mtlr 0", "mtlr r0"),
    "mflr": ("mflr 0", "mflr r0"),
    "nop": ("nop", "nop"),
}

# Of two registers, an even one and the next; since ISA 2.07 for little-endian code too (Book I, 3.3.4).
WORDS = {"save_pair": (0xF801_0002, "stq r0, 0x0(r1)"), "restore_pair": (0xE001_0000, "lq r0, 0x0(r1)")}


@cache
def templates() -> dict[str, int]:
    """Return all templates by name. Raises OptprobeError if keystone cannot be loaded or is wrong."""
    found = assembled(SOURCES)
    for name, (number, expected) in WORDS.items():
        [insn] = decode(to_bytes(number), 0)
        check(name, expected, *insn.text.split(" ", 1))
        found[name] = number
    return found


def assembled(sources: Mapping[str, tuple[str, str]]) -> dict[str, int]:
    """Assemble each text to one word. Raises OptprobeError if keystone cannot be loaded or is wrong."""
    # Its little-endian mode is this one; with KS_MODE_BIG_ENDIAN it writes the bytes the other way round.
    code = assemble("; ".join(source for source, _ in sources.values()), "KS_ARCH_PPC", "KS_MODE_PPC64")
    found: dict[str, int] = {}
    for index, (name, (source, expected)) in enumerate(sources.items()):
        data = code[4 * index : 4 * index + 4]
        _, _, mnemonic, operands = next(engine().disasm_lite(data, 0, 1), (0, 0, "nothing", ""))
        check(source, expected, mnemonic, operands)
        found[name] = int.from_bytes(data, "little")
    return found


def word(name: str, rt: int = 0, ra: int = 0, rb: int = 0, number: int = 0) -> int:
    """Encode the template `name` with these fields. number: the low half, two's complement."""
    return templates()[name] | rt << 21 | ra << 16 | rb << 11 | number & 0xFFFF


def load(register: int, value: int) -> list[int]:
    """Encode a load of 64 bits into a general register that changes nothing else: one to five words.

    Three words, not four, for the lowest 512 MiB of Linux's linear map: rotated by two bits they are 32 bits.
    """
    value = signed(value & MASK)
    low, high = value & 0xFFFF, value >> 16 & 0xFFFF
    if fits(value, 16):
        return [word("li", register, number=value)]
    if fits(value, 32):
        return [word("lis", register, number=high), *_or(register, 0, low)]
    turned = signed(rotated(value, 2))
    if fits(turned, 32):
        return [*load(register, turned), word("rotate_left_62", register, register)]
    upper = load(register, value >> 32)
    return [*upper, word("shift_left_32", register, register), *_or(register, high, low)]


def _or(register: int, high: int, low: int) -> list[int]:
    """Set bits of the low word that are zero."""
    words = [word("oris", register, register, number=high)] if high else []
    return [*words, templates()["ori"] & ~1 | register << 21 | register << 16 | low] if low else words
