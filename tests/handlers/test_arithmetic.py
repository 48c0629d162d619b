"""Every operation on words, against the machine's own arithmetic of fixed width."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.handlers import arithmetic
from gdb_optprobe.handlers.arithmetic import Fault, extend
from gdb_optprobe.handlers.ir import MASK, Op, UnaryOp
from gdb_optprobe.maps.aggregate import number

KINDS = {
    (32, True): ctypes.c_int32,
    (32, False): ctypes.c_uint32,
    (64, True): ctypes.c_int64,
    (64, False): ctypes.c_uint64,
}
INT_MIN, LONG_MIN = (-1 << 31) & MASK, (-1 << 63) & MASK
EDGES = (0, 1, 2, 31, 32, 33, 63, 64, 65, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 32, MASK >> 1, 1 << 63, MASK)


def words() -> st.SearchStrategy[int]:
    return st.one_of(st.sampled_from(EDGES), st.integers(0, MASK), st.integers(0, 70))


def reference(op: Op, left: int, right: int, kind: tuple[int, bool]) -> int | None:
    """By ctypes, and shifts one bit at a time; None for a fault."""
    made = KINDS[kind]
    one, other = made(left).value, made(right).value
    if op in (Op.SHL, Op.SHR):
        for _ in range(min(right, 70)):
            one = made(one << 1 if op is Op.SHL else one >> 1).value
        return one & MASK
    if op in (Op.DIV, Op.MOD):
        if not other:
            return None
        sign = -1 if (one < 0) != (other < 0) else 1
        quotient = sign * (abs(one) // abs(other))
        return made(quotient if op is Op.DIV else one - other * quotient).value & MASK
    found = eval(f"one {op.value} other", {"one": one, "other": other})
    return made(int(found)).value & MASK


OF_SCRIPTS = (Op.UDIV, Op.UMOD, Op.LSHL, Op.LSHR, Op.UMULH)


@given(st.sampled_from([op for op in Op if op not in OF_SCRIPTS]), words(), words(), st.sampled_from(list(KINDS)))
def test_operations(op: Op, left: int, right: int, kind: tuple[int, bool]) -> None:
    left = extend(left, *kind)
    right = right if op in (Op.SHL, Op.SHR) else extend(right, *kind)
    try:
        found: int | None = arithmetic.binary(op, left, right, *kind)
    except Fault:
        found = None
    assert found == reference(op, left, right, kind)


@pytest.mark.parametrize(
    ("op", "left", "right", "kind", "expected"),
    [
        (Op.DIV, INT_MIN, MASK, (32, True), INT_MIN),
        (Op.MOD, INT_MIN, MASK, (32, True), 0),
        (Op.DIV, LONG_MIN, MASK, (64, True), LONG_MIN),
        (Op.MOD, LONG_MIN, MASK, (64, True), 0),
        (Op.DIV, -7 & MASK, 2, (32, True), -3 & MASK),
        (Op.MOD, -7 & MASK, 2, (32, True), -1 & MASK),
        (Op.ADD, 0x7FFFFFFF, 1, (32, True), INT_MIN),
        (Op.ADD, 0xFFFFFFFF, 1, (32, False), 0),
        (Op.SHL, 1, 31, (32, True), INT_MIN),
        (Op.SHL, 1, 32, (32, True), 0),
        (Op.SHL, 1, 32, (64, True), 1 << 32),
        (Op.SHL, 1, MASK, (64, False), 0),
        (Op.SHR, MASK, 64, (64, True), MASK),
        (Op.SHR, MASK, 64, (64, False), 0),
        (Op.SHR, 5, MASK, (32, True), 0),
        (Op.LT, MASK, 0, (64, True), 1),
        (Op.LT, MASK, 0, (64, False), 0),
    ],
)
def test_edges(op: Op, left: int, right: int, kind: tuple[int, bool], expected: int) -> None:
    assert arithmetic.binary(op, left, right, *kind) == expected


@pytest.mark.parametrize("op", [Op.DIV, Op.MOD])
def test_a_division_by_zero_is_a_fault(op: Op) -> None:
    with pytest.raises(Fault):
        arithmetic.binary(op, 1, 0, 32, True)


@given(words(), st.sampled_from(list(KINDS)))
def test_unary(word: int, kind: tuple[int, bool]) -> None:
    word = extend(word, *kind)
    value = KINDS[kind](word).value
    assert arithmetic.unary(UnaryOp.NEGATE, word, *kind) == KINDS[kind](-value).value & MASK
    assert arithmetic.unary(UnaryOp.INVERT, word, *kind) == KINDS[kind](~value).value & MASK


def test_words() -> None:
    assert extend(0x1FF, 8, True) == MASK
    assert extend(0x1FF, 8, False) == 0xFF
    assert extend(0b101, 3, True) == -3 & MASK
    assert number(MASK, True) == -1
    assert number(MASK, False) == MASK


@given(st.sampled_from(OF_SCRIPTS), words(), words(), st.booleans())
def test_operations_of_scripts(op: Op, left: int, right: int, signed: bool) -> None:
    """As the instructions of BPF (RFC 9669, 4.1): unsigned, and no operand is refused."""
    one, count = ctypes.c_uint64(left).value, right & 63
    if op in (Op.LSHL, Op.LSHR):
        reference = ctypes.c_uint64(one << count).value if op is Op.LSHL else one >> count
    elif op is Op.UMULH:  # by halves of 32 bits, as on a machine that has no such instruction
        (a, b), (c, d) = divmod(one, 1 << 32), divmod(right, 1 << 32)
        reference = (a * c) + ((a * d + b * c + (b * d >> 32)) >> 32)
    elif op is Op.UDIV:
        reference = one // right if right else 0
    else:
        reference = one - one // right * right if right else one
    assert arithmetic.binary(op, left, right, 64, signed) == reference
