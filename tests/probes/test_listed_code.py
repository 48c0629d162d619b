"""What each part of a detour is for, where its programs read words behind its code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdb_optprobe.detours.detour import build_detour
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.handlers.ir import Binary, Cell, Constant, Op, Program, Register, Update
from gdb_optprobe.handlers.lower_program import LoweringContext, lower
from gdb_optprobe.isa.aarch64 import AARCH64, AARCH64_LSE
from gdb_optprobe.isa.base import Code, joined
from gdb_optprobe.isa.record import Isa, counting
from gdb_optprobe.maps.aggregate import Powers
from gdb_optprobe.probes.probe_views import DetourCode, SiteCode, show_view

START, AT, MEMORY = 0xFFFF_8000_0800_0000, 0xFFFF_8000_0880_1000, 0xFFFF_8000_0900_0008


@pytest.mark.parametrize("isa", [AARCH64, AARCH64_LSE])
@pytest.mark.parametrize("others", [0, 1, 2])
def test_notes_are_of_the_code_that_is_there(isa: Isa, others: int) -> None:
    dead = isa.dead_at_entry()
    programs: list[Code] = [counting(isa, MEMORY + 8 * number, dead) for number in range(others)]
    condition = Binary(Op.EQ, Register("x2"), Constant(77), 64, False)
    made = Program(condition, (Update(Cell("h", Powers(False)), Register("x2")),))
    programs.append(lower(made, LoweringContext(START, (MEMORY + 0x100,), MEMORY, dead), isa.codegen))
    (insn,) = isa.decode(bytes.fromhex("e9031eaa"), START)
    plan = Plan(tier=Tier.OPTIMIZED, address=START, displaced=(insn,), original=insn.data, dead=dead)
    detour = build_detour(plan, isa, AT, {START: joined(programs)})
    begins = AT + sum(4 * (3 if isa is AARCH64_LSE else 5) for _ in range(others))
    code = DetourCode(detour, {}, {begins: programs[-1]})
    machine = SimpleNamespace(read=lambda at, size: detour.data[at - AT :][:size])
    guest = cast(Guest, SimpleNamespace(isa=isa, machine=machine))
    lines = show_view(cast(Any, None), SiteCode((), (), code, None), guest).detour
    assert lines[-1].address == detour.programs[0][1] + 4, "the branch back is the last that is listed"
    parts = [line.part for line in lines if begins <= line.address < detour.programs[0][1]]
    assert all(parts) and len({*parts}) > 1, lines
