"""Parse one action to a tree: `hist(e) by (KEY, …)`, `print("format", e, …)`, `stop`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from gdb_optprobe.handlers.lexer import Kind
from gdb_optprobe.handlers.parser import IsType, Parser
from gdb_optprobe.handlers.source import Fragment, fault
from gdb_optprobe.handlers.syntax import Action, Expression, String


@dataclass(frozen=True, slots=True)
class Usage:
    """How an action is written, and what it does. least, most: arguments; most None for any. keyed: takes `by`."""

    text: str
    what: str
    least: int = 0
    most: int | None = 0
    keyed: bool = False


ACTIONS: Mapping[str, Usage] = {
    "count": Usage("count by KEY", "the number of hits", keyed=True),
    "sum": Usage("sum(e) by KEY", "the sum of the values", 1, 1, keyed=True),
    "min": Usage("min(e) by KEY", "the smallest value", 1, 1, keyed=True),
    "max": Usage("max(e) by KEY", "the largest value", 1, 1, keyed=True),
    "avg": Usage("avg(e) by KEY", "the average, rounded towards zero", 1, 1, keyed=True),
    "hist": Usage("hist(e) by KEY", "a histogram with buckets of powers of two", 1, 1, keyed=True),
    "lhist": Usage(
        "lhist(e, min, max, step) by KEY", "a histogram with buckets of `step`, from `min` to `max`", 4, 4, keyed=True
    ),
    "latency": Usage("latency by KEY", "of a return: a histogram of the calls' time in nanoseconds", keyed=True),
    "record": Usage("record(e, …)", "a record of the values, with CPU and time", 1, None),
    "print": Usage('print("format", e, …)', "a record that `report` prints by the format, as C's printf", 1, None),
    "stack": Usage("stack", "a record of the stack, which `report` unwinds"),
    "stop": Usage("stop", "after all other actions the guest stops there, as at a breakpoint"),
}


BLOCK = Usage("{ STATEMENTS }", "statements of bpftrace's language, the only action")


def is_block(action: str) -> bool:
    """Return whether an action is a block in braces."""
    return action.startswith("{") and action.endswith("}")


def check_action(action: Fragment) -> Usage:
    """Return how an action is written. Raises OptprobeError, pointing, if there is none of that name."""
    if is_block(action.text):
        return BLOCK
    name = action.first_word()
    if name.text in ACTIONS:
        return ACTIONS[name.text]
    close = difflib.get_close_matches(name.text, ACTIONS, 1)
    hint = f"did you mean '{close[0]}'?" if close else f"the actions are {', '.join(ACTIONS)}"
    raise fault(f"no action named '{name.text}'" if name.text else "an action is missing", name, hint)


def parse_action(part: Fragment, is_type: IsType) -> Action:
    """Parse all of `part`. Raises OptprobeError, pointing."""
    usage = check_action(part)
    if usage is BLOCK:
        hint = "in it, if (…) { … } is a statement"
        raise fault("a block in braces is the only action, without a condition before it", part, hint)
    parser = Parser(part, is_type)
    name = parser.take().where
    arguments: tuple[Expression, ...] = ()
    if parser.sees("("):
        opened = parser.take().where
        if not parser.sees(")"):
            arguments = _several(parser)
        closed = parser.expect(")", opened)
        _check_number(arguments, usage, name, Fragment(part.line, opened.start, closed.end))
        if usage.most == 0:
            raise fault(f"{name.text} takes no parentheses", Fragment(part.line, opened.start, closed.end), usage.text)
    elif usage.least:
        raise fault(f"{name.text} needs an argument in parentheses", name, usage.text)
    if name.text == "print" and not isinstance(arguments[0], String):
        raise fault("a format in double quotes is missing", arguments[0].where, usage.text)
    keys = _keys(parser, name, usage)
    parser.end(usage.text)
    return Action(part, name, arguments, keys)


def _several(parser: Parser) -> tuple[Expression, ...]:
    found = [parser.expression()]
    while parser.sees(","):
        parser.take()
        found.append(parser.expression())
    return tuple(found)


def _check_number(arguments: tuple[Expression, ...], usage: Usage, name: Fragment, where: Fragment) -> None:
    if len(arguments) < usage.least:
        raise fault(f"{name.text} needs more than that", where, usage.text)
    if usage.most is not None and len(arguments) > usage.most:
        takes = f"{usage.most} only" if usage.most else "nothing"
        raise fault(f"{name.text} takes {takes}", arguments[usage.most].where, usage.text)


def _keys(parser: Parser, name: Fragment, usage: Usage) -> tuple[Expression, ...]:
    """Parse `by KEY` or `by (KEY, …)`, if it follows."""
    if not parser.sees("by"):
        return ()
    by = parser.take().where
    if not usage.keyed:
        raise fault(f"{name.text} takes no key", by, usage.text)
    if not _several_follow(parser):
        return (parser.expression(),)
    opened = parser.take().where
    keys = _several(parser)
    parser.expect(")", opened)
    return keys


def _several_follow(parser: Parser) -> bool:
    """Return whether a parenthesis follows that reaches to the end or holds commas: `(a) + b` is one key."""
    depth = 0
    for at in range(parser.at, len(parser.tokens)):
        token = parser.tokens[at]
        if token.kind is Kind.PUNCTUATOR:
            depth += (token.text in "([") - (token.text in ")]")
        if depth == 1 and token.text == ",":
            return True
        if depth <= 0:
            return at > parser.at and at == len(parser.tokens) - 2
    return False
