"""Evaluate an expression of C where the guest is stopped, and write its value, or its type, as C does.

The compiler of conditions types it and their interpreter computes it: a value here is what a condition would see.
"""

from __future__ import annotations

import re

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.guest_text import until_zero
from gdb_optprobe.handlers import fold, interpreter
from gdb_optprobe.handlers.arithmetic import Fault
from gdb_optprobe.handlers.ctype import Array, CType, Enum, Function, Integer, Pointer, Struct, describe, size_of
from gdb_optprobe.handlers.parser import parse_expression, parse_type_or_expression
from gdb_optprobe.handlers.scope import Lvalue, Meaning, Rvalue
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.handlers.strings import StringValue, characters
from gdb_optprobe.handlers.syntax import Str, TypeName
from gdb_optprobe.handlers.types import Typer, member_of
from gdb_optprobe.maps.aggregate import number
from gdb_optprobe.probes.handler import interpreted_hit
from gdb_optprobe.probes.stops import Hit

MOST_MEMBERS = 1024
"""Members of one struct that are written: the largest of Debian's kernels has 272."""
_UNNAMED = re.compile(r"^(struct|union|enum)(?= \*|$)")
MOST_ELEMENTS = 16
MOST_CHARACTERS = 200
DEEPEST = 2
"""Structs within structs that are written out."""
_INDENT = "    "


def value_lines(text: str, hit: Hit, guest: Guest) -> list[str]:
    """Return the value of an expression on the selected vCPU, as lines of C. Raises OptprobeError, pointing at what has
    none.
    """
    return _Writer(guest.names_stopped_at(hit.address), hit, guest).of_text(Fragment.whole(text))


class _Writer:
    """Writes values of the guest as C does."""

    def __init__(self, found: NamesAt, hit: Hit, guest: Guest) -> None:
        self._names, self._typer, self._guest = found.names, Typer(found.names), guest
        self._hit = interpreted_hit(hit, found.reads, guest.isa.system.per_cpu)
        self._has_read = False
        self._fault: Fault | None = None

    def of_text(self, part: Fragment) -> list[str]:
        node = parse_expression(part, self._names.is_type)
        try:
            text = self._typer.text(node) if isinstance(node, Str) else None
            if text is not None:
                return [self._string(text)]
            meaning = self._typer.meaning(node)
            lines = self._value(meaning, part, 0)
            if self._fault is not None and not self._has_read:  # an object of which no member can be read
                raise self._fault
        except Fault as error:
            raise OptprobeError(f"'{part.text}' has no value: {error}") from error
        is_object = isinstance(meaning.type, Pointer) and not isinstance(meaning.type.target, Function)
        cast = f"({describe(meaning.type)}) " if meaning.type is not None and is_object else ""
        return [f"{cast}{lines[0]}", *lines[1:]]

    def _value(self, meaning: Meaning, where: Fragment, depth: int) -> list[str]:
        """Return a value's lines. Raises Fault where it cannot be read, OptprobeError where it has none."""
        if isinstance(meaning, Lvalue) and not meaning.per_cpu:
            match meaning.type:
                case Struct() as struct:
                    return self._struct(self._address(meaning), meaning.mapped, struct, where, depth)
                case Array() as array:
                    text = characters(meaning)
                    if text is not None:
                        return [self._string(text)]
                    return self._array(self._address(meaning), meaning.mapped, array, where, depth)
        loaded = self._typer.load(meaning, where) if isinstance(meaning, Lvalue) else meaning
        return [self._scalar(loaded)]

    def _address(self, place: Lvalue) -> int:
        """Return an object's address, computed once for all of its members."""
        return interpreter.evaluate(place.address, self._hit)

    def _struct(self, address: int, mapped: bool, struct: Struct, where: Fragment, depth: int) -> list[str]:
        if depth > DEEPEST:
            return ["{…}"]
        place = Lvalue(fold.constant(address), struct, mapped)
        names, lines = struct.names(), ["{"]
        for name in names[:MOST_MEMBERS]:
            member = struct.lookup(name)
            if member is not None:
                first, *others = self._part(member_of(place, struct, member, where), where, depth + 1)
                lines += [f"{_INDENT}{name} = {first}", *(f"{_INDENT}{line}" for line in others)]
        return [*lines, *([f"{_INDENT}…"] if len(names) > MOST_MEMBERS else []), "}"]

    def _array(self, address: int, mapped: bool, array: Array, where: Fragment, depth: int) -> list[str]:
        size = size_of(array.element)
        if not array.count or not size:
            return ["{}" if not array.count else "{…}"]
        if depth > DEEPEST or isinstance(array.element, Struct | Array):
            return [f"{{…}}, {array.count} of '{describe(array.element)}'"]
        addresses = (fold.constant(address + size * at) for at in range(min(array.count, MOST_ELEMENTS)))
        elements = [self._part(Lvalue(each, array.element, mapped), where, depth + 1)[0] for each in addresses]
        return [f"{{{', '.join(elements)}{', …' if array.count > MOST_ELEMENTS else ''}}}"]

    def _part(self, place: Lvalue, where: Fragment, depth: int) -> list[str]:
        """Return the lines of a member or an element, which may have no value that C's numbers can hold."""
        try:
            return self._value(place, where, depth)
        except Fault as error:
            self._fault = self._fault or error
            return [f"<{error}>"]
        except OptprobeError:
            return [f"<{describe(place.type)}>" if place.type else "<?>"]

    def _scalar(self, value: Rvalue) -> str:
        word = interpreter.evaluate(value.expr, self._hit)
        self._has_read = True
        match value.type:
            case Pointer():
                symbol = self._guest.symbol(word)
                text = characters(value)
                return f"{word:#x}{f' <{symbol}>' if symbol else ''}{self._pointed(text) if text and word else ''}"
            case Enum() as enum:
                value_ = number(word, enum.signed)
                return enum.enumerators().get(value_, str(value_))
            case Integer(boolean=True):
                return "true" if word else "false"
            case integer:
                return str(number(word, integer.signed))

    def _pointed(self, text: StringValue) -> str:
        try:
            return f" {self._string(text)}"
        except Fault:
            return ""

    def _string(self, text: StringValue) -> str:
        data = interpreter.data(text.operand(MOST_CHARACTERS), self._hit)
        self._has_read = True
        more = "…" if text.size is None and len(data.rstrip(b"\0")) == MOST_CHARACTERS else ""
        return f'"{until_zero(data)}"{more}'


