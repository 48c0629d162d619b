"""Random programs of statements: of a script's variables, buffers and maps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from gdb_optprobe.handlers import interpreter
from gdb_optprobe.handlers.ir import (
    WORD,
    Assign,
    Binary,
    Break,
    Buffer,
    BytesLoad,
    Column,
    Constant,
    ContainsText,
    Continue,
    Copy,
    Cut,
    Delete,
    Each,
    Emit,
    Expr,
    Form,
    Get,
    Has,
    If,
    Length,
    Literal,
    Loop,
    Map,
    Modify,
    Op,
    Operand,
    Part,
    Program,
    Records,
    Register,
    Return,
    SameText,
    Set,
    Slice,
    Statement,
    StringLoad,
    Update,
    Variable,
)
from gdb_optprobe.handlers.lower_session_maps import session_layout
from gdb_optprobe.maps.aggregate import Average, Count, Least, Linear, LogLinear, Stats, Sum
from gdb_optprobe.maps.session_map import SessionMap
from tests.handlers.programs import expressions, wild, wilder
from tests.handlers.running import CPU, NUMBERS, PAGE, RING_OFFSET, ring_of

OF_MODIFY = (Op.ADD, Op.SUB, Op.MUL, Op.UDIV, Op.UMOD, Op.AND, Op.OR, Op.XOR, Op.LSHL, Op.LSHR)
MAPS_OFFSET = 16 * PAGE
"""From the faults on."""
ROOM = 12 * PAGE
NAMES = ("$a", "$b", "$c", "$d", "%1")
S, T = Buffer("$s", 24), Buffer("$t", 16)
KIND = 40


def column(size: int = WORD) -> Column:
    return Column("", Form.UNSIGNED, size)


MAPS = (
    Map("start", (column(),), (column(),), 3),
    Map("n", (), (column(),)),
    Map("by", (column(), column(16)), Count(), 4),
    Map("tuple", (column(),), (column(), column(16)), 4),
    Map("long", (column(), column(24), column()), Sum(True), 2),
    Map("word", (column(24),), (column(),), 2),
    Map("all", (), Stats(True)),
    Map("h", (), Linear(0, 100, 10, True)),
    Map("k", (), LogLinear(2, True)),
    Map("least", (column(),), Least(True), 2),
    Map("average", (column(),), Average(True), 2),
)
RECORD = Records("printf", (column(), column(16)), kind=KIND)


@dataclass
class _Draw:
    draw: st.DrawFn
    mapped: bool = True
    loops: int = 0

    def one_of(self, *values: object) -> object:
        return self.draw(st.sampled_from(values))

    def number(self, most: int) -> int:
        return self.draw(st.integers(0, most))

    def variable(self) -> Variable:
        return Variable(self.draw(st.sampled_from(NAMES)))

    def expression(self, depth: int = 2) -> Expr:
        found = self._with_locals(self.draw(expressions(64, False, self.number(depth))))
        assert isinstance(found, Expr)
        return found

    def _with_locals(self, node: object) -> object:
        """The same with variables and parts of buffers for some registers, and DIV and MOD as scripts have them."""
        match node:
            case Register(name) if name in NUMBERS:
                kind = self.number(4)
                if kind < 3:
                    return self.variable() if kind else Part(S, self.number(16))
                return node
            case Binary(Op.DIV | Op.MOD as op, left, right, 64, signed):
                op = Op.UDIV if op is Op.DIV else Op.UMOD
                return Binary(op, self._expr(left), self._expr(right), 64, signed)
            case Binary(Op.DIV | Op.MOD, left, right, bits, signed):
                return Binary(Op.ADD, self._expr(left), self._expr(right), bits, signed)
        if not dataclasses.is_dataclass(node) or isinstance(node, type):
            return node
        return dataclasses.replace(
            node, **{one.name: self._with_locals(getattr(node, one.name)) for one in dataclasses.fields(node)}
        )

    def _expr(self, node: Expr) -> Expr:
        found = self._with_locals(node)
        assert isinstance(found, Expr)
        return found

    def key_word(self) -> Expr:
        """Few values, so that keys meet again."""
        if self.number(3):
            return Constant(self.number(4))
        return Binary(Op.AND, self.variable(), Constant(3), 64, False)

    def text(self, size: int) -> Operand:
        kind = self.number(3)
        if kind == 0:
            return Literal.text(self.draw(st.sampled_from((b"dd", b"", b"abcdefgh", b"abcdefghi"))), size)
        if kind == 1:
            address = Register("rdi") if self.number(2) else self.expression(1)
            return StringLoad(address, size - self.number(7), False, False)
        return Slice(S, 0, size) if size == 24 or self.number(1) else Slice(T, 0, size)

    def key(self, target: Map) -> tuple[Operand, ...]:
        return tuple(self.key_word() if each.size == WORD else self.text(each.size) for each in target.columns)

    def map(self) -> Map:
        return self.draw(st.sampled_from(MAPS))

    def statement(self, depth: int) -> Statement:
        kind = self.number(15 if depth else 12)
        target = self.map()
        stored = isinstance(target.value, tuple)
        if kind < 2:
            return Assign(self.variable(), self.expression())
        if kind == 2:
            return Emit(RECORD, (self.expression(1), self.text(16)))
        if kind in (3, 4):
            return self._put(target)
        if kind == 5:
            if stored and self.number(1):
                return Get(target, self.key(target), Slice.whole(S))
            if isinstance(target.value, Linear | LogLinear):
                return Has(target, self.key(target), self.variable())
            return Get(target, self.key(target), self.variable())
        if kind == 6:
            return Delete(target, self.key(target), self.variable() if self.number(1) else None)
        if kind == 7:
            return Has(target, self.key(target), self.variable())
        if kind == 8:
            return Length(target, self.variable())
        if kind == 9:
            return self._fill()
        if kind == 10 and not self.number(2):
            return Assign(self.variable(), ContainsText(Slice.whole(S), self._needle()))
        if kind == 10:
            text = SameText(Slice.whole(S), self._bytes(), self.number(20) if self.number(1) else None)
            return Assign(self.variable(), text)
        if kind == 11:
            size = self.draw(st.sampled_from((1, 2, 4, 8)))
            part = Part(S, self.number(8), size, bool(self.number(1)), self.key_word())
            return Assign(self.variable(), part)
        if kind == 12:
            return self._leave()
        if kind == 13:
            return If(self.expression(), self.block(depth - 1), self.block(depth - 1) if self.number(1) else ())
        if kind == 14 and target.columns:
            return self._each(target, depth)
        self.loops += 1
        end = If(self.expression(1), (Break(),))
        body = (end, *self.block(depth - 1))
        around, self.loops = self.loops - 1, 0  # a step has no Break and no Continue
        step = self.block(0) if self.number(1) else ()
        self.loops = around
        return Loop(body, step, self.number(4))

    def _each(self, target: Map, depth: int) -> Statement:
        key = Slice(S, 0, target.key_size) if target.key_size <= S.size else None
        value: Variable | Slice | None = None if isinstance(target.value, Linear | LogLinear) else self.variable()
        if isinstance(target.value, tuple) and target.value_size <= S.size and self.number(1):
            value = Slice.whole(S)
        self.loops += 1
        # The order of keys is not that of the interpreter: what is left of it is a sum, and the number of keys.
        add = Binary(Op.ADD, Variable("%1"), value if isinstance(value, Variable) else Part(S, 0), 64, False)
        found = Each(target, key, value, (Assign(Variable("%1"), add),))
        self.loops -= 1
        return found

    def _leave(self) -> Statement:
        if not self.loops:
            return If(self.expression(1), (Return(),))
        return If(self.expression(1), (self.draw(st.sampled_from((Break(), Continue(), Return()))),))

    def _put(self, target: Map, key: tuple[Operand, ...] | None = None) -> Statement:
        by = self.key(target) if key is None else key
        if not isinstance(target.value, tuple):
            return Update(target, None if isinstance(target.value, Count) else self.expression(1), by)
        if len(target.value) == 2:
            return Set(target, by, (self.expression(1), self.text(16)))
        if self.number(1):
            return Set(target, by, (self.expression(1),))
        op = self.draw(st.sampled_from(OF_MODIFY))
        old, new = (self.variable() if self.number(1) else None for _ in range(2))
        return Modify(target, by, op, self.expression(1), old, new if new != old else None)

    def _bytes(self) -> Slice | Literal:
        if self.number(1):
            return Literal.text(self.draw(st.sampled_from((b"dd", b"", b"abcdefghi"))), 16)
        return Slice.whole(T)

    def _needle(self) -> Slice | Literal:
        if self.number(1):
            return Literal.text(self.draw(st.sampled_from((b"d", b"", b"bc", b"ghi", b"abcdefgh"))), 8)
        return Slice(T, 0, 8) if self.number(1) else Slice.whole(T)

    def _fill(self) -> Statement:
        kind = self.number(4)
        if kind == 0:
            return Cut(self.draw(st.sampled_from((Slice.whole(S), Slice(T, 8, 8)))), self.expression(1))
        if kind == 1:
            length = Binary(Op.AND, self.expression(1), Constant(31), 64, False)
            size = 8 * self.number(2) + 1 + self.number(7)
            load = BytesLoad(Register("rdi"), size, False, length, bool(self.number(1)))
            return Copy(Slice.whole(S), load)
        if kind == 2:
            return Copy(Slice(S, 8, 16), Slice.whole(T))
        if kind == 3:
            return Copy(Slice(S, 16, 8), self.expression(1))
        return Copy(Slice.whole(T), self.text(16) if self.number(1) else Literal(b"abcdefgh"))

    def block(self, depth: int) -> tuple[Statement, ...]:
        if not self.number(3):
            return self._of_one_key(depth)
        return tuple(self.statement(depth) for _ in range(1 + self.number(2)))

    def _of_one_key(self, depth: int) -> tuple[Statement, ...]:
        """Several statements that look for one key, others between them."""
        target = self.map()
        by = self.key(target)
        many: list[Statement] = []
        for _ in range(2 + self.number(2)):
            kind = self.number(4)
            if kind == 0:
                many.append(self._put(target, by))
            elif kind == 1:
                many.append(Delete(target, by, self.variable() if self.number(1) else None))
            elif kind == 2 and not isinstance(target.value, Linear | LogLinear):
                many.append(Get(target, by, self.variable()))
            elif kind == 3:
                many.append(self.statement(depth))
            else:
                many.append(Has(target, by, self.variable()))
        return tuple(many)


@st.composite
def scripts(draw: st.DrawFn, statements: int = 6) -> Program:
    """With every statement. What has variables or maps is a script's, and quiet."""
    made = _Draw(draw)
    condition = made.draw(expressions(64, False, 1)) if not made.number(3) else None
    body = [*(made.statement(2) for _ in range(1 + made.number(statements))), *made.block(1)]
    return Program(condition, tuple(body), quiet=True)


