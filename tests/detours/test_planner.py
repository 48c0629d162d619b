"""One test a hazard, named after it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gdb_optprobe.detours.cfg import CfgCache
from gdb_optprobe.detours.planner import Neighbour, Plan, PlanRequest, TierLimits, plan, plans
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.guest.text import Area, Fact, FtraceSite, Mark
from gdb_optprobe.isa.x86_64 import X86_64
from tests.detours.fakes import NOP5, START, FakeText

PUSHES = """
    41 55            push %r13
    41 54            push %r12
    55               push %rbp
    b8 01 00 00 00   mov $1, %eax
    c3               ret
    cc cc cc cc
"""


def planned(text: FakeText, offset: int = 0, limits: TierLimits | None = None, **site: object) -> Plan:
    return plan(replace(PlanRequest(START + offset), **site), CfgCache(X86_64, text), limits)  # type: ignore[arg-type]


def why(found: Plan) -> str | None:
    return found.reason.code if found.reason else None


def refusal(text: FakeText, offset: int = 0) -> str:
    with pytest.raises(Refused) as refused:
        planned(text, offset)
    return refused.value.reason.code


# --- where a branch fits -----------------------------------------------------------------------------------------


def test_one_long_instruction_needs_no_wait() -> None:
    found = planned(FakeText(PUSHES), 5)
    assert (found.tier, found.needs_quiescence, found.patch_size, len(found.displaced)) == (Tier.OPTIMIZED, False, 5, 1)
    assert found.reason is None


def test_several_instructions_wait() -> None:
    found = planned(FakeText(PUSHES))
    assert found.tier is Tier.OPTIMIZED and found.needs_quiescence
    assert [insn.size for insn in found.displaced] == [2, 2, 1]


def test_ret_before_padding_is_one_instruction() -> None:
    found = planned(FakeText(PUSHES), 10)
    assert found.tier is Tier.OPTIMIZED and not found.needs_quiescence and len(found.displaced) == 1


def test_ret_before_a_jump_target_has_no_padding() -> None:
    found = planned(FakeText(PUSHES, jumps=((0, 12), (0, 10))), 10)
    assert why(found) == "FUNCTION_END"
    assert found.tier is Tier.EMULATED


ROUNDED = """
    eb 08            jmp L
    0f 1f 00         nopl 0(%rax)
    48 89 c3         mov %rax, %rbx
    74 00            je L
    48 89 c3         mov %rax, %rbx (L)
    c3               ret
"""


def test_padding_is_room_and_no_place_for_a_probe() -> None:
    text = FakeText(ROUNDED)
    assert planned(text).original == bytes.fromhex("eb080f1f00")
    assert refusal(text, 2) == "PADDING"


def test_users_breakpoint_in_padding() -> None:
    assert why(planned(FakeText(ROUNDED), breakpoints=frozenset({START + 2}))) == "FUNCTION_END"


def test_no_padding_behind_a_jump_that_the_guest_rewrites() -> None:
    text = FakeText(ROUNDED, noted=(Mark(Fact.JUMP_LABEL, START, 1),))
    assert planned(text, 2).tier is Tier.OPTIMIZED


def test_function_end() -> None:
    found = planned(FakeText("55  push %rbp\n c3  ret"))
    assert why(found) == "FUNCTION_END" and found.tier is Tier.EMULATED


# --- what may arrive inside ---------------------------------------------------------------------------------------


def test_jump_into_region() -> None:
    found = planned(FakeText(PUSHES, jumps=((7, 2),)))
    assert why(found) == "JUMP_INTO_REGION"
    assert found.near == START + 2, "there, the jump lands on the branch itself"


def test_jump_to_the_probed_address_is_no_hazard() -> None:
    assert planned(FakeText(PUSHES, jumps=((7, 0),))).tier is Tier.OPTIMIZED


def test_jump_behind_the_branch_is_no_hazard() -> None:
    assert planned(FakeText(PUSHES, jumps=((7, 5),))).tier is Tier.OPTIMIZED


def test_jump_into_the_middle_of_an_instruction() -> None:
    assert why(planned(FakeText(PUSHES, jumps=((0, 7),)), 5)) == "JUMP_INTO_REGION"


def test_return_into_region() -> None:
    found = planned(FakeText("ff d0  call *%rax\n 41 54  push %r12\n 55  push %rbp\n c3  ret\n cc cc cc cc"))
    assert why(found) == "RETURN_INTO_REGION"


def test_indirect_jump() -> None:
    found = planned(FakeText(PUSHES, blind=(10,)))
    assert why(found) == "INDIRECT_JUMP" and found.near == START + 5


def test_code_that_cannot_be_decoded_hides_jumps() -> None:
    assert why(planned(FakeText(PUSHES, complete=False))) == "UNDECODABLE"
    assert planned(FakeText(PUSHES, complete=False), 5).tier is Tier.OPTIMIZED


# --- what the guest rewrites or recognises --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fact", "code"),
    [
        (Fact.EXCEPTION, "EXCEPTION_TABLE"),
        (Fact.JUMP_LABEL, "JUMP_LABEL"),
        (Fact.STATIC_CALL, "STATIC_CALL"),
        (Fact.BUG, "BUG_TABLE"),
    ],
)
def test_marked_bytes(fact: Fact, code: str) -> None:
    text = FakeText(PUSHES + "48 69 c7 07 00 00 00  imul $7, %rdi, %rax", noted=(Mark(fact, START + 15, 1),))
    found = planned(text, 15)
    assert why(found) == code
    assert found.tier is Tier.BREAKPOINT, "a copy of these bytes would be wrong too"
    assert planned(text, 5).tier is Tier.OPTIMIZED, "marks elsewhere do not matter"


@pytest.mark.parametrize("now", ["eb 03  jmp +3", "66 90  nop"])
def test_a_jump_label_is_two_paths_whichever_it_is_now(now: str) -> None:
    """The guest may switch it at any time: what either path reads is live before it."""
    listing = f"b8 01 00 00 00  mov $1, %eax\n{now}\n48 89 f0  mov %rsi, %rax\n31 f6  xor %esi, %esi\nc3  ret"
    dead = planned(FakeText(listing, labels=((5, 10),))).dead.registers
    assert "rsi" not in dead and "rax" in dead
    assert ("rsi" in planned(FakeText(listing)).dead.registers) is ("jmp" in now)


TRACED = """
    0f 1f 44 00 00   nopl 0(%rax,%rax)
    41 55            push %r13
    41 54            push %r12
    55               push %rbp
    c3               ret
    cc cc cc cc
