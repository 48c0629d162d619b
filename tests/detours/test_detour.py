from __future__ import annotations

from dataclasses import replace

import pytest

from gdb_optprobe.detours.cfg import CfgCache
from gdb_optprobe.detours.detour import build_count, build_detour, count_around, count_code
from gdb_optprobe.detours.planner import PlanRequest, TierLimits, plan
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.guest.text import FtraceSite
from gdb_optprobe.isa.aarch64 import AARCH64, AARCH64_LSE
from gdb_optprobe.isa.base import Dead, joined
from gdb_optprobe.isa.record import Isa, counting
from gdb_optprobe.isa.x86_64 import X86_64
from tests.detours.fakes import NOP5, START, FakeText

AT = START + 0x100000
COUNTER = START - 0x1000000
PUSHES = "41 55  push %r13\n 41 54  push %r12\n 55  push %rbp\n c3  ret\n cc cc cc cc"


def texts(data: bytes, at: int = AT) -> list[str]:
    return [insn.text.split()[0] for insn in X86_64.decode(data, at)]


def test_count_at_a_tracers_site_is_two_instructions() -> None:
    text = FakeText("0f 1f 44 00 00  nop\n" + PUSHES, tracers=(FtraceSite(START, 5, False, NOP5),))
    detour = build_count(plan(PlanRequest(START), CfgCache(X86_64, text)), X86_64, AT, COUNTER)
    insns = X86_64.decode(detour.data, AT)
    assert len(insns) == 2 and insns[-1].target == START + 5
    assert detour.original_pc(AT) == START, "the program belongs to the probed instruction"
    assert detour.original_pc(insns[-1].address) == START + 5
    assert detour.original_pc(detour.end) is None


def test_count_runs_the_displaced_instructions_and_goes_back() -> None:
    detour = build_count(plan(PlanRequest(START), CfgCache(X86_64, FakeText(PUSHES))), X86_64, AT, COUNTER)
    assert texts(detour.data)[-4:] == ["pushq", "pushq", "pushq", "jmp"]
    assert X86_64.decode(detour.data, AT)[-1].target == START + 5
    assert detour.size <= 64
    for original in (0, 2, 4, 5):
        at = detour.address_of(START + original)
        assert at is not None and detour.original_pc(at) == START + original


def test_a_pc_inside_the_program_is_at_the_probed_address() -> None:
    detour = build_count(plan(PlanRequest(START), CfgCache(X86_64, FakeText(PUSHES))), X86_64, AT, COUNTER)
    ((start, end, original),) = detour.programs
    assert (start, original) == (AT, START) and end > start
    assert {detour.original_pc(at) for at in range(start, end)} == {START}


def test_boosted_copy_has_no_program() -> None:
    limits = TierLimits(optimization=False, emulation=False)
    detour = build_detour(plan(PlanRequest(START), CfgCache(X86_64, FakeText(PUSHES)), limits), X86_64, AT)
    assert texts(detour.data) == ["pushq", "jmp"] and not detour.programs
    assert detour.original_pc(AT) == START


def test_dead_flags_save_nothing() -> None:
    found = plan(PlanRequest(START), CfgCache(X86_64, FakeText(PUSHES)))
    assert found.dead == Dead(found.dead.flags, found.dead.registers)
    names = texts(build_count(found, X86_64, AT, COUNTER).data)
    assert ("pushfq" in names) is not found.dead.flags


def test_programs_of_several_instructions_run_in_one_detour() -> None:
    found = plan(PlanRequest(START), CfgCache(X86_64, FakeText(PUSHES)))
    programs = {START + at: lambda to: X86_64.count(COUNTER, to, Dead(flags=True)) for at in (0, 4)}
    detour = build_detour(found, X86_64, AT, programs)
    assert texts(detour.data) == ["lock", "pushq", "pushq", "lock", "pushq", "jmp"]
    assert [original - START for _, _, original in detour.programs] == [0, 4]
    start, end, original = detour.programs[1]
    assert {detour.original_pc(at) for at in range(start, end)} == {original}, "the third has not begun"


