"""Make nodes of a program as simple as possible: compute constants, leave out what has no effect.

No fault is lost: what may fault stays, even if its value is not needed.
"""

from __future__ import annotations

from dataclasses import replace

from gdb_optprobe.handlers import arithmetic
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
    StringEquals,
    Unary,
    UnaryOp,
    may_fault,
    nodes,
)

_TURNED = {Op.LT: Op.GT, Op.GT: Op.LT, Op.LE: Op.GE, Op.GE: Op.LE}
_COMMUTES = (Op.ADD, Op.MUL, Op.UMULH, Op.AND, Op.OR, Op.XOR, Op.EQ, Op.NE)
_OPPOSITE = {Op.EQ: Op.NE, Op.NE: Op.EQ, Op.LT: Op.GE, Op.GE: Op.LT, Op.GT: Op.LE, Op.LE: Op.GT}
_NOTHING = {Op.ADD: 0, Op.OR: 0, Op.XOR: 0, Op.SHL: 0, Op.SHR: 0, Op.MUL: 1, Op.DIV: 1}


def constant(value: int) -> Constant:
    """Return the word of a number."""
    return Constant(value & MASK)


def unary(op: UnaryOp, value: Expr, bits: int, signed: bool) -> Expr:
    """Return `op` of a value."""
    if isinstance(value, Constant):
        return Constant(arithmetic.unary(op, value.value, bits, signed))
    return Unary(op, value, bits, signed)


def binary(op: Op, left: Expr, right: Expr, bits: int, signed: bool) -> Expr:
    """Return `op` of two values."""
    if isinstance(left, Constant) and isinstance(right, Constant):
        try:
            return Constant(arithmetic.binary(op, left.value, right.value, bits, signed))
        except arithmetic.Fault:
            return Binary(op, left, right, bits, signed)
    if isinstance(left, Constant) and (op in _COMMUTES or op in _TURNED):
        op, left, right = _TURNED.get(op, op), right, left
    if isinstance(right, Constant):
        return _with_constant(op, left, right.value, bits, signed)
    # A sum's constant goes last: what `a[i].b` adds becomes one displacement.
    if (offset := _offset(op, left, bits, signed)) is not None and isinstance(left, Binary):
        return binary(op, binary(op, left.left, right, bits, signed), Constant(offset), bits, signed)
    if (offset := _offset(op, right, bits, signed)) is not None and isinstance(right, Binary):
        return binary(op, binary(op, left, right.left, bits, signed), Constant(offset), bits, signed)
    return Binary(op, left, right, bits, signed)


def _with_constant(op: Op, left: Expr, right: int, bits: int, signed: bool) -> Expr:
    if op is Op.SUB:
        op, right = Op.ADD, arithmetic.extend(-right, bits, signed)
    elif op is Op.SHR and signed:
        right = min(right, bits - 1)
    elif right and not right & (right - 1) and (op is Op.MUL or (not signed and op in (Op.DIV, Op.MOD))):
        if op is Op.MOD:
            op, right = Op.AND, right - 1
        else:
            op, right = Op.SHL if op is Op.MUL else Op.SHR, right.bit_length() - 1
    if _NOTHING.get(op) == right:
        return left
    if op in (Op.SHL, Op.SHR) and right >= bits and not may_fault(left):
        return Constant(0)
    if (offset := _offset(op, left, bits, signed)) is not None and isinstance(left, Binary):
        return binary(op, left.left, Constant(arithmetic.binary(op, offset, right, bits, signed)), bits, signed)
    return Binary(op, left, Constant(right), bits, signed)


def _offset(op: Op, left: Expr, bits: int, signed: bool) -> int | None:
    """Return the constant that `left` adds, if it and `op` are sums of the same width and sign; else None."""
    match left:
        case Binary(Op.ADD, _, Constant(value), inner_bits, inner_signed) if op is Op.ADD:
            return value if (inner_bits, inner_signed) == (bits, signed) else None
    return None


def convert(value: Expr, bits: int, signed: bool) -> Expr:
    """Return the word of the lowest `bits` (1 to 64) of a word."""
    if isinstance(value, Constant):
        return Constant(arithmetic.extend(value.value, bits, signed))
    known, known_signed = _extent(value)
    if bits >= 64 or (known <= bits and known_signed == signed) or (known < bits and not known_signed):
        return value
    if isinstance(value, Convert) and bits <= value.bits:
        return convert(value.value, bits, signed)
    if isinstance(value, Load) and bits in (8, 16, 32) and bits <= 8 * value.size:
        return replace(value, size=bits // 8, signed=signed)
    return Convert(value, bits, signed)


def _extent(value: Expr) -> tuple[int, bool]:
    """Return of how many bits, signed or not, a word certainly is the extension."""
    match value:
        case Load(_, size, signed):
            return 8 * size, signed
        case Binary(op) if op.compares:
            return 1, False
        case Binary(Op.AND, _, Constant(mask)) if not mask >> 63:
            return mask.bit_length(), False
        case Binary(bits=bits, signed=signed) | Unary(bits=bits, signed=signed) | Convert(bits=bits, signed=signed):
            return bits, signed
        case And() | Or() | StringEquals():
            return 1, False
        case _:
            return 64, False


def is_boolean(value: Expr) -> bool:
    """Return whether a value is certainly 0 or 1."""
    if isinstance(value, Constant):
        return value.value <= 1
    return _extent(value) in ((1, False), (0, False))


def boolean(value: Expr) -> Expr:
    """Return 1 for a value that is not 0, else 0."""
    return value if is_boolean(value) else binary(Op.NE, value, Constant(0), 64, False)


def negation(value: Expr) -> Expr:
    """Return 0 for a value that is not 0, else 1."""
    if isinstance(value, Binary) and value.op.compares:
        return Binary(_OPPOSITE[value.op], value.left, value.right, value.bits, value.signed)
    return binary(Op.EQ, value, Constant(0), 64, False)


def both(left: Expr, right: Expr) -> Expr:
    """Return left && right."""
    if isinstance(left, Constant):
        return boolean(right) if left.value else left
    if isinstance(right, Constant) and (right.value or not may_fault(left)):
        return boolean(left) if right.value else right
    return And(*_cheap_first(left, right))


def either(left: Expr, right: Expr) -> Expr:
    """Return left || right."""
    if isinstance(left, Constant):
        return Constant(1) if left.value else boolean(right)
    if isinstance(right, Constant) and (not right.value or not may_fault(left)):
        return Constant(1) if right.value else boolean(left)
    return Or(*_cheap_first(left, right))


def _cheap_first(left: Expr, right: Expr) -> tuple[Expr, Expr]:
    """Return two conditions, the cheaper one first, unless one of them may fault."""
    if _cost(right) < _cost(left) and not may_fault(left) and not may_fault(right):
        return right, left
    return left, right


def _cost(value: Expr) -> int:
    """Return about how long a value takes: loads cost most, as each usually depends on another."""
    return sum(4 if isinstance(node, Load) else 1 for node in nodes(value) if not isinstance(node, Constant))


def choose(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """Return condition ? yes : no."""
    if isinstance(condition, Constant):
        return yes if condition.value else no
    return Choose(condition, yes, no)
