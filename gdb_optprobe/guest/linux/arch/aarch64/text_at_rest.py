"""The kernel's text without what the kernel rewrites while it runs, and without what it puts in at each boot.

    tracer's site, its caller   `bl` to a tracer            ─► nop
    jump label                  `b` to its own target       ─► nop
    address of the image        8 bytes, among literals     ─► its distance from the text
    part of a constant          `movk`                      ─► of 0
    random bits of addresses    `add`, `add …, lsl #12`     ─► of 0: two of one register, one behind the other
    text that runs elsewhere    what is there               ─► zeros

A plan of an instruction does not depend on its constants. Two texts that differ in no more than that are equal at rest.
Any other patch stays.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable

from gdb_optprobe.isa.aarch64.fields import branch_offset, is_b

NOP = 0xD503_201F
MOVK, OF_MOVK, CONSTANT = re.compile(rb"[\x72\xf2]"), 0x7F80_0000, 0x1F_FFE0
IS_MOVK = 0x7280_0000
ADDS, OF_ADD, NUMBER = re.compile(rb"\x91(?=\x91)"), 0xFFC0_0000, 0x3F_FC00
LOW, HIGH = 0x9100_0000, 0x9140_0000
"""`add` of a number, and of one that is shifted to the left by 12."""
REGISTERS = 0x3FF
WORD, ADDRESS = 4, 8


def at_rest(
    text: bytes,
    image: tuple[int, int],
    traced: Iterable[int],
    labels: Iterable[tuple[int, int]],
    elsewhere: Iterable[tuple[int, int]],
) -> bytes:
    """Return the `text`, with which the `image` begins, at rest. labels: with their targets. elsewhere: ranges."""
    base, end = image
    found = bytearray(text)
    for start, last in elsewhere:
        first, behind = (min(max(at - base, 0), len(text)) for at in (start, last))
        found[first:behind] = bytes(behind - first)
    addresses = array("Q", bytes(found[: len(text) & -ADDRESS]))
    for number, value in enumerate(addresses):
        if base <= value < end:
            found[number * ADDRESS : (number + 1) * ADDRESS] = (value - base).to_bytes(ADDRESS, "little")
    words = array("I", bytes(found))

    def branch(at: int) -> int | None:
        """Return the branch at an address; None where none is."""
        number, rest = divmod(at - base, WORD)
        return words[number] if not rest and 0 <= number < len(words) and is_b(words[number]) else None

    for at in traced:
        if (word := branch(at)) is not None and word >> 31:
            words[(at - base) // WORD] = NOP
    for at, target in labels:
        if (word := branch(at)) is not None and not word >> 31 and branch_offset(word) == target - at:
            words[(at - base) // WORD] = NOP
    heads = words.tobytes()[3::WORD]
    for head in MOVK.finditer(heads):
        word = words[head.start()]
        if word & OF_MOVK == IS_MOVK:
            words[head.start()] = word & ~CONSTANT
    for head in ADDS.finditer(heads):
        low, high = words[head.start() : head.start() + 2]
        pair = low & OF_ADD == LOW and high & OF_ADD == HIGH and low & REGISTERS == high & REGISTERS
        if pair and low & 31 == low >> 5 & 31:
            words[head.start()], words[head.start() + 1] = low & ~NUMBER, high & ~NUMBER
    return words.tobytes()
