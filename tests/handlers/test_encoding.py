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
    Or,
    PerCpuBase,
    Program,
    Put,
    Records,
    Register,
    Stop,
    StringEquals,
    StringLoad,
    Unary,
    UnaryOp,
    Update,
)
from gdb_optprobe.handlers.return_scope import EntryProgram
from gdb_optprobe.maps.aggregate import Average, Count, Greatest, Least, Linear, Powers, Sum
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
AGGREGATES = (
    (Count(), "Count()"),
    (Sum(True), "Sum(signed=True)"),
    (Least(False), "Least(signed=False)"),
    (Greatest(True), "Greatest(signed=True)"),
    (Average(True), "Average(signed=True)"),
    (Powers(False), "Powers(signed=False)"),
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


@pytest.mark.parametrize(("value", "text"), [*EXPRESSIONS, *AGGREGATES], ids=lambda value: type(value).__name__)
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
    members = sorted(encode(member) for kind in (Op, UnaryOp, Form) for member in kind)
    assert zlib.crc32("\n".join(members).encode()) == 0xd07dec1f


RENAMED = {"HashMap": "Table", "StringLoad": "Text", "StringEquals": "TextEquals", "EntryProgram": "Entry"}
"""Classes that had another name in versions without the encoding, which wrote `repr`."""
_OLD_NAMES = re.compile(rf"\b({'|'.join(RENAMED)})(?=\()")


@given(programs())
def test_every_program_has_a_text(program: Program) -> None:
    assert encode(program) == _OLD_NAMES.sub(lambda found: RENAMED[found[0]], repr(program)), "as it always was"


def test_what_has_no_text_is_no_part_of_a_program() -> None:
    with pytest.raises(TypeError, match="object has no text"):
        encode((object(),))


def test_every_class_of_a_program_has_a_text() -> None:
    """One that is added without a text would be found by a user."""
    known = {type(value) for value, _ in (*EXPRESSIONS, *AGGREGATES)}
    known |= {Program, Update, Emit, Put, Stop, Cell, HashMap, Records, Column, StringLoad, EntryProgram}
    assert known == set(encoding._FIELDS)
