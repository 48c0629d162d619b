"""A stack as one word: a hit walks it frame by frame, and the host finds the frames again by that word.

    frames of a hit      vfs_read ─► ksys_read ─► do_syscall_64 ─► …
    number of each       n1          n2 = mix(n1, pc)               a number means a frame and all before it
    the map              n2 ─► (n1, pc)                             so the last number leads back to all
    the word             last number · 2 + 1 if callers are left out that could not be found

A hit computes the last number, keeping nothing, and looks for it. Only one that is new walks once more, to add frames:
the innermost first, so that a number that is there leads to all. Equal frames have equal numbers in every program, so
a word is a key like any other. The numbers are of 64 bits and nothing compares the frames behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import (
    WORD,
    Assign,
    Break,
    Column,
    Constant,
    Expr,
    Form,
    Has,
    If,
    Load,
    Loop,
    Map,
    Op,
    Set,
    Statement,
    Variable,
)
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.maps.session_map import FACTOR

FRAMES = Map(
    "frames of stacks",
    (Column("number", Form.UNSIGNED),),
    (Column("number before", Form.UNSIGNED), Column("address", Form.POINTER)),
    1 << 14,
)
"""Its name has blanks: no script can name it."""
CODE = Map(
    "code of modules", (Column("address", Form.POINTER),), (Column("what leads to its caller", Form.UNSIGNED),), 1 << 10
)
"""By the address of code that a hit does not know: WANTED, or what the host has found for it, with the bit KNOWN."""
WANTED, KNOWN = 1, 1 << 62
_NONE = Constant(0)
DEEPEST = 127
PC, LOST = Variable("%walk.pc"), Variable("%walk.lost")
_LEFT, _NUMBER, _BEFORE = (Variable(f"%walk.{name}") for name in ("left", "number", "before"))
_ADDING, _FOUND, _WORD = (Variable(f"%walk.{name}") for name in ("adding", "found", "word"))


class Walker(Protocol):
    """How a hit finds its callers.

    begin: sets PC to the address of the innermost frame, 0 if there is none, and what `step` needs.
    step:  sets PC to the address of the caller; has a Break where the stack ends, or, LOST set to 1, where no caller
           can be found although there is one.
    """

    @property
    def begin(self) -> Sequence[Statement]: ...

    @property
    def step(self) -> Sequence[Statement]: ...


@dataclass(frozen=True, slots=True)
class Walk:
    """What a program does to have a stack, and the words of it then. count: its frames."""

    statements: tuple[Statement, ...]
    words: tuple[Expr, ...]
    count: Expr = _NONE


@dataclass(frozen=True, slots=True)
class Frames:
    """addresses: the innermost first. is_whole: no caller is left out that was asked for."""

    addresses: tuple[int, ...]
    is_whole: bool = True


class Numbers(Protocol):
    """The map: interpreter.MapContents."""

    def get(self, key: bytes) -> tuple[int, ...] | None: ...


def walk(walker: Walker, depth: int) -> Walk:
    """Return what walks a stack, at most `depth` frames of it."""
    mixed = binary(Op.MUL, binary(Op.XOR, _NUMBER, PC), FACTOR)
    each: tuple[Statement, ...] = (
        Assign(_BEFORE, _NUMBER),
        Assign(_NUMBER, mixed),
        If(_ADDING, (Set(FRAMES, (_NUMBER,), (_BEFORE, PC)),)),
        Assign(_LEFT, binary(Op.SUB, _LEFT, 1)),
        If(binary(Op.EQ, _LEFT, 0), (Break(),)),
        *walker.step,
    )
    both: tuple[Statement, ...] = (
        Assign(LOST, Constant(0)),
        *walker.begin,
        Assign(_NUMBER, Constant(0)),
        Assign(_LEFT, Constant(depth)),
        If(PC, (Loop(each, most=depth + 1),)),
        If(binary(Op.OR, _ADDING, binary(Op.EQ, _NUMBER, 0)), (Break(),)),
        Has(FRAMES, (_NUMBER,), _FOUND),
        If(_FOUND, (Break(),)),
        Assign(_ADDING, Constant(1)),
    )
    found = binary(Op.OR, binary(Op.LSHL, _NUMBER, 1), LOST)
    walked = (Assign(_ADDING, Constant(0)), Loop(both, most=3), Assign(_WORD, found))
    return Walk(walked, (_WORD,), binary(Op.SUB, Constant(depth), _LEFT))


def lost() -> tuple[Statement, ...]:
    """Return what ends a walk before its end."""
    return (Assign(LOST, Constant(1)), Break())


def frames(word: int, numbers: Numbers) -> Frames | Missing:
    """Return the frames of a word."""
    found: list[int] = []
    number = _last(word, numbers)
    while number:
        known = numbers.get(number.to_bytes(WORD, "little"))
        if known is None or len(found) >= DEEPEST:
            return Missing("not kept: there was no room for its frames")
        number, address = known
        found.append(address)
    return Frames(tuple(reversed(found)), not word & 1)


def _last(word: int, numbers: Numbers) -> int:
    """Return the number of the last frame: the word has no room for its highest bit."""
    number = word >> 1
    high = number | 1 << 63
    return high if number and numbers.get(high.to_bytes(WORD, "little")) is not None else number


def binary(op: Op, left: Expr, right: Expr | int) -> Expr:
    """Return an operation of 64 bits without a sign."""
    return fold.binary(op, left, fold.constant(right) if isinstance(right, int) else right, 64, False)


def plus(left: Expr, right: Expr | int) -> Expr:
    return binary(Op.ADD, left, right)


def word(base: Expr, offset: int = 0, *, mapped: bool = True) -> Expr:
    """Return the word at an address. mapped: whether it is always there."""
    return Load(plus(base, offset), WORD, signed=False, mapped=mapped)
