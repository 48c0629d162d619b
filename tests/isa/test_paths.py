"""The shortest way through code."""

from __future__ import annotations

from gdb_optprobe.isa.base import Flow
from gdb_optprobe.isa.paths import depth, saved, shortest
from gdb_optprobe.isa.x86_64 import X86_64

AT = 0x1000


def ways(code: str) -> int:
    return shortest(X86_64.decode(bytes.fromhex(code), AT))


def test_straight_code() -> None:
    assert ways("90 90 48ffc0") == 3
    assert ways("") == 0


def test_a_jump_over_the_rest() -> None:
    assert ways("4839d8 7503 48ffc0") == 2  # cmp; jne to the end; inc
    assert ways("4839d8 7504 48ffc0 90 90") == 3  # one instruction is left to do there


def test_what_only_goes_round_ends_at_its_end() -> None:
    assert ways("48ffc8 75fb") == 2  # dec; jnz back


def test_no_way_out() -> None:
    assert ways("ebfe 90") == 2


def test_the_cheapest_way_is_not_the_one_with_fewest_instructions() -> None:
    """test; je +5; call; nop: what falls through costs more than what jumps over the call."""
    code = X86_64.decode(bytes.fromhex("85c0 7405 e800000000 90"), AT)
    assert shortest(code, lambda insn: 50 if insn.flow is Flow.CALL else 1) == 3
    assert shortest(code[2:], lambda insn: 50 if insn.flow is Flow.CALL else 1) == 51


def test_how_deep_the_stack_is_on_the_way_to_an_instruction() -> None:
    """pushfq; je to the last; popfq; jmp away; popfq: what stands behind the way out is as deep as the branch was."""
    insns = X86_64.decode(bytes.fromhex("9c 7406 9d e900000010 9d 90"), AT)
    assert [depth(insns, insn.address, X86_64.pushed) for insn in insns] == [0, 8, 8, 0, 8, 0]


def test_which_registers_are_on_the_stack_and_where() -> None:
    """push rax; push rbp; pushfq; push rbp; pop rbp; popfq; pop rbp; nop: rbp is what was pushed first."""
    insns = X86_64.decode(bytes.fromhex("50 55 9c 55 5d 9d 5d 90"), AT)
    found = [saved(insns, insn.address, X86_64.pushed, X86_64.saves) for insn in insns]
    assert found == [{}, {}, {"rbp": 0}, {"rbp": 8}, {"rbp": 16}, {"rbp": 8}, {"rbp": 0}, {}]
    assert saved([], AT, X86_64.pushed, X86_64.saves) == {}