def test_where_somebody_inside_comes_to_in_the_text() -> None:
    branches = "74 03  je .+5\n 48 89 c3  mov %rax, %rbx\n 48 89 c3  mov %rax, %rbx\n c3  ret"
    found = plan(PlanRequest(START), CfgCache(X86_64, FakeText(branches.replace("74 03", "74 06"))))
    detour = build_count(found, X86_64, AT, COUNTER)
    assert {insn.target - START for insn in detour.exits if insn.target} == {5, 8}
    assert {address - START for address in detour.original_addresses} == {0, 2, 5, 8}


def test_where_a_trap_leads_its_frame_is_wiped_before_anything_else() -> None:
    limits = TierLimits(trap_missing="", forced=Tier.TRAPPED)
    detour = build_count(plan(PlanRequest(START), CfgCache(X86_64, FakeText(PUSHES)), limits), X86_64, AT, COUNTER)
    wipes = [insn.text for insn in X86_64.decode(detour.data, AT)[:2]]
    assert wipes == ["movq $0, -0x28(%rsp)", "movq $0, -0x30(%rsp)"]
    program = AT + len(X86_64.landing)
    assert detour.programs[0][0] == program == detour.address_of(START)
    assert {detour.original_pc(at) for at in range(AT, program)} == {START}


@pytest.mark.parametrize("isa", [AARCH64, AARCH64_LSE])
@pytest.mark.parametrize("at", [0x10_0000, 0x10_0004])
@pytest.mark.parametrize("traced", [False, True])
def test_a_detour_with_words_behind_its_code(isa: Isa, at: int, traced: bool) -> None:
    """They are aligned and hold the counter, which is no branch out of the detour although it is the bytes of one."""
    start, counter = 0xFFFF_8000_0800_0000, 0xFFFF_8000_1400_0008
    insns = isa.decode(bytes.fromhex("e9031eaa1f2003d5"), start)
    site = FtraceSite(start, 8, False, b"".join(insn.data for insn in insns)) if traced else None
    found = replace(
        plan(PlanRequest(START), CfgCache(X86_64, FakeText(PUSHES))),
        address=start, displaced=tuple(insns[:1]), ftrace=site, dead=isa.dead_at_entry(),
    )  # fmt: skip
    detour = build_count(found, isa, start + at, counter)
    assert detour.data[-8:] == counter.to_bytes(8, "little") and detour.end % 8 == 0
    code = isa.decode(detour.data, detour.address)
    assert code[-1].end < detour.end - 8 and code[0].text == f"ldr x16, #{detour.end - 8:#x}"
    assert [insn.target for insn in detour.exits] == [start + (8 if traced else 4)]
    assert detour.programs == ((start + at, code[-1].address - (0 if traced else 4), start),)
    assert count_code(found, isa, start + at, counter) == detour.data
    if not traced:
        assert count_around(found, isa, start + at, counter, insns[0].data, start + 4) == detour.data


def test_programs_of_one_detour_share_its_pool() -> None:
    start, counters = 0xFFFF_8000_0800_0000, (0xFFFF_8000_0900_0008, 0xFFFF_8000_0900_0010)
    (insn,) = AARCH64.decode(bytes.fromhex("e9031eaa"), start)
    found = replace(
        plan(PlanRequest(START), CfgCache(X86_64, FakeText(PUSHES))),
        address=start, displaced=(insn,), dead=AARCH64.dead_at_entry(),
    )  # fmt: skip
    counts = joined([counting(AARCH64, counter, found.dead) for counter in counters])
    detour = build_detour(found, AARCH64, start + 0x1000, {start: counts})
    assert detour.data[-16:] == b"".join(counter.to_bytes(8, "little") for counter in counters)
    texts = [insn.text for insn in AARCH64.decode(detour.data, detour.address)]
    loads = [text for text in texts if text.startswith("ldr x16")]
    assert loads == [f"ldr x16, #{detour.end - 16:#x}", f"ldr x16, #{detour.end - 8:#x}"]
