"""Type a syntax tree: turn it into typed nodes of a program. Every refusal points, and names what is missing.

A node means either a value or an object in memory (`Lvalue`); an object is loaded where a value is needed.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from itertools import islice

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers import fold, operators
from gdb_optprobe.handlers.ctype import (
    INT,
    UNSIGNED_LONG,
    Array,
    CType,
    Enum,
    Float,
    Function,
    Incomplete,
    Integer,
    Pointer,
    Scalar,
    Struct,
    Void,
    describe,
    number_type,
    size_of,
)
from gdb_optprobe.handlers.ctype import Member as StructMember
from gdb_optprobe.handlers.ir import Constant, Expr, Load, Op
from gdb_optprobe.handlers.parser import parse_expression
from gdb_optprobe.handlers.scope import Fields, Lvalue, Meaning, Missing, Rvalue, Scope
from gdb_optprobe.handlers.source import Fragment, fault
from gdb_optprobe.handlers.strings import StringValue, characters, equals
from gdb_optprobe.handlers.syntax import (
    Binary,
    Cast,
    Character,
    Conditional,
    Dollar,
    Expression,
    Index,
    Member,
    Name,
    Number,
    PerCpu,
    SizeOf,
    Str,
    String,
    TypeName,
    Unary,
)

_SIZES = (1, 2, 4, 8)
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
MOST_SUGGESTED = 1 << 10
"""Members that are compared with a wrong name: the largest struct of Debian's kernels has 272."""