"""


def traced(at: int = 0, in_use: bool = False) -> tuple[FtraceSite, ...]:
    return (FtraceSite(START + at, 5, in_use, NOP5),)


def test_ftrace_site() -> None:
    found = planned(FakeText(TRACED, tracers=traced()))
    assert found.tier is Tier.OPTIMIZED and not found.needs_quiescence
    assert found.ftrace is not None and found.dead == X86_64.dead_at_entry()


def test_ftrace_site_in_use() -> None:
    found = planned(FakeText(TRACED, tracers=traced(in_use=True)))
    assert why(found) == "FTRACE_IN_USE" and found.near == START + 5


def test_ftrace_site_that_holds_something_else() -> None:
    text = FakeText(TRACED.replace("0f 1f 44 00 00", "e8 00 10 00 00"), tracers=traced())
    assert why(planned(text)) == "FTRACE_CHANGED"


def test_ftrace_site_in_the_middle() -> None:
    text = FakeText("f3 0f 1e fa  endbr64\n" + TRACED, tracers=traced(4))
    assert why(planned(text)) == "LANDING_PAD"
    assert planned(text).near == START + 4


def test_ftrace_site_behind_a_short_instruction() -> None:
    text = FakeText("55  push %rbp\n" + TRACED, tracers=traced(1))
    assert why(planned(text)) == "FTRACE_SITE"


# --- what cannot be moved -------------------------------------------------------------------------------------------


def test_trap() -> None:
    found = planned(FakeText("0f 0b  ud2\n" + PUSHES))
    assert why(found) == "TRAP_INSTRUCTION" and found.tier is Tier.BREAKPOINT


def test_a_jump_into_the_middle_reaches_into_two_instructions() -> None:
    """As FineIBT checks an indirect call: `lea; jne` to the last byte of `lea`, which is a trap together with `jne`."""
    listing = "4d 8d 5b f0  lea -0x10(%r11), %r11\n75 fd  jne -1\n41 ff d3  call *%r11\n"
    check = FakeText(listing + PUSHES, jumps=((4, 3),))
    assert [why(planned(check, at)) for at in (0, 4)] == ["JUMP_INTO_REGION"] * 2
    assert planned(check, 9).tier is Tier.OPTIMIZED


def test_foreign_breakpoint_among_the_displaced() -> None:
    found = planned(FakeText("55  push %rbp\n cc  int3\n 41 54  push %r12\n 55  push %rbp\n c3  ret"))
    assert why(found) == "FOREIGN_BREAKPOINT"


def test_jump_to_unknown_memory_is_the_guests_own_patch() -> None:
    found = planned(FakeText("e9 00 00 00 f0  jmp -0x10000000\n" + PUSHES))
    assert why(found) == "FOREIGN_JUMP"


class BesideAModule(FakeText):
    """A module's text begins a MiB behind the function, or one before."""

    def area(self, address: int) -> Area:
        return self.where if abs(address - START) < 1 << 16 else Area.LOADED


