"""One test for each row of the table of copies, and for each hazard of moving; Unicorn is the judge."""

from __future__ import annotations

import random

import pytest

from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.aarch64.fields import to_bytes
from gdb_optprobe.isa.base import Dead, Hazard, Insn, Relocated, Unrelocatable
from tests.examples import samples
from tests.isa.aarch64.differential import Trial, is_fit, survey
from tests.isa.aarch64.kernel import different_words
from tests.isa.aarch64.processor import ABOVE, BELOW, DATA, HERE, NEAR, STACK, random_state, run

PROBED = HERE + 0x8000
NOP, ADD_ONE = 0xD503201F, 0x91000400  # add x0, x0, #1
B, BL, B_EQ, CBZ, TBNZ = 0x14000040, 0x94000040, 0x54000800, 0xB4000800, 0x37000800  # to .+0x100


def code(*words: int, at: int = PROBED) -> list[Insn]:
    insns = AARCH64.decode(to_bytes(*words), at)
    assert len(insns) == len(words)
    return insns


def assert_same_effect(window: list[Insn], runs: int = 4, **fixed: int) -> None:
    rng = random.Random(1)
    for to in (NEAR + 0x100, ABOVE, BELOW):
        for dead in (None, Dead()) * (runs // 2):
            trial = Trial(tuple(window), to, random_state(rng) | fixed, dead)
            assert not [*trial.differences()]


def text(copy: Relocated) -> list[str]:
    return [insn.text for insn in AARCH64.decode(copy.data, copy.address)]


def assert_refused(window: list[Insn], hazard: Hazard, to: int = NEAR) -> None:
    with pytest.raises(Unrelocatable) as refusal:
        AARCH64.relocate(window, to)
    assert refusal.value.hazard is hazard


def test_b_goes_to_the_same_place() -> None:
    assert text(AARCH64.relocate(code(B), NEAR)) == [f"b {PROBED + 0x100:#x}"]
    assert_same_effect(code(B))


@pytest.mark.parametrize(
    ("word", "opposite"),
    [(B_EQ, "b.ne"), (CBZ, "cbnz x0,"), (CBZ ^ 1 << 24, "cbz x0,"), (TBNZ, "tbz w0, #0,"), (TBNZ ^ 1 << 24, "tbnz")],
)
def test_a_branch_on_a_condition_goes_by_its_opposite(word: int, opposite: str) -> None:
    window = code(word)
    first, *rest = text(AARCH64.relocate(window, NEAR))
    assert first.startswith(opposite) and first.endswith(f" {NEAR + 8:#x}")
    assert rest == [f"b {PROBED + 0x100:#x}", f"b {PROBED + 4:#x}"]
    for value in (0, 1, 1 << 40):
        assert_same_effect(window, x0=value)


def test_every_condition_with_all_flags() -> None:
    for condition in range(16):
        for flags in range(16):
            trial = Trial(tuple(code(0x54000800 | condition)), ABOVE, {"cpsr": flags << 28, "sp": STACK}, None)
            assert not [*trial.differences()]


@pytest.mark.parametrize("word", [0x5400080E, 0x5400080F])
def test_a_condition_that_always_holds(word: int) -> None:
    assert text(AARCH64.relocate(code(word), NEAR)) == [f"b {PROBED + 0x100:#x}"]


def test_bl_leaves_the_original_return_address() -> None:
    assert_same_effect(code(BL))
    copy = AARCH64.relocate(code(BL), ABOVE)
    outcome = run({ABOVE: copy.data}, ABOVE, {"sp": STACK})
    assert outcome.registers["x30"] == PROBED + 4 and outcome.pc == PROBED + 0x100


@pytest.mark.parametrize("number", [0, 3, 15, 16, 17, 30])
def test_blr_leaves_the_original_return_address(number: int) -> None:
    """By x16, as landing pads of calls want it."""
    window = code(0xD63F0000 | number << 5)
    assert text(AARCH64.relocate(window, NEAR))[-1] == "br x16"
    assert_same_effect(window, **{f"x{number}": HERE + 0x2000})


def test_an_authenticated_call() -> None:
    assert text(AARCH64.relocate(code(0xD73F0801), NEAR))[-1] == "braa x16, x1"
    assert text(AARCH64.relocate(code(0xD63F0BDF), NEAR))[-1] == "braaz x16"
    for word in (0xD73F0810, 0xD73F081E):  # blraa x0, x16; blraa x0, x30
        assert_refused(code(word), Hazard.NOT_SUPPORTED)


@pytest.mark.parametrize("word", [0x10000803, 0x70FFFFE3, 0x90000003, 0xF0FFFFE3, 0xB0000023])
def test_adr_and_adrp(word: int) -> None:
    assert_same_effect(code(word))


def test_an_address_for_the_zero_register() -> None:
    for word in (0x1000081F, 0x9000001F):
        assert_same_effect(code(word))


@pytest.mark.parametrize("word", [0x58000043, 0x18000043, 0x98000043, 0x58FFFFC3])
def test_a_load_of_what_is_beside_the_code(word: int) -> None:
    beside = {PROBED - 8: b"\x01\x02\x03\x04\x85\x06\x07\x88", PROBED + 8: b"\x11\x82\x13\x94\x15\x86\x17\x98"}
    for to in (NEAR, ABOVE):
        copy = AARCH64.relocate(code(word), to)
        before = run({**beside, PROBED: to_bytes(word)}, PROBED, {})
        after = run({**beside, to: copy.data}, to, {})
        assert (before.registers, before.pc, after.fault) == (after.registers, after.pc, "")
        assert before.registers["x3"]


def test_a_load_of_the_displaced_code_is_refused() -> None:
    assert_refused(code(0x58000003), Hazard.READS_ITS_ADDRESS)
    assert_refused(code(NOP, 0x58FFFFC3), Hazard.READS_ITS_ADDRESS)  # its first four bytes are before it
    AARCH64.relocate(code(0x58000023), NEAR)


@pytest.mark.parametrize("word", [0x5C000043, 0x9C000043, 0xD8000040, 0x5800005F])
def test_a_load_without_a_register_for_the_address_is_refused(word: int) -> None:
    """ldr d3; ldr q3; prfm; ldr xzr."""
    assert_refused(code(word), Hazard.NOT_SUPPORTED)


@pytest.mark.parametrize("word", [0xD65F03C0, 0xD65F0060, 0xD61F0060])
def test_a_return_or_jump_is_itself_without_a_branch_back(word: int) -> None:
    window = code(word)
    assert AARCH64.relocate(window, NEAR).data == window[0].data
    assert_same_effect(window, x3=HERE + 0x2000, x30=HERE + 0x3000)


@pytest.mark.parametrize(
    "word", [0xA9BF7BFD, 0xD10103FF, 0x910003FD, 0xA8C17BFD, 0xF81F0FFE, 0xD503233F, 0xC85F7C03, 0xAA1E03E9, 0x8B2063FF]
)
def test_what_moves_the_stack_pointer_or_signs_x30_is_itself(word: int) -> None:
    """stp; sub sp; mov x29, sp; ldp; str x30; paciasp; ldxr; mov x9, x30; add sp, sp, x0."""
    window = code(word)
    assert AARCH64.relocate(window, NEAR).data == window[0].data + AARCH64.branch(NEAR + 4, PROBED + 4)
    assert_same_effect(window, x0=DATA + 0x100 if word == 0xC85F7C03 else 32)


def test_nop_is_left_out() -> None:
    copy = AARCH64.relocate(code(NOP), NEAR)
    assert text(copy) == [f"b {PROBED + 4:#x}"]
    assert copy.origins == ((0, PROBED), (0, PROBED + 4))


def test_origins() -> None:
    copy = AARCH64.relocate(code(ADD_ONE, B_EQ, ADD_ONE), NEAR)
    assert copy.origins == ((0, PROBED), (4, PROBED + 4), (12, PROBED + 8), (16, PROBED + 12))


def test_branch_to_itself_goes_to_the_probed_address() -> None:
    assert f"b {PROBED:#x}" in text(AARCH64.relocate(code(0x54000000), NEAR))


def test_branch_among_displaced_instructions() -> None:
    window = code(ADD_ONE, 0x54000040, ADD_ONE, ADD_ONE)  # b.eq over one
    assert f"b {NEAR + 16:#x}" in text(AARCH64.relocate(window, NEAR))
    assert_same_effect(window)


def test_call_that_returns_into_the_displaced_instructions_is_refused() -> None:
    assert_refused(code(BL, ADD_ONE), Hazard.RETURNS_INSIDE)
    assert_refused(code(0xD63F0060, ADD_ONE), Hazard.RETURNS_INSIDE)


@pytest.mark.parametrize("word", [ADD_ONE, B_EQ, B, BL])
def test_out_of_reach(word: int) -> None:
    for to in (PROBED + 0x0810_0000, PROBED - 0x0810_0000):
        assert_refused(code(word), Hazard.OUT_OF_REACH, to)


def test_branch_reaches_128_mib_each_way() -> None:
    at = 0xFFFF_8000_0900_0000
    for offset in (AARCH64.branch_reach, -0x800_0000):
        [insn] = AARCH64.decode(AARCH64.branch(at, at + offset), at)
        assert insn.target == at + offset


@pytest.mark.parametrize("word", [B, BL, B_EQ, CBZ, TBNZ, 0xB7F80800])
def test_redirect(word: int) -> None:
    [insn] = code(word)
    for target in (PROBED + 0x7FFC, PROBED - 0x8000, PROBED):
        [found] = AARCH64.decode(AARCH64.redirect(insn, target), PROBED)
        assert found.target == target and found.flow is insn.flow
        [back] = AARCH64.decode(AARCH64.redirect(found, PROBED + 0x100), PROBED)
        assert back == insn


@pytest.mark.parametrize("word", [0xD4200000, 0xD4210000, 0xD4400000, 0x00000000, 0x00006F70])
def test_traps_are_refused(word: int) -> None:
    assert_refused(code(word), Hazard.TRAP)


@pytest.mark.parametrize("word", [0xD4000001, 0xD4000002, 0xD4000003, 0xD69F03E0])
def test_system_instructions_are_refused(word: int) -> None:
    assert_refused(code(word), Hazard.SYSTEM)


def test_what_fills() -> None:
    assert [AARCH64.fills(insn) for insn in code(NOP, 0xD4200000, 0, ADD_ONE)] == [True, True, True, False]


def random_words(number: int, seed: int) -> list[bytes]:
    """Return words that are instructions, and do not load what is beside them: that need not be there."""
    rng, found = random.Random(seed), list[bytes]()
    while len(found) < number:
        word = rng.getrandbits(32)
        insns = AARCH64.decode(to_bytes(word), PROBED)
        if insns and word & 0x3B00_0000 != 0x1800_0000 and not insns[0].text.startswith("bc.") and is_fit(insns[0]):
            found.append(insns[0].data)
    return found


def test_random_instructions_have_the_same_effect() -> None:
    found = survey(random_words(samples(500, 20_000), 1), samples(500, 20_000), seed=1)
    assert not found.differences
    assert found.executed > 0.85 * found.windows


def test_words_of_the_kernel_have_the_same_effect() -> None:
    found = survey(different_words(), samples(1_000, 50_000), seed=1)
    assert not found.differences
    assert found.executed > 0.95 * found.windows
    assert set(found.refused) <= {"TRAP", "SYSTEM", "OUT_OF_REACH", "NOT_SUPPORTED"}


def test_moves_as_it_is_says_what_relocate_does() -> None:
    for word in random.Random(3).sample(different_words(), samples(5_000)):
        for insn in AARCH64.decode(word, PROBED):
            if AARCH64.moves_as_it_is(insn):
                copy = AARCH64.relocate([insn], NEAR).data
                moved = b"" if insn.data == to_bytes(NOP) else insn.data
                assert copy == moved + (AARCH64.branch(NEAR + len(moved), insn.end) if insn.falls_through else b"")
