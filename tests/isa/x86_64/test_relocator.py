"""One test for each hazard of moving an instruction, named after it. The bytes are the program; Unicorn the judge."""

from __future__ import annotations

import random
import re

import iced_x86 as iced
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdb_optprobe.isa.base import Hazard, Insn, Relocated, Unrelocatable
from gdb_optprobe.isa.x86_64 import X86_64, abi
from gdb_optprobe.isa.x86_64.relocator import shadows
from tests.examples import examples

from . import differential
from .differential import DATA, STACK, random_state

HERE = 0xFFFF_FFFF_8100_1230
NEAR = 0xFFFF_FFFF_8300_0040
HOLE = 0xFFFF_FFFF_0200_0040  # the unused 2 GiB below the image: its RIP-relative reach ends within the image
EDGE = 0xFFFF_FFFF_0180_0040  # just in reach of HERE
FAR = 0xFFFF_FFFF_A000_0000


def code(listing: str, at: int = HERE) -> list[Insn]:
    """Decoded, from `bytes   assembler ; comment` lines. Of the assembler, the mnemonic is checked."""
    data, expected = bytearray(), []
    for line in listing.strip().splitlines():
        hexadecimal, mnemonic = re.fullmatch(r"\s*((?:[0-9a-f]{2} )+)\s*(\S+).*", line).groups()  # type: ignore[union-attr]
        data += bytes.fromhex(hexadecimal)
        expected.append(mnemonic)
    insns = X86_64.decode(bytes(data), at)
    assert sum(insn.size for insn in insns) == len(data)
    assert [insn.text.split()[0] for insn in insns] == expected
    return insns


def assert_same_effect(window: list[Insn], copies: list[Relocated] | None = None, runs: int = 6, **fixed: int) -> None:
    rng = random.Random(1)
    for copy in copies or [X86_64.relocate(window, to) for to in (NEAR, FAR, HOLE)]:
        assert not list(differential.second_opinion(window, copy))
        for _ in range(examples(runs)):
            assert not differential.compare(window, copy, random_state(rng) | fixed)


def assert_refused(window: list[Insn], hazard: Hazard, to: int = NEAR) -> None:
    with pytest.raises(Unrelocatable) as refusal:
        X86_64.relocate(window, to)
    assert refusal.value.hazard is hazard


def text(copy: Relocated) -> list[str]:
    return [insn.text for insn in X86_64.decode(copy.data, copy.address)]


# Branches


@pytest.mark.parametrize("rcx", [0, 1, 2, 1 << 32, (1 << 64) - 1])
@pytest.mark.parametrize("opcode, name", [(0xE0, "loopne"), (0xE1, "loope"), (0xE2, "loop"), (0xE3, "jrcxz")])
def test_loop_whose_target_is_outside(opcode: int, name: str, rcx: int) -> None:
    window = code(f"""
        48 89 d8       movq  %rbx, %rax
        {opcode:02x} f0          {name}  -16
    """)
    assert_same_effect(window, rcx=rcx)


@pytest.mark.parametrize("rcx", [0, 1, 1 << 32, (1 << 32) + 1])
def test_loop_and_jecxz_that_count_in_32_bits(rcx: int) -> None:
    assert_same_effect(code("67 e2 f0 loop -16 \n 48 89 d8 movq %rbx, %rax"), rcx=rcx)
    assert_same_effect(code("67 e3 10 jecxz +16 \n 48 89 d8 movq %rbx, %rax"), rcx=rcx)


@pytest.mark.parametrize("condition", range(16))
def test_short_jcc_is_widened(condition: int) -> None:
    data = bytes((0x70 | condition, 0x40)) + bytes.fromhex("4889d8")
    assert_same_effect(X86_64.decode(data, HERE), runs=4)


@pytest.mark.parametrize("condition", range(16))
def test_near_jcc(condition: int) -> None:
    assert_same_effect(X86_64.decode(bytes((0x0F, 0x80 | condition)) + b"\x78\x56\x00\x00", HERE), runs=4)


