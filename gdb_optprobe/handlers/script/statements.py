"""Turn the statements of a script into statements of a program."""

from __future__ import annotations

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ctype import Array, Integer, Pointer, Struct
from gdb_optprobe.handlers.ir import (
    Assign,
    Break,
    Constant,
    Continue,
    Copy,
    Each,
    Expr,
    If,
    Literal,
    Loop,
    Modify,
    Op,
    Operand,
    Return,
    Set,
    Slice,
    Statement,
    Update,
    Variable,
)
from gdb_optprobe.handlers.script import tree
from gdb_optprobe.handlers.script.body import Local
from gdb_optprobe.handlers.script.calls import AGGREGATES, HISTOGRAMS, Calls
from gdb_optprobe.handlers.script.place import Place, wrong
from gdb_optprobe.handlers.script.types import (
    INT64,
    NOTHING,
    Blob,
    Folded,
    Nothing,
    Text,
    Tuple,
    Type,
    bytes_of,
    is_integer,
    is_readable,
    is_word,
    larger,
    same_kind,
    spelled,
    stored,
)
from gdb_optprobe.handlers.script.values import Value, Word, narrowed
from gdb_optprobe.maps.aggregate import Aggregate

MOST_UNROLLED = 100
MOST_ROUNDS = 1 << 14
"""How often the body of a `while` is begun: bpftrace's bound is the verifier's."""
_MODIFIES = {"+": Op.ADD, "-": Op.SUB, "&": Op.AND, "|": Op.OR, "^": Op.XOR}
"""Operators that a map's word takes in one step."""


