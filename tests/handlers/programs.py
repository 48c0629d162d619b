"""Random typed programs, of the nodes of program.py; every word is one of the type that its place asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gdb_optprobe.handlers import arithmetic
from gdb_optprobe.handlers.ir import (
    MASK,
    Action,
    And,
    Binary,
    Cell,
    Choose,
    Clock,
    Column,
    Constant,
    Convert,
    Emit,
    Expr,
    Form,
    HashMap,
    Load,
    Op,
    Operand,
    Or,
    PerCpuBase,
    Program,
    Records,
    Register,
    Stop,
    StringEquals,
    StringLoad,
    Unary,
    UnaryOp,
    Update,
)
from gdb_optprobe.maps.aggregate import Aggregate, Average, Count, Greatest, Least, Linear, Powers, Stats, Sum
from tests.handlers.running import AREA, CLOCK, DATA, NUMBERS, PAGE, PER_CPU, POINTERS, SP

Exprs = st.SearchStrategy[Expr]
_COMPARISONS = tuple(op for op in Op if op.compares)
_OF_SCRIPTS = (Op.UDIV, Op.UMOD, Op.LSHL, Op.LSHR, Op.UMULH)
_OTHERS = tuple(op for op in Op if not op.compares and op not in _OF_SCRIPTS)
_WIDTHS = st.sampled_from(((64, False), (64, True), (32, False), (32, True)))
_EDGES = (0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)


def words() -> st.SearchStrategy[int]:
    edges = st.sampled_from((*_EDGES, *(-edge & MASK for edge in _EDGES), 1 << 63, MASK >> 1, 1 << 32))
    return st.one_of(edges, edges, st.integers(0, MASK), st.integers(0, 0xFFFF))


def _constants(bits: int, signed: bool) -> Exprs:
    return words().map(lambda word: Constant(arithmetic.extend(word, bits, signed)))


@st.composite
def _addresses(draw: st.DrawFn, depth: int) -> Expr:
    """Where memory certainly is, of AREA bytes and some."""
    offset = Constant(draw(st.integers(0, AREA // 2)))
    kind = draw(st.integers(0, 4))
    if kind == 0:
        return Binary(Op.ADD, PerCpuBase(), Constant(PER_CPU + offset.value), 64, False)
    if kind == 1:
        return Binary(Op.ADD, Register(SP), offset, 64, False)
    if kind == 2 and depth:
        index = Binary(Op.AND, draw(expressions(64, False, depth - 1)), Constant(AREA // 4), 64, False)
        return Binary(
            Op.ADD, Binary(Op.ADD, Register(draw(st.sampled_from(POINTERS))), index, 64, False), offset, 64, False
        )
    if kind == 3:
        return Constant(DATA + offset.value)
    return Binary(Op.ADD, Register(draw(st.sampled_from(POINTERS))), offset, 64, False)


@st.composite
def _leaf(draw: st.DrawFn, bits: int, signed: bool) -> Expr:
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return draw(_constants(bits, signed))
    if kind == 1:
        size = draw(st.sampled_from([size for size in (1, 2, 4, 8) if 8 * size < bits or 8 * size == bits]))
        of = signed if 8 * size == bits else draw(st.booleans()) and signed
        return Load(draw(_addresses(0)), size, of, mapped=True)
    register = Register(draw(st.sampled_from((*NUMBERS, *POINTERS, SP))))
    return register if bits == 64 else Convert(register, bits, signed)


@st.composite
def expressions(draw: st.DrawFn, bits: int = 64, signed: bool = False, depth: int = 3) -> Expr:
    if not depth:
        return draw(_leaf(bits, signed))
    kind = draw(st.integers(0, 13))
    below = expressions(depth=depth - 1, bits=bits, signed=signed)
    if kind == 0:
        return draw(_leaf(bits, signed))
    if kind == 1:
        return Unary(draw(st.sampled_from(UnaryOp)), draw(below), bits, signed)
    if kind == 2:
        most = bits if bits == 32 else 63
        few = draw(st.integers(1, most))
        of = signed if few == bits else draw(st.booleans()) and signed
        return Convert(draw(expressions(*draw(_WIDTHS), depth - 1)), few, of)
    if kind == 3:
        return Choose(draw(expressions(*draw(_WIDTHS), depth - 1)), draw(below), draw(below))
    if kind in (4, 5):
        both = draw(st.sampled_from((And, Or)))
        return both(draw(expressions(*draw(_WIDTHS), depth - 1)), draw(expressions(*draw(_WIDTHS), depth - 1)))
    if kind in (6, 7):
        width = draw(_WIDTHS)
        right = st.one_of(_constants(*width), expressions(*width, depth - 1))
        return Binary(draw(st.sampled_from(_COMPARISONS)), draw(expressions(*width, depth - 1)), draw(right), *width)
    if kind == 8:
        sizes = [size for size in (1, 2, 4, 8) if 8 * size <= bits]
        size = draw(st.sampled_from(sizes))
        of = signed if 8 * size == bits else draw(st.booleans()) and signed
        return Load(draw(_addresses(depth)), size, of, mapped=True)
    if kind == 9:
        literal = draw(st.binary(max_size=3)).replace(b"\0", b"") + b"\0"
        return StringEquals(draw(_addresses(0)), literal, mapped=True)
    op = draw(st.sampled_from((*_OTHERS, *_OF_SCRIPTS) if bits == 64 else _OTHERS))
    if op in (Op.SHL, Op.SHR):
        count = st.one_of(st.integers(0, 66).map(Constant), expressions(*draw(_WIDTHS), depth - 1))
        return Binary(op, draw(below), draw(count), bits, signed)
    return Binary(op, draw(below), draw(st.one_of(_constants(bits, signed), below)), bits, signed)


@st.composite
def _linear(draw: st.DrawFn) -> Linear:
    signed = draw(st.booleans())
    low = draw(st.integers(-100 if signed else 0, 1000))
    step = draw(st.sampled_from((1, 2, 3, 8, 10, 1000)))
    return Linear(low, low + step * draw(st.integers(1, 20)), step, signed)


def aggregates() -> st.SearchStrategy[Aggregate]:
    of_sign = st.sampled_from((Sum, Least, Greatest, Average, Stats, Powers))
    return st.one_of(st.just(Count()), st.builds(lambda kind, signed: kind(signed), of_sign, st.booleans()), _linear())


@st.composite
def _parts(draw: st.DrawFn, depth: int) -> tuple[Operand, ...]:
    """Of a key or a record: few, for all of a key are in registers at once."""
    parts: list[Operand] = []
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.integers(0, 3)):
            parts.append(draw(expressions(64, False, draw(st.integers(0, depth - 1)))))
        else:
            parts.append(StringLoad(draw(_addresses(0)), draw(st.integers(1, 16)), True, draw(st.booleans())))
    return tuple(parts)


def _columns(parts: tuple[Operand, ...]) -> tuple[Column, ...]:
    return tuple(Column("", Form.TEXT, -(-part.size // 8) * 8 if isinstance(part, StringLoad) else 8) for part in parts)


@st.composite
def _actions(draw: st.DrawFn, index: int, depth: int) -> Action:
    kind = draw(st.integers(0, 5))
    if kind == 0:
        fields = draw(_parts(depth))
        return Emit(Records(f"{index}", _columns(fields)), fields)
    aggregate = draw(aggregates())
    value = None
    if not isinstance(aggregate, Count):
        value = draw(expressions(64, aggregate.signed, draw(st.integers(0, depth))))
    if kind == 1:
        by = draw(_parts(depth))
        return Update(HashMap(f"{index}", _columns(by), aggregate), value, by)
    return Update(Cell(f"{index}", aggregate), value)


@st.composite
def _tests(draw: st.DrawFn) -> Expr:
    """What is in memory, compared where it stands."""
    width = draw(_WIDTHS)
    size = draw(st.sampled_from([size for size in (1, 2, 4, 8) if 8 * size <= width[0]]))
    signed = width[1] if 8 * size == width[0] else draw(st.booleans()) and width[1]
    load = Load(draw(_addresses(0)), size, signed, mapped=True)
    op = draw(st.sampled_from((*_COMPARISONS, Op.AND, Op.AND)))
    return Binary(op, load, draw(_constants(*width)), *width)


@st.composite
def programs(draw: st.DrawFn, depth: int = 3) -> Program:
    conditions = (st.none(), _tests(), expressions(*draw(_WIDTHS), draw(st.integers(1, depth))))
    condition = draw(st.one_of(*conditions, conditions[-1]))
    number = draw(st.integers(0, 3))
    actions = [draw(_actions(index, depth)) for index in range(number)]
    if draw(st.booleans()):
        actions.insert(draw(st.integers(0, number)), Stop())
    return Program(condition, tuple(actions))


def wild(
    program: Program,
    changes: Callable[[Operand], Operand],
    kinds: tuple[type[Operand], ...] = (Load, StringLoad, StringEquals),
) -> Program:
    """The same with `changes` of every node of these kinds, from the leaves on."""

    def changed(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(changed(each) for each in value)
        if not dataclasses.is_dataclass(value) or isinstance(value, type | Aggregate):
            return value
        fields = {field.name: changed(getattr(value, field.name)) for field in dataclasses.fields(value)}
        again = dataclasses.replace(value, **fields)
        return changes(again) if isinstance(again, kinds) else again

    found = changed(program)
    assert isinstance(found, Program)
    return found


@st.composite
def timed_programs(draw: st.DrawFn, depth: int = 2) -> Program:
    """Some registers are the clock, and the first action tells what it has been."""
    chosen = draw(st.frozensets(st.sampled_from(NUMBERS), min_size=3))

    def change(node: Operand) -> Operand:
        return Clock() if isinstance(node, Register) and node.name in chosen else node

    found = wild(draw(programs(depth)), change, (Register,))
    return replace(found, actions=(CLOCK, *found.actions))


def wilder(draw: st.DrawFn, bases: tuple[int, ...]) -> Callable[[Operand], Operand]:
    """What has memory read through pointers that may lead nowhere: into the pages at `bases`, behind them, anywhere."""

    def change(node: Operand) -> Operand:
        if not draw(st.integers(0, 3)):
            return node
        place = draw(st.sampled_from((0, 8, PAGE - 24, PAGE - 9, PAGE - 3, PAGE))) + draw(st.integers(0, 16))
        address: Expr = Constant(draw(st.sampled_from(bases)) + place & MASK)
        if not draw(st.integers(0, 4)):
            address = draw(expressions(64, False, 1))
        elif not draw(st.integers(0, 3)) and isinstance(node, Load):
            address = node.address
        match node:
            case StringLoad():
                return StringLoad(address, node.size, False, node.whole)
            case StringEquals():
                return StringEquals(address, draw(st.binary(max_size=17)).replace(b"\0", b"") + b"\0", False)
            case Load():
                return Load(address, node.size, node.signed)
        return node

    return change


@st.composite
def wild_programs(draw: st.DrawFn, bases: tuple[int, ...], depth: int = 2) -> Program:
    """Memory is read through pointers that may lead nowhere."""
    return wild(draw(programs(depth)), wilder(draw, bases))


def drawn(number: int, made: st.SearchStrategy[Program]) -> list[tuple[Program, int]]:
    """Return random programs, each with a seed for all else: where many run at once, they are made first."""
    found: list[tuple[Program, int]] = []

    @settings(
        max_examples=number,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
        database=None,
    )
    @given(made, st.integers(0, 1 << 32))
    def collect(program: Program, seed: int) -> None:
        found.append((program, seed))

    collect()
    return found