def test_short_jmp_is_widened() -> None:
    window = code("48 89 d8 movq %rbx, %rax \n eb 7f jmp +127")
    assert_same_effect(window)
    assert X86_64.relocate(window, NEAR).data[-5] == 0xE9  # and no branch back behind it


def test_jmp_and_call_with_prefixes_that_mean_nothing() -> None:
    assert_same_effect(code("2e e8 00 01 00 00 callq cs"))
    assert_same_effect(code("67 e8 00 01 00 00 callq addr32"))
    assert_same_effect(code("66 66 48 e8 00 01 00 00 callq data16"))


def test_sixteen_bit_branches_differ_between_processors() -> None:
    assert_refused(X86_64.decode(bytes.fromhex("66e900010000"), HERE), Hazard.NOT_SUPPORTED)


def test_two_widened_branches_with_a_target_among_the_displaced() -> None:
    assert_same_effect(
        code("""
        74 04          je    4f
        75 03          jne   5f
        31 c0          xorl  %eax, %eax
        90             nop
        48 ff c3       incq  %rbx
        """)
    )


def test_branch_back_to_the_probed_address_is_probed_again() -> None:
    window = code("""
        48 ff c8       decq  %rax
        75 fb          jne   -5
    """)
    assert_same_effect(window, rax=5)
    copy = X86_64.relocate(window, NEAR)
    assert f"jne {HERE:#x}" in text(copy)
    ran = differential.execute(
        {HERE: window[0].data + window[1].data}, HERE, [(HERE, HERE + 5)], {HERE: (HERE,)}, {"rax": 5}
    )
    assert len(ran.trace) == 5


def test_branch_back_to_another_displaced_instruction_stays_in_the_copy() -> None:
    window = code("""
        48 ff c3       incq  %rbx
        48 ff c8       decq  %rax
        75 fb          jne   -5
    """)
    assert_same_effect(window, rax=5)


def test_branch_to_self() -> None:
    assert_same_effect(code("eb fe jmp . \n 90 nop \n 90 nop \n 90 nop"), runs=1)
    assert_same_effect(code("31 c0 xorl %eax, %eax \n eb fe jmp . \n 90 nop"), runs=1)
    assert_same_effect(code("48 89 d8 movq %rbx, %rax \n e2 fe loop ."), rcx=9)


def test_branch_to_the_end_of_the_displaced() -> None:
    assert_same_effect(code("74 03 je 5f \n 48 89 d8 movq %rbx, %rax"))


def test_branch_into_the_middle_of_a_displaced_instruction() -> None:
    assert_refused(code("74 01 je 3f \n 48 89 d8 movq %rbx, %rax"), Hazard.BRANCH_INSIDE)


def test_branch_out_of_reach() -> None:
    with pytest.raises(Unrelocatable) as refusal:
        X86_64.relocate(code("48 89 d8 movq %rbx, %rax"), 0x5555_0000_0000)
    assert refusal.value.hazard is Hazard.OUT_OF_REACH


def test_xbegin_goes_to_its_own_fallback() -> None:
    copy = X86_64.relocate(code("c7 f8 00 01 00 00 xbegin +256"), NEAR)
    assert text(copy) == [f"xbegin {HERE + 6 + 256:#x}", f"jmp {HERE + 6:#x}"]


# Calls


def test_call_leaves_the_original_return_address() -> None:
    window = code("e8 00 10 00 00 callq")
    assert_same_effect(window)
    assert X86_64.relocate(window, NEAR).data[-5] == 0xE9  # the callee returns to the original: no branch back


def test_call_from_an_address_that_a_push_cannot_hold() -> None:
    for at in (0x5555_8123_4560, 0x8000_0000, 0xFFFF_C900_8123_4560):
        window = code("e8 00 10 00 00 callq", at)
        assert_same_effect(window, [X86_64.relocate(window, at + 0x1000_0000)])


def test_call_of_the_next_instruction() -> None:
    assert_same_effect(code("e8 00 00 00 00 callq ."))


def test_call_of_the_probed_address() -> None:
    assert_same_effect(code("48 89 d8 movq %rbx, %rax \n e8 f8 ff ff ff callq -8"))