def test_jump_to_a_module_is_a_patch_in_the_kernel_and_none_in_a_module() -> None:
    leaving = "e9 fb ff 0f 00  jmp 0x100000\n" + PUSHES
    assert why(planned(BesideAModule(leaving))) == "FOREIGN_JUMP"
    assert planned(BesideAModule(leaving, where=Area.LOADED)).tier is Tier.OPTIMIZED


def test_nothing_traps_in_a_module() -> None:
    """By the time a trap comes, its address may be that of another module's own."""
    short = planned(FakeText("55  push %rbp\nc3  ret", where=Area.LOADED), limits=TRAPS)
    refused = short.why_not(Tier.TRAPPED)
    assert refused is not None and refused.code == "MODULE_TRAP"
    assert planned(FakeText("55  push %rbp\nc3  ret"), limits=TRAPS).tier is Tier.TRAPPED


def test_a_patch_elsewhere_in_the_function_is_named() -> None:
    """Behind it the code cannot be decoded, so that jumps from there may land anywhere."""
    found = planned(FakeText(PUSHES.removesuffix("c3  ret") + "\n e9 00 00 00 f0  jmp -0x10000000", complete=False))
    assert found.reason is not None and found.reason.code == "FOREIGN_JUMP"
    assert "the jump at victim+" in found.reason.text


# --- no tier at all --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("area", "code"),
    [
        (Area.NOT_TEXT, "NOT_TEXT"),
        (Area.ENTRY, "ENTRY_TEXT"),
        (Area.INIT, "INIT_TEXT"),
        (Area.EARLY, "EARLY_TEXT"),
        (Area.COPIED, "COPIED_TEXT"),
        (Area.MODULE, "MODULE_TEXT"),
    ],
)
def test_area(area: Area, code: str) -> None:
    assert refusal(FakeText(PUSHES, where=area)) == code


def test_not_an_instruction_boundary() -> None:
    with pytest.raises(Refused) as refused:
        planned(FakeText(PUSHES), 6)
    assert refused.value.reason.code == "NOT_INSTRUCTION_BOUNDARY"
    assert refused.value.hint == "probe victim+5"


def test_foreign_breakpoint() -> None:
    assert refusal(FakeText("cc  int3\n" + PUSHES)) == "FOREIGN_BREAKPOINT"


def test_a_breakpoint_instruction_behind_a_return_is_padding() -> None:
    """Compilers put it there against speculation; a branch to it would make it somebody's."""
    assert refusal(FakeText("c3  ret\ncc  int3\n" + PUSHES), 1) == "PADDING"
    assert refusal(FakeText("74 01  je +1\nc3  ret\ncc  int3\n" + PUSHES), 3) == "FOREIGN_BREAKPOINT"


def test_unknown_function() -> None:
    assert refusal(FakeText(PUSHES), 0x1000) == "UNKNOWN_FUNCTION"


def test_plans_goes_on_behind_a_refusal() -> None:
    requests = [PlanRequest(START + offset) for offset in (0, 6, 5)]
    found = list(plans(requests, CfgCache(X86_64, FakeText(PUSHES))))
    assert [isinstance(each, Plan) for each in found] == [True, False, True]


# --- wishes ----------------------------------------------------------------------------------------------------------


def test_everything_off_is_a_breakpoint() -> None:
    found = planned(FakeText(PUSHES), limits=TierLimits(optimization=False, boost=False, emulation=False))
    assert found.tier is Tier.BREAKPOINT
    assert [(tier, reason.code) for tier, reason in found.refused] == [
        (Tier.OPTIMIZED, "OPTIMIZATION_OFF"),
        (Tier.TRAPPED, "TRAP_TIER_MISSING"),
        (Tier.EMULATED, "EMULATION_OFF"),
        (Tier.BOOSTED, "BOOST_OFF"),
    ]


def test_emulated_then_boosted() -> None:
    off = TierLimits(optimization=False)
    assert planned(FakeText(PUSHES), limits=off).tier is Tier.EMULATED
    text = FakeText("48 69 c7 07 00 00 00  imul $7, %rdi, %rax\n" + PUSHES)
    assert planned(text, limits=off).tier is Tier.BOOSTED


