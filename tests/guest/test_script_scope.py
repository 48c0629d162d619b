"""What a script's names mean at a place in the kernel: its clock."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gdb_optprobe.guest.script_scope import SECOND, Timing
from gdb_optprobe.handlers.interpreter import Hit, evaluate
from gdb_optprobe.handlers.ir import Binary, Clock, Constant, Expr, Op
from gdb_optprobe.handlers.scope import Missing

YEAR = 365 * 86400
NOTHING: Mapping[str, int] = {}


def at(ticks: int, timing: Timing) -> int:
    expr = timing.nanoseconds()
    assert not isinstance(expr, Missing)
    return evaluate(expr, Hit(NOTHING, lambda address, size: bytes(size), clock=ticks))


@pytest.mark.parametrize("hertz", [1, 24_000_000, 512_000_000, SECOND - 1, SECOND, SECOND + 1, 2_399_987_000])
@pytest.mark.parametrize("seconds", [0, 1, 86_399, YEAR, 200 * YEAR])
def test_ticks_become_nanoseconds(hertz: int, seconds: int) -> None:
    ticks = hertz * seconds + hertz // 3
    assert 0 <= ticks * SECOND // hertz - at(ticks, Timing(hertz)) <= 1


def test_the_time_begins_when_the_guest_does() -> None:
    assert at(7_000, Timing(2 * SECOND, offset=1_000)) == 4_500


def test_a_clock_of_nanoseconds_is_read_as_it_is() -> None:
    expected: Expr = Binary(Op.ADD, Clock(), Constant(5), 64, False)
    assert Timing(SECOND, offset=5).nanoseconds() == expected