def test_call_that_returns_among_the_displaced() -> None:
    assert_refused(code("ff d0 callq *%rax \n 48 89 d8 movq %rbx, %rax"), Hazard.RETURNS_INSIDE)


@pytest.mark.parametrize("register", range(16))
def test_indirect_call_through_each_register(register: int) -> None:
    prefix = b"\x41" if register > 7 else b""
    assert_same_effect(X86_64.decode(prefix + bytes((0xFF, 0xD0 | register & 7)), HERE), runs=3)
    assert_same_effect(X86_64.decode(b"\x48\x89\xd8" + prefix + bytes((0xFF, 0xD0 | register & 7)), HERE), runs=3)


@pytest.mark.parametrize(
    "listing",
    [
        "ff 14 24 callq *(%rsp)",
        "ff 54 24 08 callq *8(%rsp)",
        "ff 54 24 78 callq *120(%rsp)",
        "ff 94 24 00 01 00 00 callq *256(%rsp)",
        "ff 14 c4 callq *(%rsp,%rax,8)",
        "ff 54 24 f8 callq *-8(%rsp)",
        "ff 54 24 f4 callq *-12(%rsp)",
        "ff 54 24 80 callq *-128(%rsp)",
        "ff 94 24 00 ff ff ff callq *-256(%rsp)",
        "41 ff 54 24 08 callq *8(%r12)",
    ],
)
def test_indirect_call_through_the_stack(listing: str) -> None:
    assert_same_effect(code(listing), rax=2)


@pytest.mark.parametrize(
    "listing", ["ff 10 callq *(%rax)", "41 ff 55 10 callq *16(%r13)", "ff 14 c5 00 00 00 82 callq *tbl(,%rax,8)"]
)
def test_indirect_call_through_memory(listing: str) -> None:
    assert_same_effect(code(listing), rax=DATA, r13=DATA)


def test_indirect_call_and_jump_relative_to_rip() -> None:
    assert_same_effect(code("ff 15 00 10 00 00 callq *4096(%rip)"))
    assert_same_effect(code("ff 25 00 10 00 00 jmpq *4096(%rip)"))
    assert_same_effect(code("67 ff 15 00 10 00 00 callq *4096(%eip)"))


def test_indirect_jump_and_notrack() -> None:
    assert_same_effect(code("48 89 d8 movq %rbx, %rax \n 3e ff e0 notrack jmpq *%rax"))
    assert text(X86_64.relocate(code("3e ff d0 notrack callq *%rax"), NEAR))[1] == "notrack jmpq *%rax"


# Operands relative to RIP, in every position


@pytest.mark.parametrize(
    "listing",
    [
        "49 8b 05 00 10 00 00 movq 4096(%rip), %r8",
        "48 8d 05 00 10 00 00 leaq 4096(%rip), %rax",
        "48 89 1d 00 10 00 00 movq %rbx, 4096(%rip)",
        "83 3d 00 10 00 00 07 cmpl $7, 4096(%rip)",
        "81 05 00 10 00 00 78 56 34 12 addl $0x12345678, 4096(%rip)",
        "66 81 05 00 10 00 00 34 12 addw $0x1234, 4096(%rip)",
        "48 c7 05 00 10 00 00 ff ff ff ff movq $-1, 4096(%rip)",
        "c1 25 00 10 00 00 03 shll $3, 4096(%rip)",
        "f0 48 0f ba 2d 00 10 00 00 05 lock btsq $5, 4096(%rip)",
        "ff 35 00 10 00 00 pushq 4096(%rip)",
        "8f 05 00 10 00 00 popq 4096(%rip)",
        "48 63 05 00 10 00 00 movslq 4096(%rip), %rax",
        "4e 8b 05 00 10 00 00 movq 4096(%rip), %r8 ; REX.X set, which means nothing here",
        "f2 0f 10 05 00 10 00 00 movsd 4096(%rip), %xmm0",
        "66 0f 3a 0f 05 00 10 00 00 04 palignr $4, 4096(%rip), %xmm0",
        "48 0f af 05 00 10 00 00 imulq 4096(%rip), %rax",
        "48 69 05 00 10 00 00 05 00 00 00 imulq $5, 4096(%rip), %rax",
        "0f 94 05 00 10 00 00 sete 4096(%rip)",
        "f0 48 0f b1 0d 00 10 00 00 lock cmpxchgq %rcx, 4096(%rip)",
    ],
)
def test_rip_relative(listing: str) -> None:
    window = code(listing)
    assert_same_effect(window)
    # From there the branch back reaches, the operand does not: it is named absolutely.
    window = X86_64.decode(window[0].data.replace(b"\x00\x10\x00\x00", b"\x00\x10\x00\x02"), HERE)
    copies = [X86_64.relocate(window, to) for to in (NEAR, EDGE)]
    assert ["%rip" in text(copy)[0] for copy in copies] == [True, False]
    assert_same_effect(window, copies)


