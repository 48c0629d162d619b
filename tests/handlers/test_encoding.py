"""The text by whose checksum a later GDB knows a program: it stays the same whatever classes are called."""

from __future__ import annotations

import re
import zlib

import pytest
from hypothesis import given

from gdb_optprobe.handlers import encoding
from gdb_optprobe.handlers.encoding import encode
from gdb_optprobe.handlers.ir import (
    And,
    Assign,
    Binary,
    Break,
    Buffer,
    BytesLoad,
    Cell,
    Choose,
    Clock,
    Column,
    Constant,
    ContainsText,
    Continue,
    Convert,
    Copy,
    Cut,
    Delete,
    Each,
    Emit,
    Expr,
    Form,
    Get,
    Has,
    HashMap,
    If,
    Length,
    Literal,
    Load,
    Loop,
    Map,
    Modify,
    Op,
    Or,
    Part,
    PerCpuBase,
    Program,
    Put,
    Records,
    Register,
    Return,
    SameText,
    Set,
    Slice,
    Stop,
    StringEquals,
    StringLoad,
    Unary,
    UnaryOp,
    Update,
    Variable,
)
from gdb_optprobe.handlers.return_scope import EntryProgram
from gdb_optprobe.maps.aggregate import Average, Count, Greatest, Least, Linear, LogLinear, Powers, Stats, Sum
from tests.handlers.programs import programs

RDI, ONE = Register("rdi"), Constant(1)
EXPRESSIONS: tuple[tuple[Expr, str], ...] = (
    (ONE, "Constant(value=1)"),
    (RDI, "Register(name='rdi')"),
    (PerCpuBase(), "PerCpuBase()"),
    (Clock(), "Clock()"),
    (Load(RDI, 4, True), "Load(address=Register(name='rdi'), size=4, signed=True, mapped=False)"),
    (
        Unary(UnaryOp.NEGATE, ONE, 32, True),
        "Unary(op=<UnaryOp.NEGATE: '-'>, value=Constant(value=1), bits=32, signed=True)",
    ),
    (
        Binary(Op.SHL, RDI, ONE, 64, False),
        "Binary(op=<Op.SHL: '<<'>, left=Register(name='rdi'), right=Constant(value=1), bits=64, signed=False)",
    ),
    (Convert(ONE, 7, False), "Convert(value=Constant(value=1), bits=7, signed=False)"),
    (And(ONE, Clock()), "And(left=Constant(value=1), right=Clock())"),
    (Or(ONE, Clock()), "Or(left=Constant(value=1), right=Clock())"),
    (Choose(ONE, Clock(), ONE), "Choose(condition=Constant(value=1), yes=Clock(), no=Constant(value=1))"),
    (StringEquals(ONE, b"dd\0", True), "TextEquals(address=Constant(value=1), literal=b'dd\\x00', mapped=True)"),
)
X, SOME = Variable("$x"), Slice(Buffer("$s", 64), 8, 16)
STARTS = Map("s", (Column("tid", Form.UNSIGNED),), (Column("", Form.SIGNED),), 512)
_X, _SOME = "Variable(name='$x')", "Slice(buffer=Buffer(name='$s', size=64), offset=8, size=16)"
_STARTS = (
    "Map(name='s', columns=(Column(label='tid', form=<Form.UNSIGNED: 'unsigned'>, size=8),), "
    "value=(Column(label='', form=<Form.SIGNED: 'signed'>, size=8),), most=512)"
)
STATEMENTS: tuple[tuple[object, str], ...] = (
    (X, _X),
    (SOME, _SOME),
    (Literal(b"dd"), "Literal(data=b'dd')"),
    (
        Part(SOME.buffer, 3, 1, True, X),
        f"Part(buffer=Buffer(name='$s', size=64), offset=3, size=1, signed=True, index={_X})",
    ),
    (SameText(SOME, SOME, 3), f"SameText(left={_SOME}, right={_SOME}, most=3)"),
    (ContainsText(SOME, SOME), f"ContainsText(text={_SOME}, needle={_SOME})"),
    (BytesLoad(X, 9, False, X, True), f"Bytes(address={_X}, size=9, mapped=False, length={_X}, text=True)"),
    (Assign(X, X), f"Assign(variable={_X}, value={_X})"),
    (Copy(SOME, X), f"Copy(into={_SOME}, source={_X})"),
    (Cut(SOME, X), f"Cut(slice={_SOME}, length={_X})"),
    (If(X, (Break(),)), f"If(condition={_X}, then=(Break(),), otherwise=())"),
    (Loop((Continue(),), (Return(),), 7), "Loop(body=(Continue(),), step=(Return(),), most=7)"),
    (Get(STARTS, (X,), X), f"Get(map={_STARTS}, by=({_X},), into={_X})"),
    (Set(STARTS, (X,), (X,)), f"Set(map={_STARTS}, by=({_X},), value=({_X},))"),
    (
        Modify(STARTS, (X,), Op.UDIV, X, X),
        f"Modify(map={_STARTS}, by=({_X},), op=<Op.UDIV: 'u/'>, value={_X}, old={_X}, new=None)",
    ),
    (Has(STARTS, (X,), X), f"Has(map={_STARTS}, by=({_X},), into={_X})"),
    (Delete(STARTS, (X,)), f"Delete(map={_STARTS}, by=({_X},), had=None)"),
    (Length(STARTS, X), f"Length(map={_STARTS}, into={_X})"),
    (Each(STARTS, SOME, None, ()), f"Each(map={_STARTS}, key={_SOME}, value=None, body=())"),
    (Program(None, (), quiet=True), "Program(condition=None, actions=(), quiet=True)"),
    (Records("printf", (), kind=4), "Records(name='printf', columns=(), format='', stack=0, tried=False, kind=4)"),
)
AGGREGATES = (
    (Count(), "Count()"),
    (Sum(True), "Sum(signed=True)"),
    (Least(False), "Least(signed=False)"),
    (Greatest(True), "Greatest(signed=True)"),
    (Average(True), "Average(signed=True)"),
    (Stats(True), "Stats(signed=True)"),
    (Powers(False), "Powers(signed=False)"),
    (LogLinear(2, True), "LogLinear(bits=2, signed=True)"),
    (Linear(0, 10, 2, True), "Linear(low=0, high=10, step=2, signed=True)"),
)
COLUMN = Column("$comm", Form.TEXT, 16)
WHOLE = Program(
    RDI,
    (
        Update(Cell("count", Count())),
        Update(HashMap("count by $comm", (COLUMN,), Count()), None, (StringLoad(RDI, 16, True, True),)),
        Emit(Records("record 1", (Column("1", Form.SIGNED),), "", 2, True), (ONE,)),
        Put(RDI, ONE),
        Stop(),
    ),
)
ENTRY = EntryProgram(ONE, (RDI,), (("n", 0, True),), (Update(Cell("count", Count())),))


