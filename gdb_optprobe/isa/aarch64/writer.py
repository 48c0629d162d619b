"""Encode branches and the counter, and saves of registers around it.

    count, three registers are dead   with atomics              nothing is dead
    ┌───────────────────────────┐     ┌───────────────────┐     ┌──────────────────────────────┐
    │ ldr       x16, 2f         │     │ ldr    x16, 2f    │     │ stp    x16, x17, [sp, #-16]! │
    │ 1: ldxr   x17, [x16]      │     │ mov    x17, #1    │     │   … as on the left …         │
    │    add    x17, x17, #1    │     │ stadd  x17, [x16] │     │ ldp    x16, x17, [sp], #16   │
    │    stxr   w15, x17, [x16] │     ├───────────────────┤     ├──────────────────────────────┤
    │    cbnz   w15, 1b         │     │ displaced         │     │ …                            │
    ├───────────────────────────┤     │ b  back           │
    │ displaced                 │     │ ff ff ff ff …     │
    │ b  back                   │     │ 2: counter        │
    │ ff ff ff ff …  2: counter │     └───────────────────┘
    └───────────────────────────┘
No flag changes. Nothing is kept below the stack pointer (AAPCS64, the stack), which moves by 16 bytes.
The address of the counter is a literal behind the whole detour (`Pools`), aligned. Where other code is in the detour
too, `adrp` and `add` make it in place of that. Before the literal is no instruction: a decoder ends there and
takes no data for code. Where a counter begins a page `add` adds 0: all counts of a block are alike, and cost the same.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

from gdb_optprobe.isa.aarch64.decoder import SIZE
from gdb_optprobe.isa.aarch64.fields import (
    BRK,
    PAGE,
    B,
    fits,
    is_b,
    is_tb,
    moves_base,
    rn,
    signed,
    to_bytes,
    word_of,
)
from gdb_optprobe.isa.aarch64.templates import address, literal, word
from gdb_optprobe.isa.base import WORD, Dead, Insn, OutOfReach, padded

BRANCH_SIZE = 4
BRANCH_REACH = (1 << 27) - 4
DATA_REACH = (1 << 32) - PAGE
SP = 31
_NO_INSTRUCTION = to_bytes(0xFFFF_FFFF)
"""Not allocated (DDI 0487, top-level encodings): undefined, should anything ever run it."""

# Where values may be held, the first choice first: those that veneers use, then what a call does not preserve.
_CHOICE = (16, 17, *range(15, -1, -1))


def branch(source: int, target: int, link: bool = False) -> bytes:
    """Encode `b` or `bl`. Raises OutOfReach."""
    offset = signed(target - source)
    if not fits(offset, 28) or offset & 3:
        raise OutOfReach(source, target)
    return to_bytes(link << 31 | B | offset >> 2 & 0x03FF_FFFF)


def branches(sources: Sequence[int], targets: Sequence[int]) -> list[bytes]:
    """Encode `b` from each of `sources`. Raises OutOfReach."""
    return [branch(source, target) for source, target in zip(sources, targets, strict=True)]


def redirect(insn: Insn, target: int) -> bytes:
    """Encode a direct branch with another target. Raises OutOfReach."""
    first = word_of(insn.data)
    if is_b(first):
        return branch(insn.address, target, bool(first >> 31))
    offset, bits = signed(target - insn.address), 16 if is_tb(first) else 21
    if not fits(offset, bits) or offset & 3:
        raise OutOfReach(insn.address, target)
    field = (1 << bits - 2) - 1 << 5
    return to_bytes(first & ~field | offset << 3 & field)


@dataclass(frozen=True, slots=True)
class Counting:
    """The verbs that count. has_atomics: whether the CPUs have the atomic additions of Armv8.1 (FEAT_LSE).

    pools: that `counts` has; None for the counts of earlier versions.
    """

    has_atomics: bool
    pools: Pools | None

    def count(self, counter: int, to: int, dead: Dead, base: int | None = None) -> bytes:
        """Return code for `to` that adds one, atomically, to the 8-byte `counter` and changes nothing that lives."""
        pointer, before, after = _around_address(self.has_atomics, dead.registers)
        return before + to_bytes(*address(pointer, counter, to + len(before))) + after

    def counts(
        self, at: int, step: int, counters: Sequence[int], ends: Sequence[int], dead: Dead, moved: bytes = b""
    ) -> bytes:
        """Return counts that follow one another, `step` bytes each, with `moved` and a branch to each of `ends`.

        Raises OutOfReach.
        """
        places = range(at, at + step * len(counters), step)
        if (pools := self.pools) is None:
            pieces = [self.count(counter, place, dead) + moved for place, counter in zip(places, counters, strict=True)]
            return padded(pieces, at, step, ends, branch, to_bytes(BRK))
        # All that a count depends on is its place in a word; two in a row have all that there are.
        made = {place % WORD: pools.around(place, dead, moved) for place in places[:2]}
        pieces = [made[place % WORD][0] for place in places]
        behind = zip(places, counters, strict=True)
        words = [made[place % WORD][1] + counter.to_bytes(WORD, "little") for place, counter in behind]
        return padded(pieces, at, step, ends, branch, to_bytes(BRK), words)


@dataclass(frozen=True, slots=True)
class Pools:
    """Implements record.Pools. has_atomics: see Counting."""

    has_atomics: bool
    alignment: int = WORD

    def count(self, to: int, pool: int, dead: Dead) -> bytes:
        pointer, before, after = _around_address(self.has_atomics, dead.registers)
        return before + to_bytes(literal(pointer, pool, to + len(before))) + after

    def around(self, to: int, dead: Dead, moved: bytes) -> tuple[bytes, bytes]:
        """Return a count with `moved` behind it, and what is between the branch behind that and the counter."""
        end = to + len(self.count(to, to, dead)) + len(moved) + BRANCH_SIZE
        return self.count(to, self.at(end), dead) + moved, self.behind(end, ())

    def at(self, end: int) -> int:
        return end + SIZE + WORD - 1 & -WORD

    def behind(self, end: int, words: Sequence[int]) -> bytes:
        gap = (self.at(end) - end) // SIZE
        return _NO_INSTRUCTION * gap + b"".join(word.to_bytes(WORD, "little") for word in words)


@lru_cache(1024)
def _around_address(has_atomics: bool, dead: Set[str]) -> tuple[int, bytes, bytes]:
    """Return the register for a counter's address, and the code of a count before and after it is loaded."""
    registers = _scratch(2 if has_atomics else 3, dead)
    before, after = keep([register for register in registers if f"x{register}" not in dead])
    add = _atomic_add(*registers) if has_atomics else _exclusive_add(*registers)
    return registers[0], to_bytes(*before), to_bytes(*add, *after)


