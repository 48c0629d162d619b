"""What each architecture's Linux says of the same questions."""

from __future__ import annotations

from gdb_optprobe.guest.linux.arch import registry
from gdb_optprobe.guest.linux.arch.ppc64le.arch import LINUX_PPC64LE
from gdb_optprobe.guest.linux.arch.ppc64le.text import PowerText
from gdb_optprobe.guest.linux.arch.x86_64.arch import LINUX_X86_64
from gdb_optprobe.guest.text import Fact, Mark
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.x86_64 import X86_64
from tests.detours.fakes import START, FakeText
from tests.guest.linux.fake_kernel import Pages, kernel

TEXT = 0xC000000000100000
NAMES = {"_stext": TEXT, "function": TEXT + 0x10, "other": TEXT + 0x40, "d__etext": TEXT + 0x100}


def test_a_function_s_entry_on_x86_is_behind_a_landing_pad() -> None:
    x86 = LINUX_X86_64
    assert x86.entry(START, FakeText("f3 0f 1e fa  endbr64\n90  nop")) == START + 4
    assert x86.entry(START, FakeText("90  nop")) == START


def test_a_function_s_entry_on_x86_is_behind_a_sealed_landing_pad() -> None:
    x86 = LINUX_X86_64
    for sealed in ("66 0f 1f 00  nopw (%rax)", "0f 1f 40 d6  nopl -0x2a(%rax)", "0f 1f 40 00  nopl (%rax)"):
        assert x86.entry(START, FakeText(f"{sealed}\n0f 1f 44 00 00  nopl")) == START + 4
    rewritten = (Mark(Fact.JUMP_LABEL, START, 1),)
    assert x86.entry(START, FakeText("0f 1f 40 00  nopl (%rax)\nc3  ret", noted=rewritten)) == START
    assert x86.entry(START, FakeText("0f 1f 44 00 00  nopl\nc3  ret")) == START, "a tracer's site"


def test_a_function_s_entry_on_ppc64le_is_the_local_one() -> None:
    memory = Pages()
    memory.put(TEXT + 0x10, bytes.fromhex("c2004c3c c0d54238 a602087c"))  # addis r2,r12; addi r2,r2; mflr r0
    memory.put(TEXT + 0x40, bytes.fromhex("a602087c"))
    power = LINUX_PPC64LE
    text = PowerText(kernel(memory, NAMES))
    assert power.entry(TEXT + 0x10, text) == TEXT + 0x18
    assert power.entry(TEXT + 0x40, text) == TEXT + 0x40


def test_an_entry_on_x86_by_the_first_bytes_is_that_by_the_text() -> None:
    x86 = LINUX_X86_64
    listings = ("f3 0f 1e fa  endbr64\n90  nop", "90  nop", "0f 1f 44 00 00  nopl\nc3  ret", "55  pushq %rbp\nc3  ret")
    for text in map(FakeText, listings):
        assert x86.entry_by_head(START, text.data) == x86.entry(START, text)


def test_first_bytes_on_x86_that_may_be_a_sealed_pad_or_a_patch_say_nothing() -> None:
    for head in ("66 0f 1f 00", "0f 1f 40 d6", "0f 1f 40 00", "cc", "e9 00 00 00 00", ""):
        assert LINUX_X86_64.entry_by_head(START, bytes.fromhex(head)) is None
    for head in ("cc", "e9 00 00 00 00"):
        assert LINUX_X86_64.entry_by_head(START, bytes.fromhex(head), original=True) == START
    assert LINUX_X86_64.entry_by_head(START, bytes.fromhex("0f 1f 40 00"), original=True) is None


def test_an_entry_on_ppc64le_by_the_first_bytes_is_that_by_the_text() -> None:
    power = LINUX_PPC64LE
    assert power.entry_by_head(TEXT, bytes.fromhex("c2004c3c c0d54238 a602087c")) == TEXT + 8
    assert power.entry_by_head(TEXT, bytes.fromhex("a602087c")) == TEXT
    for head in ("00000048", "0800e07f a602087c", ""):  # b; trap
        assert power.entry_by_head(TEXT, bytes.fromhex(head)) is None
    for head in ("00000048", "0800e07f a602087c"):
        assert power.entry_by_head(TEXT, bytes.fromhex(head), original=True) == TEXT


def test_a_record_is_found_by_its_isa() -> None:
    assert registry.of(X86_64) is LINUX_X86_64 and registry.of(PPC64LE) is LINUX_PPC64LE


def test_no_other_isa_is_known() -> None:
    assert registry.of(PPC64LE, (LINUX_X86_64,)) is None