class Typer:
    """Types the expressions of one probe. Every method raises OptprobeError, pointing."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def value(self, node: Expression) -> Rvalue:
        """Return a number or a pointer; of an array, the pointer to its first element."""
        meaning = self.meaning(node)
        return meaning if isinstance(meaning, Rvalue) else self.load(meaning, node.where)

    def text(self, node: Expression) -> StringValue | None:
        """Return a string in memory: `str(p)`, an array of characters. None for anything else, pointers too."""
        if isinstance(node, Str):
            return self._pointed(node)
        meaning = self.meaning(node) if not isinstance(node, String) else None
        return characters(meaning) if isinstance(meaning, Lvalue) else None

    def meaning(self, node: Expression) -> Meaning:
        """Return the value or the object of a node."""
        match node:
            case Number(_, value, suffix, decimal):
                return Rvalue(fold.constant(value), number_type(value, suffix, decimal))
            case Character(where, value):
                char = self.type(TypeName(where, "", "char"))
                assert isinstance(char, Integer)
                return Rvalue(fold.convert(fold.constant(value), char.width, char.signed), INT)
            case String(where):
                raise fault("a string can only be compared", where, '$comm == "dd", str(p) != "x"')
            case Str(where):
                raise fault("str(p) is a text, not a number", where, 'str(p) == "x", by str(p), record(str(p))')
            case Name(where, name):
                return _found(self._scope.name(name), where)
            case Dollar(where, name):
                return _found(self._scope.dollar(name), where)
            case PerCpu():
                return self._per_cpu(node)
            case Unary(where, "&", value):
                return self._address_of(self.meaning(value), value.where)
            case Unary(_, "*", value):
                return self._pointed_to(self.meaning(value), value.where)
            case Unary(where, op, value):
                return operators.unary(op, self.value(value), where)
            case Binary(_, op, left, right) if op in ("==", "!=") and (
                isinstance(left, String | Str) or isinstance(right, String | Str)
            ):
                return self._compared(node)
            case Binary(_, op, left, right) if op in ("&&", "||"):
                return operators.logical(op, self.value(left), self.value(right))
            case Binary(_, op, left, right, sign):
                one, other = self.value(left), self.value(right)
                if op in _COMPARISONS:
                    self._check_text(left, other)
                    self._check_text(right, one)
                return operators.binary(op, one, other, sign)
            case Conditional(where, condition, yes, no):
                return operators.conditional(self.value(condition), self.value(yes), self.value(no), where)
            case Member():
                return self._field(node, node.name.text) or self._member(node)
            case Index(_, Member(_, _, name) as array, Number(_, number)) if self._fields(array) is not None:
                return self._field(array, f"{name.text}[{number}]") or self._element(node)
            case Index():
                return self._element(node)
            case Cast():
                return self._cast(node)
            case SizeOf(where, thing):
                return Rvalue(fold.constant(self._size(thing, where)), UNSIGNED_LONG)

    def type(self, name: TypeName) -> CType:
        """Return the type that is written."""
        found = self._scope.type(name.keyword, name.name)
        if isinstance(found, Missing):
            raise fault(found.message, name.where, found.hint)
        for _ in range(name.pointers):
            found = Pointer(found)
        return found

    def load(self, place: Lvalue, where: Fragment) -> Rvalue:
        """Return an object's value; of an array, the pointer to its first element."""
        if place.type is None:
            raise fault(f"the type of '{where.text}' is not known", where, f"cast it: (unsigned long){where.text}")
        if place.per_cpu:
            raise fault(f"every CPU has its own '{where.text}'", where, f"$percpu({where.text})")
        if isinstance(place.type, Array):
            return _first(place, place.type)
        if isinstance(place.type, Function):
            return Rvalue(place.address, Pointer(place.type))
        type_ = _scalar(place.type, where)
        if place.unit is not None:
            size, shift = place.unit
            raw = fold.binary(Op.SHR, self._word(place, size, False, where), fold.constant(shift), 64, False)
            assert isinstance(type_, Integer)
            return Rvalue(fold.convert(raw, type_.width, type_.signed), type_)
        size = size_of(type_) or 0
        if size not in _SIZES:
            raise fault(f"'{describe(type_)}' of {size} bytes is not supported", where, "cast its address: *(long *)&x")
        signed = not isinstance(type_, Pointer) and type_.signed
        return Rvalue(self._word(place, size, signed, where), type_)

    def _word(self, place: Lvalue, size: int, signed: bool, where: Fragment) -> Expr:
        known = isinstance(place.address, Constant) and self._scope.is_mapped(place.address.value, size)
        return Load(place.address, size, signed, place.mapped or known, where.text)

    def _address_of(self, meaning: Meaning, where: Fragment) -> Rvalue:
        if isinstance(meaning, Rvalue):
            raise fault(f"'{where.text}' has no address", where, "it is a value, not an object in memory")
        if meaning.unit is not None:
            raise fault("a bit field has no address", where)
        return Rvalue(meaning.address, Pointer(meaning.type or Void()), meaning.mapped)

    def _pointed_to(self, meaning: Meaning, where: Fragment) -> Lvalue:
        pointer = meaning if isinstance(meaning, Rvalue) else self.load(meaning, where)
        if not isinstance(pointer.type, Pointer):
            hint = f"cast it: *({describe(pointer.type)} *){where.text}"
            raise fault(f"'{where.text}' is a number, not a pointer", where, hint)
        if isinstance(pointer.type.target, Void):
            raise fault(f"'{where.text}' points to nothing of a known type", where, f"cast it: *(long *){where.text}")
        return Lvalue(pointer.expr, pointer.type.target, pointer.mapped)

    def _element(self, node: Index) -> Lvalue:
        array, index = self.meaning(node.array), self.value(node.index)
        if isinstance(array, Lvalue) and isinstance(array.type, Array):
            inside = isinstance(index.expr, Constant) and index.expr.value < array.type.count
            first = operators.moved(_first(array, array.type), index, 1, node.where)
            return Lvalue(first.expr, array.type.element, inside and array.mapped, array.per_cpu)
        pointer = array if isinstance(array, Rvalue) else self.load(array, node.array.where)
        if not isinstance(pointer.type, Pointer):
            raise fault(f"'{node.array.where.text}' is no array", node.array.where, "nor a pointer")
        return self._pointed_to(operators.moved(pointer, index, 1, node.where), node.array.where)

    def _fields(self, node: Member) -> Fields | None:
        """Return the event's fields where `node` is one of them: `args->name`, or `args.name`."""
        found = self._scope.name(node.thing.name) if isinstance(node.thing, Name) else None
        return found if isinstance(found, Fields) else None

    def _field(self, node: Member, name: str) -> Meaning | None:
        """Return a field of an event; None where `node` is a member of anything else, or `name` no element apart."""
        if (fields := self._fields(node)) is None:
            return None
        if (found := fields.lookup(name)) is not None:
            return _found(found, node.name)
        if name != node.name.text and fields.lookup(node.name.text) is not None:
            return None
        close = difflib.get_close_matches(name, fields.names, 1)
        meant = f"did you mean '{close[0]}'? " if close else ""
        raise fault(f"the event has no field '{name}'", node.name, meant + f"it has: {', '.join(fields.names)}")

    def _member(self, node: Member) -> Lvalue:
        thing = node.thing
        if node.arrow:
            meaning = self.meaning(thing)
            if isinstance(meaning, Lvalue) and isinstance(meaning.type, Struct):
                raise fault(f"'{thing.where.text}' is no pointer", thing.where, f"{thing.where.text}.{node.name.text}")
            if isinstance(meaning, Lvalue) and meaning.type is None:
                raise _untyped(thing.where, node.name.text)
            place = self._struct_behind(meaning, node)
        else:
            found = self.meaning(thing)
            if isinstance(found, Rvalue) or isinstance(found.type, Pointer):
                hint = f"{thing.where.text}->{node.name.text}" if isinstance(found.type, Pointer) else ""
                raise fault(f"'{thing.where.text}' is no struct", thing.where, hint)
            if found.type is None:
                raise _untyped(thing.where, node.name.text)
            place = found
        if not isinstance(place.type, Struct):
            raise _no_struct(place.type, thing.where)
        member = place.type.lookup(node.name.text)
        if member is None:
            raise _no_member(place.type, node.name)
        return member_of(place, place.type, member, node.name)

    def _struct_behind(self, meaning: Meaning, node: Member) -> Lvalue:
        """Return the target of `p` in `p->m`."""
        where = node.thing.where
        pointer = meaning if isinstance(meaning, Rvalue) else self.load(meaning, where)
        if not isinstance(pointer.type, Pointer) or isinstance(pointer.type.target, Void):
            what = f"'{where.text}' is no pointer to a struct but '{describe(pointer.type)}'"
            raise fault(what, where, f"cast it: ((struct TYPE *){where.text})->{node.name.text}")
        return self._pointed_to(pointer, where)

    def _per_cpu(self, node: PerCpu) -> Lvalue:
        meaning = self.meaning(node.thing)
        if isinstance(meaning, Rvalue):
            hint = "of a pointer: $percpu(*p)" if isinstance(meaning.type, Pointer) else "$percpu(VARIABLE)"
            raise fault("$percpu takes a variable", node.thing.where, hint)
        base = self._scope.per_cpu_base()
        if isinstance(base, Missing):
            raise fault(base.message, node.where, base.hint)
        address = fold.binary(Op.ADD, base, meaning.address, 64, False)
        return Lvalue(address, meaning.type, meaning.per_cpu, unit=meaning.unit)

    def _cast(self, node: Cast) -> Rvalue:
        target = self.type(node.type)
        meaning = self.meaning(node.value)
        if isinstance(meaning, Lvalue) and meaning.type is None:
            # As in GDB: a symbol without a type is an object of the type that it is cast to.
            return self.load(Lvalue(meaning.address, target, meaning.mapped, meaning.per_cpu), node.value.where)
        if isinstance(target, Void | Struct | Array | Function | Incomplete):
            raise fault(f"nothing can be cast to '{describe(target)}'", node.type.where, "cast to a pointer to it")
        value = meaning if isinstance(meaning, Rvalue) else self.load(meaning, node.value.where)
        type_ = _scalar(target, node.type.where)
        if size_of(type_) not in _SIZES:
            raise fault(f"'{describe(type_)}' is not supported", node.type.where, "the largest type is unsigned long")
        return operators.converted(value, type_)

    def _size(self, thing: Expression | TypeName, where: Fragment) -> int:
        if isinstance(thing, TypeName):
            type_: CType | None = self.type(thing)
        else:
            meaning = self.meaning(thing)
            if isinstance(meaning, Lvalue) and meaning.unit is not None:
                raise fault("a bit field has no size", where)
            type_ = meaning.type
        if type_ is None:
            raise fault(f"the type of '{thing.where.text}' is not known", thing.where, "sizeof(TYPE)")
        size = size_of(type_)
        if size is None:
            raise fault(f"the size of '{describe(type_)}' is not known", where)
        return size

    def _compared(self, node: Binary) -> Rvalue:
        """Compare a string in memory with a literal."""
        literal, other = (node.right, node.left) if isinstance(node.right, String) else (node.left, node.right)
        if not isinstance(literal, String):
            raise fault("str(p) can be compared with a literal only", node.sign, 'str(p) == "x"')
        if isinstance(other, String):
            raise fault("two literals are compared", node.sign)
        text = self.text(other) or characters(self.value(other))
        if text is None:
            raise fault(f"'{other.where.text}' is no string", other.where, "compare an array of characters, or str(p)")
        found = equals(text, literal.data, literal.where)
        return Rvalue(fold.negation(found) if node.op == "!=" else found, INT)

    def _check_text(self, node: Expression, other: Rvalue) -> None:
        """Refuse an array of characters that is compared with a number: what it holds is never one."""
        if isinstance(other.type, Pointer) or not isinstance(place := self.meaning(node), Lvalue):
            return
        if isinstance(place.type, Array) and operators.is_text(place.type.element):
            text = node.where.text
            raise fault(f"'{text}' is a text, compared with a number", node.where, f'{text} == "x"')

    def _pointed(self, node: Str) -> StringValue:
        """Return the string of `str(p)`: an array itself, or the target of a pointer or a number of 64 bits."""
        meaning = self.meaning(node.pointer)
        found = characters(meaning)
        if found is not None:
            return found
        value = meaning if isinstance(meaning, Rvalue) else self.load(meaning, node.pointer.where)
        if size_of(value.type) != 8:
            what = f"'{node.pointer.where.text}' is no pointer but '{describe(value.type)}'"
            raise fault(what, node.pointer.where, "str takes an address")
        return characters(meaning) or StringValue(value.expr, None, False)