def test_rip_relative_out_of_reach() -> None:
    window = code("48 8b 05 00 00 00 70 movq 0x70000000(%rip), %rax", 0x5555_0000_0000)
    assert_refused(window, Hazard.OUT_OF_REACH, to=0x5555_0000_0000 - 0x6000_0000)


@pytest.mark.parametrize(
    "listing", ["67 8b 05 00 10 00 00 movl 4096(%eip), %eax", "67 48 8d 05 00 10 00 00 leaq 4096(%eip), %rax"]
)
def test_eip_relative_is_cut_to_32_bits(listing: str) -> None:
    assert_same_effect(code(listing))


@pytest.mark.parametrize(
    "data",
    [
        "c5fa6f0500100002",  # vmovdqu 0x2001000(%rip), %xmm0
        "c4e27d180500100002",  # vbroadcastss 0x2001000(%rip), %ymm0
        "c4a27d180500100002",  # the same with VEX.X as an index of 8 and more would have it
        "62f17c48100500100002",  # vmovups 0x2001000(%rip), %zmm0
        "c4e37914050010000203",  # vpextrb $3, %xmm0, 0x2001000(%rip)
    ],
)
@pytest.mark.parametrize("to", [NEAR, EDGE])
def test_rip_relative_in_vex_and_evex(data: str, to: int) -> None:
    window = X86_64.decode(bytes.fromhex(data), HERE)
    copy = X86_64.relocate(window, to)
    assert not list(differential.second_opinion(window, copy))
    before, after = (iced.Decoder(64, code, ip=at).decode() for code, at in ((window[0].data, HERE), (copy.data, to)))
    assert before.mnemonic == after.mnemonic and before.op0_register == after.op0_register
    assert before.memory_displacement == after.memory_displacement == HERE + len(window[0].data) + 0x2001000
    assert after.memory_index == iced.Register.NONE
    assert after.memory_base == (iced.Register.RIP if to == NEAR else iced.Register.NONE)


def test_operand_among_the_displaced_bytes_is_the_patch() -> None:
    assert_refused(code("48 8b 05 f9 ff ff ff movq -7(%rip), %rax"), Hazard.READS_ITS_ADDRESS)
    assert_refused(code("48 8d 05 fb ff ff ff leaq -5(%rip), %rax"), Hazard.READS_ITS_ADDRESS)
    assert_same_effect(code("48 8d 05 f9 ff ff ff leaq -7(%rip), %rax"))  # the probed address itself


def test_an_operand_that_begins_before_the_patch_and_ends_in_it_is_the_patch() -> None:
    assert_refused(code("48 8b 05 f5 ff ff ff movq -11(%rip), %rax"), Hazard.READS_ITS_ADDRESS)
    assert_refused(code("48 89 05 f5 ff ff ff movq %rax, -11(%rip)"), Hazard.READS_ITS_ADDRESS)
    assert_refused(code("ff 15 f5 ff ff ff callq *-11(%rip)"), Hazard.READS_ITS_ADDRESS)
    # One byte earlier there is nothing of it.
    assert_same_effect(code("48 8b 05 f1 ff ff ff movq -15(%rip), %rax"))
    assert_same_effect(code("48 89 05 f1 ff ff ff movq %rax, -15(%rip)"))


