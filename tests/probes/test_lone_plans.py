"""Plans of calls through pointers that follow from the instruction alone are those that the planner makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.probes.lone_plans import Lone, lone, lone_plans
from gdb_optprobe.probes.spec import Spec
from tests.detours.fakes import code
from tests.fake_guest import START, Body, FakeGuest

FUNCTION, THUNK = START + 0x1000, START + 0x2000
SITE = code("0f 1f 44 00 00  nopl")
CALL = FUNCTION + len(SITE)
FAR, SHORT = b"\xe8" + (THUNK - CALL - 5).to_bytes(4, "little"), b"\xff\xd0"
MEMORY = bytes.fromhex("ff9000010000")  # call *256(%rax)
REST = code("48 ff c0  inc %rax\n48 ff c0  inc %rax\nc3  ret")


class Steady(FakeGuest):
    """A guest of which all text stays."""

    def steady(self, places: Sequence[tuple[int, int]]) -> Sequence[bytes | None]:
        return [self.machine.read(start, end - start) for start, end in places]


def guest(call: bytes, kind: type[FakeGuest] = Steady) -> FakeGuest:
    bodies = Body("f", FUNCTION, SITE + call + REST, tracer=0), Body("thunk", THUNK, code("ff e0  jmp *%rax"))
    return kind(bodies)


def planned(found: FakeGuest) -> Plan:
    return found.session().optimizer.plan(CALL, [Spec(f"*{CALL:#x}")])


@pytest.mark.parametrize("call", [FAR, MEMORY])
def test_it_is_the_planner_s(call: bytes) -> None:
    found = guest(call)
    made = planned(found)
    assert made.tier is Tier.OPTIMIZED and lone([made], X86_64) == {CALL: Lone(len(call))}
    assert [*lone_plans({CALL: Lone(len(call))}, found)] == [made]


def test_one_that_is_shorter_than_a_branch_is_none() -> None:
    made = planned(guest(SHORT))
    assert not lone([made], X86_64) and not lone([replace(made, tier=Tier.OPTIMIZED)], X86_64)
    assert not [*lone_plans({CALL: Lone(2)}, guest(SHORT))]


def test_one_of_which_more_is_known_is_none() -> None:
    made = planned(guest(FAR))
    (other,) = X86_64.decode(SITE, FUNCTION)
    for changed in (
        replace(made, tier=Tier.TRAPPED),
        replace(made, displaced=(other, *made.displaced)),
        replace(made, needs_quiescence=True),
        replace(made, near=CALL + 8),
        replace(made, original=FAR[:4]),
    ):
        assert not lone([changed], X86_64)
    assert lone([replace(made, base=THUNK)], X86_64) == {CALL: Lone(5, THUNK)}


@pytest.mark.parametrize("size", [4, 6, 7, 8])
def test_another_instruction_gets_none(size: int) -> None:
    assert not [*lone_plans({CALL: Lone(size)}, guest(FAR))]


def test_what_the_guest_may_rewrite_gets_none() -> None:
    assert not [*lone_plans({CALL: Lone(5)}, guest(FAR, FakeGuest))]