def member_names(part: Fragment, scope: Scope) -> Sequence[str]:
    """Return the members of the struct that an expression is, or points to. Raises OptprobeError, pointing."""
    if isinstance(event := scope.name(part.text.strip()), Fields):
        return event.names
    found = Typer(scope).meaning(parse_expression(part, scope.is_type)).type
    found = found.target if isinstance(found, Pointer) else found
    return found.names() if isinstance(found, Struct) else ()


def _first(place: Lvalue, array: Array) -> Rvalue:
    """Return a pointer to the first element."""
    return Rvalue(place.address, Pointer(array.element), place.mapped and array.count > 0)


def _found(meaning: Meaning | Missing, where: Fragment) -> Meaning:
    if isinstance(meaning, Missing):
        raise fault(meaning.message, where, meaning.hint)
    return meaning


def _scalar(type_: CType, where: Fragment) -> Scalar:
    """Return a type that expressions can compute with. Raises OptprobeError for any other."""
    match type_:
        case Integer() | Enum() | Pointer():
            return type_
        case Float():
            raise fault("floating point is not supported", where, "cast its address: *(long *)&x")
        case Struct(names=names):
            hint = f"one of its members is: {', '.join(names()[:6])}" if names() else ""
            raise fault(f"'{describe(type_)}' is no number", where, hint)
    raise fault(f"'{describe(type_)}' is no number", where, "cast its address: *(long *)&x")