def type_lines(text: str, address: int, guest: Guest) -> list[str]:
    """Return a type, or that of an expression, as C defines it, with the offsets and sizes of members.

    Raises OptprobeError, pointing.
    """
    names = guest.names_at(address).names
    typer, node = Typer(names), parse_type_or_expression(Fragment.whole(text), names.is_type)
    type_ = typer.type(node) if isinstance(node, TypeName) else typer.meaning(node).type
    if type_ is None:
        raise OptprobeError(f"the type of '{text}' is not known", "its address is: optprobe print &NAME")
    target = type_
    while isinstance(target, Pointer):
        target = target.target
    stars = describe(type_).removeprefix(describe(target)).strip()
    if isinstance(target, Struct):
        return _definition(target, stars)
    size = None if isinstance(target, Function) else size_of(type_)
    members = [f"{_INDENT}{name} = {value}," for value, name in sorted(_enumerators(target).items())]
    body = [f"{describe(target)} {{", *members[:MOST_MEMBERS], f"}} {stars}".rstrip()] if members else [describe(type_)]
    return [*body[:-1], f"{body[-1]}  /* size {size} */" if size is not None else body[-1]]


def _enumerators(type_: CType) -> dict[int, str]:
    return dict(type_.enumerators()) if isinstance(type_, Enum) else {}


def _definition(struct: Struct, stars: str) -> list[str]:
    found = [struct.lookup(name) for name in struct.names()[:MOST_MEMBERS]]
    rows = []
    for member in found:
        if member is not None:
            bits = f":{member.bit_size}" if member.bit_size else ""
            at = f"{member.offset}{f':{member.bit_offset}' if member.bit_size else ''}"
            rows.append((f"{_declared(member.type, member.name)}{bits};", at, size_of(member.type)))
    width = max((len(declared) for declared, _, _ in rows), default=0)
    lines = [f"{_INDENT}{declared:<{width}}  /* {at:>5} {size or 0:>5} */" for declared, at, size in rows]
    more = [f"{_INDENT}…"] if len(struct.names()) > MOST_MEMBERS else []
    return [f"{describe(struct)} {{", *lines, *more, f"}}{f' {stars}' if stars else ''};  /* size {struct.size} */"]


def _declared(type_: CType, name: str) -> str:
    """Return a member's declaration: `char comm[16]`, `struct {…} count`, `(*open)()`."""
    dimensions = ""
    while isinstance(type_, Array):
        dimensions += f"[{type_.count or ''}]"
        type_ = type_.element
    if isinstance(type_, Pointer) and isinstance(type_.target, Function):
        return f"(*{name}{dimensions})()"
    text = _UNNAMED.sub(r"\1 {…}", describe(type_))
    return f"{text}{'' if text.endswith('*') else ' '}{name}{dimensions}"
