"""Where GDB's step over one instruction runs on."""

from __future__ import annotations

import pytest

from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.aarch64.fields import to_bytes
from tests.isa.aarch64.test_exclusives import ADD, AGAIN, CMP, LDXR, NOP, RET, START, STXR, WFE

LDAR, STLR, LDAXR, B_NE, CBNZ = 0xC8DFFC01, 0xC89FFC01, 0xC85FFC01, 0x54000081, 0xB5000081
LDAPR = 0xF8BFC001


@pytest.mark.parametrize(
    ("words", "runs_on"),
    [
        ((LDXR, ADD, STXR, AGAIN, *[NOP] * 16), False),  # to behind the store, where it is to go
        ((LDXR, CMP, B_NE, STXR, *[NOP] * 16), False),  # and to where the condition leads
        ((LDXR, B_NE, B_NE, STXR, *[NOP] * 16), False),  # stepped over alone
        ((LDXR, CBNZ, STXR, AGAIN, *[NOP] * 16), True),
        ((LDXR, ADD, STXR), False),
        ((LDAXR, CMP, CBNZ, WFE, RET), True),  # a store behind the function may be near
        ((LDAXR, CMP, CBNZ, WFE, *[NOP] * 16), False),
        ((LDAR, *[NOP] * 16), False),
        ((LDAR, *[NOP] * 15, STLR), True),
        ((LDAR, *[NOP] * 16, STLR), False),
        ((LDAR, NOP, LDAPR, *[NOP] * 16), True),
        ((LDXR, LDAPR, STXR, *[NOP] * 16), True),  # it ends within the pair
        ((LDXR, STLR, STXR, *[NOP] * 16), True),
        ((LDAR, B_NE, NOP, B_NE, STLR, *[NOP] * 16), True),  # a probe may be at one of the conditions
        ((LDAR, ADD, STXR, *[NOP] * 16), True),
        ((LDAR, RET), True),
        ((STLR, LDAR, STLR), False),
        ((0xC8A27C01, NOP, STLR), False),  # cas
        ((ADD, STLR, RET), False),
    ],
)
def test_a_step_of_gdb_s_that_runs_on(words: tuple[int, ...], runs_on: bool) -> None:
    """As GDB 13 and 18 do at breakpoints there: hits of the guest's others are missed meanwhile."""
    first, *behind = AARCH64.decode(to_bytes(*words), START)
    assert AARCH64.step_runs_on(first, behind) is runs_on
