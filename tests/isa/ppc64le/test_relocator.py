"""One test for each hazard of moving an instruction, named after it. Words are the program; qemu-ppc64le the judge."""

from __future__ import annotations

import random

import pytest

from gdb_optprobe.isa.base import Dead, Hazard, Insn, Relocated, Unrelocatable
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.ppc64le.fields import to_bytes
from gdb_optprobe.isa.ppc64le.templates import load
from tests.examples import samples
from tests.isa.ppc64le.differential import Trial, differences, survey
from tests.isa.ppc64le.kernel import kernel
from tests.isa.ppc64le.oracle import ABOVE, BELOW, DATA, HERE, NEAR, STACK, Case, needs_oracle, random_state, run

PROBED = HERE + 0x8000
NOP, ADD_ONE = 0x60000000, 0x38630001  # addi r3,r3,1
MFLR_R3 = 0x7C6802A6


def code(*words: int, at: int = PROBED) -> list[Insn]:
    insns = PPC64LE.decode(to_bytes(*words), at)
    assert sum(insn.size for insn in insns) == 4 * len(words)
    return insns


def assert_same_effect(window: list[Insn], runs: int = 6, **fixed: int) -> None:
    rng = random.Random(1)
    trials = [
        Trial(tuple(window), to, random_state(rng) | fixed) for to in (NEAR + 0x100, ABOVE, BELOW) for _ in range(runs)
    ]
    assert not [difference for _, difference in differences(trials)]


def text(copy: Relocated) -> list[str]:
    return [insn.text for insn in PPC64LE.decode(copy.data, copy.address)]


def assert_refused(window: list[Insn], hazard: Hazard, to: int = NEAR) -> None:
    with pytest.raises(Unrelocatable) as refusal:
        PPC64LE.relocate(window, to)
    assert refusal.value.hazard is hazard


# Branches


def test_b_goes_to_the_same_place() -> None:
    window = code(0x48000100)
    assert text(PPC64LE.relocate(window, NEAR)) == [f"b {PROBED + 0x100:#x}"]
    assert not window[0].falls_through


def test_ba_stays_as_it_is() -> None:
    window = code(0x48000102)
    assert PPC64LE.relocate(window, NEAR).data == window[0].data


def test_bc_on_cr_is_inverted() -> None:
    copy = PPC64LE.relocate(code(0x41820100), NEAR)  # beq
    assert text(copy) == [f"bne {NEAR + 8:#x}", f"b {PROBED + 0x100:#x}", f"b {PROBED + 4:#x}"]


def test_hints_turn_with_the_condition() -> None:
    copy = PPC64LE.relocate(code(0x41E20100), NEAR)  # beq+
    assert text(copy)[0] == f"bne- {NEAR + 8:#x}"


@needs_oracle
@pytest.mark.parametrize("displacement", [0x40, -0x40, 0x7FFC, -0x8000])
def test_bc_of_every_bo_far_away(displacement: int) -> None:
    rng = random.Random(1)
    trials = [
        Trial(tuple(code(0x40020000 | bo << 21 | displacement & 0xFFFC)), to, random_state(rng) | {"ctr": ctr})
        for bo in range(32)
        for to in (NEAR, ABOVE, BELOW)
        for ctr in (0, 1, 1, 2)
    ]
    assert not [difference for _, difference in differences(trials)]


@needs_oracle
@pytest.mark.parametrize("bo", [0b00000, 0b00010, 0b01000, 0b01010, 0b00100, 0b01100, 0b10000, 0b10010, 0b10100])
def test_bcl_of_every_kind_leaves_the_original_return_address(bo: int) -> None:
    assert_same_effect(code(0x40020041 | bo << 21), ctr=1)
    assert_same_effect(code(0x40020041 | bo << 21), ctr=2)


@needs_oracle
def test_bl_leaves_the_original_return_address() -> None:
    assert_same_effect(code(0x48000101))
    [_, outcome] = run(list(Trial(tuple(code(0x48000101)), ABOVE, {"r1": STACK}).cases()))
    assert outcome.registers["lr"] == PROBED + 4 and outcome.pc == PROBED + 0x100


