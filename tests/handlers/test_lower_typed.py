"""What a user types, through parser, types and folding to native code, is what the interpreter says of it.

Memory that is there is read as if that were known; what is not is left to the interpreter.
"""

from __future__ import annotations

import os
from dataclasses import fields, is_dataclass, replace
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.arithmetic import Fault
from gdb_optprobe.handlers.interpreter import Hit, evaluate
from gdb_optprobe.handlers.ir import Cell, Choose, Constant, Expr, Load, Program, StringEquals, Update
from gdb_optprobe.handlers.lower_program import lower
from gdb_optprobe.handlers.parser import parse_expression
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.handlers.types import Typer
from gdb_optprobe.isa.x86_64.codegen import BACKEND
from gdb_optprobe.maps.aggregate import Sum
from tests.examples import examples
from tests.handlers import running
from tests.handlers.expressions import Pair, expressions, states
from tests.handlers.oracle import BASE, State, needs_gcc, scope

TOGETHER = 20  # of one run
EXAMPLES = int(os.environ.get("OPTPROBE_PROGRAMS", examples(300))) // TOGETHER or 1


def mapped(node: Any) -> Any:
    """The same, of memory that is known to be there."""
    if not is_dataclass(node):
        return node
    changed = {field.name: mapped(getattr(node, field.name)) for field in fields(node)}
    if isinstance(node, Load | StringEquals):
        changed["mapped"] = True
    return replace(node, **changed)  # type: ignore[type-var]


def typed(text: str, hit: Hit) -> tuple[Expr, int] | None:
    """The expression and its value; None where it has none."""
    names = scope()
    try:
        expr = Typer(names).value(parse_expression(Fragment.whole(text), names.is_type)).expr
        return mapped(expr), evaluate(expr, hit)
    except (OptprobeError, Fault):
        return None


@needs_gcc
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@given(st.lists(expressions(), min_size=TOGETHER, max_size=TOGETHER), states())
def test_expressions_are_what_the_interpreter_makes_of_them(pairs: list[Pair], state: State) -> None:
    before = running.state({})
    before = running.State({**before.registers, **state.registers})
    found = {pair.ours: typed(pair.ours, Hit(before.registers, state.read)) for pair in pairs}
    known = {text: value for text, value in found.items() if value is not None}
    # Each as a word, and as what is jumped on.
    both = [value for expr, _ in known.values() for value in (expr, Choose(expr, Constant(1), Constant(0)))]
    program = Program(None, tuple(Update(Cell(str(n), Sum(False)), value) for n, value in enumerate(both)))
    code = lower(program, running.surroundings(program), BACKEND)(running.START)
    memory = running.memory_of(before, running.objects(program)) | {BASE: state.memory}
    left = running.execute(code, before, memory)
    words = [int.from_bytes(left.read(at, 8), "little") for at in running.places(program)]
    results = zip(words[::2], words[1::2], known.items(), strict=True)
    wrong = {
        text: (word, truth, value)
        for word, truth, (text, (_, value)) in results
        if (word, truth) != (value, value != 0)
    }
    assert not wrong, min(wrong, key=len) + str(wrong)
    assert left.registers == before.registers
    assert left.memory[BASE] == state.memory
