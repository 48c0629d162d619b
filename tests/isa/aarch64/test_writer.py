"""The counter: what it costs in every case of liveness, and that it changes nothing that lives."""

from __future__ import annotations

import random

import pytest

from gdb_optprobe.isa.aarch64 import AARCH64, AARCH64_LSE
from gdb_optprobe.isa.aarch64.fields import to_bytes
from gdb_optprobe.isa.aarch64.templates import SOURCES, WORDS, literal, templates
from gdb_optprobe.isa.base import Dead, OutOfReach
from gdb_optprobe.isa.record import Isa
from tests.isa.aarch64.differential import Trial, random_dead
from tests.isa.aarch64.processor import ABOVE, BELOW, COUNTER, DATA, HERE, NEAR, STACK, random_state, run

AT = 0xFFFF_8000_0900_0000
ENTRY = AARCH64.dead_at_entry()


def dead(*registers: str) -> Dead:
    return Dead(False, frozenset(registers))


@pytest.mark.parametrize(
    ("at", "exclusive", "atomic"),
    [
        (ENTRY, 6, 4),
        (dead("x0", "x3", "x20", "x5"), 6, 4),
        (dead("x0", "x3"), 8, 4),
        (dead("x9"), 8, 6),
        (dead(), 10, 6),
    ],
)
def test_instructions_of_a_count(at: Dead, exclusive: int, atomic: int) -> None:
    assert len(AARCH64.count(AT + 0xE0_0008, AT, at)) == 4 * exclusive
    assert len(AARCH64_LSE.count(AT + 0xE0_0008, AT, at)) == 4 * atomic


@pytest.mark.parametrize(
    ("features", "isa"),
    [([0], AARCH64), ([2 << 20], AARCH64_LSE), ([3 << 20 | 0xFFFFF], AARCH64_LSE), ([2 << 20, 1 << 20], AARCH64)],
)
def test_atomics_are_used_where_every_cpu_has_them(features: list[int], isa: Isa) -> None:
    values = {"ID_AA64ISAR0_EL1": features}
    assert AARCH64.for_cpus(lambda name: values[name]) is isa


PACIASP, BTI_C, NOP = 0xD503233F, 0xD503245F, 0xD503201F


@pytest.mark.parametrize(("bti", "signing_is_one"), [([0, 0], False), ([0x10], False), ([0, 1], True), ([0x21], True)])
def test_landing_pads_where_no_one_knows_whether_pages_are_guarded(bti: list[int], signing_is_one: bool) -> None:
    """PACIASP is one where a CPU has FEAT_BTI."""
    for isa in (AARCH64, AARCH64_LSE):
        found = isa.for_guarded_code(lambda name: {"ID_AA64PFR1_EL1": bti}[name])
        pads = [found.is_landing_pad(insn) for insn in AARCH64.decode(to_bytes(PACIASP, BTI_C, NOP), AT)]
        assert pads == [signing_is_one, True, False]
        assert found.count(AT, AT + 0x100, dead()) == isa.count(AT, AT + 0x100, dead())


def test_pages_are_taken_for_guarded_where_the_cpus_features_cannot_be_read() -> None:
    def missing(name: str) -> list[int]:
        raise LookupError(name)

    (paciasp,) = AARCH64.decode(to_bytes(PACIASP), AT)
    assert AARCH64.for_guarded_code(missing).is_landing_pad(paciasp) and not AARCH64.is_landing_pad(paciasp)


def test_no_atomics_where_the_cpus_features_cannot_be_read() -> None:
    def missing(name: str) -> list[int]:
        raise LookupError(name)

    assert AARCH64.for_cpus(missing) is AARCH64


def test_nothing_that_lives_changes_in_any_case_of_liveness() -> None:
    rng = random.Random(1)
    nop = tuple(AARCH64.decode(to_bytes(0xD503201F), HERE + 0x8000))
    states = [random_dead(rng) for _ in range(100)] + [dead(), ENTRY, dead("x16"), dead("x17", "x0")]
    for at in states:
        to, isa = rng.choice((NEAR, ABOVE, BELOW)), rng.choice((AARCH64, AARCH64_LSE))
        trial = Trial(nop, to, random_state(rng), at, isa)
        assert not [*trial.differences()]


@pytest.mark.parametrize("isa", [AARCH64, AARCH64_LSE])
@pytest.mark.parametrize("at", [ENTRY, dead()])
def test_a_count_is_one_for_each_run(isa: Isa, at: Dead) -> None:
    program = isa.count(COUNTER, HERE, at)
    twice = program + isa.count(COUNTER, HERE + len(program), at)
    once, again = (run({HERE: code}, HERE, {"sp": STACK}).data[COUNTER - DATA :] for code in (program, twice))
    assert int.from_bytes(again, "little") - int.from_bytes(once, "little") == 1


