"""The arithmetic of ir.py on words: the rule that lowerings, interpreter and constant folding share."""

from __future__ import annotations

from gdb_optprobe.handlers.ir import MASK, Op, UnaryOp
from gdb_optprobe.maps.aggregate import number


class Fault(Exception):
    """A division by zero, or memory that cannot be read."""


def extend(value: int, bits: int, signed: bool) -> int:
    """Return the word of the lowest `bits` of a number."""
    value &= (1 << bits) - 1
    return value | (MASK ^ ((1 << bits) - 1)) if signed and value >> (bits - 1) else value


def unary(op: UnaryOp, value: int, bits: int, signed: bool) -> int:
    """Compute `op` of a word."""
    return extend(-value if op is UnaryOp.NEGATE else ~value, bits, signed)


def binary(op: Op, left: int, right: int, bits: int, signed: bool) -> int:
    """Compute `op` of two words. Raises Fault if `right` divides and is 0."""
    if op is Op.SHL:
        return extend(left << right, bits, signed) if right < bits else 0
    if op is Op.SHR:
        return extend(number(left, signed) >> min(right, bits), bits, signed)
    if op in _OF_SCRIPTS:
        return _unsigned(op, left, right) & MASK
    return extend(_exact(op, number(left, signed), number(right, signed)), bits, signed)


_OF_SCRIPTS = (Op.UDIV, Op.UMOD, Op.LSHL, Op.LSHR, Op.UMULH)


def _unsigned(op: Op, left: int, right: int) -> int:
    """Compute an operation of scripts of two words."""
    match op:
        case Op.UDIV:
            return left // right if right else 0
        case Op.UMOD:
            return left % right if right else left
        case Op.LSHL:
            return left << right % 64
        case Op.LSHR:
            return left >> right % 64
        case Op.UMULH:
            return left * right >> 64
    raise AssertionError(op)


def _exact(op: Op, left: int, right: int) -> int:
    """Compute `op` of two numbers without bounds."""
    match op:
        case Op.ADD:
            return left + right
        case Op.SUB:
            return left - right
        case Op.MUL:
            return left * right
        case Op.DIV | Op.MOD:
            if not right:
                raise Fault("division by zero")
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return quotient if op is Op.DIV else left - quotient * right
        case Op.AND:
            return left & right
        case Op.OR:
            return left | right
        case Op.XOR:
            return left ^ right
        case Op.EQ:
            return int(left == right)
        case Op.NE:
            return int(left != right)
        case Op.LT:
            return int(left < right)
        case Op.LE:
            return int(left <= right)
        case Op.GT:
            return int(left > right)
        case Op.GE:
            return int(left >= right)
    raise AssertionError(op)
