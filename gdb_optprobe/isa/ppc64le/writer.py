"""Encode branches and the counter, and saves of registers around it.

    count, registers and CR0 are dead      count, nothing is dead
    ┌───────────────────────────────┐      ┌───────────────────────────────┐
    │ lis ori rotldi  r0, counter   │      │ stdu   r1, -352(r1)           │
    │ 1: ldarx  r12, 0, r0          │      │ std    r0; stq r10 and r11    │
    │    addi   r12, r12, 1         │      │ mfocrf r0, cr0                │
    │    stdcx. r12, 0, r0          │      │   … as on the left …          │
    │    bne-   1b                  │      │ mtocrf cr0, r0                │
    └───────────────────────────────┘      │ lq     r10 and r11            │
                                           │ lq     r0 and r1              │
                                           └───────────────────────────────┘
A live register is saved in CTR or LR if that is dead, CR0 in another field of CR. Else there is a frame,
below the 288 bytes that the interrupted function may use (ELFv2 ABI, 2.2.2.4): it moves r1, because an interrupt takes
the stack from 288 bytes below r1 on, and its back chain leads every unwinder across it. r0 is saved beside the back
chain, so that one quadword restores r0 and r1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdb_optprobe.isa.base import Dead, Insn, OutOfReach, padded
from gdb_optprobe.isa.ppc64le.abi import CR_FIELDS, CTR, HEADER, LR, RED_ZONE
from gdb_optprobe.isa.ppc64le.fields import TRAP, B, fits, links, opcode, signed, simm, to_bytes, word_of
from gdb_optprobe.isa.ppc64le.templates import load, templates, word

BRANCH_SIZE = 4
BRANCH_REACH = (1 << 25) - 4
FRAME = HEADER + 32 + RED_ZONE  # room for four registers; a multiple of 16
SAVED = HEADER  # where the first of them is
BESIDE_CHAIN = 8  # in little-endian code the even register of a pair is the quadword's second half

# Where values may be held, the first choice first: those that die earliest, and r12 is what calls through pointers use.
_CHOICE = (12, 11, 0, 10, 9, 8, 7, 6, 5, 4, 3, *range(14, 32))
_PAIRS = ((10, 11), (8, 9), (6, 7), (4, 5))


def branch(source: int, target: int, link: bool = False) -> bytes:
    """Encode `b` or `bl`. Raises OutOfReach."""
    offset = signed(target - source)
    if not fits(offset, 26) or offset & 3:
        raise OutOfReach(source, target)
    return to_bytes(B << 26 | offset & 0x03FF_FFFC | link)


def branches(sources: Sequence[int], targets: Sequence[int]) -> list[bytes]:
    """Encode `b` from each of `sources`. Raises OutOfReach."""
    return [branch(source, target) for source, target in zip(sources, targets, strict=True)]


def redirect(insn: Insn, target: int) -> bytes:
    """Encode a `b`, `bl` or `bc` with another target. Raises OutOfReach."""
    first = word_of(insn.data)
    if opcode(first) == B:
        return branch(insn.address, target, links(first))
    offset = signed(target - insn.address)
    if not fits(offset, 16) or offset & 3:
        raise OutOfReach(insn.address, target)
    return to_bytes(first & ~0xFFFE | offset & 0xFFFC)


@dataclass(frozen=True, slots=True)
class FrameSaves:
    """Code before and after a program that saves and restores registers."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


def keep(registers: Sequence[int], dead: Dead) -> FrameSaves:
    """Save general registers, by number, in dead registers or on the stack."""
    moves = [(f"mt{spr}", f"mf{spr}") for spr in (CTR, LR) if spr in dead.registers]
    if len(registers) <= len(moves):
        pairs = list(zip(registers, moves, strict=False))
        return FrameSaves(
            tuple(word(to, register) for register, (to, _) in pairs),
            tuple(word(back, register) for register, (_, back) in reversed(pairs)),
        )
    return in_frame(registers)


def in_frame(registers: Sequence[int]) -> FrameSaves:
    """Save general registers, by number, at most four beside r0, in a frame below the red zone."""
    others = [register for register in registers if register]
    before, after = [word("open_frame", number=-FRAME)], [_close_frame(0 in registers)]
    if 0 in registers:
        before.append(word("save", 0, number=BESIDE_CHAIN))
    if tuple(others) in _PAIRS:
        before.append(word("save_pair", others[0], number=SAVED))
        after.insert(0, word("restore_pair", others[0], number=SAVED))
        return FrameSaves(tuple(before), tuple(after))
    for index, register in enumerate(others):
        before.append(word("save", register, number=SAVED + 8 * index))
        after.insert(0, word("restore", register, number=SAVED + 8 * index))
    return FrameSaves(tuple(before), tuple(after))