def test_an_operand_in_a_neighbour_under_the_same_branch_is_the_patch() -> None:
    second = code("48 89 d8 movq %rbx, %rax \n 8b 05 f6 ff ff ff movl -10(%rip), %eax")
    assert_refused(second, Hazard.READS_ITS_ADDRESS)
    first = code("88 05 03 00 00 00 movb %al, 3(%rip) \n 48 89 d8 movq %rbx, %rax \n 90 nop")
    assert_refused(first, Hazard.READS_ITS_ADDRESS)
    assert_same_effect(code("88 05 05 00 00 00 movb %al, 5(%rip) \n 48 89 d8 movq %rbx, %rax"))


def test_an_absolute_operand_in_the_patch_is_the_patch() -> None:
    for address in (HERE - 7, HERE - 1, HERE, HERE + 7):
        low = (address & 0xFFFF_FFFF).to_bytes(4, "little").hex(" ")
        assert_refused(code(f"48 8b 04 25 {low} movq {address:#x}, %rax"), Hazard.READS_ITS_ADDRESS)
        assert_refused(code(f"48 8b 04 65 {low} movq {address:#x}, %rax"), Hazard.READS_ITS_ADDRESS)
        whole = address.to_bytes(8, "little").hex(" ")
        assert_refused(code(f"48 a1 {whole} movabsq {address:#x}, %rax"), Hazard.READS_ITS_ADDRESS)
    assert not X86_64.moves_as_it_is(code("48 8b 04 25 00 00 00 81 movq 0x81000000, %rax")[0])
    low = (HERE + 8 & 0xFFFF_FFFF).to_bytes(4, "little").hex(" ")
    assert_same_effect(code(f"48 8b 04 25 {low} movq behind, %rax"))
    assert_same_effect(code("48 8b 04 25 28 12 00 81 movq before, %rax"))


def test_what_the_processor_saves_reaches_far() -> None:
    for listing in ("0f ae 05 {} fxsave", "0f ae 25 {} xsave", "48 0f c7 1d {} xrstors64", "dd 35 {} fnsave"):
        size = {"fxsave": 512, "fnsave": 108}.get(listing.split()[-1], 576)
        for back in (1, size - 1):
            far = (-back - len(bytes.fromhex(listing.split(" {")[0])) - 4).to_bytes(4, "little", signed=True).hex(" ")
            assert_refused(code(listing.format(far)), Hazard.READS_ITS_ADDRESS)


# Instructions with an operand relative to RIP, and the bytes that it has.
OF_MEMORY = {
    "8a 05 {}": 1, "66 8b 05 {}": 2, "8b 05 {}": 4, "48 8b 05 {}": 8, "0f 10 05 {}": 16, "c5 fc 10 05 {}": 32,
    "88 05 {}": 1, "66 89 05 {}": 2, "89 05 {}": 4, "48 89 05 {}": 8, "0f 11 05 {}": 16, "48 83 05 {} 01": 8,
    "ff 35 {}": 8, "ff 25 {}": 8, "ff 15 {}": 8, "f0 48 0f b1 0d {}": 8, "0f 16 05 {}": 8, "66 0f 3a 16 05 {} 01": 4,
    "66 48 8b 05 {}": 8, "db 2d {}": 10, "0f b6 05 {}": 1, "48 63 05 {}": 4, "80 3d {} 7f": 1, "d9 05 {}": 4,
}  # fmt: skip


@pytest.mark.parametrize("listing, size", OF_MEMORY.items())
def test_every_place_of_an_operand_is_refused_or_does_the_same(listing: str, size: int) -> None:
    length = len(bytes.fromhex(listing.format("00 00 00 00")))
    for operand in range(-size - 3, length + 3):
        data = bytes.fromhex(listing.format((operand - length).to_bytes(4, "little", signed=True).hex()))
        window = X86_64.decode(data, HERE)
        if -size < operand < length:
            assert_refused(window, Hazard.READS_ITS_ADDRESS)
        elif operand < 0:  # Unicorn begins again where what is behind is written to
            assert_same_effect(window, [X86_64.relocate(window, NEAR)], runs=2)
        else:
            X86_64.relocate(window, NEAR)


