"""Tests of what is known of a plan's detour before it is laid out where it will be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import count_code
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.isa.base import Dead
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.probes.entry_plans import EntryPlans

HEAD = 0xFFFF_FFFF_8100_1230
ARENA = cast(Arena, SimpleNamespace(free_code=lambda head, reach: HEAD + 0x10_0000))
FREE = Dead(flags=True)
SAVED = Dead(registers=frozenset({"rax"}))


def planned(code: str, dead: Dead, head: int) -> Plan:
    data = bytes.fromhex(code)
    return Plan(head, Tier.OPTIMIZED, tuple(X86_64.decode(data, head)), original=data, dead=dead)


CODES = "554889e5", "415541545553", "0f1f40005390", "5390909090", "4883ec08b906000000", "e800000000", "7410535355"


@pytest.mark.parametrize("dead", [Dead(), FREE, SAVED], ids=["all alive", "flags", "a register"])
def test_instructions_of_a_detour_are_as_many_as_are_decoded(dead: Dead) -> None:
    """One `EntryPlans` is asked of all: what it knows of one detour does not deceive it of another."""
    plans = EntryPlans()
    for place, code in enumerate(CODES):
        one = planned(code, dead, HEAD + 64 * place)
        shape = plans.shape(one, X86_64, ARENA)
        at = HEAD + 0x10_0000
        made = count_code(one, X86_64, at, at + (1 << 21))
        assert shape is not None
        assert shape.size == len(made)
        assert shape.instructions == len(X86_64.decode(made, at)), code
