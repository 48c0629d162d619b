"""Strings in memory: expressions that are strings, and their comparison with a literal.

All bytes of an array may be read, so it is compared by words: `$comm == "dd"` is one load, one mask, one comparison.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ctype import Array, Pointer
from gdb_optprobe.handlers.ir import Constant, Expr, Load, Op, StringEquals, StringLoad
from gdb_optprobe.handlers.operators import is_text
from gdb_optprobe.handlers.scope import Lvalue, Meaning, Rvalue
from gdb_optprobe.handlers.source import Fragment, fault


@dataclass(frozen=True, slots=True)
class StringValue:
    """A string at `address`. size: all bytes of the array that holds it; None if only its 0 byte ends it."""

    address: Expr
    size: int | None
    mapped: bool

    def operand(self, longest: int) -> StringLoad:
        """Return it as a part of a key or a record. longest: bytes taken of one without a known size."""
        size = longest if self.size is None else self.size
        return StringLoad(self.address, size, self.mapped, whole=self.size is not None)


def characters(meaning: Meaning) -> StringValue | None:
    """Return the string of an array of characters or of a pointer to them; None for anything else."""
    match meaning:
        case Lvalue(address, Array(element, count), mapped, per_cpu=False) if is_text(element):
            return StringValue(address, count, mapped) if count else StringValue(address, None, False)
        case Rvalue(expr, Pointer(target)) if is_text(target):
            return StringValue(expr, None, False)
    return None


def equals(text: StringValue, literal: bytes, where: Fragment) -> Expr:
    """Return 1 if the text is the literal, else 0."""
    if b"\0" in literal:
        raise fault("the string holds a 0 byte", where, "a 0 byte ends a string")
    if text.size is None:
        return StringEquals(text.address, literal + b"\0", text.mapped)
    if len(literal) > text.size:
        message = f"the string has {len(literal)} bytes and what it is compared with holds {text.size}"
        raise fault(message, where, "it can never be equal")
    wanted = (literal + b"\0")[: text.size]
    found: Expr = Constant(1)
    at = 0
    while at < len(wanted):
        size, part = _next_load(text.size, at, wanted)
        mask = (1 << 8 * len(part)) - 1
        address = fold.binary(Op.ADD, text.address, fold.constant(at), 64, False)
        word = fold.binary(Op.AND, Load(address, size, False, text.mapped), fold.constant(mask), 64, False)
        if len(part) == size:
            word = Load(address, size, False, text.mapped)
        wanted_word = fold.constant(int.from_bytes(part, "little"))
        found = fold.both(found, fold.binary(Op.EQ, word, wanted_word, 64, False))
        at += len(part)
    return found


def _next_load(size: int, at: int, wanted: bytes) -> tuple[int, bytes]:
    """Return the bytes to load at `at`, and the part of `wanted` in them: all that is left, if the array allows it."""
    left = len(wanted) - at
    for load in (1, 2, 4, 8):
        if load >= left and at + load <= size:
            return load, wanted[at:]
    load = next(load for load in (8, 4, 2, 1) if load <= left and at + load <= size)
    return load, wanted[at : at + load]