def _untyped(where: Fragment, member: str) -> OptprobeError:
    message = f"the type of '{where.text}' is not known"
    return fault(message, where, f"cast its address: ((struct TYPE *)&{where.text})->{member}")


def _no_struct(type_: CType | None, where: Fragment) -> OptprobeError:
    if isinstance(type_, Incomplete):
        return fault(f"the members of '{describe(type_)}' are not known", where, "the type information has none")
    return fault(f"'{where.text}' is no struct" + (f" but '{describe(type_)}'" if type_ else ""), where)


def _no_member(struct: Struct, name: Fragment) -> OptprobeError:
    names = struct.names()[:MOST_SUGGESTED]
    pairs = ((last, path) for path in names for last in _names_within(struct, path))
    within = dict(islice(pairs, MOST_SUGGESTED))
    close = difflib.get_close_matches(name.text, (*names, *within), 1)
    shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    meant = [f"{within[each]}.{each}" if each not in names else each for each in close]
    hint = f"did you mean '{meant[0]}'?" if meant else f"it has: {shown}" if shown else ""
    return fault(f"'{describe(struct)}' has no member '{name.text}'", name, hint)


def _names_within(struct: Struct, name: str) -> Sequence[str]:
    """Return the members of a member: kernel code has macros for many, `sk->sk_num` for `sk->__sk_common.skc_num`."""
    member = struct.lookup(name)
    return member.type.names() if member is not None and isinstance(member.type, Struct) else ()


def member_of(place: Lvalue, struct: Struct, member: StructMember, where: Fragment) -> Lvalue:
    """Return a member of the struct at `place`; of a bit field, the unit that holds it."""
    offset, type_ = member.offset, member.type
    unit: tuple[int, int] | None = None
    if member.bit_size:
        found = _unit(member, struct.size)
        if found is None or not isinstance(type_, Integer | Enum):
            raise fault(f"the bit field '{member.name}' cannot be read by one load", where, "read its bytes by a cast")
        offset, size = found
        unit = size, 8 * (member.offset - offset) + member.bit_offset
        boolean = isinstance(type_, Integer) and type_.boolean
        type_ = Integer(describe(type_), type_.size, type_.signed, boolean, member.bit_size)
    address = fold.binary(Op.ADD, place.address, fold.constant(offset), 64, False)
    return Lvalue(address, type_, place.mapped, place.per_cpu, unit)


def _unit(member: StructMember, struct_size: int) -> tuple[int, int] | None:
    """Return the offset and size of the bytes of a struct that hold a bit field; None if 8 are not enough."""
    first, end = member.offset, member.offset + -(-(member.bit_offset + member.bit_size) // 8)
    aligned = ((first // size * size, size) for size in _SIZES)
    anywhere = ((max(min(first, struct_size - size), 0), size) for size in _SIZES)
    for start, size in (*aligned, *anywhere):
        if start + size >= end and (start + size <= struct_size or not struct_size):
            return start, size
    return None