TRAPS = TierLimits(trap_missing="")


def test_trapped_where_no_branch_fits() -> None:
    text = FakeText("55  push %rbp\nc3  ret")
    found = planned(text, limits=TRAPS)
    assert not found.needs_quiescence
    assert (found.tier, found.original, len(found.displaced)) == (Tier.TRAPPED, b"\x55", 1)


def test_a_trap_replaces_one_instruction() -> None:
    found = planned(FakeText(PUSHES), limits=replace(TRAPS, forced=Tier.TRAPPED))
    assert found.tier is Tier.TRAPPED and why(found) == "TIER_FORCED"
    assert found.patch_size == len(X86_64.trap) and found.displaced == (found.insn,)


def test_no_trap_on_the_way_to_the_handler_of_traps() -> None:
    here = replace(TRAPS, optimization=False, trap_paths=((START - 8, START + 1),))
    assert dict(planned(FakeText(PUSHES), limits=here).refused)[Tier.TRAPPED].code == "TRAP_PATH"
    behind = replace(here, trap_paths=((START - 8, START),))
    assert planned(FakeText(PUSHES), limits=behind).tier is Tier.TRAPPED


def test_no_trap_where_a_user_wants_to_stop() -> None:
    text = FakeText(PUSHES)
    found = planned(text, limits=replace(TRAPS, optimization=False), breakpoints=frozenset((START,)))
    assert dict(found.refused)[Tier.TRAPPED].code == "USER_BREAKPOINT"


def test_traps_switched_off() -> None:
    found = planned(FakeText(PUSHES), limits=replace(TRAPS, optimization=False, trap=False))
    assert dict(found.refused)[Tier.TRAPPED].code == "TRAP_OFF"


def test_python_handler() -> None:
    found = planned(FakeText(PUSHES), limits=TierLimits(python_handler=True))
    assert why(found) == "PYTHON_HANDLER" and found.tier is Tier.EMULATED


def test_post_handler() -> None:
    text = FakeText("48 69 c7 07 00 00 00  imul $7, %rdi, %rax\n" + PUSHES)
    found = planned(text, limits=TierLimits(post_handler=True, python_handler=True))
    assert found.tier is Tier.BREAKPOINT
    assert dict(found.refused)[Tier.BOOSTED].code == "POST_HANDLER"


def test_forced_tier() -> None:
    found = planned(FakeText(PUSHES), limits=TierLimits(forced=Tier.BOOSTED))
    assert found.tier is Tier.BOOSTED and why(found) == "TIER_FORCED"


def test_stacks_unknown() -> None:
    limits = TierLimits(stacks_missing="this kernel has no BTF")
    found = planned(FakeText(PUSHES), limits=limits)
    assert why(found) == "STACKS_UNKNOWN" and found.near == START + 5
    assert planned(FakeText(PUSHES), 5, limits).tier is Tier.OPTIMIZED


def test_users_breakpoint() -> None:
    found = planned(FakeText(PUSHES), breakpoints=frozenset({START + 2}))
    assert why(found) == "USER_BREAKPOINT"
    assert planned(FakeText(PUSHES), breakpoints=frozenset({START + 5})).tier is Tier.OPTIMIZED


def test_neighbour_that_stops_the_guest_stays_in_place() -> None:
    found = planned(FakeText(PUSHES), neighbours={START + 2: Neighbour(3, may_share=False)}.get)
    assert why(found) == "OVERLAPS_PROBE" and "probe 3" in str(found.reason)


def test_neighbour_that_joins_shares_the_branch() -> None:
    text = FakeText(PUSHES)
    first = planned(text, neighbours={START + 2: Neighbour(3)}.get)
    second = planned(text, 2, neighbours={START: Neighbour(1)}.get)
    assert first.tier is second.tier is Tier.OPTIMIZED
    assert first.displaced == second.displaced and second.head == START and second.insn.address == START + 2


def test_branch_begins_earlier_where_a_jump_lands_behind() -> None:
    found = planned(FakeText(PUSHES, jumps=((7, 5),)), 4)
    assert found.tier is Tier.OPTIMIZED and found.head == START and found.insn.address == START + 4


def test_every_refusal_can_be_told() -> None:
    class Anything(dict[str, object]):
        def __missing__(self, key: str) -> object:
            return f"<{key}>"

    for member in Refusal:
        text, hint = member.value
        assert text.format_map(Anything()) and not hint.format_map(Anything()).endswith(".")
    assert len({member.value[0] for member in Refusal}) == len(Refusal.__members__)
