"""Type the expressions of a script and turn them into words and bytes of a program.

Integers are bpftrace's: 64 bits, division unsigned, shifts logical, a comparison signed only if both sides are.
"""

from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.handlers import fold, strings
from gdb_optprobe.handlers.ctype import Array, Enum, Integer, Pointer, Struct, Void
from gdb_optprobe.handlers.ctype import Member as StructMember
from gdb_optprobe.handlers.ir import (
    WORD,
    Assign,
    Clock,
    Constant,
    Copy,
    Expr,
    Get,
    If,
    Literal,
    Map,
    Modify,
    Op,
    Operand,
    Part,
    Slice,
    StringLoad,
    UnaryOp,
    Variable,
    nodes,
)
from gdb_optprobe.handlers.scope import Lvalue, Missing, Rvalue
from gdb_optprobe.handlers.script import tree
from gdb_optprobe.handlers.script.body import Body
from gdb_optprobe.handlers.script.place import Place, wrong
from gdb_optprobe.handlers.script.scope import Known, Meaning
from gdb_optprobe.handlers.script.types import (
    INT64,
    NOTHING,
    UINT32,
    UINT64,
    Folded,
    Nothing,
    Symbol,
    Text,
    Tuple,
    Type,
    UserName,
    as_key,
    bytes_in_c,
    bytes_of,
    integer,
    is_integer,
    is_readable,
    is_signed,
    is_word,
    larger,
    plain,
    same_kind,
    size_in_c,
    spelled,
)
from gdb_optprobe.handlers.script.types import Stack as StackType
from gdb_optprobe.handlers.script.values import (
    Data,
    Group,
    Inside,
    Memory,
    Value,
    Word,
    added,
    binary,
    columns,
    element,
    from_slice,
    is_characters,
    narrowed,
    number,
    same_text,
    size_or,
    text,
)
from gdb_optprobe.handlers.stack_walk import Walk
from gdb_optprobe.handlers.types import member_of

BUILTINS: dict[str, Type | None] = {
    "pid": UINT32, "tid": UINT32, "cpid": UINT32,
    "uid": UINT64, "gid": UINT64, "nsecs": UINT64, "elapsed": UINT64, "cpu": UINT64, "numaid": UINT64,
    "rand": UINT64, "cgroup": UINT64, "jiffies": UINT64, "retval": None, "comm": None, "curtask": None, "ctx": None,
    "args": None, "func": None, "probe": None, "kstack": None, "ustack": None, "username": None,
    **{f"arg{number}": UINT64 for number in range(10)}, **{f"sarg{number}": UINT64 for number in range(10)},
}  # fmt: skip
"""Built-in variables and their types; None where that depends on the probe."""
DEPTH = 127
_ARITHMETIC = {
    "+": Op.ADD, "-": Op.SUB, "*": Op.MUL, "/": Op.UDIV, "%": Op.UMOD, "&": Op.AND, "|": Op.OR, "^": Op.XOR,
    "<<": Op.LSHL, ">>": Op.LSHR,
}  # fmt: skip
_COMPARISONS = {"==": Op.EQ, "!=": Op.NE, "<": Op.LT, "<=": Op.LE, ">": Op.GT, ">=": Op.GE}
_TRUTHS = {"false": 0, "true": 1}
"""Enumerators of the kernel's, which scripts may use without one."""