def _close_frame(with_r0: bool) -> int:
    return templates()["restore_pair"] if with_r0 else templates()["addi"] | 1 << 21 | FRAME


def count(counter: int, to: int, dead: Dead, base: int | None = None) -> bytes:
    """Return code for any address that adds one, atomically, to the 8-byte `counter` and changes nothing that lives.

    base: the value of r2, if it is known: a counter within 2 GiB of it costs two words less.
    """
    field = None if dead.flags else _dead_field(dead)
    saves_cr0 = not dead.flags and field is None
    value, pointer, *more = _scratch(3 if saves_cr0 else 2, dead)
    live = [register for register in (value, pointer, *more) if f"r{register}" not in dead.registers]
    kept = keep(live, dead)
    before, after = list(kept.before), list(kept.after)
    if field is not None:
        before.append(_moving_cr0("copy_cr0", field))
        after.insert(0, _moving_cr0("copy_to_cr0", field))
    elif saves_cr0:
        before.append(word("get_cr0", more[0]))
        after.insert(0, word("set_cr0", more[0]))
    return to_bytes(*before, *_increment(counter, value, pointer, base), *after)


def counts(
    at: int, step: int, counters: Sequence[int], ends: Sequence[int], dead: Dead, moved: bytes = b""
) -> bytes:
    """Return counts that follow one another, `step` bytes each, with `moved` and a branch to each of `ends`.

    Raises OutOfReach.
    """
    places = range(at, at + step * len(counters), step)
    pieces = [count(counter, place, dead) + moved for place, counter in zip(places, counters, strict=True)]
    return padded(pieces, at, step, ends, branch, to_bytes(TRAP))


def _scratch(needed: int, dead: Dead) -> list[int]:
    """Return dead registers, then live ones that are cheap to save; the first is never r0, which `addi` reads as 0."""
    free = [register for register in _CHOICE if f"r{register}" in dead.registers][:needed]
    chosen = free if len(free) == needed else [*free, *_cheap(needed - len(free), free)][:needed]
    first = next(register for register in chosen if register)
    return [first, *(register for register in chosen if register != first)]


def _cheap(number: int, free: Sequence[int]) -> tuple[int, ...]:
    """Return `number` live registers, at most three: r0 is saved with the frame, two as a pair."""
    pair = next(pair for pair in _PAIRS if not {*pair} & {*free})
    if 0 in free:
        return pair
    return (0,) if number == 1 else pair if number == 2 else (0, *pair)


def _dead_field(dead: Dead) -> int | None:
    return next((number for number in range(7, 0, -1) if CR_FIELDS[number] in dead.registers), None)


def _moving_cr0(name: str, field: int) -> int:
    """Encode a move of CR0 to or from a field. The templates have field 7; BF is in bits 6 to 8, BFA in 11 to 13."""
    shift = 23 if name == "copy_cr0" else 18
    return templates()[name] & ~(7 << shift) | field << shift


def _increment(counter: int, value: int, pointer: int, toc: int | None) -> list[int]:
    base, offset = 0, counter
    if toc is not None and fits(signed(counter - toc), 32):
        base, offset = 2, counter - toc
    return [
        *load(pointer, offset),
        word("load_reserved", value, base, pointer),
        word("add_one", value, value),
        word("store_conditional", value, base, pointer),
        templates()["repeat"],
    ]


def pushed(insn: Insn) -> int:
    """Return by how many bytes `insn` of a lowered program moves the stack pointer down; negative for up."""
    first = word_of(insn.data)
    if first >> 16 == _STDU_R1 and first & 3 == 1:
        return -(simm(first) & ~3)
    if first >> 16 == _ADDI_R1:
        return -simm(first)
    return -FRAME if insn.data == to_bytes(_close_frame(True)) else 0


def saves(_: Insn) -> str:
    """Return "": a frame depends on r1 alone."""
    return ""


_STDU_R1, _ADDI_R1 = 0xF821, 0x3821  # stdu r1,…(r1), addi r1,r1,…
