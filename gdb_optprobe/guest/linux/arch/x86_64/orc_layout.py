"""Derive the layout of a kernel's ORC tables: the one by which the entries say what the code does.

    entry of f     pushq %rbp        subq $0x20, %rsp   …
    ├──────────────┼─────────────────┼─────────────────
    SP + 8         SP + 16           SP + 48             where the caller's stack pointer was
    unchanged      below it by 16    below it by 16      where its RBP is

From a function's first instruction up to the first that does more to the stack than push and subtract, code alone tells
what an entry has to say. The numbers of registers are voted on there, and so is which of several encodings is meant.
Registers that such code does not show are those of the numbering that is known to agree in all others.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from gdb_optprobe.guest.linux.arch.x86_64.orc_unwind import (
    BP,
    NUMBERINGS,
    PREV_SP,
    SP,
    UNDEFINED,
    UNKNOWN,
    Encoding,
    Entry,
    Kind,
    decode,
)
from gdb_optprobe.isa.base import Flow, Insn

__all__ = ["LEAST", "Witness", "choose_encoding", "expected", "is_entered"]

Witness = tuple[Entry, bytes]
"""What an entry has to say, and the entry."""
LEAST = 64
"""The number of witnesses that a layout needs."""
AGREEING = 0.98
# The rest is for assembler code that lies about itself, and for code that is patched.
PUSHES = frozenset(bytes([code]) for code in range(0x50, 0x58)) | frozenset(
    bytes([0x41, code]) for code in range(0x50, 0x58)
)
PUSH_RBP, MOVE_RSP_TO_RBP = b"\x55", b"\x48\x89\xe5"
CALLED = struct.pack("<hh", 8, 0)
SUBTRACTS = {b"\x48\x83\xec": 1, b"\x48\x81\xec": 4}
RSP, RBP = ("%rsp", "%esp", "%sp", "%spl"), ("%rbp", "%ebp", "%bp", "%bpl")
STORES_RBP = {b"\x48\x89\x6c\x24": 1, b"\x48\x89\xac\x24": 4}  # at a displacement from RSP of so many bytes


def expected(insns: Sequence[Insn]) -> Iterator[tuple[int, Entry]]:
    """Yield (address, entry) for each instruction from a function's first on: the entry that its code implies."""
    depth, saved, framed = 8, 0, False
    for insn in insns:
        if insn.flow not in (Flow.NEXT, Flow.CALL, Flow.BRANCH):
            return
        where = (BP, 16) if framed else (SP, depth)
        kept = (PREV_SP, -saved) if saved else (UNDEFINED, 0)
        yield insn.address, Entry(*where, *kept, Kind.CALL, signal=False)
        data, size = insn.data, SUBTRACTS.get(insn.data[:3])
        if data in PUSHES:
            depth += 8
            saved = saved or (depth if data == PUSH_RBP else 0)
        elif size is not None and len(data) == 3 + size:
            depth += int.from_bytes(data[3:], "little", signed=True)
        elif (size := STORES_RBP.get(data[:4])) is not None and len(data) == 4 + size and not saved:
            saved = depth - int.from_bytes(data[4:], "little", signed=True)
        elif data == MOVE_RSP_TO_RBP and saved == depth == 16:
            framed = True
        elif _may_change(insn, rbp=framed or not saved):
            return


def _may_change(insn: Insn, rbp: bool) -> bool:
    """Return whether an instruction may write RSP, or more to the stack than a call does. rbp: or RBP."""
    mnemonic, _, operands = insn.text.partition(" ")
    if mnemonic.startswith(("push", "pop", "leave", "enter", "xchg", "ret", "iret")) and mnemonic[:6] != "popcnt":
        return True
    return operands.endswith(RSP) or (rbp and operands.endswith(RBP))


def is_entered(data: bytes | None) -> bool:
    """Return whether an entry may be of code that calls lead to: unlikely parts of functions are jumped to."""
    return data is not None and data[:4] == CALLED


def choose_encoding(candidates: Iterable[Encoding], witnesses: Sequence[Witness]) -> Encoding | None:
    """Return the encoding by which the witnesses agree, with the registers' numbers as voted; None where none does."""
    for candidate in candidates:
        voted = candidate.numbered(_numbering(witnesses))
        agreeing = sum(decode(data, voted) == entry for entry, data in witnesses)
        if agreeing >= max(LEAST, AGREEING * len(witnesses)):
            return voted
    return None


def _numbering(witnesses: Sequence[Witness]) -> tuple[int, ...]:
    votes: Counter[tuple[int, int]] = Counter()
    for entry, data in witnesses:
        votes[data[4] & 15, entry.sp_register] += 1
        votes[data[4] >> 4, entry.bp_register] += 1
    found: dict[int, int] = {}
    for (number, register), _ in votes.most_common():
        if number not in found and register not in found.values():
            found[number] = register
    for known in NUMBERINGS:
        if all(number < len(known) and known[number] == register for number, register in found.items()):
            return known
    return tuple(found.get(number, UNKNOWN) for number in range(max(found, default=-1) + 1))
