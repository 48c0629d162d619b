"""What is folded has the value, and the fault, of what it was made of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.arithmetic import Fault, extend
from gdb_optprobe.handlers.interpreter import Hit, evaluate
from gdb_optprobe.handlers.ir import (
    MASK,
    And,
    Binary,
    Choose,
    Constant,
    Convert,
    Expr,
    Load,
    Op,
    Or,
    Register,
    Unary,
    UnaryOp,
)
from tests.handlers.test_arithmetic import words

X, Y = Register("x"), Register("y")
WIDTHS = st.sampled_from(((32, True), (32, False), (64, True), (64, False)))


def read(address: int, size: int) -> bytes:
    if address & 1:
        raise Unreadable(address, size)
    return (0x8899AABBCCDDEEFF ^ address).to_bytes(8, "little")[:size]


def leaves() -> st.SearchStrategy[tuple[Expr, Expr]]:
    """The same twice: unfolded and folded."""
    simple = st.one_of(words().map(Constant), st.sampled_from((X, Y, Load(X, 4, True), Load(Y, 1, False))))
    return simple.map(lambda node: (node, node))


@st.composite
def grown(draw: st.DrawFn, below: st.SearchStrategy[tuple[Expr, Expr]]) -> tuple[Expr, Expr]:
    (one, folded), (other, folded_other) = draw(below), draw(below)
    bits, signed = draw(WIDTHS)
    match draw(st.integers(0, 6)):
        case 0:
            unary = draw(st.sampled_from(list(UnaryOp)))
            return Unary(unary, one, bits, signed), fold.unary(unary, folded, bits, signed)
        case 1:
            bits = draw(st.one_of(st.sampled_from((8, 16, 32)), st.integers(1, 63)))
            return Convert(one, bits, signed), fold.convert(folded, bits, signed)
        case 2:
            return And(one, other), fold.both(folded, folded_other)
        case 3:
            return Or(one, other), fold.either(folded, folded_other)
        case 4:
            return Binary(Op.NE, one, Constant(0), 64, False), fold.boolean(folded)
        case 5:
            last, folded_last = draw(below)
            return Choose(one, other, last), fold.choose(folded, folded_other, folded_last)
    op = draw(st.sampled_from(list(Op)))
    # Operands of an operation are words of its type; narrower ones are converted, in both.
    shifts = op in (Op.SHL, Op.SHR)
    left, folded_left = (one, folded) if bits == 64 else (Convert(one, 32, signed), fold.convert(folded, 32, signed))
    if bits == 32 and not shifts:
        other, folded_other = Convert(other, 32, signed), fold.convert(folded_other, 32, signed)
    return Binary(op, left, other, bits, signed), fold.binary(op, folded_left, folded_other, bits, signed)


def value(node: Expr, hit: Hit) -> int | None:
    try:
        return evaluate(node, hit)
    except Fault:
        return None


@given(st.recursive(leaves(), grown, max_leaves=12), words(), words())
def test_folding_changes_nothing(nodes: tuple[Expr, Expr], x: int, y: int) -> None:
    hit = Hit({"x": x, "y": y}, read)
    assert value(nodes[1], hit) == value(nodes[0], hit)


ADD = (Op.ADD, 64, False)


def plus(left: Expr, right: int) -> Expr:
    return fold.binary(Op.ADD, left, fold.constant(right), 64, False)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: plus(plus(X, 8), 16), Binary(Op.ADD, X, Constant(24), 64, False)),
        (lambda: plus(plus(X, 8), -8), X),
        (
            lambda: fold.binary(Op.ADD, plus(X, 8), Y, 64, False),
            Binary(Op.ADD, Binary(Op.ADD, X, Y, 64, False), Constant(8), 64, False),
        ),
        (lambda: fold.binary(Op.SUB, X, Constant(1), 32, True), Binary(Op.ADD, X, Constant(MASK), 32, True)),
        (lambda: fold.binary(Op.LT, Constant(5), X, 64, True), Binary(Op.GT, X, Constant(5), 64, True)),
        (lambda: fold.binary(Op.MUL, X, Constant(8), 64, False), Binary(Op.SHL, X, Constant(3), 64, False)),
        (lambda: fold.binary(Op.DIV, X, Constant(8), 64, False), Binary(Op.SHR, X, Constant(3), 64, False)),
        (lambda: fold.binary(Op.DIV, X, Constant(8), 64, True), Binary(Op.DIV, X, Constant(8), 64, True)),
        (lambda: fold.binary(Op.MOD, X, Constant(8), 64, False), Binary(Op.AND, X, Constant(7), 64, False)),
        (lambda: fold.convert(Load(X, 8, False), 32, True), Load(X, 4, True)),
        (lambda: fold.convert(Load(X, 1, False), 32, True), Load(X, 1, False)),
        (lambda: fold.convert(fold.convert(X, 32, True), 16, False), Convert(X, 16, False)),
        (lambda: fold.convert(Load(X, 1, False), 8, True), Load(X, 1, True)),
        (lambda: fold.convert(Convert(X, 16, True), 20, False), Convert(Convert(X, 16, True), 20, False)),
        (lambda: fold.negation(Binary(Op.LT, X, Y, 32, True)), Binary(Op.GE, X, Y, 32, True)),
        (lambda: fold.boolean(Binary(Op.LT, X, Y, 32, True)), Binary(Op.LT, X, Y, 32, True)),
        (lambda: fold.both(Constant(1), Binary(Op.LT, X, Y, 32, True)), Binary(Op.LT, X, Y, 32, True)),
        (lambda: fold.both(Constant(0), X), Constant(0)),
        (lambda: fold.either(X, Constant(1)), Constant(1)),
        (lambda: fold.either(Load(X, 1, False), Constant(1)), Or(Load(X, 1, False), Constant(1))),
        (lambda: fold.choose(Constant(2), X, Y), X),
        (lambda: fold.binary(Op.SHL, X, Constant(64), 64, False), Constant(0)),
        (
            lambda: fold.binary(Op.DIV, Constant(1), Constant(0), 32, True),
            Binary(Op.DIV, Constant(1), Constant(0), 32, True),
        ),
    ],
)
def test_what_is_folded(made: Callable[[], Expr], expected: Expr) -> None:
    assert made() == expected


MAPPED, UNMAPPED = Load(Y, 8, False, mapped=True), Load(Y, 8, False)
CHEAP = Binary(Op.EQ, X, Constant(7), 64, False)
DIVIDES = Binary(Op.DIV, X, Y, 64, False)


@pytest.mark.parametrize(
    ("left", "right", "swapped"),
    [
        (MAPPED, CHEAP, True),
        (CHEAP, MAPPED, False),
        (UNMAPPED, CHEAP, False),
        (MAPPED, DIVIDES, False),
        (X, Y, False),
    ],
)
def test_what_is_cheap_comes_first_where_no_fault_is_lost(left: Expr, right: Expr, swapped: bool) -> None:
    first, second = (right, left) if swapped else (left, right)
    assert fold.both(left, right) == And(first, second)
    assert fold.either(left, right) == Or(first, second)


def test_a_constant_is_a_word() -> None:
    assert fold.constant(-1) == Constant(MASK)
    assert extend(fold.constant(-1).value, 32, True) == MASK
