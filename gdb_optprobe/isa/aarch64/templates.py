"""Instructions, assembled once by keystone and decoded again by capstone.

keystone sees only the package's own sources. Every instruction is one word with its variable fields zero; registers
and numbers go in afterwards, into their fields (fields.py):

    "ldxr x0, [x0]"  ──keystone──►  c85f7c00  ──Rd, Rn──►  c85f7e11  ldxr x17, [x16]

keystone assembles some text wrongly without an error, so its code is used only if capstone reads the same instruction
back. What keystone does not know, such as the atomic additions of Armv8.1, are words here, checked in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from gdb_optprobe.isa.aarch64.decoder import SIZE, engine
from gdb_optprobe.isa.aarch64.fields import PAGE, fits, signed, to_bytes
from gdb_optprobe.isa.assemble import assemble, check
from gdb_optprobe.isa.base import OutOfReach

# Name: for keystone, and as capstone writes it.
SOURCES = {
    # The first, at address 0: keystone takes the number for a target.
    "repeat": ("cbnz w0, #-12", "cbnz w0, #0xfffffffffffffff4"),
    "adrp": ("adrp x0, #0", "adrp x0, #0"),
    "add": ("add x0, x0, #0", "add x0, x0, #0"),
    "load_exclusive": ("ldxr x0, [x0]", "ldxr x0, [x0]"),
    "store_exclusive": ("stxr w0, x0, [x0]", "stxr w0, x0, [x0]"),
    "one": ("movz x0, #1", "mov x0, #1"),
    "move": ("mov x0, x0", "mov x0, x0"),
    "push": ("str x0, [sp, #-16]!", "str x0, [sp, #-0x10]!"),
    "pop": ("ldr x0, [sp], #16", "ldr x0, [sp], #0x10"),
    "push_pair": ("stp x0, x0, [sp, #-16]!", "stp x0, x0, [sp, #-0x10]!"),
    "pop_pair": ("ldp x0, x1, [sp], #16", "ldp x0, x1, [sp], #0x10"),
}
# Of Armv8.1. Its Rt is the zero register: a load that is not wanted.
# Of the load keystone takes the number for a target.
WORDS = {"atomic_add": (0xF820_001F, "stadd x0, [x0]"), "literal": (0x5800_0000, "ldr x0, #0")}


@cache
def templates() -> Mapping[str, int]:
    """Return all templates by name. Raises OptprobeError if keystone cannot be loaded or is wrong."""
    found = {**assembled(SOURCES), **checked(WORDS)}
    found["pop_pair"] &= ~(31 << 10)  # no instruction loads a register twice
    return found


def assembled(sources: Mapping[str, tuple[str, str]]) -> dict[str, int]:
    """Assemble each text to one word. Raises OptprobeError if keystone cannot be loaded or is wrong."""
    code = assemble("; ".join(source for source, _ in sources.values()), "KS_ARCH_ARM64", "KS_MODE_LITTLE_ENDIAN")
    words = (int.from_bytes(code[at : at + SIZE], "little") for at in range(0, len(code), SIZE))
    return {name: _check(source, expected, next(words, 0)) for name, (source, expected) in sources.items()}


def checked(words: Mapping[str, tuple[int, str]]) -> dict[str, int]:
    """Return words that keystone does not know by name. Raises OptprobeError if capstone reads something else."""
    return {name: _check(name, expected, word) for name, (word, expected) in words.items()}


def _check(source: str, expected: str, word: int) -> int:
    _, _, mnemonic, operands = next(engine().disasm_lite(to_bytes(word), 0, 1), (0, 0, "nothing", ""))
    check(source, expected, mnemonic, operands)
    return word


def word(name: str, rd: int = 0, rn: int = 0, ra: int = 0, rm: int = 0) -> int:
    """Encode the template `name` with these registers."""
    return templates()[name] | rm << 16 | ra << 10 | rn << 5 | rd


def address(register: int, value: int, at: int) -> list[int]:
    """Encode a load of an address at `at`, in two words that change nothing else. Raises OutOfReach."""
    return [adrp(register, value, at), word("add", register, register) | value % PAGE << 10]


def literal(register: int, value_at: int, at: int) -> int:
    """Encode a load at `at` of the word at `value_at`. Raises OutOfReach."""
    distance = signed(value_at - at)
    if not fits(distance, 21) or distance & 3:
        raise OutOfReach(at, value_at)
    return word("literal", register) | distance << 3 & 0xFF_FFE0


def adrp(register: int, value: int, at: int) -> int:
    """Encode `adrp` at `at` of the page of an address. Raises OutOfReach."""
    pages = signed((value & -PAGE) - (at & -PAGE)) // PAGE
    if not fits(pages, 21):
        raise OutOfReach(at, value)
    return word("adrp", register) | (pages & 3) << 29 | (pages >> 2 & 0x7_FFFF) << 5
