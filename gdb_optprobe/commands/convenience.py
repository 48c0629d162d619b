"""$optprobe, $optprobe_hits(N), $optprobe_value(N, "ACTION") and the like, for GDB's expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import gdb

from gdb_optprobe.commands.base import spoken
from gdb_optprobe.debugger import attach
from gdb_optprobe.debugger.api import Handle
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.views import ProbeView


def remember(probes: Sequence[ProbeView]) -> None:
    """Set $optprobe to the number of the last probe."""
    if probes:
        gdb.set_convenience_variable("optprobe", probes[-1].number)


class Hits(gdb.Function):
    """How often probe N was hit: $optprobe_hits(N)."""

    def __init__(self) -> None:
        super().__init__("optprobe_hits")

    def invoke(self, *numbers: gdb.Value) -> int:
        return _of_one("hits", numbers, lambda number: attach.current_session().hits(number))


class Missed(gdb.Function):
    """How many hits of probe N were not counted: $optprobe_missed(N)."""

    def __init__(self) -> None:
        super().__init__("optprobe_missed")

    def invoke(self, *numbers: gdb.Value) -> int:
        return _of_one("missed", numbers, lambda number: attach.current_session().missed(number))


class Value(gdb.Function):
    """What an action of probe N gathered, of a histogram how many values: $optprobe_value(N, "ACTION", KEY...)."""

    def __init__(self) -> None:
        super().__init__("optprobe_value")

    def invoke(self, *typed: gdb.Value) -> int:
        with _one_line():
            number, action, *key = _arguments(typed, '$optprobe_value(1, "count by $comm", "dd")', 2)
            return _probe(number).value(str(action), *key)


class Quantile(gdb.Function):
    """What PERCENT of a histogram's values are not above: $optprobe_quantile(N, "ACTION", PERCENT, KEY...)."""

    def __init__(self) -> None:
        super().__init__("optprobe_quantile")

    def invoke(self, *typed: gdb.Value) -> int:
        with _one_line():
            number, action, percent, *key = _arguments(typed, '$optprobe_quantile(1, "latency", 99)', 3)
            if isinstance(percent, str):
                raise OptprobeError(f"the percentage is a number, not '{percent}'", "50 is the median")
            return _probe(number).quantile(str(action), percent, *key)


@contextmanager
def _one_line() -> Iterator[None]:
    """Have any failure end as a gdb.GdbError of one clear line."""
    try:
        yield
    except (OptprobeError, gdb.error, ValueError, OverflowError) as error:
        raise gdb.GdbError(spoken(error)) from None


def _arguments(typed: Sequence[gdb.Value], example: str, least: int) -> list[float | str]:
    if len(typed) < least:
        raise OptprobeError(f"{example.partition('(')[0]} takes {least} arguments or more", example)
    return [_argument(each) for each in typed]


def _probe(number: float | str) -> Handle:
    return Handle(attach.current_session(), _number(number))


def _number(typed: float | str) -> int:
    if not isinstance(typed, int):
        raise OptprobeError(f"'{typed}' is not the number of a probe", "optprobe list has the numbers")
    return typed


def _argument(value: gdb.Value) -> float | str:
    match value.type.strip_typedefs().code:
        case gdb.TYPE_CODE_ARRAY | gdb.TYPE_CODE_PTR:
            return value.string()
        case gdb.TYPE_CODE_FLT:
            return float(value)
        case gdb.TYPE_CODE_VOID:
            raise OptprobeError("an argument has no value", "$optprobe is the last probe, once there is one")
    return int(value)


def _of_one(name: str, numbers: Sequence[gdb.Value], get: Callable[[int], int]) -> int:
    """Call `get` with the number of a probe."""
    with _one_line():
        if len(numbers) != 1:
            raise OptprobeError(f"$optprobe_{name} takes the number of one probe", f"$optprobe_{name}(1)")
        return get(_number(_argument(numbers[0])))
