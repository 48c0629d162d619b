"""The kernel's text without what the kernel rewrites while it runs: tracers, jump labels, and room for copies.

    tracer's site, its caller   `bl` to a tracer      ─► nop
    jump label                  `b` to its own target ─► nop
    room for copies             what is there         ─► zeros

Two texts that differ in no more than that are equal at rest. Any other patch stays.
"""

from __future__ import annotations

from collections.abc import Iterable

from gdb_optprobe.isa.ppc64le.fields import opcode

NOP = bytes.fromhex("00000060")
WORD = len(NOP)
BRANCH, LINKS = 18, 1
"""The opcode of `b` and `bl`, and the bit that is set in `bl`."""
OFFSET = 0x03FF_FFFC


def at_rest(
    text: bytes,
    base: int,
    traced: Iterable[int],
    labels: Iterable[tuple[int, int]],
    rooms: Iterable[tuple[int, int]],
) -> bytes:
    """Return the `text` at `base` at rest. labels: with their targets. rooms: start and end of each."""
    found = bytearray(text)

    def branch(at: int) -> int | None:
        """Return the branch at the offset `at`; None where none is."""
        word = int.from_bytes(text[at : at + WORD], "little") if 0 <= at <= len(text) - WORD else 0
        return word if opcode(word) == BRANCH else None

    for at in (address - base for address in traced):
        if (word := branch(at)) is not None and word & LINKS:
            found[at : at + WORD] = NOP
    for address, target in labels:
        at = address - base
        if branch(at) == BRANCH << 26 | target - address & OFFSET:
            found[at : at + WORD] = NOP
    for start, end in rooms:
        first, last = max(start - base, 0), min(end - base, len(text))
        found[first:last] = bytes(max(last - first, 0))
    return bytes(found)