PARTS = [*EXPRESSIONS, *STATEMENTS, *AGGREGATES]


@pytest.mark.parametrize(("value", "text"), PARTS, ids=lambda value: type(value).__name__)
def test_the_text_of_each_part(value: object, text: str) -> None:
    assert encode(value) == text


def test_the_text_of_a_program() -> None:
    assert encode((WHOLE, ENTRY, 9)) == (
        "(Program(condition=Register(name='rdi'), actions=(Update(target=Cell(name='count', aggregate=Count()), "
        "value=None, by=()), Update(target=Table(name='count by $comm', columns=(Column(label='$comm', "
        "form=<Form.TEXT: 'text'>, size=16),), aggregate=Count()), value=None, by=(Text(address=Register(name='rdi'), "
        "size=16, mapped=True, whole=True),)), Emit(target=Records(name='record 1', columns=(Column(label='1', "
        "form=<Form.SIGNED: 'signed'>, size=8),), format='', stack=2, tried=True), fields=(Constant(value=1),)), "
        "Put(address=Register(name='rdi'), value=Constant(value=1)), Stop())), Entry(condition=Constant(value=1), "
        "words=(Register(name='rdi'),), names=(('n', 0, True),), actions=(Update(target=Cell(name='count', "
        "aggregate=Count()), value=None, by=()),)), 9)"
    )


def test_the_text_of_everything_else_that_is_one_of_some() -> None:
    """A checksum of all enumerators: each is written as its name was when its probes were added."""
    of_scripts = [encode(op) for op in (Op.UDIV, Op.UMOD, Op.LSHL, Op.LSHR, Op.UMULH)]
    shifts = ["<Op.LSHL: 'u<<'>", "<Op.LSHR: 'u>>'>"]
    assert of_scripts == ["<Op.UDIV: 'u/'>", "<Op.UMOD: 'u%'>", *shifts, "<Op.UMULH: 'u*>>64'>"]
    members = sorted({encode(member) for kind in (Op, UnaryOp, Form) for member in kind}.difference(of_scripts))
    assert zlib.crc32("\n".join(members).encode()) == 0xd07dec1f


RENAMED = {"HashMap": "Table", "StringLoad": "Text", "StringEquals": "TextEquals", "EntryProgram": "Entry"}
"""Classes that had another name in versions without the encoding, which wrote `repr`."""
_ADDED = re.compile(r", (?:quiet=False|kind=None)(?=\))")
_OLD_NAMES = re.compile(rf"\b({'|'.join(RENAMED)})(?=\()")


@given(programs())
def test_every_program_has_a_text(program: Program) -> None:
    old = _OLD_NAMES.sub(lambda found: RENAMED[found[0]], _ADDED.sub("", repr(program)))
    assert encode(program) == old, "as it always was"


def test_what_has_no_text_is_no_part_of_a_program() -> None:
    with pytest.raises(TypeError, match="object has no text"):
        encode((object(),))


def test_every_class_of_a_program_has_a_text() -> None:
    """One that is added without a text would be found by a user."""
    known = {type(value) for value, _ in PARTS}
    known |= {Program, Update, Emit, Put, Stop, Cell, HashMap, Records, Column, StringLoad, EntryProgram, Buffer}
    known |= {Break, Continue, Return, Map}
    assert known == set(encoding._FIELDS)
