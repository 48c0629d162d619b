"""Compile `[if EXPR] [do ACTION, …]` to a program: parse, type, and give each action the object that it fills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest_text import of_literal
from gdb_optprobe.handlers.clauses import ACTIONS, parse_action
from gdb_optprobe.handlers.ctype import Pointer, describe
from gdb_optprobe.handlers.format import check_fit, conversions
from gdb_optprobe.handlers.ir import (
    WORD,
    Action,
    Cell,
    Column,
    Constant,
    Emit,
    Expr,
    Form,
    HashMap,
    Operand,
    Program,
    Records,
    Register,
    Stop,
    Update,
    nodes,
    operands,
)
from gdb_optprobe.handlers.parser import parse_expression
from gdb_optprobe.handlers.scope import Missing, Rvalue, Scope
from gdb_optprobe.handlers.source import Fragment, fault
from gdb_optprobe.handlers.strings import characters
from gdb_optprobe.handlers.syntax import Action as Typed
from gdb_optprobe.handlers.syntax import Dollar, Expression, String
from gdb_optprobe.handlers.types import Typer
from gdb_optprobe.maps.aggregate import Aggregate, Average, Count, Greatest, Least, Linear, Powers, Sum, number


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """The limits of a program.

    nodes:   of all its expressions together.
    text:    bytes taken of a string without a size in its type.
    keys:    of one table.
    key:     bytes of one table's keys together.
    record:  bytes of one record's fields.
    stack:   words of the stack in a record.
    buckets: of one linear histogram.
    """

    nodes: int = 512
    text: int = 64
    keys: int = 4
    key: int = 128
    record: int = 512
    stack: int = 64
    buckets: int = 1000


def compile_handler(
    condition: Fragment | None, actions: Sequence[Fragment], scope: Scope, limits: ProgramLimits | None = None
) -> Program:
    """Compile what a hit does. No action means count. Raises OptprobeError, pointing at the first fault."""
    compiler = _Compiler(scope, limits or ProgramLimits())
    test = None if condition is None else compiler.condition(condition)
    done = [compiler.action(parse_action(action, scope.is_type)) for action in actions]
    return Program(test, tuple(done) or (Update(Cell("count", Count())),))


def compile_action(action: Fragment, scope: Scope, limits: ProgramLimits) -> Action:
    """Compile one action by itself. Raises OptprobeError, pointing."""
    return _Compiler(scope, limits).action(parse_action(action, scope.is_type))


class _Compiler:
    def __init__(self, scope: Scope, limits: ProgramLimits) -> None:
        self._scope = scope
        self._typer = Typer(scope)
        self._limits = limits
        self._nodes = 0

    def condition(self, part: Fragment) -> Expr | None:
        """Compile the condition; None if it is always true."""
        found = self._typer.value(parse_expression(part, self._scope.is_type)).expr
        self._check_size((found,), part)
        return None if isinstance(found, Constant) and found.value else found

    def action(self, action: Typed) -> Action:
        found = self._action(action)
        self._check_size(operands(found), action.where)
        return found

    def _action(self, action: Typed) -> Action:
        name = action.where.text
        match action.name.text:
            case "stop":
                return Stop()
            case "stack":
                return self._stack(action)
            case "record":
                fields, columns = self._columns(action.arguments)
                self._check_record(columns, action.arguments[-1].where)
                return Emit(Records(name, columns), fields)
            case "print":
                return self._print(action)
        aggregate, value = self._aggregate(action)
        if not action.keys:
            return Update(Cell(name, aggregate), value)
        if len(action.keys) > self._limits.keys:
            where = action.keys[self._limits.keys].where
            raise fault(f"too many keys: {len(action.keys)}", where, f"at most {self._limits.keys}")
        by, columns = self._columns(action.keys)
        if sum(column.size for column in columns) > self._limits.key:
            raise fault("the key is too large", action.keys[-1].where, f"at most {self._limits.key} bytes")
        return Update(HashMap(name, columns, aggregate), value, by)

    def _stack(self, action: Typed) -> Emit:
        frame = self._scope.frame()
        if isinstance(frame, Missing):
            raise fault(frame.message, action.name, frame.hint)
        also = dict(frame.also)
        columns = tuple(Column(name, Form.UNSIGNED) for name in (*frame.registers, *also, "room"))
        room = Constant(0) if frame.room is None else frame.room
        fields = (*(Register(name) for name in frame.registers), *also.values(), room)
        tried = frame.room is None
        return Emit(Records(action.where.text, columns, stack=self._limits.stack, tried=tried), fields)

    def _aggregate(self, action: Typed) -> tuple[Aggregate, Expr | None]:
        if action.name.text == "count":
            return Count(), None
        if action.name.text == "latency":
            return Powers(False), self._typer.value(Dollar(action.name, "elapsed")).expr
        value = self._typer.value(action.arguments[0])
        if isinstance(value.type, Pointer):
            what = f"'{describe(value.type)}' is no number"
            raise fault(what, action.arguments[0].where, "cast it: (unsigned long)")
        signed = value.type.signed
        match action.name.text:
            case "sum":
                return Sum(signed), value.expr
            case "min":
                return Least(signed), value.expr
            case "max":
                return Greatest(signed), value.expr
            case "avg":
                return Average(signed), value.expr
            case "hist":
                return Powers(signed), value.expr
            case "lhist":
                return self._linear(action, signed), value.expr
        raise AssertionError(f"{action.name.text} has no aggregate")

    def _linear(self, action: Typed, signed: bool) -> Linear:
        low, high, step = (self._constant(argument) for argument in action.arguments[1:])
        _, first, last, by = (argument.where for argument in action.arguments)
        if low < 0 and not signed:
            raise fault(f"{low} is below every value, which has no sign", first, "cast the value: (long)")
        if step <= 0:
            raise fault("the step must be above 0", by, ACTIONS["lhist"].text)
        if high <= low:
            raise fault(f"the maximum {high} is not above the minimum {low}", last, ACTIONS["lhist"].text)
        if (high - low) % step:
            nearest = low + ((high - low) // step + 1) * step
            raise fault(f"{high - low} is no multiple of the step {step}", by, f"a maximum of {nearest} is one")
        if (high - low) // step > self._limits.buckets:
            raise fault(f"{(high - low) // step} buckets are too many", by, f"at most {self._limits.buckets}")
        if high >> (63 if signed else 64):
            raise fault(f"{high} is above every value", last)
        return Linear(low, high, step, signed)

    def _constant(self, node: Expression) -> int:
        value = self._typer.value(node)
        if not isinstance(value.expr, Constant) or isinstance(value.type, Pointer):
            raise fault(f"'{node.where.text}' is no constant", node.where, ACTIONS["lhist"].text)
        return number(value.expr.value, value.type.signed)

    def _print(self, action: Typed) -> Emit:
        literal, *arguments = action.arguments
        assert isinstance(literal, String)
        text = of_literal(literal.data)
        wanted = conversions(text, literal.where)
        if len(arguments) != len(wanted):
            where = arguments[len(wanted)].where if len(arguments) > len(wanted) else literal.where
            takes = "1 argument" if len(wanted) == 1 else f"{len(wanted)} arguments"
            raise fault(f"the format takes {takes}, not {len(arguments)}", where, ACTIONS["print"].text)
        fields: list[Operand] = []
        columns: list[Column] = []
        for order, (conversion, argument) in enumerate(zip(wanted, arguments, strict=True)):
            if conversion.text:
                field, column = self._text(argument)
            else:
                value = self._number(argument)
                check_fit(conversion, value.type, literal.where, order, argument.where)
                field, column = value.expr, _column(argument.where.text, value)
            fields.append(field)
            columns.append(column)
        self._check_record(columns, action.where)
        return Emit(Records(action.where.text, tuple(columns), format=text), tuple(fields))

    def _number(self, argument: Expression) -> Rvalue:
        if self._typer.text(argument) is not None:
            raise fault(f"'{argument.where.text}' is a text", argument.where, "%s prints it")
        return self._typer.value(argument)

    def _text(self, argument: Expression) -> tuple[Operand, Column]:
        """Return the operand of %s: a text, or a pointer to one."""
        text = self._typer.text(argument) or characters(self._typer.value(argument))
        if text is None:
            label = argument.where.text
            raise fault(f"'{label}' is no text", argument.where, f"str({label}) is one, if it is its address")
        found = text.operand(self._limits.text)
        return found, Column(argument.where.text, Form.TEXT, _rounded(found.size))

    def _columns(self, arguments: Sequence[Expression]) -> tuple[tuple[Operand, ...], tuple[Column, ...]]:
        """Return the parts of a key or a record, texts and words, and their columns."""
        found: list[tuple[Operand, Column]] = []
        for argument in arguments:
            text = self._typer.text(argument)
            if text is not None:
                operand = text.operand(self._limits.text)
                found.append((operand, Column(argument.where.text, Form.TEXT, _rounded(operand.size))))
            else:
                value = self._typer.value(argument)
                column = replace(_column(argument.where.text, value), points_to_text=characters(value) is not None)
                found.append((value.expr, column))
        return tuple(operand for operand, _ in found), tuple(column for _, column in found)

    def _check_record(self, columns: Sequence[Column], where: Fragment) -> None:
        if sum(column.size for column in columns) > self._limits.record:
            raise fault("the record is too large", where, f"at most {self._limits.record} bytes")

    def _check_size(self, found: Sequence[Operand], where: Fragment) -> None:
        self._nodes += sum(1 for operand in found for _ in nodes(operand))
        if self._nodes > self._limits.nodes:
            raise _too_large(where, self._limits.nodes)


def _column(label: str, value: Rvalue) -> Column:
    if isinstance(value.type, Pointer):
        return Column(label, Form.POINTER)
    return Column(label, Form.SIGNED if value.type.signed else Form.UNSIGNED)


def _rounded(size: int) -> int:
    return -(-size // WORD) * WORD


def _too_large(where: Fragment, most: int) -> OptprobeError:
    return fault("the program is too large", where, f"at most {most} operations")
