"""The addresses that compiled code makes: a page relative to the PC, and what is added to it.

    adrp x3, 0xffff800009a1e000     a page, 4 GiB to either side
    add  x3, x3, #0x7c0             ─► made
    ldr  x0, [x3, #8]               ─► used: base and offset of a load or a store
    ldr  x0, [x3, #8]!              ─► used, and x3 has that address from then on
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gdb_optprobe.guest.linux.derived_data import Constants
from gdb_optprobe.isa.aarch64.fields import (
    MASK,
    adr_target,
    is_adr,
    is_b,
    is_b_cond,
    is_branch_register,
    is_cb,
    is_tb,
    links,
    ra,
    rd,
    rm,
    rn,
    signed,
    word_of,
)
from gdb_optprobe.isa.base import Insn

CLOBBERED = (*range(19), 30)
"""What a call may overwrite: AAPCS64, 6.1.1."""
ZERO = 31
PLAIN, AFTER, BEFORE = 0, 1, 3
"""How a load or store with an offset of nine bits, bits 11 and 10, or a pair, bits 24 and 23 less one, uses it."""


@dataclass(frozen=True, slots=True)
class Access:
    """A load or store: its base and offset. loaded: the registers that it overwrites, a base that is written too."""

    base: int
    offset: int
    loaded: tuple[int, ...]
    moved: int | None = None


def access(word: int) -> Access | None:
    """Return the load or store of a base and a number; None of another instruction."""
    is_load, is_vector = bool(word >> 22 & 3), bool(word >> 26 & 1)
    if word & 0x3B00_0000 == 0x3900_0000:
        scale = word >> 30 | (word >> 21 & 4 if is_vector else 0)
        return Access(rn(word), (word >> 10 & 0xFFF) << scale, (rd(word),) if is_load and not is_vector else ())
    if word & 0x3B20_0000 == 0x3800_0000 and word >> 10 & 3 != 2:
        how, offset = word >> 10 & 3, signed(word >> 12, 9)
        return _moving(how, word, offset, (rd(word),) if is_load and not is_vector else ())
    if word & 0x3A00_0000 == 0x2800_0000:
        how = {1: AFTER, 2: PLAIN, 3: BEFORE}.get(word >> 23 & 3, PLAIN)
        scale = 2 + (word >> 30) if is_vector else 2 + (word >> 31)
        both = (rd(word), ra(word)) if word >> 22 & 1 and not is_vector else ()
        return _moving(how, word, signed(word >> 15, 7) << scale, both)
    return None


def _moving(how: int, word: int, offset: int, loaded: tuple[int, ...]) -> Access:
    return Access(rn(word), 0 if how == AFTER else offset, loaded, offset if how in (AFTER, BEFORE) else None)


def added(word: int) -> tuple[int, int, int] | None:
    """Return (register, base, number) of an addition or subtraction of a number, of 64 bits; None of all else."""
    if word & 0xBF80_0000 != 0x9100_0000:
        return None
    number = (word >> 10 & 0xFFF) << (12 if word >> 22 & 1 else 0)
    return rd(word), rn(word), -number if word >> 30 & 1 else number


def copied(word: int) -> tuple[int, int] | None:
    """Return (register, source) of a `mov` between general registers; None of all else."""
    return (rd(word), rm(word)) if word & 0xFFE0_FFE0 == 0xAA00_03E0 else None


def writes(word: int) -> Iterator[int]:
    """Yield registers that an instruction may write, of those that are no load or store of a base and a number."""
    is_branch = is_b(word) or is_b_cond(word) or is_cb(word) or is_tb(word)
    if (is_b(word) and word >> 31) or links(word):
        yield from CLOBBERED
    elif not is_branch and not is_branch_register(word):
        yield rd(word)
        if word & 0x0A00_0000 == 0x0800_0000:  # other loads and stores: exclusive, atomic, by a register
            yield from (ra(word), rm(word))


def constants(code: Sequence[Insn]) -> Constants:
    """Return the addresses that code makes. It is read from start to end, without its branches."""
    known: dict[int, int] = {}
    made: dict[int, None] = {}
    used: dict[int, None] = {}
    for insn in code:
        word = word_of(insn.data)
        if is_adr(word):
            known[rd(word)] = adr_target(word, insn.address)
            if not word >> 31:  # adr, of an address and not of its page
                made[known[rd(word)]] = None
        elif (sum_ := added(word)) is not None:
            register, base, number = sum_
            value = known.get(base)
            known.pop(register, None)
            if value is not None and register != ZERO:
                known[register] = value + number & MASK
                made[known[register]] = None
        elif (copy := copied(word)) is not None:
            value = known.get(copy[1])
            known.pop(copy[0], None)
            if value is not None:
                known[copy[0]] = value
        elif (found := access(word)) is not None:
            value = known.get(found.base)
            if value is not None:
                used[value + found.offset & MASK] = None
                if found.moved is not None:
                    known[found.base] = value + found.moved & MASK
            for register in found.loaded:
                known.pop(register, None)
        else:
            for register in writes(word):
                known.pop(register, None)
    return Constants(tuple(made), tuple(used))
