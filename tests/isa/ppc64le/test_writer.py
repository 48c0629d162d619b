"""The counter: what it costs in every case of liveness, and that it changes nothing that lives."""

from __future__ import annotations

import random

import pytest

from gdb_optprobe.isa.base import Dead, OutOfReach
from gdb_optprobe.isa.ppc64le import PPC64LE, abi
from gdb_optprobe.isa.ppc64le.fields import to_bytes
from gdb_optprobe.isa.ppc64le.templates import SOURCES, WORDS, templates, word

from .binutils import disassembled, needs_binutils, words
from .differential import Trial, differences, random_dead
from .oracle import ABOVE, BELOW, COUNTER, DATA, HERE, NEAR, Case, needs_oracle, random_state, run

IN_LINEAR_MAP = 0xC000_0000_1234_5678
TOC = 0xC000_0000_0113_C100
ENTRY = PPC64LE.dead_at_entry()


def dead(*registers: str, flags: bool = False) -> Dead:
    return Dead(flags, frozenset(registers))


@pytest.mark.parametrize(
    "at, instructions, with_toc",
    [
        (ENTRY, 7, 6),
        (dead("r9", "r10", flags=True), 7, 6),
        (dead("r9", "r10", "cr7"), 9, 8),  # CR0 in another field
        (dead("r8", "r9", "r10"), 9, 8),  # CR0 in a register
        (dead("r9", "ctr", flags=True), 9, 8),  # a register in CTR
        (dead("ctr", "lr", flags=True), 11, 10),
        (dead("ctr", "lr", "cr5"), 13, 12),
        (dead("r9", flags=True), 10, 9),  # a frame
        (dead("r0", flags=True), 11, 10),
        (dead(flags=True), 11, 10),
        (dead("r9"), 13, 12),
        (dead("r0", "r11"), 13, 12),
        (dead("ctr"), 14, 13),
        (dead(), 14, 13),
    ],
)
def test_instructions_of_a_count(at: Dead, instructions: int, with_toc: int) -> None:
    assert len(PPC64LE.count(IN_LINEAR_MAP, NEAR, at)) == 4 * instructions
    assert len(PPC64LE.count(IN_LINEAR_MAP, NEAR, at, TOC)) == 4 * with_toc


@pytest.mark.parametrize("at", [ENTRY, dead()])
def test_a_hit_at_a_function_entry_takes_16_instructions_at_most(at: Dead) -> None:
    """The branch, the program, the branch back: also where there is no tracer's site and nothing is dead."""
    assert 1 + len(PPC64LE.count(IN_LINEAR_MAP, NEAR, at)) // 4 + 1 <= 16


def test_a_hit_anywhere_takes_30_instructions_at_most() -> None:
    """Also on a call, which is the longest to displace, and with a counter anywhere in memory."""
    [call] = PPC64LE.decode(to_bytes(0x48000101), 0xC000_0000_0123_4564)
    displaced = PPC64LE.relocate([call], 0xC000_0000_0100_0000)
    program = PPC64LE.count(0xC001_2345_6789_ABC8, NEAR, dead())
    assert 1 + (len(program) + len(displaced.data)) // 4 <= 30


@needs_oracle
def test_nothing_that_lives_changes_in_any_case_of_liveness() -> None:
    rng = random.Random(1)
    nop = tuple(PPC64LE.decode(to_bytes(0x60000000), HERE + 0x8000))
    trials = [
        Trial(nop, rng.choice((NEAR, ABOVE, BELOW)), random_state(rng) | {"r2": DATA}, random_dead(rng), toc)
        for _ in range(600)
        for toc in (None, DATA)
    ]
    trials += [Trial(nop, NEAR, random_state(rng), at) for at in (dead(), ENTRY, dead("r0", flags=True), dead("r0"))]
    assert not [difference for _, difference in differences(trials)]


@needs_oracle
def test_a_count_is_one_for_each_run() -> None:
    rng = random.Random(2)
    start = random_state(rng) | {abi.PC: HERE, abi.CTR: 0}
    program = PPC64LE.count(COUNTER, HERE, dead("r9", "r10", flags=True))
    once, twice = run([Case(start, {HERE: program}), Case(start, {HERE: program * 2})])
    assert (twice.memory[COUNTER] - once.memory[COUNTER]) & (1 << 64) - 1 == 1


def test_a_counter_out_of_reach_of_the_toc_is_named_absolutely() -> None:
    far = TOC + (1 << 32)
    assert PPC64LE.count(far, NEAR, ENTRY, TOC) == PPC64LE.count(far, NEAR, ENTRY)


def test_registers_with_a_role_are_never_used() -> None:
    for names in ([], ["r9"], ["r14", "r15"], ["ctr", "lr"]):
        text = " ".join(insn.text for insn in PPC64LE.decode(PPC64LE.count(IN_LINEAR_MAP, 0, dead(*names)), 0))
        assert "r13" not in text and "r2," not in text


def test_templates_are_what_capstone_reads_back() -> None:
    assert len(templates()) == len(SOURCES) + len(WORDS)
    assert templates()["load_reserved"] == 0x7C0000A8 and templates()["store_conditional"] == 0x7C0001AD


@needs_binutils
def test_what_keystone_does_not_know_is_what_binutils_reads() -> None:
    found = disassembled(words([word("save_pair", 10, number=32), word("restore_pair", 0)]))
    assert [text for _, text in found.values()] == ["stq     r10,32(r1)", "lq      r0,0(r1)"]


@pytest.mark.parametrize("at", [dead(), dead(flags=True), dead("r9"), dead("r9", flags=True), dead("r0"), ENTRY])
def test_a_frame_is_closed_by_the_last_instruction(at: Dead) -> None:
    moves = [PPC64LE.pushed(insn) for insn in PPC64LE.decode(PPC64LE.count(IN_LINEAR_MAP, NEAR, at), NEAR)]
    assert sum(moves) == 0 and not any(moves[1:-1])
    assert bool(moves[0]) == (at != ENTRY)


def test_breakpoint_is_a_trap() -> None:
    [insn] = PPC64LE.decode(PPC64LE.breakpoint, 0)
    assert insn.text == "trap"


@pytest.mark.parametrize("number", [0x48000100, 0x48000101, 0x41820100, 0x42000101])
def test_redirect_changes_the_target_and_nothing_else(number: int) -> None:
    [insn] = PPC64LE.decode(to_bytes(number), NEAR)
    [other] = PPC64LE.decode(PPC64LE.redirect(insn, NEAR - 0x40), NEAR)
    assert (other.flow, other.target, other.text.split()[0]) == (insn.flow, NEAR - 0x40, insn.text.split()[0])
    assert PPC64LE.redirect(other, NEAR + 0x100) == insn.data
    with pytest.raises(OutOfReach):
        PPC64LE.redirect(insn, NEAR + 0x200_0000)
