"""What is dead: never more than iced-x86's tables allow, and each way in which something can be alive."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdb_optprobe.isa.base import Dead, Insn
from gdb_optprobe.isa.x86_64 import X86_64, abi, liveness
from gdb_optprobe.isa.x86_64.liveness import uses_of
from tests.examples import examples, some
from tests.isa.x86_64.second_opinion import allowed_by_iced

HERE = 0xFFFF_FFFF_8100_1230
RET = "c3"
KILL_FLAGS = "4801d8"  # add %rbx, %rax


def dead(*listing: str, **more: object) -> Dead:
    insns = X86_64.decode(bytes.fromhex("".join(listing).replace(" ", "")), HERE)
    return X86_64.dead_at(HERE, {insn.address: insn for insn in insns}, **more)  # type: ignore[arg-type]


def test_flags_overwritten_before_they_are_read() -> None:
    assert dead("4889d8", KILL_FLAGS, RET).flags


@pytest.mark.parametrize(
    "reader",
    ["7500", "0f9fc0", "480f44c3", "9c", "9f", "4811d8 ", "4819d8", "48d1d0", "e100"],
    ids=["jne", "setg", "cmove", "pushfq", "lahf", "adc", "sbb", "rcl", "loope"],
)
def test_flags_read(reader: str) -> None:
    flags_of_counter = reader not in ("4811d8 ", "4819d8", "48d1d0")  # CF, which `inc` leaves
    assert dead(reader, KILL_FLAGS, RET).flags is not flags_of_counter or reader == "48d1d0"


def test_carry_alone_may_live() -> None:
    assert dead("7200", KILL_FLAGS, RET).flags  # jc
    assert dead("4883d000", RET).flags  # adc $0, %rax


@pytest.mark.parametrize("data", ["48d3e0", "48c1e000", "48c1e040", "48ffc0" + "7200", "f348a7", "480fbcc3", "48f7e3"])
def test_what_does_not_overwrite_all_flags_for_certain(data: str) -> None:
    # shl %cl; shl $0; shl $64 (0); inc then jc; repe cmps with rcx 0; bsf; mul: CF and OF are not all
    expected = data.startswith("48ffc0")
    assert dead(data, RET).flags is expected


def test_both_ways_of_a_branch() -> None:
    # jc to a ret, or on to an add
    assert not dead("7203", KILL_FLAGS, RET).flags
    assert dead("7203", KILL_FLAGS, KILL_FLAGS, RET).flags


@pytest.mark.parametrize("leaves", ["e800100000", RET, "ffe0", "ffd0", "0f0b", "0f05", "e900100000", ""])
def test_everything_lives_where_the_code_is_left(leaves: str) -> None:
    assert dead("4889d8", leaves) == Dead(False, frozenset({"rax"}))


def test_loop_that_never_ends_reads_nothing() -> None:
    assert dead("ebfe").flags


def test_what_a_tracer_may_clobber_is_dead_where_the_code_is_left() -> None:
    assert dead("e800100000", leaving=lambda insn: X86_64.dead_at_entry()) == X86_64.dead_at_entry()
    assert dead(RET, leaving=lambda insn: X86_64.dead_at_return()).flags
    assert dead("e900100000", leaving=lambda insn: X86_64.dead_at_entry()).flags
    assert not dead("ffe0", leaving=lambda insn: X86_64.dead_at_entry()).flags


def test_a_jump_to_a_return_thunk_is_what_the_caller_says() -> None:
    thunk = HERE + 5 + 0x1000

    def leaving(insn: Insn) -> Dead:
        return X86_64.dead_at_return() if insn.target == thunk else Dead()

    assert dead("e900100000", leaving=leaving) == X86_64.dead_at_return()
    assert dead("e900200000", leaving=leaving) == Dead()
    # The return values live, and what is kept for the caller; the code before it may make more of it dead.
    assert dead("31db", "e9fe0f0000", leaving=leaving).registers == X86_64.dead_at_return().registers | {"rbx"}
    assert not dead("4801d9", "e9fd0f0000", leaving=leaving).registers & {"rax", "rdx", "rbx", "rcx"}


@pytest.mark.parametrize("leaves", ["ffe0", "ffd0", "ff10", "0f0b", "0f05", "48cf", "7410", ""])
def test_nobody_is_asked_where_it_is_unknown_who_goes_on(leaves: str) -> None:
    # Indirect calls and jumps, traps, the system, a conditional jump out of the code, the code's end.
    asked: list[Insn] = []

    def leaving(insn: Insn) -> Dead:
        asked.append(insn)
        return X86_64.dead_at_entry()

    assert dead("4889d8", leaves, leaving=leaving) == Dead(False, frozenset({"rax"}))
    assert not asked


def test_a_call_of_the_function_itself_is_a_call() -> None:
    own = "e8fbffffff"  # call of HERE
    assert dead(own, RET) == Dead()
    assert dead(own, RET, leaving=lambda insn: X86_64.dead_at_entry()) == X86_64.dead_at_entry()


def test_arguments_return_values_and_what_is_kept_live_where_the_abi_says_so() -> None:
    entry, back = X86_64.dead_at_entry(), X86_64.dead_at_return()
    assert not entry.registers & {*abi.ARGUMENTS, *abi.CALLEE_SAVED, "rax"}  # rax: how many vectors are passed
    assert not back.registers & {*abi.RETURN_VALUES, *abi.CALLEE_SAVED, "rdi"}
    assert entry.flags and back.flags


def test_a_budget_that_is_spent_leaves_all_that_is_open_alive() -> None:
    insns = X86_64.decode(bytes.fromhex("90" * 10 + KILL_FLAGS + RET), HERE)
    code = {insn.address: insn for insn in insns}
    assert liveness.dead_at(HERE, code, budget=12).flags
    assert liveness.dead_at(HERE, code, budget=5) == Dead()


def test_another_way_on_is_explored() -> None:
    load = "488b07"  # mov (%rdi), %rax: may fault and go to a fixup
    assert dead(load, KILL_FLAGS, RET).flags
    assert not dead(load, KILL_FLAGS, RET, also={HERE: [HERE + 6]}).flags
    assert "rax" not in dead(load, KILL_FLAGS, RET, also={HERE: [HERE + 0x1000]}).registers


@pytest.mark.parametrize("leaves", ["e800100000", RET, "e900100000"], ids=["call", "ret", "jmp"])
def test_another_way_on_is_explored_where_the_code_is_left(leaves: str) -> None:
    # The guest may rewrite a static call: what it calls now says nothing of what it calls then.
    assert dead(leaves, leaving=lambda insn: X86_64.dead_at_entry()) == X86_64.dead_at_entry()
    assert dead(leaves, leaving=lambda insn: X86_64.dead_at_entry(), also={HERE: [0]}) == Dead()


@pytest.mark.parametrize(
    "data, registers",
    [
        ("4889d8", {"rax"}),
        ("89d8", {"rax"}),
        ("6689d8", set()),
        ("88d8", set()),
        ("31c0", {"rax"}),  # of itself, so not read
        ("30c0", set()),
        ("4831c0", {"rax"}),
        ("4801c0", set()),
        ("480f44c3", set()),  # cmove
        ("480fbcc3", set()),  # bsf leaves it where the source is 0
        ("58", {"rax"}),
        ("99", {"rdx"}),
        ("0fb6c3", {"rax"}),
        ("f348ab", set()),
        ("a900040000", set()),  # test
    ],
)
def test_registers(data: str, registers: set[str]) -> None:
    assert dead(data, RET).registers - {"carry"} == registers


@pytest.mark.parametrize("data", ["480fbec3", "480fbfc3", "0fbec3", "0fbf03", "4863c3", "0fb603"])
def test_a_move_that_extends_is_no_string_operation(data: str) -> None:
    """movsx begins as movsb does, and overwrites its destination."""
    assert "rax" in dead(data, RET).registers


def test_what_iced_says_is_overwritten_is_dead() -> None:
    """Of every opcode with a register whose flags and registers are known at all."""
    forgotten = set()
    for escape in (b"", b"\x0f", b"\x48", b"\x48\x0f", b"\x0f\x38", b"\x48\x0f\x38"):
        for opcode in range(256):
            for modrm in (0xC3, 0x03, 0xC8):
                forgotten |= allowed_by_iced(escape + bytes((opcode, modrm)) + bytes(8))
    assert not forgotten


def test_entry_is_what_ftrace_does_not_save() -> None:
    assert X86_64.dead_at_entry() == Dead(True, frozenset({"r10", "r11", "carry"}))


# Against iced-x86


@settings(max_examples=examples(1500), deadline=None)
@given(
    st.sampled_from([b"", b"\x66", b"\xf3", b"\xf2", b"\xf0", b"\x67"]),
    st.sampled_from(
        [b"", b"\x48", b"\x49", b"\x44", b"\x0f", b"\x48\x0f", b"\x0f\x38", b"\xc4\xe2\xfb", b"\xc4\xe2\xf8"]
    ),
    st.binary(min_size=12, max_size=12),
)
def test_nothing_is_claimed_that_iced_denies(prefix: bytes, escape: bytes, rest: bytes) -> None:
    allowed_by_iced(prefix + escape + rest)


def test_repne_movsd_is_no_sse_move() -> None:
    allowed_by_iced(bytes.fromhex("f23ea5"))
    assert uses_of(bytes.fromhex("f2a5")) is None


def test_every_opcode_against_iced() -> None:
    rng = random.Random(1)
    for escape in (
        b"",
        b"\x0f",
        b"\x48",
        b"\x48\x0f",
        b"\x66",
        b"\x66\x0f",
        b"\xf3",
        b"\xf3\x0f",
        b"\xf3\x48\x0f",
        b"\xf0\x48",
    ):
        for opcode in some(range(256)):
            for modrm in (0x05, 0x44, 0xC0, 0xC1, 0xD0, 0xE3, 0xD8, 0xFF, 0x25, 0x3C, 0x2F):
                for imm in (b"\0", b"\1", b"\x20", b"\x09"):
                    allowed_by_iced(escape + bytes((opcode, modrm)) + imm + rng.randbytes(3) + imm + rng.randbytes(7))


def test_the_carry_has_a_name_of_its_own() -> None:
    inc = "48ffc0"  # changes all flags but the carry
    assert "carry" in dead(KILL_FLAGS, RET).registers
    assert "carry" not in dead("7200", KILL_FLAGS, RET).registers  # jc
    assert "carry" not in dead(inc, RET).registers and dead(inc, RET).flags
    assert "carry" in dead(RET, leaving=lambda insn: X86_64.dead_at_return()).registers
