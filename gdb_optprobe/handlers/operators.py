"""C's operators on typed values: the conversions of the operands, and the result. ISO C17 6.5."""

from __future__ import annotations

from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ctype import (
    INT,
    LONG,
    Integer,
    Pointer,
    Scalar,
    Void,
    common,
    describe,
    fits,
    promoted,
    size_of,
)
from gdb_optprobe.handlers.ir import Constant, Expr, Op, UnaryOp
from gdb_optprobe.handlers.scope import Rvalue
from gdb_optprobe.handlers.source import Fragment, fault

COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")


def converted(value: Rvalue, target: Scalar) -> Rvalue:
    """Convert a value to another type: its lowest bits; to a bool, whether it is not 0."""
    if isinstance(target, Pointer):
        mapped = value.mapped and value.type == target
        return Rvalue(value.expr, target, mapped)
    if isinstance(target, Integer) and target.boolean:
        return Rvalue(fold.boolean(value.expr), target)
    if fits(value.type, target):
        return Rvalue(value.expr, target)
    return Rvalue(fold.convert(value.expr, target.width, target.signed), target)


def unary(op: str, value: Rvalue, where: Fragment) -> Rvalue:
    """Apply one of + - ~ !"""
    if op == "!":
        return Rvalue(fold.negation(value.expr), INT)
    if isinstance(value.type, Pointer):
        raise fault(f"'{op}' of a pointer", where, _as_number(value.type))
    type_ = promoted(value.type)
    operand = converted(value, type_)
    if op == "+":
        return operand
    kind = UnaryOp.NEGATE if op == "-" else UnaryOp.INVERT
    return Rvalue(fold.unary(kind, operand.expr, type_.width, type_.signed), type_)


def binary(op: str, left: Rvalue, right: Rvalue, sign: Fragment) -> Rvalue:
    """Apply any operator but && and ||. sign: where the operator is."""
    if op in ("/", "%") and isinstance(right.expr, Constant) and not right.expr.value:
        raise fault("division by zero", sign)
    if isinstance(left.type, Pointer) or isinstance(right.type, Pointer):
        return _with_pointer(op, left, right, sign)
    if op in ("<<", ">>"):
        type_ = promoted(left.type)
        count = converted(right, promoted(right.type))
        number = converted(left, type_).expr
        return Rvalue(fold.binary(Op(op), number, count.expr, type_.width, type_.signed), type_)
    type_ = common(left.type, right.type)
    found = fold.binary(Op(op), converted(left, type_).expr, converted(right, type_).expr, type_.width, type_.signed)
    return Rvalue(found, INT if op in COMPARISONS else type_)


def logical(op: str, left: Rvalue, right: Rvalue) -> Rvalue:
    """Apply && or ||."""
    combine = fold.both if op == "&&" else fold.either
    return Rvalue(combine(left.expr, right.expr), INT)


def conditional(condition: Rvalue, yes: Rvalue, no: Rvalue, where: Fragment) -> Rvalue:
    """Return condition ? yes : no."""
    if not isinstance(yes.type, Pointer) and not isinstance(no.type, Pointer):
        type_: Scalar = common(yes.type, no.type)
        yes, no = converted(yes, type_), converted(no, type_)
    else:
        type_ = _pointer_of(yes.type, no.type, where)
    mapped = yes.mapped and no.mapped
    return Rvalue(fold.choose(condition.expr, yes.expr, no.expr), type_, mapped)


def moved(pointer: Rvalue, by: Rvalue, step: int, where: Fragment) -> Rvalue:
    """Return pointer + by, or with step -1 pointer - by."""
    assert isinstance(pointer.type, Pointer)
    if isinstance(by.type, Pointer):
        raise fault("two pointers cannot be added", where, _as_number(by.type))
    distance = fold.binary(Op.MUL, by.expr, fold.constant(element_size(pointer.type, where)), 64, False)
    op = Op.ADD if step > 0 else Op.SUB
    return Rvalue(fold.binary(op, pointer.expr, distance, 64, False), pointer.type)


def element_size(type_: Pointer, where: Fragment) -> int:
    """Return the bytes from one element to the next."""
    size = size_of(type_.target)
    if size is None:
        raise fault(f"the size of '{describe(type_.target)}' is not known", where, "cast the pointer: (char *)")
    return size


def _with_pointer(op: str, left: Rvalue, right: Rvalue, sign: Fragment) -> Rvalue:
    if op in COMPARISONS:
        return Rvalue(fold.binary(Op(op), left.expr, right.expr, 64, False), INT)
    if op == "+":
        return moved(left, right, 1, sign) if isinstance(left.type, Pointer) else moved(right, left, 1, sign)
    if op == "-" and isinstance(left.type, Pointer):
        if not isinstance(right.type, Pointer):
            return moved(left, right, -1, sign)
        return _difference(left.expr, left.type, right.expr, right.type, sign)
    type_ = left.type if isinstance(left.type, Pointer) else right.type
    raise fault(f"'{op}' of a pointer", sign, _as_number(type_))


def _difference(left: Expr, one: Pointer, right: Expr, other: Pointer, sign: Fragment) -> Rvalue:
    """Return the difference in elements. It is a multiple of their size, so a shift can replace the division."""
    size, same = element_size(one, sign), element_size(other, sign)
    if size != same or not size:
        what = f"the pointers are of different types: {describe(one)}, {describe(other)}"
        raise fault(what if size != same else "the elements have no size", sign, "cast both: (char *)")
    bytes_between = fold.binary(Op.SUB, left, right, 64, True)
    if size & (size - 1):
        return Rvalue(fold.binary(Op.DIV, bytes_between, fold.constant(size), 64, True), LONG)
    return Rvalue(fold.binary(Op.SHR, bytes_between, fold.constant(size.bit_length() - 1), 64, True), LONG)


def _pointer_of(yes: Scalar, no: Scalar, where: Fragment) -> Pointer:
    """Return the common type of both: that of the more precise pointer. The other may be a number, such as 0."""
    known = [type_ for type_ in (yes, no) if isinstance(type_, Pointer)]
    precise = [type_ for type_ in known if not isinstance(type_.target, Void)] or known
    if any(type_ != precise[0] for type_ in precise):
        message = f"the pointers are of different types: {describe(precise[0])}, {describe(precise[1])}"
        raise fault(message, where, "cast one to the other's type")
    return precise[0]


def _as_number(type_: Scalar) -> str:
    return f"cast it from '{describe(type_)}' to a number: (unsigned long)"


def is_text(type_: object) -> bool:
    """Return whether an array of this type holds characters."""
    return isinstance(type_, Integer) and type_.size == 1 and not type_.boolean
