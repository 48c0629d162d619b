"""Random typed expressions: what the interpreter makes of them is what a C compiler does."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.arithmetic import Fault
from gdb_optprobe.handlers.ctype import Pointer, promoted
from gdb_optprobe.handlers.interpreter import Hit, evaluate
from gdb_optprobe.handlers.parser import parse_expression
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.handlers.types import Typer
from tests.examples import samples

from .expressions import Pair, expressions, states
from .oracle import Answer, State, answers, needs_gcc, scope

PROGRAMS = 40  # of one compilation


def ours(text: str, state: State) -> Answer | None:
    """None where it divides by a constant 0, which is refused."""
    names = scope()
    try:
        value = Typer(names).value(parse_expression(Fragment.whole(text), names.is_type))
    except OptprobeError as error:
        assert error.message.startswith("division by zero"), f"{error.message} {error.hint}"
        return None
    assert not isinstance(value.type, Pointer)
    type_ = promoted(value.type)
    try:
        found: int | None = evaluate(value.expr, Hit(state.registers, state.read))
    except Fault:
        found = None
    return Answer(found, type_.size, type_.signed)


@needs_gcc
@settings(
    max_examples=samples(12, 1250),
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to shrink 40 at once takes minutes; the shortest is named
)
@given(st.lists(expressions(), min_size=PROGRAMS, max_size=PROGRAMS), states())
def test_expressions_are_what_a_compiler_makes_of_them(pairs: list[Pair], state: State) -> None:
    expected = answers([pair.theirs for pair in pairs], state)
    found = [ours(pair.ours, state) for pair in pairs]
    wrong = [
        f"{pair.ours}: {mine}, and C says {theirs}"
        for pair, mine, theirs in zip(pairs, found, expected, strict=True)
        if mine is not None and mine != theirs
    ]
    assert not wrong, min(wrong, key=len)