@st.composite
def wild_scripts(draw: st.DrawFn, bases: tuple[int, ...]) -> Program:
    """Memory is read through pointers that may lead nowhere."""
    return wild(draw(scripts(3)), wilder(draw, bases))


def places(program: Program, faults: int, offset: int = MAPS_OFFSET, room: int = ROOM) -> dict[str, int]:
    """Where maps are, by name: in `room` bytes at an offset from the counter of faults."""
    found, at = dict[str, int](), faults + offset
    for each in program.maps:
        found[each.name] = at
        at += session_layout(each).size
    assert at <= faults + offset + room
    return found


def contents(program: Program) -> dict[str, SessionMap]:
    """Maps before the first hit, by name."""
    return {each.name: SessionMap(layout := session_layout(each), bytearray(layout.initial())) for each in program.maps}


def wrong_results(
    program: Program,
    read: Callable[[int, int], bytes],
    faults: int,
    outcomes: Sequence[interpreter.Outcome],
    expected: Mapping[str, SessionMap],
) -> Iterator[str]:
    """What hits left in memory that is not as the interpreter says."""
    counted = int.from_bytes(read(faults, WORD), "little")
    if counted != sum(each.faults for each in outcomes):
        yield f"{counted} faults for {[each.faults for each in outcomes]}"
    ring = ring_of(program)
    contents = ring.decode(read(faults + RING_OFFSET, ring.size))
    found = [(each.kind, each.cpu, each.fields) for each in contents.records]
    emitted = [done.data for each in outcomes for done in each.done]
    wanted = [(KIND, CPU.value, fields.ljust(WORD * ring.words, b"\0")) for fields in emitted]
    wanted = wanted[-ring.places :] if ring.overwrites else wanted[: ring.places]
    if found != wanted:
        yield f"{found} for {wanted}"
    yield from wrong_maps(program, read, faults, expected)


def wrong_maps(
    program: Program, read: Callable[[int, int], bytes], faults: int, expected: Mapping[str, SessionMap]
) -> Iterator[str]:
    """What maps have in memory that is not as the interpreter left them."""
    for name, at in places(program, faults).items():
        one = expected[name]
        found = one.layout.decode(read(at, one.layout.size))
        wanted = one.layout.decode(one.data)
        if (found.by_key, found.dropped) != (wanted.by_key, wanted.dropped):
            yield f"@{name}: {found} for {wanted}"