def _atomic_add(pointer: int, value: int) -> tuple[int, ...]:
    return word("one", value), word("atomic_add", rn=pointer, rm=value)


def _exclusive_add(pointer: int, value: int, status: int) -> tuple[int, ...]:
    return (
        word("load_exclusive", value, pointer),
        word("add", value, value) | 1 << 10,
        word("store_exclusive", value, pointer, rm=status),
        word("repeat", status),
    )


def keep(registers: Sequence[int]) -> tuple[list[int], list[int]]:
    """Encode saves of general registers, by number, on the stack, and what restores them."""
    before, after = list[int](), list[int]()
    for first, second in zip(registers[::2], (*registers[1::2], None), strict=False):
        if second is None:
            before.append(word("push", first))
            after.insert(0, word("pop", first))
        else:
            before.append(word("push_pair", first, ra=second))
            after.insert(0, word("pop_pair", first, ra=second))
    return before, after


def _scratch(needed: int, dead: Set[str]) -> list[int]:
    """Return dead registers, then live ones."""
    return sorted(_CHOICE, key=lambda register: f"x{register}" not in dead)[:needed]


def pushed(insn: Insn) -> int:
    """Return by how many bytes `insn` of a lowered program moves the stack pointer down; negative for up."""
    first = word_of(insn.data)
    if rn(first) != SP:
        return 0
    if first >> 24 in _ADDS and first & 31 == SP:
        return _ADDS[first >> 24] * ((first >> 10 & 0xFFF) << (12 if first >> 22 & 1 else 0))
    return -(moves_base(first) or 0)


def saves(_: Insn) -> str:
    """Return "": a frame depends on sp and x29 alone, which no program changes."""
    return ""


_ADDS = {0x91: -1, 0xD1: 1}  # add and sub, of 64 bits, of a number
