"""Find direct branches among millions of words, by their first bytes, without decoding the others."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gdb_optprobe.isa.ppc64le.fields import MASK, signed, word_of

_BRANCHES = re.compile(rb"[\x40-\x43\x48-\x4b]")  # the highest byte of bc and b, primary opcodes 16 and 18
_B, _ABSOLUTE = 18, 2


def direct_branches(code: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Yield (address, target) of each direct branch and call in `code` at `start`. Data may look like some."""
    for match in _BRANCHES.finditer(code[3::4]):
        place = 4 * match.start()
        word, at = word_of(code[place : place + 4]), start + place
        offset = signed(word & 0x3FF_FFFC, 26) if word >> 26 == _B else signed(word & 0xFFFC, 16)
        yield at, (offset if word & _ABSOLUTE else at + offset) & MASK