class Statements(Calls):
    """Every method raises OptprobeError, pointing."""

    _loops = 0
    """How many loops are around that `break` may leave."""
    _in_for = False
    """Whether the innermost loop is a `for` over a map."""

    def block(self, body: tuple[tree.Statement, ...], repeated: bool = False) -> tuple[Statement, ...]:
        """Return the statements of a block, which has a scope of its own."""
        with self.apart(repeated) as found, self.scope():
            self.carry_out(body)
        return tuple(found)

    def carry_out(self, body: tuple[tree.Statement, ...]) -> None:
        """Emit statements."""
        for statement in body:
            self._statement(statement)

    def _statement(self, node: tree.Statement) -> None:
        match node:
            case tree.Evaluate(where, value):
                self._evaluate(value, where)
            case tree.Assign(target=tree.Map() as target):
                self._assign_map(node, target)
            case tree.Assign(target=tree.Variable() as variable):
                self._assign_variable(node, variable)
            case tree.Declare(_, declared, type_):
                self._declare(declared, type_)
            case tree.If(_, condition, yes, no):
                test = self.truth(condition, "if()")
                blocks = self.block(yes), self.block(no)
                self.emit(If(test, *blocks))
            case tree.While():
                self._while(node)
            case tree.Unroll():
                self._unroll(node)
            case tree.For():
                self._for(node)
            case tree.Jump(where, kind):
                self._jump(kind, where)
            case tree.Block(_, body):
                self.emit(*self.block(body))

    def _evaluate(self, value: tree.Expression, where: Place) -> None:
        if isinstance(value, tree.Call) and value.name in AGGREGATES:
            raise wrong(f"{value.name}() should be directly assigned to a map", where, f"@ = {value.name}(…)")
        self.read(self.value(value))

    # assignments

    def _assign_map(self, node: tree.Assign, target: tree.Map) -> None:
        if isinstance(node.value, tree.Call) and node.value.name in AGGREGATES:
            aggregate, value, by = self._aggregated(node.value, target)
            self.declared.value_given(target.name, Folded(aggregate), node.where)
            self.emit(Update(self.map_of(target.name), value, by))
            return
        if self._modified(node, target):
            return
        value_: Value = self.read(self.value(node.value))
        type_ = value_.type
        known = self.declared.map(target.name).value
        if isinstance(type_, Folded):
            value_ = self._of_aggregate(node, target, value_, known)
            type_ = value_.type
        if isinstance(type_, Nothing) and self.declared.final:
            raise wrong(f"Invalid expression for assignment: {spelled(type_)}", node.value.where)
        if _has_steps(target.key):
            value_ = self.kept(value_)
        by = self.key_of(target)
        kept = self.declared.value_given(target.name, stored(type_), node.where)
        if isinstance(kept, Nothing):
            return
        if isinstance(kept, Folded):
            known_ = f"when map already contains a value of type '{spelled(kept)}'"
            message = f"Type mismatch for {target.name}: trying to assign value of type '{spelled(type_)}' {known_}"
            raise wrong(message, node.where)
        self.emit(Set(self.map_of(target.name), by, self.stored_operands(value_, kept)))

    def _aggregated(self, call: tree.Call, target: tree.Map) -> tuple[Aggregate, Expr | None, tuple[Operand, ...]]:
        """Return what is added to a map, and its key, in bpftrace's order: the key first, but for histograms."""
        if call.name in HISTOGRAMS:
            aggregate, value = self.aggregate(call)
            if value is not None and _has_steps(target.key):
                kept = self.kept(Word(INT64, value))
                assert isinstance(kept, Word)
                value = kept.expr
            return aggregate, value, self.key_of(target)
        by = self.key_of(target, kept=any(map(_has_steps, call.arguments)))
        return *self.aggregate(call), by

    def _of_aggregate(self, node: tree.Assign, target: tree.Map, value: Value, known: Type) -> Value:
        """Return the number that an aggregate amounts to, where the map has numbers."""
        if is_integer(known) and is_readable(value.type):
            return self.integer(value, node.value.where)
        message = f"Map value '{spelled(value.type)}' cannot be assigned from one map to another."
        hint = "the function that returns this type must be called directly"
        if is_readable(value.type):
            hint = f"add a cast: {target.name} = (int64){node.value.where.text}"
        raise wrong(message, node.where, hint)

    def _modified(self, node: tree.Assign, target: tree.Map) -> bool:
        """Emit `@m[k] += x` in one step, where the map has numbers. Return whether that was done."""
        found = node.value
        if not isinstance(found, tree.Binary) or found.left is not target or found.op not in _MODIFIES:
            return False
        if not is_integer(self.declared.map(target.name).value):
            return False
        if _has_steps(target.key) or _has_steps(found.right):
            return False  # the key counts twice then: where the old value is, and where the new one will be
        value = self.read(self.value(found.right))
        if not isinstance(value, Word) or not (is_integer(value.type) or is_readable(value.type)):
            return False
        by = self.key_of(target)
        self.declared.value_given(target.name, self.declared.map(target.name).value, node.where)
        self.emit(Modify(self.map_of(target.name), by, _MODIFIES[found.op], value.expr))
        return True

    def _assign_variable(self, node: tree.Assign, target: tree.Variable) -> None:
        declared_type = self.declared.resolve(node.type) if node.type is not None else None
        if isinstance(node.value, tree.Call) and node.value.name in AGGREGATES:
            raise wrong(f"{node.value.name}() should be directly assigned to a map", node.value.where)
        value = self.read(self.value(node.value))
        if isinstance(value.type, Folded):
            if not is_readable(value.type):
                raise wrong(f"Map value '{spelled(value.type)}' cannot be assigned to a scratch variable.", node.where)
            word = self.integer(value, node.value.where)
            value = Word(INT64, word.expr)
        local = None if node.let else self.local(target.name)
        if local is None:
            local = self.declare(target.name, target.where, declared_type, node.let)
        type_ = self._type_for(local, target.name, value, node)
        local.assigned = True
        if isinstance(type_, Nothing):
            return
        if isinstance(value, Word) and isinstance(type_, Integer) and not isinstance(value.expr, Constant):
            value = Word(type_, narrowed(value.expr, type_, value.type))
        self.store(self.stored(local), value, type_)

    def _type_for(self, local: Local, name: str, value: Value, node: tree.Assign) -> Type:
        """Return the type of a variable that is given a value, and note it."""
        known, given = self.type_of(local), value.type
        if isinstance(given, Nothing):
            if self.declared.final:
                raise wrong(f"Invalid expression for assignment: {spelled(given)}", node.value.where)
            return known
        if isinstance(known, Nothing):
            return self._now(local, given)
        if not local.assigned and not local.fixed:
            # The first assignment in this walk: its type, but for texts, which grow.
            return self._now(local, larger(known, given) if same_kind(known, given) else given)
        if not same_kind(known, given):
            raise self._mismatch(local, name, known, given, node)
        if isinstance(known, Integer) and isinstance(given, Integer):
            self._check_integer(local, name, known, value, node)
            return known
        if isinstance(known, Text | Tuple | Blob):
            merged = larger(known, given)
            if local.fixed and merged != known:
                raise self._mismatch(local, name, known, given, node)
            return self._now(local, merged)
        if isinstance(known, Pointer | Array | Struct) and not isinstance(known, Pointer) and known != given:
            raise self._mismatch(local, name, known, given, node)
        return known

    def _now(self, local: Local, type_: Type) -> Type:
        if self.declared.variables.get(local.key) != type_:
            self.declared.variables[local.key] = type_
            self.declared.changed = True
        return type_

    def _check_integer(self, local: Local, name: str, known: Integer, value: Value, node: tree.Assign) -> None:
        given = value.type
        assert isinstance(value, Word) and isinstance(given, Integer)
        if (given.size, given.signed) == (known.size, known.signed):
            return
        if value.literal and isinstance(value.expr, Constant):
            word = value.expr.value
            exact = word - (1 << 64) if given.signed and word >> 63 else word
            if exact < 0 and not known.signed:
                raise self._mismatch(local, name, known, given, node)
            high = (1 << known.width - known.signed) - 1
            low = -high - 1 if known.signed else 0
            if not low <= exact <= high:
                message = f"Type mismatch for {name}: trying to assign value '{exact}' which does not fit into the "
                raise wrong(f"{message}variable of type '{spelled(known)}'", node.where)
        elif given.signed != known.signed:
            raise self._mismatch(local, name, known, given, node)
        elif given.size > known.size:
            # An error in 0.23, not in 0.17: its runqlen does it.
            message = f"Integer size mismatch. Assignment type '{spelled(given)}' is larger than the variable type "
            self.declared.warn(wrong(f"{message}'{spelled(known)}'.", node.where).message)

    def _mismatch(self, local: Local, name: str, known: Type, given: Type, node: tree.Assign) -> OptprobeError:
        which = "already contains a value of type" if local.assigned else "already has a type"
        message = f"Type mismatch for {name}: trying to assign value of type '{spelled(given)}' when variable {which}"
        return wrong(f"{message} '{spelled(known)}'", node.where)

    def _declare(self, variable: tree.Variable, type_: tree.TypeName | None) -> None:
        wanted: Type | None = None
        if type_ is not None:
            wanted = NOTHING if not self._is_known(type_) else self.declared.resolve(type_)
            wanted = None if isinstance(wanted, Nothing) else wanted
        local = self.declare(variable.name, variable.where, wanted)
        found = self.type_of(local)
        if isinstance(found, Nothing):
            return
        place = self.stored(local)
        if isinstance(place, Variable):
            self.emit(Assign(place, Constant(0)))
        else:
            self.emit(Copy(place, Literal(bytes(place.size))))

    def _is_known(self, type_: tree.TypeName) -> bool:
        """Return whether a declared type is complete: bpftrace takes one that is not, where nothing is assigned."""
        try:
            found = self.declared.resolve(type_)
        except OptprobeError:
            if type_.keyword:
                return False
            raise
        return is_word(found) or bytes_of(found) > 0

    # control

    def _while(self, node: tree.While) -> None:
        with self.apart(repeated=True) as body:
            test = self.truth(node.condition, "while()")
            self.emit(If(test, (), (Break(),)))
            before, self._loops, self._in_for = (self._loops, self._in_for), self._loops + 1, False
            self.emit(*self.block(node.body))
            self._loops, self._in_for = before
        self.emit(Loop(tuple(body), most=MOST_ROUNDS))

    def _unroll(self, node: tree.Unroll) -> None:
        times = self.value(node.times)
        if not isinstance(times, Word) or not times.literal or not isinstance(times.expr, Constant):
            raise wrong("unroll takes a number", node.where, "unroll (5) { … }")
        count = times.expr.value
        if count > MOST_UNROLLED:
            raise wrong(f"unroll maximum value is {MOST_UNROLLED}", node.where)
        if count < 1:
            raise wrong("unroll minimum value is 1", node.where)
        if count > 1 and _leaves(node.body):
            # `break` and `continue` within belong to what is around, so the rounds are written one after the other.
            for _ in range(count):
                self.emit(*self.block(node.body))
            return
        done = self.variable()
        self.emit(Assign(done, Constant(0)))
        body = self.block(node.body, repeated=True)
        step = Assign(done, fold.binary(Op.ADD, done, Constant(1), 64, False))
        test = If(fold.binary(Op.LT, done, Constant(count), 64, False), (), (Break(),))
        self.emit(Loop((test, *body), (step,), most=count + 1))

    def _for(self, node: tree.For) -> None:
        name = node.variable.name
        if self.local(name) is not None:
            raise wrong(f"Loop declaration shadows existing variable: {name}", node.variable.where)
        if node.map.key is not None:
            raise wrong("the loop's expression must be a map", node.map.where, "for ($kv : @m) { … }")
        found = self.declared.map(node.map.name)
        if isinstance(found.value, Nothing):
            if self.declared.final:
                raise wrong(f"Undefined map: {node.map.name}", node.map.where)
            return
        if isinstance(found.value, Folded) and not is_readable(found.value):
            raise wrong(f"Loop expression does not support type: {spelled(found.value)}", node.map.where)
        if found.key is None or isinstance(found.key, Nothing):
            if self.declared.final:
                raise wrong("Maps used as for-loop expressions must have keys to iterate over", node.map.where)
            return
        value = self.number_type(found.value) if isinstance(found.value, Folded) else found.value
        with self.scope():
            local = self.declare(name, node.variable.where, Tuple((found.key, value)))
            local.assigned = True
            both = self.stored(local)
            assert isinstance(both, Slice)
            key = Slice(both.buffer, 0, bytes_of(found.key))
            place = Slice(both.buffer, key.size, bytes_of(value))
            word = self.variable() if is_word(value) else None
            with self.apart(repeated=True) as body:
                if word is not None:
                    self.emit(Copy(place, word))
                before, self._loops, self._in_for = (self._loops, self._in_for), 0, True
                with self.scope():
                    self.carry_out(node.body)
                self._loops, self._in_for = before
        self.emit(Each(self.map_of(node.map.name), key, word or place, tuple(body)))

    def _jump(self, kind: str, where: Place) -> None:
        if self._in_for:
            raise wrong(f"'{kind}' statement is not allowed in a for-loop", where)
        if kind == "return":
            self.emit(Return())
        elif not self._loops:
            raise wrong(f"'{kind}' statement outside of a loop", where)
        else:
            self.emit(Break() if kind == "break" else Continue())


def _has_steps(node: tree.Expression | None) -> bool:
    """Return whether an expression has a `++` or a `--`."""
    return node is not None and any(isinstance(each, tree.Step) for each in tree.nodes(node))


def _leaves(body: tuple[tree.Statement, ...]) -> bool:
    """Return whether statements have a `break` or a `continue`."""
    return any(isinstance(each, tree.Jump) and each.kind != "return" for one in body for each in tree.nodes(one))
