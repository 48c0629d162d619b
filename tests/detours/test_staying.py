"""An instruction that must stay where it is: its program runs behind the copy of the one that leads to it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdb_optprobe.detours.cfg import CfgCache
from gdb_optprobe.detours.detour import Detour, build_count, build_detour
from gdb_optprobe.detours.plan_request import Neighbour
from gdb_optprobe.detours.planner import Plan, PlanRequest, plan
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.guest.text import Fact, Mark
from gdb_optprobe.isa.base import Dead
from gdb_optprobe.isa.x86_64 import X86_64
from tests.detours.fakes import START, FakeText

AT, COUNTER = START + 0x100000, START - 0x1000000
LABEL = 7
LONG = """
    48 69 c7 07 00 00 00  imul $7, %rdi, %rax
    66 90                 nop (a jump label)
    48 89 c3              mov %rax, %rbx
    c3                    ret
    cc cc cc cc
"""
CODES = {
    Fact.JUMP_LABEL: "JUMP_LABEL",
    Fact.STATIC_CALL: "STATIC_CALL",
    Fact.EXCEPTION: "EXCEPTION_TABLE",
    Fact.BUG: "BUG_TABLE",
    Fact.LOCK_PREFIX: "LOCK_PREFIX",
}


def staying(
    listing: str = LONG, at: int = LABEL, fact: Fact = Fact.JUMP_LABEL, jumps: tuple[int, ...] = (), **others: object
) -> FakeText:
    noted = (Mark(fact, START + at, 1),)
    return FakeText(listing, noted=noted, jumps=tuple((9, to) for to in jumps), **others)  # type: ignore[arg-type]


def planned(
    text: FakeText, at: int = LABEL, probed: frozenset[int] = frozenset(), breakpoints: int | None = None
) -> Plan:
    def neighbours(address: int) -> Neighbour | None:
        return Neighbour(1) if address - START in probed and address - START != at else None

    stops = frozenset[int]() if breakpoints is None else frozenset({START + breakpoints})
    return plan(PlanRequest(START + at, neighbours, stops), CfgCache(X86_64, text))


@pytest.mark.parametrize("fact", CODES)
def test_the_branch_is_before_what_must_stay(fact: Fact) -> None:
    found = planned(staying(fact=fact))
    assert found.tier is Tier.OPTIMIZED and found.address == START + LABEL == found.insn.address == found.end
    assert [insn.address for insn in found.displaced] == [found.head] == [START]
    assert found.original == bytes.fromhex("4869c70700") and not found.needs_quiescence
    assert found.stays is not None and found.stays[1].code == CODES[fact]
    assert "rax" not in found.dead.registers, "it was set by what has run, and is read behind"


def test_several_are_displaced_where_the_last_is_too_short() -> None:
    found = planned(staying("48 89 f8  mov %rdi, %rax\n" * 3 + "66 90  nop\nc3  ret", 9), 9)
    assert [insn.address - START for insn in found.displaced] == [3, 6] and found.needs_quiescence


@pytest.mark.parametrize("to", [LABEL, LABEL - 2, LABEL + 1])
def test_no_jump_may_lead_to_it_nor_into_it_or_what_is_before(to: int) -> None:
    refused = planned(staying(jumps=(to,))).why_not(Tier.OPTIMIZED)
    assert refused is not None and refused.code == "JUMP_LABEL"


@pytest.mark.parametrize(
    ("before", "size"), [("ff 15 00 00 00 00  call *(%rip)", 6), ("e9 00 00 00 00  jmp .+5", 5), ("fb  sti", 1)]
)
def test_what_is_before_must_lead_there_and_nowhere_else(before: str, size: int) -> None:
    """A call returns to it, a jump goes elsewhere, and behind `sti` the way back would let interrupts in."""
    rest = "\n66 90  nop\n48 89 c3  mov %rax, %rbx\nc3  ret"
    text = staying("48 69 c7 07 00 00 00  imul $7, %rdi, %rax\n" + before + rest, LABEL + size)
    assert planned(text, LABEL + size).tier is not Tier.OPTIMIZED


def test_all_jumps_must_be_known() -> None:
    for text in (staying(blind=(12,)), staying(complete=False)):
        assert planned(text).tier is not Tier.OPTIMIZED


@pytest.mark.parametrize(
    "fact", [Fact.KPROBE, Fact.KPROBE_BREAKPOINT, Fact.KPROBE_JUMP, Fact.BARRIER, Fact.RESTART, Fact.UNKNOWN]
)
def test_other_facts_are_in_the_way_as_ever(fact: Fact) -> None:
    try:
        assert planned(staying(fact=fact)).tier is not Tier.OPTIMIZED
    except Refused as refused:
        assert refused.reason.code.startswith("FOREIGN")


def test_a_breakpoint_of_the_users_is_in_the_way_before_it_and_not_on_it() -> None:
    assert planned(staying(), breakpoints=0).tier is not Tier.OPTIMIZED
    assert planned(staying(), breakpoints=LABEL).tier is Tier.OPTIMIZED


SIZES = {
    3: "48 89 f8  mov %rdi, %rax",
    5: "b8 01 00 00 00  mov $1, %eax",
    7: "48 69 c7 07 00 00 00  imul $7, %rdi, %rax",
}


@given(st.lists(st.sampled_from([*SIZES]), min_size=2, max_size=8), st.data())
def test_probes_before_it_and_on_it_come_to_one_division(sizes: list[int], data: st.DataObject) -> None:
    starts = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    text = staying("\n".join(SIZES[size] for size in sizes) + "\n66 90  nop\nc3  ret", starts[-1])
    probed = frozenset(data.draw(st.sets(st.sampled_from(starts[:-1])))) | {starts[-1]}
    plans = [planned(text, at, probed) for at in sorted(probed)]
    branches = {found.head: found.displaced for found in plans}
    assert all(found.tier is Tier.OPTIMIZED and found.displaced == branches[found.head] for found in plans)
    for before, behind in pairwise(branches[head] for head in sorted(branches)):
        assert before[-1].end <= behind[0].address
    assert branches[max(branches)][-1].end == START + starts[-1]


def instructions(detour: Detour) -> list[str]:
    return [insn.text.split()[0] for insn in X86_64.decode(detour.data, detour.address)]


def test_the_program_is_behind_the_copy_and_belongs_to_what_stays() -> None:
    detour = build_count(planned(staying()), X86_64, AT, COUNTER)
    ((start, end, original),) = detour.programs
    back = X86_64.decode(detour.data, AT)[-1]
    assert instructions(detour)[0] == "imulq" and original == back.target == START + LABEL and end == back.address
    assert [detour.original_pc(at) for at in (AT, start, end)] == [START, START + LABEL, START + LABEL]
    assert detour.after_program(original) == end, "where a thread continues of which the hit has run"


def test_both_programs_run_in_one_detour() -> None:
    found = planned(staying(), 0, frozenset({0, LABEL}))
    programs = {START + at: lambda to: X86_64.count(COUNTER, to, Dead(flags=True)) for at in (0, LABEL)}
    detour = build_detour(found, X86_64, AT, programs)
    assert instructions(detour) == ["lock", "imulq", "lock", "jmp"]


def test_a_branch_that_is_taken_goes_past_the_program() -> None:
    listing = "48 85 ff  test %rdi, %rdi\n0f 84 03 00 00 00  je .+9\n66 90  nop\n90  nop\nc3  ret"
    found = planned(staying(listing, 9), 9)
    assert [insn.address - START for insn in found.displaced] == [3]
    detour = build_detour(found, X86_64, AT, {START + 9: lambda to: X86_64.count(COUNTER, to, Dead(flags=True))})
    (taken, *_), (start, _, _) = detour.exits, detour.programs[0]
    assert taken.target == START + 12 and taken.address < start


JUMPED_TO = """
    48 85 ff              test %rdi, %rdi
    74 08                 je (the trap)
    48 69 c7 07 00 00 00  imul $7, %rdi, %rax
    c3                    ret
    0f 0b                 ud2
