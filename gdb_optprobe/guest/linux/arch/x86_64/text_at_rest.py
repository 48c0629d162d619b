"""The kernel's text without what the kernel rewrites while it runs: tracers, jump labels, static calls, lock prefixes.

    tracer's site   call to a tracer        ─► the nop that is there without one
    jump label      jmp to its own target   ─► the nop that it is turned into, and back, at any time
    static call     call, jmp, or none      ─► a nop; so is its trampoline, and where a tracer's caller calls it
    lock prefix     DS, booted on one CPU   ─► LOCK
    constant        mov of a pointer that   ─► of 0
                    is found out at boot

Two texts that differ in no more than that are equal at rest. Only what the kernel itself writes is replaced: a branch
out of the text, to a function's start, or as the jump label's own row has it. Any other patch stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from struct import unpack_from

CALL, JUMP, SHORT_JUMP = 0xE8, 0xE9, 0xEB
LOCK, DS = 0xF0, 0x3E
SHORT_NOP, NOP = bytes.fromhex("6690"), bytes.fromhex("0f1f440000")
"""The kernel's own of 2 and 5 bytes (arch/x86/include/asm/nops.h)."""
REX, MOVES, WORD = (0x48, 0x49), range(0xB8, 0xC0), 8
"""What is before a constant of 8 bytes that goes to a register."""
NO_CALL = bytes.fromhex("c3cccccccc"), bytes.fromhex("2e2e2e31c0")
"""What a static call is without a function: `ret`, or one that returns 0 (arch/x86/kernel/static_call.c)."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Addresses, as the kernel's tables have them. nop: of tracers' sites. labels: with their targets.

    static_calls: their trampolines too, and where the callers of tracers call one. constants: pointers that the kernel
    has put into its text when it booted (arch/x86/include/asm/runtime-const.h).
    """

    traced: Iterable[int]
    labels: Iterable[tuple[int, int]]
    static_calls: Iterable[int]
    locks: Iterable[int]
    nop: bytes = NOP
    constants: Iterable[int] = ()


def at_rest(text: bytes, base: int, rewritten: Rewritten, is_entry: Callable[[int], bool]) -> bytes:
    """Return the `text` at `base` at rest. is_entry: whether a function starts at an address."""
    found = bytearray(text)
    end = base + len(text)

    def leads_off(at: int, opcodes: tuple[int, ...]) -> bool:
        """Return whether a branch is at the offset `at` that does not lead inside a function."""
        if not 0 <= at <= len(text) - len(NOP) or text[at] not in opcodes:
            return False
        target = _target(text, base, at)
        return not base <= target < end or is_entry(target)

    nop = rewritten.nop if len(rewritten.nop) == len(NOP) else NOP
    offsets = (address - base for address in rewritten.traced)
    # Of tens of thousands, nearly all have a nop.
    for at in [at for at in offsets if 0 <= at < len(text) and text[at] == CALL]:
        if leads_off(at, (CALL,)):
            found[at : at + len(NOP)] = nop
    for at in (address - base for address in rewritten.static_calls):
        if leads_off(at, (CALL, JUMP)) or (at >= 0 and text[at : at + len(NOP)] in NO_CALL):
            found[at : at + len(NOP)] = NOP
    for address, target in rewritten.labels:
        at = address - base
        if not 0 <= at <= len(text) - len(NOP):
            continue
        if text[at] == JUMP and _target(text, base, at) == target:
            found[at : at + len(NOP)] = NOP
        elif text[at] == SHORT_JUMP and address + 2 + (text[at + 1] ^ 0x80) - 0x80 == target:
            found[at : at + len(SHORT_NOP)] = SHORT_NOP
    for at in (address - base for address in rewritten.locks):
        if 0 <= at < len(text) and text[at] == DS:
            found[at] = LOCK
    for constant in rewritten.constants:
        for at in _all(constant.to_bytes(WORD, "little"), text) if constant else ():
            if at >= 2 and text[at - 2] in REX and text[at - 1] in MOVES:
                found[at : at + WORD] = bytes(WORD)
    return bytes(found)


def _all(data: bytes, text: bytes) -> Iterator[int]:
    """Yield the offsets at which `text` has `data`."""
    at = text.find(data)
    while at >= 0:
        yield at
        at = text.find(data, at + 1)


def _target(text: bytes, base: int, at: int) -> int:
    offset: int = unpack_from("<i", text, at + 1)[0]
    return base + at + len(NOP) + offset