class Expressions(Body):
    """Every method raises OptprobeError, pointing."""

    def call(self, node: tree.Call) -> Value:
        """Return the value of a function, and emit what else it does."""
        raise NotImplementedError

    def value(self, node: tree.Expression) -> Value:
        """Return the value of an expression, and emit what else it does."""
        match node:
            case tree.Number(_, given):
                unsigned = not node.negative and given >> 31 > 0
                return Word(UINT64 if unsigned else INT64, fold.constant(given), literal=True)
            case tree.String(_, data):
                return text(data)
            case tree.Parameter():
                return self._parameter(node)
            case tree.Name():
                return self._named(node)
            case tree.Variable(where, name):
                local = self.local(name)
                if local is None and not self.widen(name):
                    raise wrong(f"Undefined or undeclared variable: {name}", where)
                return Word(NOTHING, Constant(0)) if local is None else self.read_local(local)
            case tree.Map():
                return self._map_value(node)
            case tree.Call():
                return self.call(node)
            case tree.Unary():
                return self._unary(node)
            case tree.Step():
                return self._step(node)
            case tree.Binary():
                return self._binary(node)
            case tree.Conditional():
                return self._conditional(node)
            case tree.Member():
                return self._member(node)
            case tree.Element():
                return self._element(node)
            case tree.Index():
                return self._index(node)
            case tree.Tuple():
                return self._tuple(node)
            case tree.Cast():
                return self._cast(node)
            case tree.SizeOf(where, thing):
                size = size_in_c(self._type_of(thing))
                if size is None:
                    raise wrong(f"the size of '{thing.where.text}' is not known", where)
                return Word(UINT64, fold.constant(size), literal=True)
            case tree.OffsetOf():
                return self._offset(node)

    def several(self, nodes: Sequence[tree.Expression]) -> tuple[Value, ...]:
        """Return the values of expressions, each as it is before those behind it do something."""
        found: list[Value] = []
        for node in nodes:
            with self.apart() as later:
                value = self.read(self.value(node))
            if later:
                found = [self.kept(each) for each in found]
            self.emit(*later)
            found.append(value)
        return tuple(found)

    def truth(self, node: tree.Expression, what: str) -> Expr:
        """Return a condition: a word that is not 0 if it holds."""
        return self.condition(self.value(node), node.where, what)

    def condition(self, value: Value, where: Place, what: str) -> Expr:
        found = self.read(value)
        type_ = found.type
        if isinstance(found, Word) and (is_integer(type_) or isinstance(type_, Pointer) or is_readable(type_)):
            return found.expr
        if isinstance(type_, Nothing) and not self.declared.final:
            return Constant(0)
        raise wrong(f"Invalid condition in {what}: {spelled(type_)}", where, "a number or a pointer")

    # names

    def _parameter(self, node: tree.Parameter) -> Word:
        given = self.declared.parameters
        if node.number == 0:
            return Word(INT64, fold.constant(len(given)), literal=True)
        if node.number > len(given):
            return Word(INT64, Constant(0), literal=True)
        value = whole_number(given[node.number - 1])
        if value is None:
            message = f"${node.number} is used as a number, but it is \"{given[node.number - 1]}\""
            raise wrong(message, node.where, f"str(${node.number})")
        return Word(INT64 if value < 1 << 63 else UINT64, fold.constant(value), literal=True)

    def _named(self, node: tree.Name) -> Value:
        name, where = node.name, node.where
        match name:
            case "args":
                raise wrong("args has no value of its own", where, "args.NAME is one of its fields")
            case "func":
                found = self.site.hit.function()
                if isinstance(found, Missing):
                    raise wrong(found.message, where, found.hint)
                return self.user_symbol(*found) if isinstance(found, tuple) else Word(Symbol(False), found)
            case "probe":
                longest = bytes_of(Text(self.site.longest + 1))
                return Data(Text(self.site.longest + 1), Literal.text(self.site.name.encode(), longest))
            case "kstack" | "ustack":
                return self.stack(name == "ustack", self.declared.settings.stack_mode, DEPTH, where)
            case "username":
                return Word(UserName(), self.integer(self.builtin("uid", where), where).expr)
        if name in BUILTINS:
            return self.builtin(name, where)
        known = self.declared.enumerators.get(name) or self.declared.kernel.constant(name)
        known = _TRUTHS.get(name) if known is None else known
        if known is None:
            hint = "no built-in variable, enumerator or constant has this name"
            raise wrong(f"Unknown identifier: '{name}'", where, hint)
        value, type_ = known if isinstance(known, tuple) else (known, None)
        if isinstance(type_, Enum):
            return Word(Enum(type_.name, WORD, value < 0, type_.enumerators), fold.constant(value), literal=True)
        return Word(number(value).type, fold.constant(value), literal=True)

    def user_symbol(self, address: Expr, of: Expr) -> Data:
        """Return a program's address that is shown as a name. of: see types.Symbol."""
        buffer = self.buffer(bytes_of(Symbol(True)))
        self.emit(Copy(Slice(buffer.buffer, 0, WORD), address), Copy(Slice(buffer.buffer, WORD, WORD), of))
        return Data(Symbol(True), buffer)

    def builtin(self, name: str, where: Place) -> Value:
        """Return a built-in variable that the probe's scope has."""
        if name.startswith("arg") and name[3:].isdecimal():
            found: Meaning | Missing = self.site.hit.argument(int(name[3:]))
        else:
            found = self.site.hit.builtin(name)
        if isinstance(found, Missing):
            raise wrong(found.message, where, found.hint)
        value = self._meant(found)
        type_ = BUILTINS.get(name)
        if type_ is None or not isinstance(type_, Integer):
            return value
        word = self.integer(value, where)
        return Word(type_, fold.convert(word.expr, type_.width, False) if type_.size < WORD else word.expr)

    def _meant(self, found: Meaning) -> Value:
        match found:
            case Rvalue(expr, type_, mapped):
                if isinstance(type_, Pointer) and isinstance(type_.target, Struct):
                    # The script may have a struct of its own of that name.
                    own = self.declared.structs.get(("struct", type_.target.name))
                    type_ = Pointer(own) if own is not None else type_
                if Clock() in nodes(expr):
                    now = self.variable()
                    self.emit(Assign(now, expr))
                    return Word(plain(type_), now)
                return Word(plain(type_), expr, mapped=mapped)
            case Lvalue(address, type_, mapped, _, unit):
                return Memory(type_ or Void(), address, mapped, unit)
            case Known(operand, size):
                return Data(Text(size), operand)

    def stack(self, user: bool, mode: str, depth: int, where: Place) -> Value:
        """Return a stack, as the words of which the host makes frames."""
        found = self.walked(user, depth, where)
        type_ = StackType(user, mode, depth, len(found.words))
        buffer = self.buffer(bytes_of(type_))
        for at, word in enumerate(found.words):
            self.emit(Copy(Slice(buffer.buffer, WORD * at, WORD), word))
        return Data(type_, buffer)

    def walked(self, user: bool, depth: int, where: Place) -> Walk:
        """Emit what walks a stack, and return where its words are."""
        found = self.site.hit.stack(user, depth)
        if isinstance(found, Missing):
            raise wrong(found.message, where, found.hint)
        self.emit(*found.statements)
        return found

    # maps

    def map_of(self, name: str) -> Map:
        """Return the map of the program. Its types are known in the last walk."""
        found = self.declared.map(name)
        key = columns(found.key) if found.key is not None and not isinstance(found.key, Nothing) else ()
        value = found.value.aggregate if isinstance(found.value, Folded) else columns(found.value)
        return Map(name[1:], key, value, self.declared.settings.max_map_keys)

    def key_of(self, node: tree.Map, kept: bool = False) -> tuple[Operand, ...]:
        """Return the key of a map, as its columns. kept: no later statement changes it."""
        if node.key is None:
            self.declared.key_given(node.name, NOTHING, node.where)
            return ()
        value = self.read(self.value(node.key))
        return self.key(node.name, self.kept(value) if kept else value, node.where)

    def key(self, name: str, value: Value, where: Place) -> tuple[Operand, ...]:
        """Return a value as the key of a map."""
        found = self._without_folded(self.read(value))
        if isinstance(found.type, Folded | Nothing) and self.declared.final:
            raise wrong(f"'{spelled(found.type)}' cannot be used as a map key", where)
        if isinstance(found.type, Nothing):
            return ()
        return self.operands(found, self.declared.key_given(name, as_key(found.type), where))

    def _without_folded(self, value: Value) -> Value:
        """Return a value with numbers in the place of aggregates."""
        if isinstance(value, Word) and isinstance(value.type, Folded) and is_readable(value.type):
            return Word(self.number_type(value.type), value.expr)
        if isinstance(value, Group):
            parts = tuple(map(self._without_folded, value.parts))
            return Group(Tuple(tuple(part.type for part in parts)), parts)
        return value

    def _map_value(self, node: tree.Map) -> Value:
        by = self.key_of(node)
        type_ = self.declared.map(node.name).value
        if isinstance(type_, Nothing):
            if self.declared.final:
                raise wrong(f"Undefined map: {node.name}", node.where)
            return Word(NOTHING, Constant(0))
        if isinstance(type_, Folded) and not is_readable(type_):
            return Word(type_, Constant(0))
        if is_word(type_):
            return Word(type_, self.read_map(self.map_of(node.name), by))
        buffer = self.buffer(bytes_of(type_))
        self.emit(Get(self.map_of(node.name), by, buffer))
        return from_slice(buffer, type_)

    # operators

    def _unary(self, node: tree.Unary) -> Value:
        if node.op == "*":
            return self._pointed_to(self.value(node.value), node.where, node.value.where)
        found = self.read(self.value(node.value))
        if node.op == "!" and isinstance(found, Word) and isinstance(found.type, Pointer):
            return Word(UINT64, fold.negation(found.expr))
        if not isinstance(found, Word) or not (is_integer(found.type) or is_readable(found.type)):
            if isinstance(found.type, Nothing) and not self.declared.final:
                return Word(INT64, Constant(0))
            message = f"The {node.op} operator can not be used on expressions of type '{spelled(found.type)}'"
            raise wrong(message, node.where)
        word = self.integer(found, node.where)
        if node.op == "!":
            return Word(integer(_size(word.type), False), fold.negation(word.expr))
        op = UnaryOp.NEGATE if node.op == "-" else UnaryOp.INVERT
        # The bits of the operand alone count, and the result has 64 of the same sign, as in bpftrace.
        found_ = narrowed(fold.unary(op, word.expr, 64, is_signed(word.type)), word.type)
        return Word(integer(8, is_signed(word.type)), found_)

    def _pointed_to(self, value: Value, where: Place, of: Place) -> Value:
        found = self.read(value)
        if isinstance(found, Word) and isinstance(found.type, Pointer):
            if isinstance(found.type.target, Void):
                raise wrong(f"'{of.text}' points to nothing of a known type", of, f"cast it: *(uint64 *){of.text}")
            return Memory(found.type.target, found.expr, found.mapped)
        if isinstance(found, Word) and is_integer(found.type):
            return Memory(UINT64, found.expr)
        if isinstance(found.type, Nothing) and not self.declared.final:
            return Word(NOTHING, Constant(0))
        if isinstance(found.type, Struct):
            raise wrong(f"'{of.text}' is no pointer but '{spelled(found.type)}'", of)
        raise wrong(f"The * operator can not be used on expressions of type '{spelled(found.type)}'", where)

    def _step(self, node: tree.Step) -> Value:
        target = node.target
        old, new = self.variable(), self.variable()
        if isinstance(target, tree.Map):
            by = self.key_of(target)
            if isinstance(self.declared.map(target.name).value, Nothing):
                self.declared.value_given(target.name, INT64, node.where)
            type_ = self.declared.map(target.name).value
            step = self._one(type_, node.where)
            self.emit(Modify(self.map_of(target.name), by, Op.ADD, fold.constant(node.by * step), old, new))
        else:
            local = self.local(target.name)
            if local is None:
                raise wrong(f"Undefined or undeclared variable: {target.name}", target.where)
            type_ = self.type_of(local)
            step = self._one(type_, node.where)
            place = self.stored(local)
            assert isinstance(place, Variable)
            self.emit(Assign(old, place))
            after = binary(Op.ADD, old, fold.constant(node.by * step))
            self.emit(Assign(new, narrowed(after, type_)), Assign(place, new))
        whole = integer(8, is_signed(type_)) if is_integer(type_) else type_
        return Word(whole, old if node.post else new)

    def _one(self, type_: Type, where: Place) -> int:
        """Return what `++` adds."""
        if isinstance(type_, Pointer):
            return size_or(type_.target)
        if is_integer(type_) or (isinstance(type_, Nothing) and not self.declared.final):
            return 1
        raise wrong(f"The ++ operator can not be used on expressions of type '{spelled(type_)}'", where)

    def _binary(self, node: tree.Binary) -> Value:
        if node.op in ("&&", "||"):
            return self._logical(node)
        left, right = self.several((node.left, node.right))
        return self.operated(node.op, left, right, node)

    def operated(self, op: str, left: Value, right: Value, node: tree.Binary) -> Value:
        """Return the value of an operator but && and ||."""
        one, other = left.type, right.type
        unknown = isinstance(one, Nothing) or isinstance(other, Nothing)
        if isinstance(left, Word) and isinstance(right, Word):
            if isinstance(one, Pointer) or isinstance(other, Pointer):
                return self._with_pointer(op, left, right, node)
            numbers = all(is_integer(type_) or is_readable(type_) for type_ in (one, other))
            if numbers or (unknown and not self.declared.final):
                left_, right_ = self.integer(left, node.left.where), self.integer(right, node.right.where)
                return self._computed(op, left_, right_, node)
        if unknown and not self.declared.final:
            return Word(INT64, Constant(0))
        if op not in ("==", "!="):
            message = f"The {op} operator can not be used on expressions of types {spelled(one)}, {spelled(other)}"
            raise wrong(message, node.where)
        if not same_kind(one, other) or isinstance(one, Tuple | Struct | Folded):
            message = f"Type mismatch for '{op}': comparing '{spelled(one)}' with '{spelled(other)}'"
            raise wrong(message, node.where)
        equal = self._equal(left, right, node)
        return Word(INT64, fold.negation(equal) if op == "!=" else equal)

    def _computed(self, op: str, left: Word, right: Word, node: tree.Binary) -> Word:
        signed = is_signed(left.type) and is_signed(right.type)
        mixed = is_signed(left.type) != is_signed(right.type)
        if mixed and not any(each.literal and is_signed(each.type) and not _negative(each) for each in (left, right)):
            kind = "comparison of" if op in _COMPARISONS else "arithmetic on"
            if op in _COMPARISONS or op in "+-*/%":
                types = f"'{spelled(left.type)}' and '{spelled(right.type)}'"
                message = f"{kind} integers of different signs: {types} can lead to undefined behavior"
                self.declared.warn(str(wrong(message, node.sign).message))
        size = max(_size(left.type), _size(right.type))
        if op in _COMPARISONS:
            found = binary(_COMPARISONS[op], left.expr, right.expr, signed)
            return Word(integer(size, signed), found)
        if op in ("<<", ">>"):
            signed = is_signed(left.type)
        type_ = integer(size, signed)
        return Word(type_, narrowed(binary(_ARITHMETIC[op], left.expr, right.expr), type_))

    def _with_pointer(self, op: str, left: Word, right: Word, node: tree.Binary) -> Word:
        if op in _COMPARISONS:
            return Word(UINT64, binary(_COMPARISONS[op], left.expr, right.expr))
        pointer, other = (left, right) if isinstance(left.type, Pointer) else (right, left)
        if op not in "+-" or not is_integer(other.type) or (op == "-" and pointer is right):
            types = f"{spelled(left.type)}, {spelled(right.type)}"
            raise wrong(f"The {op} operator can not be used on expressions of types {types}", node.where)
        assert isinstance(pointer.type, Pointer)
        distance = binary(Op.MUL, other.expr, fold.constant(size_or(pointer.type.target)))
        return Word(pointer.type, binary(Op.ADD if op == "+" else Op.SUB, pointer.expr, distance))

    def _equal(self, left: Value, right: Value, node: tree.Binary) -> Expr:
        """Return 1 if two values of one kind that are no numbers are equal."""
        if isinstance(left, Word) and isinstance(right, Word):
            return binary(Op.EQ, left.expr, right.expr)
        if isinstance(left.type, Text):
            for one, other in ((left, right), (right, left)):
                if isinstance(one, Data) and isinstance(other, Data) and isinstance(one.data, StringLoad):
                    found = self._equals_literal(one.data, other.data, node.where)
                    if found is not None:
                        return found
            return same_text(self.bytes(left), self.bytes(right))
        slices = self.slice_of(left), self.slice_of(right)
        same: Expr = Constant(1)
        for at in range(0, max(each.size for each in slices), WORD):
            first, second = (Part(each.buffer, each.offset + at) if at < each.size else Constant(0) for each in slices)
            same = fold.both(same, binary(Op.EQ, first, second))
        return same

    def _equals_literal(self, loaded: StringLoad, other: Operand, where: Place) -> Expr | None:
        """Compare a text in memory with a constant without copying it; None if the other one is no constant."""
        if not isinstance(other, Literal):
            return None
        wanted = other.data.partition(b"\0")[0]
        if len(wanted) > loaded.size:
            return Constant(0)
        size = loaded.size if loaded.whole else None
        if size is None and len(wanted) == loaded.size:
            return None  # what is in memory may be longer
        return strings.equals(strings.StringValue(loaded.address, size, loaded.mapped), wanted, where)

    def _logical(self, node: tree.Binary) -> Word:
        what = f"'{node.op}'"
        left = self.truth(node.left, what)
        with self.apart() as later:
            right = self.truth(node.right, what)
        both = node.op == "&&"
        if not later:
            return Word(INT64, fold.both(left, right) if both else fold.either(left, right))
        result = self.variable()
        decided = Assign(result, fold.boolean(right))
        first = fold.boolean(left)
        self.emit(Assign(result, first))
        taken = (*later, decided)
        self.emit(If(result, taken) if both else If(result, (), taken))
        return Word(INT64, result)

    def _conditional(self, node: tree.Conditional) -> Value:
        condition = self.truth(node.condition, "ternary")
        with self.apart() as first:
            yes = self._without_folded(self.read(self.value(node.yes)))
        with self.apart() as second:
            no = self._without_folded(self.read(self.value(node.no)))
        one, other = yes.type, no.type
        if not same_kind(one, other) and not (
            not self.declared.final and (isinstance(one, Nothing) or isinstance(other, Nothing))
        ):
            message = f"Ternary operator must return the same type: have '{spelled(one)}' and '{spelled(other)}'"
            raise wrong(message, node.where)
        if isinstance(yes, Word) and isinstance(no, Word):
            type_ = integer(8, is_signed(one)) if isinstance(one, Integer) else one
            if not first and not second:
                return Word(type_, fold.choose(condition, yes.expr, no.expr))
            if isinstance(one, Nothing):
                self.emit(If(condition, tuple(first), tuple(second)))
                return Word(NOTHING, Constant(0))
            into = self.variable()
            blocks = ((*first, Assign(into, yes.expr)), (*second, Assign(into, no.expr)))
            self.emit(If(condition, *blocks))
            return Word(type_, into)
        type_ = larger(one, other)
        buffer = self.buffer(bytes_of(type_))
        sides = []
        for before, value in ((first, yes), (second, no)):
            with self.apart() as side:
                self.emit(*before)
                self.fill(buffer, value, type_)
            sides.append(tuple(side))
        self.emit(If(condition, sides[0], sides[1]))
        return from_slice(buffer, type_)

    # structs, arrays, tuples

    def _tuple(self, node: tree.Tuple) -> Group:
        parts = tuple(self._without_folded(each) for each in self.several(node.items))
        for part, item in zip(parts, node.items, strict=True):
            if isinstance(part.type, Nothing | Folded) and self.declared.final:
                raise wrong(f"a tuple cannot hold '{spelled(part.type)}'", item.where)
        return Group(Tuple(tuple(part.type for part in parts)), parts)

    def _element(self, node: tree.Element) -> Value:
        found = self.read(self.value(node.thing))
        if isinstance(found.type, Nothing) and not self.declared.final:
            return Word(NOTHING, Constant(0))
        if not isinstance(found.type, Tuple):
            message = f"Can not access index {node.number} on expression of type '{spelled(found.type)}'"
            raise wrong(message, node.where)
        if node.number >= len(found.type.parts):
            size = len(found.type.parts)
            raise wrong(f"Invalid tuple index: {node.number}. Found {size} elements in tuple", node.where)
        if isinstance(found, Group):
            return found.parts[node.number]
        assert isinstance(found, Data) and isinstance(found.data, Slice)
        return element(found.data, found.type, node.number)

    def _member(self, node: tree.Member) -> Value:
        if isinstance(node.thing, tree.Name) and node.thing.name == "args":
            found = self.site.hit.field(node.name)
            if isinstance(found, Missing):
                raise wrong(found.message, node.where, found.hint)
            return self._meant(found)
        thing = self.value(node.thing)
        if node.arrow:
            thing = self._pointed_to(thing, node.where, node.thing.where)
        type_ = thing.type
        if isinstance(type_, Nothing) and not self.declared.final:
            return Word(NOTHING, Constant(0))
        if isinstance(type_, Pointer):
            message = f"Can not access field '{node.name}' on type '{spelled(type_)}'"
            raise wrong(message, node.where, f"{node.thing.where.text}->{node.name}")
        if not isinstance(type_, Struct):
            raise wrong(f"Can not access field '{node.name}' on expression of type '{spelled(type_)}'", node.where)
        return _part(thing, type_, self._member_of(type_, node.name, node.where), node.where)

    def _member_of(self, struct: Struct, name: str, where: Place) -> StructMember:
        member = struct.lookup(name)
        if member is None:
            names = struct.names()
            hint = f"it has: {', '.join(names[:8])}" if names else "the type information has no members of it"
            message = f"Struct/union of type '{spelled(struct)}' does not contain a field named '{name}'"
            raise wrong(message, where, hint)
        return member

    def _index(self, node: tree.Index) -> Value:
        array = self.value(node.array)
        index = self.integer(self.value(node.index), node.index.where)
        type_ = array.type
        known = index.expr.value if isinstance(index.expr, Constant) else None
        if isinstance(type_, Array):
            if known is not None and type_.count and known >= type_.count:
                message = f"the index {known} is out of bounds for array of size {type_.count}"
                raise wrong(message, node.where)
            size = size_or(type_.element)
            if isinstance(array, Memory):
                offset = binary(Op.MUL, index.expr, fold.constant(size))
                inside = known is not None and known < type_.count
                return Memory(type_.element, binary(Op.ADD, array.address, offset), array.mapped and inside)
            array = array if isinstance(array, Inside) else self._inside(array)
            if known is not None:
                return Inside(type_.element, array.buffer, array.offset + known * size)
            if isinstance(type_.element, Integer | Enum | Pointer):
                signed = not isinstance(type_.element, Pointer) and type_.element.signed
                return Word(plain(type_.element), Part(array.buffer, array.offset, size, signed, index.expr))
            raise wrong("The array index operator [] only accepts literal integer indices.", node.where)
        if isinstance(type_, Pointer) and isinstance(found := self.read(array), Word):
            if isinstance(type_.target, Void):
                raise wrong("a pointer to void has no elements", node.where, "cast it: (uint8 *)")
            offset = binary(Op.MUL, index.expr, fold.constant(size_or(type_.target)))
            return Memory(type_.target, binary(Op.ADD, found.expr, offset))
        if isinstance(type_, Nothing) and not self.declared.final:
            return Word(NOTHING, Constant(0))
        message = "The array index operator [] can only be used on arrays and pointers"
        raise wrong(f"{message}, found {spelled(type_)}.", node.where)

    def _inside(self, value: Value) -> Inside:
        slice_ = self.slice_of(value)
        assert isinstance(value.type, Array | Struct)
        return Inside(value.type, slice_.buffer, slice_.offset)

    # types

    def _type_of(self, thing: tree.Expression | tree.TypeName) -> Type:
        if isinstance(thing, tree.TypeName):
            return self.declared.resolve(thing)
        with self.apart():
            return self.value(thing).type

    def _offset(self, node: tree.OffsetOf) -> Word:
        type_ = self._type_of(node.thing)
        offset = 0
        for name in node.members:
            if not isinstance(type_, Struct):
                raise wrong(f"'{spelled(type_)}' has no member '{name}'", node.where)
            member = self._member_of(type_, name, node.where)
            offset, type_ = offset + member.offset, member.type
        return Word(UINT64, fold.constant(offset), literal=True)

    def _cast(self, node: tree.Cast) -> Value:
        type_ = self.declared.resolve(node.type)
        value = self.value(node.value)
        if isinstance(type_, Array):
            return self._as_array(type_, value, node)
        if not isinstance(type_, Integer | Enum | Pointer):
            raise wrong(f'Cannot cast to "{spelled(type_)}"', node.where, "cast to an integer, or to a pointer to it")
        if isinstance(value.type, Array) and not is_characters(value.type):
            return self._from_array(type_, value, node)
        found = self.read(value)
        if isinstance(found.type, Nothing) and not self.declared.final:
            return Word(type_, Constant(0))
        castable = isinstance(found, Word) and (
            is_integer(found.type) or isinstance(found.type, Pointer) or is_readable(found.type)
        )
        if not castable:
            raise wrong(f'Cannot cast from "{spelled(found.type)}" to "{spelled(type_)}"', node.where)
        assert isinstance(found, Word)
        if isinstance(type_, Pointer):
            return Word(type_, found.expr)
        if isinstance(type_, Integer) and type_.boolean:
            return Word(type_, fold.boolean(found.expr), found.literal)
        if isinstance(type_, Enum):
            known = type_.enumerators()
            if found.literal and isinstance(found.expr, Constant) and known and found.expr.value not in known:
                message = f"Enum: {type_.name} doesn't contain a variant value of {found.expr.value}"
                raise wrong(message, node.value.where)
        # More bits are filled by the sign of the type that is cast to, as bpftrace does it, not of the one cast from.
        width = min(8 * _size(found.type), type_.width)
        widened = fold.convert(found.expr, width, type_.signed) if width < type_.width else found.expr
        return Word(plain(type_), fold.convert(widened, type_.width, type_.signed), found.literal)

    def _as_array(self, type_: Array, value: Value, node: tree.Cast) -> Data:
        word = self.integer(value, node.value.where)
        size = size_or(type_.element)
        if not type_.count:
            type_ = Array(type_.element, _size(word.type) // size)
        if not isinstance(type_.element, Integer) or size * type_.count != _size(word.type):
            raise wrong(f'Cannot cast from "{spelled(word.type)}" to "{spelled(type_)}"', node.where)
        buffer = self.buffer(WORD)
        self.emit(Copy(buffer, word.expr))
        return Data(type_, buffer)

    def _from_array(self, type_: Integer | Enum | Pointer, value: Value, node: tree.Cast) -> Word:
        size = bytes_in_c(type_)
        if isinstance(type_, Pointer) or size_in_c(value.type) != size:
            raise wrong(f'Cannot cast from "{spelled(value.type)}" to "{spelled(type_)}"', node.where)
        if isinstance(value, Memory):
            loaded = self.read(Memory(Integer("", size, type_.signed), value.address, value.mapped))
            assert isinstance(loaded, Word)
            return Word(plain(type_), loaded.expr)
        inside = value if isinstance(value, Inside) else self._inside(value)
        return Word(plain(type_), Part(inside.buffer, inside.offset, size, type_.signed))


def whole_number(given: str) -> int | None:
    """Return the number that a parameter of a script is; None if it is none."""
    digits = given.strip().lower().lstrip("+-")
    base = 16 if digits.startswith("0x") else 8 if len(digits) > 1 and digits[0] == "0" else 10
    try:
        value = int(given, base) if len(given) < 70 else -1 << 64
    except ValueError:
        return None
    return value if -(1 << 63) <= value < 1 << 64 else None


def _part(thing: Value, struct: Struct, member: StructMember, where: Place) -> Value:
    """Return a member of a struct in memory or in a buffer."""
    offset, unit, type_ = member.offset, None, member.type
    if member.bit_size:
        place = member_of(Lvalue(Constant(0), struct), struct, member, where)
        assert place.type is not None and isinstance(place.address, Constant)
        offset, unit, type_ = place.address.value, place.unit, place.type
    match thing:
        case Memory(_, address, mapped):
            return Memory(type_, added(address, offset), mapped, unit)
        case Inside(_, buffer, start):
            return Inside(type_, buffer, start + offset, unit)
        case Data(_, Slice(buffer, start)):
            return Inside(type_, buffer, start + offset, unit)
    raise wrong(f"'{where.text}' has no members", where)


def _size(type_: Type) -> int:
    return type_.size if isinstance(type_, Integer | Enum) else WORD


def _negative(word: Word) -> bool:
    return isinstance(word.expr, Constant) and bool(word.expr.value >> 63)