"""
TRAP = 13


def test_the_branch_is_where_the_only_jump_to_it_is() -> None:
    found = planned(staying(JUMPED_TO, TRAP, Fact.BUG), TRAP)
    assert found.tier is Tier.OPTIMIZED and found.address == found.insn.address == START + TRAP
    assert [insn.address - START for insn in found.displaced] == [3, 5]
    detour = build_count(found, X86_64, AT, COUNTER)
    ((start, end, original),) = detour.programs
    insns = X86_64.decode(detour.data, AT)
    taken, back, last = [insn for insn in insns if insn.target is not None]
    assert (taken.target, back.target, last.target) == (start, START + 12, START + TRAP)
    assert original == START + TRAP and end == last.address and detour.after_program(original) == end
    assert [detour.original_pc(at) for at in (AT, back.address, start)] == [START + 3, START + 12, START + TRAP]
    assert START + TRAP in detour.original_addresses


@pytest.mark.parametrize("more", [((5, TRAP),), ((0, TRAP + 1),), ((0, 4),)])
def test_two_ways_to_it_are_one_too_many(more: tuple[tuple[int, int], ...]) -> None:
    text = FakeText(JUMPED_TO, noted=(Mark(Fact.BUG, START + TRAP, 1),), jumps=more)
    assert planned(text, TRAP).tier is not Tier.OPTIMIZED


def test_one_that_jumps_to_another_and_leads_on_to_a_third_serves_all() -> None:
    listing = "48 85 ff  test %rdi, %rdi\n0f 84 03 00 00 00  je .+9\n66 90  nop\nc3  ret\n0f 0b  ud2"
    noted = (Mark(Fact.JUMP_LABEL, START + 9, 1), Mark(Fact.BUG, START + 12, 1))
    probed = frozenset({0, 3, 9, 12})
    plans = [planned(FakeText(listing, noted=noted), at, probed) for at in sorted(probed)]
    assert {found.head for found in plans[1:]} == {plans[1].head} and plans[3].stays is not None
    programs = {START + at: lambda to: X86_64.count(COUNTER, to, Dead(flags=True)) for at in probed}
    detour = build_detour(plans[3], X86_64, AT, programs)
    assert [original - START for _, _, original in detour.programs] == sorted(probed)


@pytest.mark.parametrize("before", ["eb 02  jmp .+4", "0f 0b  ud2"])
def test_what_the_guest_may_make_lead_there_is_a_way_too(before: str) -> None:
    """A jump label that is a jump now is a nop at another time; behind the trap of a WARN the kernel continues."""
    listing = f"48 85 ff  test %rdi, %rdi\n0f 84 02 00 00 00  je .+8\n{before}\n66 90  nop\nc3  ret\nc3  ret"
    fact = Fact.JUMP_LABEL if "jmp" in before else Fact.BUG
    text = FakeText(listing, noted=(Mark(Fact.JUMP_LABEL, START + 11, 1), Mark(fact, START + 9, 1)))
    assert planned(text, 11).tier is not Tier.OPTIMIZED
    alone = FakeText(listing.replace(before, "c3 c3  ret"), noted=(Mark(Fact.JUMP_LABEL, START + 11, 1),))
    assert planned(alone, 11).tier is Tier.OPTIMIZED, "nothing comes to it from a return"


def test_where_a_function_begins_calls_come_to() -> None:
    listing = "66 90  nop\n48 85 ff  test %rdi, %rdi\n74 f9  je victim\nc3  ret"
    text = FakeText(listing, noted=(Mark(Fact.BUG, START, 1),))
    assert planned(text, 0).tier is not Tier.OPTIMIZED