@needs_oracle
def test_a_call_is_shorter_where_a_register_or_ctr_is_dead() -> None:
    window = code(0x48000101)
    sizes = []
    for names in (["r12", "r11"], ["r0"], ["ctr"], ["lr"], []):
        dead = Dead(False, frozenset(names))
        sizes.append(len(PPC64LE.relocate(window, NEAR, dead=dead).data) // 4)
        trials = [Trial(tuple(window), ABOVE, random_state(random.Random(seed)), dead) for seed in range(4)]
        assert not [difference for _, difference in differences(trials)]
    assert sizes == [4, 4, 6, 8, 8]


@needs_oracle
def test_bcl_20_31_to_the_next_instruction() -> None:
    window = code(0x429F0005)
    assert_same_effect(window)
    assert_same_effect(code(0x429F0005, MFLR_R3))


@needs_oracle
@pytest.mark.parametrize("word", [0x4E800421, 0x4D820421, 0x4C820421], ids=["bctrl", "beqctrl", "bnectrl"])
def test_bctrl_leaves_the_original_return_address(word: int) -> None:
    assert_same_effect(code(word), ctr=HERE + 0x2000)


@needs_oracle
@pytest.mark.parametrize("word", [0x4E800020, 0x4D820020, 0x4C820020, 0x4E000020, 0x4E800420, 0x4D820420])
def test_returns_and_indirect_jumps(word: int) -> None:
    assert_same_effect(code(word), lr=HERE + 0x2000, ctr=HERE + 0x3000)
    assert_same_effect(code(word), lr=HERE + 0x2000, ctr=1)


def test_bctarl_becomes_bctar() -> None:
    assert text(PPC64LE.relocate(code(0x4E800461), NEAR))[-1] == "bctar"


def test_bclrl_is_refused() -> None:
    assert_refused(code(0x4E800021), Hazard.NOT_SUPPORTED)


@needs_oracle
def test_branch_to_itself_goes_to_the_probed_address() -> None:
    window = code(0x42000000)  # bdnz .
    assert_same_effect(window, ctr=3)
    assert f"b {PROBED:#x}" in text(PPC64LE.relocate(window, NEAR))


@needs_oracle
def test_branch_among_displaced_instructions() -> None:
    window = code(ADD_ONE, 0x4200FFFC, 0x41820008, ADD_ONE, ADD_ONE)  # bdnz back to the first; beq over one
    rng = random.Random(2)
    for _ in range(8):
        state = random_state(rng) | {"ctr": 1}
        trial = Trial(tuple(window), NEAR, state)
        assert not list(differences([trial]))
    assert f"b {PROBED:#x}" in text(PPC64LE.relocate(window, NEAR))


def test_branch_into_the_middle_of_a_prefixed_instruction_is_refused() -> None:
    assert_refused(code(0x06000000, 0x38630001, 0x4BFFFFFC), Hazard.BRANCH_INSIDE)


def test_call_that_returns_into_the_displaced_instructions_is_refused() -> None:
    assert_refused(code(0x48000101, ADD_ONE), Hazard.RETURNS_INSIDE)


@pytest.mark.parametrize("word", [ADD_ONE, 0x41820100, 0x48000100, 0x48000101])
def test_out_of_reach(word: int) -> None:
    for to in (PROBED + 0x0210_0000, PROBED - 0x0210_0000):
        assert_refused(code(word), Hazard.OUT_OF_REACH, to)


def test_branch_reaches_32_mib_each_way() -> None:
    at = 0xC000_0000_0300_0000
    for offset in (PPC64LE.branch_reach, -0x200_0000):
        [insn] = PPC64LE.decode(PPC64LE.branch(at, at + offset), at)
        assert insn.target == at + offset


# Operands found from the instruction's own address


@needs_oracle
@pytest.mark.parametrize("word", [0x4C600004, 0x4C7F0004, 0x4C608005, 0x4C7FFFC5, 0x4C600044])
def test_addpcis(word: int) -> None:
    assert_same_effect(code(word))


def prefixed(address: int, kind: int, suffix: int, operand: int) -> list[Insn]:
    offset = operand - address & (1 << 34) - 1
    return code(1 << 26 | kind << 24 | 1 << 20 | offset >> 16, suffix | offset & 0xFFFF, at=address)


@needs_oracle
@pytest.mark.parametrize("kind, suffix", [(0, 0xE4600000), (0, 0xF4600000), (2, 0x80600000), (2, 0x38600000)])
def test_prefixed_relative_to_its_address_at_every_place_of_a_line(kind: int, suffix: int) -> None:
    """pld, pstd, plwz, paddi: none may cross a 64-byte boundary."""
    window = prefixed(PROBED + 0x40, kind, suffix, DATA + 0x8010)
    trials = [Trial(tuple(window), NEAR + at, random_state(random.Random(at))) for at in range(0, 64, 4)]
    assert not [difference for _, difference in differences(trials)]
    copies = [insn for trial in trials for insn in PPC64LE.decode(trial.copy().data, trial.copy().address)]
    assert {insn.address % 64 for insn in copies if insn.size == 8} == {*range(0, 60, 4)}


def test_a_copy_has_one_size_wherever_it_stands() -> None:
    for window in (prefixed(PROBED, 0, 0xE4600000, DATA), code(0x06000000, ADD_ONE), code(0x41820100)):
        assert len({len(PPC64LE.relocate(window, NEAR + at).data) for at in range(0, 64, 4)}) == 1


@needs_oracle
def test_prefixed_with_a_base() -> None:
    assert_same_effect(code(0x06000001, 0x38641234))  # paddi r3,r4,0x11234
    assert_same_effect(code(0x04000000, 0xE4640010), r4=DATA + 0x100)  # pld r3,16(r4)


def test_reading_its_own_bytes_is_refused() -> None:
    assert_refused(prefixed(PROBED, 0, 0xE4600000, PROBED), Hazard.READS_ITS_ADDRESS)
    assert_refused(prefixed(PROBED, 2, 0x38600000, PROBED + 4), Hazard.READS_ITS_ADDRESS)
    PPC64LE.relocate(prefixed(PROBED, 2, 0x38600000, PROBED), NEAR)


def test_an_operand_that_begins_before_the_patch_and_ends_in_it_is_the_patch() -> None:
    for kind, suffix, size in ((0, 0xE4600000, 8), (0, 0xF4600000, 8), (2, 0x80600000, 4), (0, 0xE8600000, 32)):
        for operand in (1 - size, -1, 0, 7):
            assert_refused(prefixed(PROBED, kind, suffix, PROBED + operand), Hazard.READS_ITS_ADDRESS)
        PPC64LE.relocate(prefixed(PROBED, kind, suffix, PROBED - size), NEAR)
        PPC64LE.relocate(prefixed(PROBED, kind, suffix, PROBED + 8), NEAR)


@needs_oracle
def test_a_prefixed_load_beside_the_patch_does_the_same() -> None:
    assert_same_effect(prefixed(PROBED, 0, 0xE4600000, PROBED + 8))
    assert_same_effect(prefixed(PROBED, 0, 0xE4600000, PROBED - 8))


def test_a_prefixed_load_of_an_absolute_address_in_the_patch_is_the_patch() -> None:
    at = 0x1000_0000  # where programs are that are loaded at one address
    for operand in (at - 4, at + 4):
        words = (0x0400_0000 | operand >> 16, 0xE460_0000 | operand & 0xFFFF)
        assert_refused(code(*words, at=at), Hazard.READS_ITS_ADDRESS)
    words = (0x0400_0000 | at + 8 >> 16, 0xE460_0000 | at + 8 & 0xFFFF)
    PPC64LE.relocate(code(*words, at=at), at + 0x10_0000)


# Instructions that are what they are anywhere


@needs_oracle
@pytest.mark.parametrize(
    "word",
    [0xF821FF81, 0x38210080, 0xE8210000, 0x7C21196A, 0xF8010010, 0xFBE1FFF8, 0x9421FFF0],
    ids=["stdu r1", "addi r1", "ld r1,0(r1)", "stdux r1", "std r0,16(r1)", "std r31,-8(r1)", "stwu r1"],
)
def test_the_stack_pointer_moves_out_of_line(word: int) -> None:
    """Linux's own optprobe loses an update of r1."""
    assert_same_effect(code(word), r3=(1 << 64) - 256)


@needs_oracle
@pytest.mark.parametrize("word", [0xE8640009, 0xF8640009, 0x84640008, 0x9C640001, 0x7C64286A, 0x7C64296A])
def test_loads_and_stores_with_update(word: int) -> None:
    assert_same_effect(code(word), r4=DATA + 0x100, r5=0x40)


@needs_oracle
@pytest.mark.parametrize(
    "word",
    [
        *(0x7C6802A6, 0x7C6803A6, 0x7C6902A6, 0x7C6903A6, 0x7C600026, 0x7C6FF120),
        *(0x4C221202, 0x10631484, 0xF0631497, 0x7C632114, 0x7C630195, 0x30630005),
    ],
)
def test_moves_of_special_registers_vectors_and_carries(word: int) -> None:
    assert_same_effect(code(word))


def test_nop_is_left_out() -> None:
    copy = PPC64LE.relocate(code(NOP), NEAR)
    assert text(copy) == [f"b {PROBED + 4:#x}"]
    assert copy.origins == ((0, PROBED), (0, PROBED + 4))


def test_origins() -> None:
    copy = PPC64LE.relocate(code(ADD_ONE, 0x41820100, ADD_ONE), NEAR)
    assert copy.origins == ((0, PROBED), (4, PROBED + 4), (12, PROBED + 8), (16, PROBED + 12))


def test_program_of_a_neighbour_runs_before_its_instruction() -> None:
    window = code(ADD_ONE, 0x4200FFFC, ADD_ONE, 0x4200FFFC)
    copy = PPC64LE.relocate(window, NEAR, before={PROBED + 8: lambda at: to_bytes(0x38840001)})
    assert text(copy)[3:5] == ["addi r4, r4, 1", "addi r3, r3, 1"]
    assert text(copy)[-3:-1] == [f"bdz {NEAR + 28:#x}", f"b {NEAR + 12:#x}"]  # back to the program, too


# What may not be moved


@pytest.mark.parametrize(
    "word", [0x7FE00008, 0x0FE00000, 0x0B030000, 0x7C832008, 0x7C832088, 0x08830000], ids=lambda word: f"{word:08x}"
)
def test_trap_words_are_refused(word: int) -> None:
    assert_refused(code(word), Hazard.TRAP)


@pytest.mark.parametrize("word", [0x44000002, 0x44000001, 0x4C000024, 0x4C000224, 0x4C0000A4, 0x7C600164, 0x7C610164])
def test_system_instructions_are_refused(word: int) -> None:
    assert_refused(code(word), Hazard.SYSTEM)


def test_start_of_a_transaction_is_refused() -> None:
    assert_refused(code(0x7C00051D), Hazard.READS_ITS_ADDRESS)


def test_moves_as_it_is_says_what_relocate_does() -> None:
    for address, data in random.Random(3).sample(kernel().words(), samples(5_000)):
        for insn in PPC64LE.decode(data, address)[:1]:
            if PPC64LE.moves_as_it_is(insn):
                copy = PPC64LE.relocate([insn], address - 0x100_0000).data
                assert copy.startswith(insn.data) or PPC64LE.fills(insn) or insn.flow.value == "return"
                assert len(copy) <= insn.size + 4


# Constants


@needs_oracle
def test_constants_of_every_shape() -> None:
    rng = random.Random(4)
    edges = [
        0,
        1,
        0x7FFF,
        0x8000,
        0xFFFF,
        0x10000,
        0x7FFF_FFFF,
        0x8000_0000,
        0xFFFF_FFFF,
        1 << 32,
        1 << 63,
        (1 << 64) - 1,
    ]
    values = edges + [rng.getrandbits(rng.randrange(1, 65)) for _ in range(300)]
    values += [0xC000_0000_0000_0000 | rng.getrandbits(32) & -(1 << rng.choice((0, 16))) for _ in range(100)]
    values += [-value & (1 << 64) - 1 for value in values]
    numbers = [rng.randrange(32) for _ in values]
    cases = [
        Case({"pc": PROBED}, {PROBED: to_bytes(*load(number, value))})
        for number, value in zip(numbers, values, strict=True)
    ]
    for outcome, number, value in zip(run(cases), numbers, values, strict=True):
        assert outcome.registers[f"r{number}"] == value
        assert not any(outcome.registers[f"r{other}"] for other in range(32) if other != number)
    assert max(len(load(12, 0xC000_0000_0000_0000 | value & 0xFFFF_FFFF)) for value in values) == 4


# Real text


@needs_oracle
def test_windows_of_the_kernel_have_the_same_effect() -> None:
    windows = samples(2_500, 21_000)
    found = survey(kernel().words(), windows, seed=1)
    assert not found.differences
    assert found.executed > 0.95 * found.windows
    assert set(found.refused) <= {"TRAP", "SYSTEM", "OUT_OF_REACH", "NOT_SUPPORTED", "READS_ITS_ADDRESS"}
