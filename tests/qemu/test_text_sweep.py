"""The sweep gives the planner's own answers."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gdb_optprobe.detours.cfg import CfgCache
from gdb_optprobe.guest.text import Area, Fact, FtraceSite, Mark
from gdb_optprobe.isa.x86_64 import X86_64
from qemu.text_sweep import code_at, survey, sweep
from tests.detours.fakes import NOP5, START, FakeText

PLAIN = "41 55  push %r13\n 41 54  push %r12\n 55  push %rbp\n b8 01 00 00 00  mov $1, %eax\n c3  ret\n cc cc cc cc"
SHADOW = "fb  sti\n f4  hlt\n 48 89 c3  mov %rax, %rbx\n 48 89 c3  mov %rax, %rbx\n c3  ret\n 0f 1f 40 00  nopl 0(%rax)"
OWN_ADDRESS = "48 8b 05 01 00 00 00  mov 1(%rip), %rax\n 90  nop\n 48 89 c3  mov %rax, %rbx\n 48 89 c3  mov\n c3  ret"


TEXTS = [
    FakeText(PLAIN),
    FakeText(PLAIN, jumps=((0, 2), (0, 10))),
    FakeText(PLAIN, blind=(0,)),
    FakeText(PLAIN, complete=False),
    FakeText(PLAIN, noted=(Mark(Fact.JUMP_LABEL, START + 5, 1),)),
    FakeText("0f 1f 44 00 00  nop\n" + PLAIN, tracers=(FtraceSite(START, 5, False, NOP5),)),
    FakeText("f3 0f 1e fa  endbr64\n" + PLAIN),
    FakeText(SHADOW),
    FakeText(OWN_ADDRESS),
]


@pytest.mark.parametrize("text", TEXTS)
def test_same_answers_as_the_planner(text: FakeText) -> None:
    cfg = CfgCache(X86_64, text).at(START)
    assert cfg is not None
    found = list(survey(cfg))
    code = [insn for insn in cfg.function.hot if insn.data != X86_64.breakpoint and not cfg.is_padding(insn.address)]
    assert [insn for insn, _ in found] == code
    for insn, why in found:
        assert why == code_at(cfg, insn), insn


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_told_at_once_is_what_is_told_at_length(text: FakeText) -> None:
    cfg = CfgCache(X86_64, text).at(START)
    assert cfg is not None
    code = cfg.function.hot
    assert all(cfg.obstacle(insn) is None for insn in code if insn.address in cfg.plain)
    told = [(before, insn) for before, insn in pairwise(code) if cfg.has_no_boundary(before, insn)]
    assert all(cfg.boundary(before, insn) is None for before, insn in told)


def test_most_is_told_at_once() -> None:
    cfg = CfgCache(X86_64, FakeText(PLAIN)).at(START)
    assert cfg is not None
    code = cfg.function.run(START, 11)
    assert len(code) == 5
    assert all(cfg.has_no_boundary(before, insn) for before, insn in pairwise(code))


def test_special_text_is_refused_as_a_whole_and_freed_text_passed_over() -> None:
    early = CfgCache(X86_64, FakeText(PLAIN, where=Area.EARLY))
    assert [code for _, code in sweep(START, early)] == ["EARLY_TEXT"] * 5
    assert list(sweep(START, CfgCache(X86_64, FakeText(PLAIN, where=Area.INIT)))) == []
    plain = CfgCache(X86_64, FakeText(PLAIN))
    assert [code for _, code in sweep(START, plain)] == [""] * 5


def test_padding_is_no_instruction() -> None:
    cfg = CfgCache(X86_64, FakeText(SHADOW)).at(START)
    assert cfg is not None
    assert [insn.text.split()[0] for insn, _ in survey(cfg)] == ["sti", "hlt", "movq", "movq", "retq"]