def test_a_counter_is_in_reach_of_4_gib() -> None:
    for counter in (AT + AARCH64.data_reach, AT - AARCH64.data_reach, AT & ~0xFFF):
        AARCH64.count(counter & ~7, AT, ENTRY)
    with pytest.raises(OutOfReach):
        AARCH64.count(AT + (1 << 32), AT, ENTRY)


def test_registers_with_a_role_are_never_used() -> None:
    for names in ([], ["x18", "x29", "x30"], [f"x{number}" for number in range(18, 31)]):
        text = " ".join(insn.text for insn in AARCH64.decode(AARCH64.count(AT + 8, AT, dead(*names)), AT))
        assert not any(f"{kind}{number}" in text for kind in "xw" for number in range(18, 31))


def test_templates_are_what_capstone_reads_back() -> None:
    assert len(templates()) == len(SOURCES) + len(WORDS)
    assert templates()["load_exclusive"] == 0xC85F7C00 and templates()["pop_pair"] == 0xA8C103E0


@pytest.mark.parametrize("at", [dead(), dead("x9"), dead("x9", "x10"), ENTRY])
def test_the_stack_is_as_before_behind_a_count(at: Dead) -> None:
    moves = [AARCH64.pushed(insn) for insn in AARCH64.decode(AARCH64.count(AT + 8, AT, at), AT)]
    assert sum(moves) == 0 and (max(moves) > 0) == (at != ENTRY)


@pytest.mark.parametrize(
    ("word", "size"),
    [
        (0xA9BF47F0, 16),  # stp x16, x17, [sp, #-16]!
        (0xA8C147F0, -16),  # ldp x16, x17, [sp], #16
        (0xA9BE7BFD, 32),
        (0xF81F0FEF, 16),  # str x15, [sp, #-16]!
        (0xF84107EF, -16),
        (0xD10083FF, 32),  # sub sp, sp, #32
        (0x914007FF, -4096),  # add sp, sp, #1, lsl #12
        (0x6DBF07E0, 16),  # stp d0, d1, [sp, #-16]!
        (0xADBF07E0, 32),  # stp q0, q1, [sp, #-32]!
        (0xA90047F0, 0),  # stp x16, x17, [sp]
        (0xF90003EF, 0),  # str x15, [sp]
        (0xD10083E0, 0),  # sub x0, sp, #32
        (0xA9BF4410, 0),  # stp x16, x17, [x0, #-16]!
        (0xEB0083FF, 0),  # cmp
    ],
)
def test_how_far_an_instruction_moves_the_stack_pointer(word: int, size: int) -> None:
    [insn] = AARCH64.decode(to_bytes(word), AT)
    assert AARCH64.pushed(insn) == size


@pytest.mark.parametrize(("at", "exclusive", "atomic"), [(ENTRY, 5, 3), (dead("x0", "x3"), 7, 3), (dead(), 9, 5)])
def test_a_count_with_its_address_beside_the_code_is_one_instruction_less(
    at: Dead, exclusive: int, atomic: int
) -> None:
    for isa, instructions in ((AARCH64, exclusive), (AARCH64_LSE, atomic)):
        assert isa.pools is not None
        code = isa.pools.count(AT, AT + 64, at)
        assert len(code) == 4 * instructions
        loads = [insn.text for insn in isa.decode(code, AT) if f"{AT + 64:#x}" in insn.text]
        assert len(loads) == 1 and loads[0].startswith("ldr x")


@pytest.mark.parametrize("counter", [0xFFFF_8000_1400_0008, 0x1400_0000_1400_0000, 0])
@pytest.mark.parametrize("end", [AT, AT + 4])
def test_no_word_of_a_pool_is_decoded(counter: int, end: int) -> None:
    """Also where it is the bytes of a branch."""
    assert AARCH64.pools is not None
    code = AARCH64.branch(end - 4, AT + 0x1000)
    behind = AARCH64.pools.behind(end, [counter, counter])
    assert [insn.address for insn in AARCH64.decode(code + behind, end - 4)] == [end - 4]
    pool = AARCH64.pools.at(end)
    assert pool % 8 == 0 and pool >= end + 4
    assert behind[pool - end :] == 2 * counter.to_bytes(8, "little")


def test_a_count_reads_a_pool_on_either_side() -> None:
    assert AARCH64.pools is not None
    for pool in (AT + 0xFFFFC, AT - 0x100000):
        (load, *_) = AARCH64.decode(AARCH64.pools.count(AT, pool, ENTRY), AT)
        assert load.text == f"ldr x16, #{pool:#x}"


@pytest.mark.parametrize("away", [1 << 20, -(1 << 20) - 4, 6])
def test_a_word_beyond_the_reach_of_a_load_is_refused(away: int) -> None:
    with pytest.raises(OutOfReach):
        literal(0, 0x1000_0000 + away, 0x1000_0000)
