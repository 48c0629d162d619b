"""Find direct branches among millions of words, by their first bytes, without decoding the others."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gdb_optprobe.isa.aarch64.fields import branch_offset, word_of

# The highest byte of b and bl; b.cond; cbz, cbnz, tbz and tbnz of both sizes (DDI 0487, C4.1.93).
_BRANCHES = re.compile(rb"[\x14-\x17\x94-\x97\x54\x34-\x37\xb4-\xb7]")


def direct_branches(code: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Yield (address, target) of each direct branch and call in `code` at `start`. Data may look like some."""
    for match in _BRANCHES.finditer(code[3::4]):
        at = 4 * match.start()
        yield start + at, start + at + branch_offset(word_of(code[at : at + 4]))