# The stack, strings, the rest that runs anywhere


@pytest.mark.parametrize(
    "listing",
    [
        "54 pushq %rsp \n 5c popq %rsp \n 48 89 e0 movq %rsp, %rax",
        "8f 44 24 08 popq 8(%rsp) \n 90 nop",
        "ff 74 24 08 pushq 8(%rsp) \n 90 nop",
        "48 8d 64 24 f8 leaq -8(%rsp), %rsp",
        "c9 leave \n 48 89 d8 movq %rbx, %rax \n 90 nop",
        "9c pushfq \n 58 popq %rax \n 48 89 c3 movq %rax, %rbx",
        "c8 10 00 00 enter $16, $0 \n 90 nop",
    ],
)
def test_the_stack_pointer_is_as_it_was(listing: str) -> None:
    assert_same_effect(code(listing), rbp=STACK + 64)


def test_ret_and_ret_imm16() -> None:
    assert_same_effect(code("48 89 d8 movq %rbx, %rax \n 5b popq %rbx \n c3 retq"))
    assert_same_effect(code("48 89 d8 movq %rbx, %rax \n c2 08 00 retq $8"))
    assert_same_effect(code("f3 c3 repz retq"))


@pytest.mark.parametrize("prefix", ["f3 48", "f2 48", "48"])
@pytest.mark.parametrize("opcode", ["a5", "ab", "a7", "af", "ad"])
def test_string_instructions_with_and_without_rep(prefix: str, opcode: str) -> None:
    data = bytes.fromhex(prefix + opcode) + bytes.fromhex("4889d8")
    for count in (0, 1, 7):
        assert_same_effect(X86_64.decode(data, HERE), runs=2, rcx=count, rsi=DATA, rdi=DATA + 0x100)


def test_rep_string_interrupted_midway_goes_on_in_the_copy() -> None:
    # Its state is all in registers, and RIP is in the copy: the very bytes of it are there.
    window = code("f3 48 ab rep stosq \n 48 89 d8 movq %rbx, %rax")
    copy = X86_64.relocate(window, NEAR)
    assert copy.data.startswith(window[0].data)
    assert copy.origins[0] == (0, HERE)


def test_lock_and_segment_prefixes() -> None:
    assert_same_effect(code("f0 48 0f c1 03 lock xaddq %rax, (%rbx)"), rbx=DATA)
    window = code("65 48 8b 04 25 28 00 00 00 movq %gs:0x28, %rax")
    assert X86_64.relocate(window, NEAR).data[: window[0].size] == window[0].data
    window = code("65 48 8b 05 00 10 00 00 movq %gs:4096(%rip), %rax")
    assert text(X86_64.relocate(window, NEAR))[0] == f"movq %gs:{HERE + 8 + 4096 - NEAR - 8:#x}(%rip), %rax".replace(
        "0x-", "-0x"
    )


def test_endbr64_is_kept() -> None:
    window = code("f3 0f 1e fa endbr64 \n 48 89 d8 movq %rbx, %rax")
    assert X86_64.relocate(window, NEAR).data.startswith(window[0].data)


def test_nops_are_elided() -> None:
    copy = X86_64.relocate(code("0f 1f 44 00 00 nopl 0(%rax,%rax) \n 90 nop \n 48 89 d8 movq %rbx, %rax"), NEAR)
    assert text(copy) == ["movq %rbx, %rax", f"jmp {HERE + 9:#x}"]
    assert copy.origins == ((0, HERE), (0, HERE + 5), (0, HERE + 6), (3, HERE + 9))


def test_what_looks_like_a_nop_is_kept() -> None:
    assert_same_effect(code("41 90 xchgl %eax, %r8d \n 90 nop \n 90 nop \n 90 nop"))
    for listing in ("f3 90 pause \n 90 nop \n 90 nop \n 90 nop", "f3 48 0f 1e c8 rdsspq %rax"):
        window = code(listing)
        assert X86_64.relocate(window, NEAR).data.startswith(window[0].data)


