"""The body of one probe while it is compiled: its statements so far, its variables, and values put into places.

Expressions of a program have no effect (handlers/ir.py). What a script's expression does besides its value is emitted
as statements before the one that needs the value; a value that such a statement might change is kept first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ctype import Array, CType, Enum, Integer, Pointer, Struct, describe
from gdb_optprobe.handlers.ir import (
    WORD,
    Assign,
    Buffer,
    BytesLoad,
    Clock,
    Constant,
    Copy,
    Emit,
    Expr,
    Get,
    Literal,
    Load,
    Map,
    Op,
    Operand,
    Part,
    Records,
    Slice,
    Statement,
    StringLoad,
    Variable,
    nodes,
)
from gdb_optprobe.handlers.script.declared import Declared
from gdb_optprobe.handlers.script.place import Place, wrong
from gdb_optprobe.handlers.script.requests import Request
from gdb_optprobe.handlers.script.scope import HitScope
from gdb_optprobe.handlers.script.types import (
    INT64,
    NOTHING,
    Folded,
    Nothing,
    Text,
    Tuple,
    Type,
    bytes_in_c,
    bytes_of,
    is_integer,
    is_readable,
    is_word,
    plain,
    spelled,
)
from gdb_optprobe.handlers.script.values import (
    Data,
    Group,
    Inside,
    Memory,
    Value,
    Word,
    binary,
    columns,
    depends,
    element,
    from_slice,
    is_characters,
    loads,
    number,
    split,
)

MOST_STATEMENTS = 1 << 14
"""Of one probe: a journal of the guest may have a block, too."""


@dataclass(slots=True)
class Local:
    """A variable of the script. key: how `Declared.variables` knows it. fixed: its type was declared."""

    name: str
    key: tuple[int, Place]
    assigned: bool = False
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Site:
    """Where a body is compiled for.

    number:   of the probe in the script.
    name:     of the attach point, as `probe` says it. longest: that of the longest name among those of the probe.
    provider: its kind.
    hit:      what names mean there.
    """

    number: int
    name: str
    longest: int
    provider: str
    hit: HitScope


class Body:
    """Emits statements; makes words, bytes and operands of values."""

    def __init__(self, declared: Declared, site: Site) -> None:
        self.declared = declared
        self.site = site
        self.statements: list[Statement] = []
        self._made = self._emitted = 0
        self._scopes: list[dict[str, Local]] = [{}]
        self._closed: set[str] = set()
        self._read: dict[tuple[Map, tuple[Operand, ...]], Variable] = {}
        """What was read of maps since the last statement that has an effect."""

    # statements

    def emit(self, *statements: Statement) -> None:
        """Add statements. Raises OptprobeError where there are too many: what is unrolled, within what is unrolled."""
        self._emitted += len(statements)
        if self._emitted > MOST_STATEMENTS:
            raise OptprobeError("the program is too large", f"at most {MOST_STATEMENTS:,} statements, unrolled")
        self.statements += statements
        if not all(map(_only_reads, statements)):
            self._read.clear()

    @contextmanager
    def apart(self, repeated: bool = False) -> Iterator[list[Statement]]:
        """Collect what is emitted within in a list of its own. repeated: as the body of a loop."""
        before, self.statements = self.statements, []
        if repeated:
            self._read.clear()
        read = {**self._read}
        try:
            yield self.statements
        finally:
            self.statements = before
            # A hit may leave out what is within. What has an effect there counts where it is emitted.
            self._read = read

    def read_map(self, target: Map, by: tuple[Operand, ...]) -> Variable:
        """Return a variable with the word of a key: the one that has it already, or one that it is read into now."""
        known = self._read.get((target, by))
        if known is not None:
            return known
        into = self.variable()
        self.emit(Get(target, by, into))
        if not any(isinstance(node, Clock) for operand in by for node in nodes(operand)):
            self._read[target, by] = into
        return into

    def variable(self) -> Variable:
        """Return a new variable, which is given its value once."""
        self._made += 1
        return Variable(f"%{self._made}")

    def buffer(self, size: int) -> Slice:
        """Return a new buffer."""
        self._made += 1
        return Slice.whole(Buffer(f"%{self._made}", size))

    def ask(self, request: Request, values: Sequence[Value] = ()) -> None:
        """Emit the record of a request. values: its parts."""
        kind = self.declared.request(request)
        fields = tuple(
            operand for value, part in zip(values, request.parts, strict=True) for operand in self.operands(value, part)
        )
        shapes = tuple(column for part in request.parts for column in columns(part))
        self.emit(Emit(Records(f"{type(request).__name__.lower()} {kind}", shapes, kind=kind), fields))

    # variables of the script

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Open a block: variables first assigned in it are its own."""
        self._scopes.append({})
        try:
            yield
        finally:
            self._closed |= self._scopes.pop().keys()

    def widen(self, name: str) -> bool:
        """Give a variable of a block that has ended the whole probe, as bpftrace 0.17 has it. Return whether there was.

        A later version has an error there, so a script that runs with one means the same with either.
        """
        if name not in self._closed or self.declared.final:
            return False
        self.declared.wide.add((self.site.number, name))
        self.declared.changed = True
        return True

    def local(self, name: str) -> Local | None:
        """Return a variable of this block or one around it."""
        return next((found[name] for found in reversed(self._scopes) if name in found), None)

    def declare(self, name: str, where: Place, type_: Type | None = None, let: bool = True) -> Local:
        """Add a variable to this block. Raises OptprobeError if it has one of that name. let: it is declared so."""
        scope = self._scopes[-1 if let or (self.site.number, name) not in self.declared.wide else 0]
        if name in scope:
            raise wrong(f"Variable {name} was already declared", where)
        key = (self.site.number, where)
        if type_ is not None:
            self.declared.variables[key] = type_
        local = Local(f"{name[1:]}{len(self._scopes) - 1}.{where.number}.{where.start}", key, fixed=type_ is not None)
        scope[name] = local
        return local

    def type_of(self, local: Local) -> Type:
        return self.declared.variables.get(local.key, Nothing())

    def stored(self, local: Local) -> Variable | Slice:
        """Return where a variable's value is."""
        type_ = self.type_of(local)
        return Variable(local.name) if is_word(type_) else Slice.whole(Buffer(local.name, bytes_of(type_)))

    def read_local(self, local: Local) -> Value:
        type_, place = self.type_of(local), self.stored(local)
        return Word(type_, place) if isinstance(place, Variable) else from_slice(place, type_)

    def store(self, place: Variable | Slice, value: Value, type_: Type) -> None:
        """Emit what puts a value of a type into a place of its size."""
        if isinstance(place, Variable):
            (operand,) = self.operands(value, type_)
            self.emit(Assign(place, _expr(operand)))
        else:
            self.fill(place, value, type_)

    def fill(self, slice_: Slice, value: Value, type_: Type) -> None:
        """Emit what fills a slice with a value of a type."""
        match value:
            case Group(Tuple(), parts) if isinstance(type_, Tuple):
                # A part may be read from what is filled: `$t = ($t.1, $t.0)`.
                kept = [self.kept(part) for part in parts]
                at = slice_.offset
                for part, part_type in zip(kept, type_.parts, strict=True):
                    self.fill(Slice(slice_.buffer, at, bytes_of(part_type)), part, part_type)
                    at += bytes_of(part_type)
            case Data(Tuple() as given, Slice() as data) if isinstance(type_, Tuple) and given != type_:
                parts = tuple(element(data, given, at) for at in range(len(given.parts)))
                self.fill(slice_, Group(given, parts), type_)
            case Data(data=data):
                source: Operand = data
                if isinstance(data, Slice) and data.size > slice_.size:
                    source = Slice(data.buffer, data.offset, slice_.size)
                elif isinstance(data, Literal) and len(data.data) > slice_.size:
                    source = Literal(data.data[: slice_.size])
                elif isinstance(data, StringLoad) and data.size > slice_.size:
                    source = StringLoad(data.address, slice_.size, data.mapped, data.whole)
                self.emit(Copy(slice_, source))
            case Word(expr=expr):
                self.emit(Copy(slice_, expr))
            case _:
                self.fill(slice_, self.read(value), type_)

    def kept(self, value: Value) -> Value:
        """Return a value that no later statement changes."""
        match value:
            case Word(type_, expr) if depends(expr) and not _is_made(expr):
                variable = self.variable()
                self.emit(Assign(variable, expr))
                return Word(type_, variable)
            case Data(type_, Slice() as data) if not data.buffer.name.startswith("%"):
                buffer = self.buffer(data.size)
                self.emit(Copy(buffer, data))
                return Data(type_, buffer)
            case Data(type_, StringLoad(address) as data) if depends(address):
                kept = self.kept(Word(NOTHING, address))
                assert isinstance(kept, Word)
                return Data(type_, replace(data, address=kept.expr))
            case Group(type_, parts):
                return Group(type_, tuple(map(self.kept, parts)))
            case Inside(_, buffer) if not buffer.name.startswith("%"):
                return self.kept(self.read(value))
        return value

    # values

    def read(self, value: Value) -> Word | Data | Group:
        """Return the value of an object: a word, or bytes."""
        match value:
            case Memory():
                return self._loaded(value)
            case Inside():
                return self._taken(value)
        return value

    def _loaded(self, place: Memory) -> Word | Data:
        type_, address, mapped = place.type, place.address, place.mapped
        if isinstance(type_, Integer | Enum | Pointer):
            if place.unit is not None:
                size, shift = place.unit
                raw = binary(Op.SHR, Load(address, size, False, mapped), fold.constant(shift))
                return Word(plain(type_), _extended(raw, type_))
            signed = not isinstance(type_, Pointer) and type_.signed
            return Word(plain(type_), Load(address, bytes_in_c(type_), signed, mapped))
        if isinstance(type_, Array) and is_characters(type_):
            return Data(Text(type_.count), StringLoad(address, type_.count, mapped, whole=True))
        size = bytes_in_c(type_) if isinstance(type_, Array | Struct) else 0
        if not size:
            raise _unreadable(type_)
        buffer = self.buffer(bytes_of(type_))
        self.emit(Copy(buffer, BytesLoad(address, size, mapped)))
        return Data(type_, buffer)

    def _taken(self, place: Inside) -> Word | Data:
        type_, buffer, offset = place.type, place.buffer, place.offset
        if isinstance(type_, Integer | Enum | Pointer):
            if place.unit is not None:
                size, shift = place.unit
                raw = binary(Op.SHR, Part(buffer, offset, size), fold.constant(shift))
                return Word(plain(type_), _extended(raw, type_))
            signed = not isinstance(type_, Pointer) and type_.signed
            return Word(plain(type_), Part(buffer, offset, bytes_in_c(type_), signed))
        size = bytes_in_c(type_) if isinstance(type_, Array | Struct) else 0
        if not size:
            raise _unreadable(type_)
        into = self.buffer(bytes_of(type_))
        at = 0
        while at < size:
            word: Expr = Constant(0)
            filled = 0
            for width in loads(min(size - at, WORD)):
                part = Part(buffer, offset + at + filled, width)
                word = binary(Op.OR, word, binary(Op.SHL, part, fold.constant(8 * filled)))
                filled += width
            self.emit(Copy(Slice(into.buffer, at, WORD), word))
            at += WORD
        if isinstance(type_, Array) and is_characters(type_):
            return Data(Text(type_.count), into)
        return Data(type_, into)

    def word(self, value: Value, where: Place) -> Word:
        """Return a value that is one word. Raises OptprobeError, pointing, for any other."""
        found = self.read(value)
        if isinstance(found, Word):
            return found
        raise wrong(f"'{where.text}' is no number but '{spelled(found.type)}'", where)

    def integer(self, value: Value, where: Place) -> Word:
        """Return a number: an integer, or what an aggregate amounts to. Raises OptprobeError, pointing."""
        found = self.word(value, where)
        if isinstance(found.type, Folded) and is_readable(found.type):
            return Word(self.number_type(found.type), found.expr)
        if is_integer(found.type) or (isinstance(found.type, Nothing) and not self.declared.final):
            return found if is_integer(found.type) else number(0)
        raise wrong(f"'{where.text}' is no number but '{spelled(found.type)}'", where)

    def number_type(self, type_: Folded) -> Type:
        """Return the type of the number that an aggregate amounts to."""
        from_ = type_.aggregate
        signed = getattr(from_, "signed", True)
        return INT64 if signed else plain(Integer("", WORD, False))

    def slice_of(self, value: Value, type_: Type | None = None) -> Slice:
        """Return a buffer that has the value, as bytes of the type."""
        found = self.read(value)
        type_ = type_ or found.type
        if isinstance(found, Data) and isinstance(found.data, Slice) and found.type == type_:
            return found.data
        buffer = self.buffer(bytes_of(type_))
        self.fill(buffer, found, type_)
        return buffer

    def bytes(self, value: Value) -> Slice | Literal:
        """Return the bytes of a text."""
        found = self.read(value)
        if isinstance(found, Data) and not isinstance(found.data, StringLoad):
            return found.data
        return self.slice_of(found)

    def operands(self, value: Value, type_: Type) -> tuple[Operand, ...]:
        """Return what fills the columns of a type."""
        found = self.read(value)
        if isinstance(type_, Tuple):
            if isinstance(found, Group):
                pairs = zip(found.parts, type_.parts, strict=True)
                return tuple(operand for part, part_type in pairs for operand in self.operands(part, part_type))
            if isinstance(found, Data) and isinstance(found.data, Slice):
                given = found.type
                assert isinstance(given, Tuple)
                if given == type_:
                    return split(found.data, type_)
                parts = tuple(element(found.data, given, at) for at in range(len(given.parts)))
                return self.operands(Group(given, parts), type_)
        if isinstance(found, Word):
            return (found.expr,)
        assert isinstance(found, Data)
        size, data = bytes_of(type_), found.data
        match data:
            case Literal() if len(data.data) <= size:
                return (_as_word(Literal.text(data.data, size)),)
            case Slice() if data.size == size:
                return (_as_word(data),)
            case StringLoad() if -(-data.size // WORD) * WORD == size:
                return (data,)
        buffer = self.buffer(size)
        self.fill(buffer, found, type_)
        return (_as_word(buffer),)

    def stored_operands(self, value: Value, type_: Type) -> tuple[Operand, ...]:
        """Return what a map stores: a text in memory is read first where it would be all of the value."""
        found = self.operands(value, type_)
        if len(found) == 1 and isinstance(found[0], StringLoad):
            buffer = self.buffer(bytes_of(type_))
            self.emit(Copy(buffer, found[0]))
            return (_as_word(buffer),)
        return found


def _extended(word: Expr, type_: Integer | Enum | Pointer) -> Expr:
    assert not isinstance(type_, Pointer)
    return fold.convert(word, type_.width, type_.signed)


def _as_word(data: Slice | Literal) -> Operand:
    """Return bytes of one word as that word."""
    if isinstance(data, Slice):
        return Part(data.buffer, data.offset) if data.size == WORD else data
    return Constant(int.from_bytes(data.data, "little")) if len(data.data) == WORD else data


def _is_made(expr: Expr) -> bool:
    return isinstance(expr, Variable) and expr.name.startswith("%")


def _only_reads(statement: Statement) -> bool:
    """Return whether a statement has no effect but that a variable of the compiler gets its value."""
    match statement:
        case Assign(Variable() as into) | Get(into=Variable() as into):
            return _is_made(into)
        case _:
            return False


def _expr(operand: Operand) -> Expr:
    assert not isinstance(operand, StringLoad | BytesLoad | Slice | Literal)
    return operand


def _unreadable(type_: CType) -> OptprobeError:
    return OptprobeError(f"a value of type '{describe(type_)}' cannot be read", "read one of its members")
