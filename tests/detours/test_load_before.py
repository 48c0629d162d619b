"""Between a load that reserves memory and its store no probe may be: one at the load counts for what runs as often."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdb_optprobe.detours.cfg import CfgCache
from gdb_optprobe.detours.planner import load_before
from gdb_optprobe.guest.text import FORBIDDEN, Area, Fact, Function, Jump, Mark, Whole
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.base import Flow
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.record import Isa

START = 0xC000_0000_0010_0000


@dataclass(frozen=True)
class Code:
    """One of an instruction set. add: adds one to memory. swap: exchanges it if it is what is expected.

    Of both the load is the second, behind a nop, and a branch to it is before the return, the last. The third of `swap`
    compares, and the fourth leads behind the store.
    """

    isa: Isa
    add: tuple[int, ...]
    swap: tuple[int, ...]


CODES = {
    "aarch64": Code(
        AARCH64,
        (0xD503_201F, 0xC85F_7C01, 0x9100_0421, 0xC802_7C01, 0x35FF_FFA2, 0xD65F_03C0),
        (0xD503_201F, 0xC85F_7C01, 0xCA02_0023, 0xB500_0063, 0xC804_7C05, 0x35FF_FF84, 0xD65F_03C0),
    ),
    "ppc64le": Code(
        PPC64LE,
        (0x6000_0000, 0x7D20_18A8, 0x7D24_4A14, 0x7D20_19AD, 0x40C2_FFF4, 0x4E80_0020),
        (0x6000_0000, 0x7D20_18A8, 0x7C29_2800, 0x40C2_000C, 0x7CC0_19AD, 0x40C2_FFF0, 0x4E80_0020),
    ),
}
on_each = pytest.mark.parametrize("code", CODES.values(), ids=CODES)


def found(isa: Isa, words: tuple[int, ...], also: tuple[int, ...] = (), marked: int | None = None) -> list[int | None]:
    """Return the number of the load for each instruction. also: numbers of others that something leads to."""
    data = b"".join(word.to_bytes(4, "little") for word in words)
    insns = {insn.address: insn for insn in isa.decode(data, START)}
    jumps = [Jump(i.address, i.target) for i in insns.values() if i.flow in (Flow.JUMP, Flow.BRANCH) and i.target]
    jumps += [Jump(START, START + 4 * number) for number in also]
    whole = Whole(insns, True, tuple(jumps), ())
    function = Function("f", START, START + len(data), insns, lambda: whole, True)
    areas = {at: FORBIDDEN[why] for at, why in isa.forbidden(insns).items()}
    marks = [Mark(Fact.EXCEPTION, START + 4 * marked, 4)] if marked is not None else []
    text = SimpleNamespace(
        area=lambda at: areas.get(at, Area.TEXT),
        function=lambda at: function,
        marks=lambda start, end: marks,
        ftrace_sites=lambda start, end: [],
        spell=hex,
    )
    cfgs = CfgCache(isa, cast(Any, text))
    loads = [load_before(START + 4 * number, cfgs) for number in range(len(words))]
    return [(load - START) // 4 if load is not None else None for load in loads]


@on_each
def test_what_always_follows_the_load_is_counted_there(code: Code) -> None:
    assert found(code.isa, code.add) == [None, None, 1, 1, None, None]


@on_each
def test_behind_a_branch_the_store_runs_less_often(code: Code) -> None:
    assert found(code.isa, code.swap) == [None, None, 1, 1, None, None, None]


@on_each
def test_nothing_else_may_lead_there(code: Code) -> None:
    assert found(code.isa, code.add, also=(2,)) == [None] * 6
    assert found(code.isa, code.add, also=(3,)) == [None, None, 1, None, None, None]


@on_each
@pytest.mark.parametrize(("marked", "loads"), [(1, (None, None)), (2, (1, None)), (3, (1, 1))])
def test_behind_what_may_fault_it_runs_less_often(code: Code, marked: int, loads: tuple[int | None, ...]) -> None:
    assert found(code.isa, code.add, marked=marked) == [None, None, *loads, None, None]