# Interrupts, traps, the system


@pytest.mark.parametrize("listing", ["fb sti", "8e d0 movl %eax, %ss"])
def test_interrupt_shadow_must_end_in_the_copy(listing: str) -> None:
    assert shadows(code(listing)[0])
    assert_refused(code("31 c0 xorl %eax, %eax \n 31 c0 xorl %eax, %eax \n " + listing), Hazard.MASKS_INTERRUPTS)
    held = code(listing + "\n 90 nop \n f4 hlt \n 90 nop \n 90 nop")
    assert X86_64.relocate(held, NEAR).data.startswith(held[0].data + b"\x90\xf4")  # the nop is what it covers


@pytest.mark.parametrize("listing", ["fa cli", "9d popfq", "58 popq %rax"])
def test_what_holds_nothing_off(listing: str) -> None:
    assert not shadows(code(listing)[0])
    assert X86_64.relocate(code(listing), NEAR).data.startswith(code(listing)[0].data)


@pytest.mark.parametrize(
    "data",
    [
        "0f05",
        "480f07",
        "0f34",
        "0f35",
        "48cf",
        "cd80",
        "cb",
        "48cb",
        "ca0800",
        "ff28",
        "ff18",
        "0faa",
        "f30f01ca",
        "f20f01ca",
    ],
)
def test_system_instructions_stay(data: str) -> None:
    assert_refused(X86_64.decode(bytes.fromhex(data), HERE), Hazard.SYSTEM)


@pytest.mark.parametrize("data", ["cc", "0f0b", "0fb9c0", "f1"])
def test_traps_stay(data: str) -> None:
    assert_refused(X86_64.decode(bytes.fromhex(data), HERE), Hazard.TRAP)


def test_what_moves_as_it_is() -> None:
    yes = code("48 89 d8 movq %rbx, %rax \n f3 48 ab rep stosq \n 90 nop \n c3 retq")
    no = code("74 00 je \n 48 8b 05 00 00 00 00 movq 0(%rip), %rax \n fb sti \n ff d0 callq *%rax \n cc int3")
    assert all(map(X86_64.moves_as_it_is, yes)) and not any(map(X86_64.moves_as_it_is, no))
    assert X86_64.hazard(no[-1]) is Hazard.TRAP and X86_64.hazard(no[0]) is None


# Another probe on a displaced instruction


def test_code_before_a_displaced_instruction_runs_each_time() -> None:
    window = code("""
        48 ff c3       incq  %rbx
        48 ff c8       decq  %rax
        75 fb          jne   -5
    """)
    second = window[1].address
    before = {second: lambda at: b"\x49\xff\xc7"}  # incq %r15
    copy = X86_64.relocate(window, NEAR, before)
    after = differential.execute(
        {NEAR: copy.data}, NEAR, [(NEAR, NEAR + len(copy.data))], {}, {"rax": 5, "r15": 0, "rsp": STACK}
    )
    assert after.registers["r15"] == 5
    sti = code("fb sti \n f4 hlt")
    with pytest.raises(Unrelocatable):
        X86_64.relocate(sti, NEAR, {sti[1].address: lambda at: b""})


# All at once


@settings(max_examples=examples(40), deadline=None)
@given(data=st.binary(min_size=5, max_size=12), seed=st.integers(0, 1 << 32))
def test_any_bytes_are_moved_right_or_refused(data: bytes, seed: int) -> None:
    window = X86_64.decode(data, HERE)
    if not window or not all(map(differential.is_fit, window)) or any(insn.text.startswith("v") for insn in window):
        return
    try:
        copy = X86_64.relocate(window, NEAR)
    except Unrelocatable:
        return
    assert not list(differential.second_opinion(window, copy))
    assert not differential.compare(window, copy, random_state(random.Random(seed)))


def test_abi_names_are_gdbs() -> None:
    assert set(X86_64.registers) == {*abi.GENERAL, "rip", "eflags"}
