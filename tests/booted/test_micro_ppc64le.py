"""The bare-metal ppc64le guest runs its whole table; what the architecture fixes comes out."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from qemu.guest import Guest, Options
from tests.booted.conftest import Boot
from tests.booted.micro_table import (
    LAYOUTS,
    MIDDLE,
    SCRATCH,
    STATES,
    Hazard,
    number,
    run_rounds,
    run_until_trouble,
    signed,
)

RECORD = 1024
R = tuple(range(0, 256, 8))
CR, LR, CTR, XER, MSR, RUNS, TICKS, TAR = range(256, 320, 8)
STACK, MEMORY = 384, 704
STACK_POINTER = STACK + 256
MASK = (1 << 64) - 1

# The guest's inputs, as far as they are looked at here.
R3 = (0, MASK, 0x0303030303030303, 0xBF58476D1CE4E5B9)
R4 = (0, MASK, 0x0404040404040404, 0x94D049BB133111EB)
R5 = (0, MASK, 0x0505050505050505, 0x2545F4914F6CDD1D)
R9 = (0, MASK, 0x0909090909090909, 0x8000000000000000)
COUNT = (0, MASK, 2, 1)
EQUAL = (0, 1, 1, 0)
CARRY = (0, 1, 1, 0)


def index(state: int) -> int:
    return R5[state] << 3 & 24


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Hazard]:
    with Guest.start(Options(arch="ppc64le", micro=True)) as guest:
        return {one.name: one for one in run_rounds(guest, tmp_path_factory.mktemp("micro"), 1, RECORD)}


@pytest.mark.parametrize(("cpu", "features"), [("power8", 0), ("power9", 1), ("power10", 3)])
def test_every_hazard_runs(boot: Boot, tmp_path: Path, cpu: str, features: int) -> None:
    guest = boot(arch="ppc64le", micro=True, cpu=cpu)
    hazards = run_rounds(guest, tmp_path, 2, RECORD)
    assert len(hazards) > 400 and len({hazard.name for hazard in hazards}) == len(hazards)
    for hazard in hazards:
        assert hazard.words(RUNS) == [0 if hazard.needs & ~features else 2] * STATES, hazard.name
        assert hazard.code <= hazard.site < hazard.end and hazard.site % 4 == 0, hazard.name
    assert guest.healthy


def test_two_runs_leave_the_same(boot: Boot, tmp_path: Path, named: dict[str, Hazard]) -> None:
    settled = LAYOUTS["ppc64le"].settled
    for again in run_rounds(boot(arch="ppc64le", micro=True), tmp_path, 2, RECORD):
        assert settled(b"".join(named[again.name].results)) == settled(b"".join(again.results)), again.name


@pytest.mark.parametrize(
    "name", ["bl", "bla", "bctrl", "bctarl", "bcl_always", "bcl_next", "bcl_next_bit", "bl_next", "blrl", "lnia"]
)
def test_the_address_of_the_next_instruction(named: dict[str, Hazard], name: str) -> None:
    assert named[name].words(R[3]) == [named[name].site + 4] * STATES


@pytest.mark.parametrize(
    ("name", "distance"),
    [
        ("addpcis", 4 + 0x12340000),
        ("addpcis_back", 4 - 0x80000000),
        ("subpcis", 4 - 0x10000),
        ("paddi_self", 0),
        ("paddi_next", 8),
        ("paddi_back", -0x10000),
        ("prefixed_ends_block", 0),
        ("prefixed_begins_block", 0),
    ],
)
def test_addresses_relative_to_an_instruction(named: dict[str, Hazard], name: str, distance: int) -> None:
    assert named[name].words(R[3]) == [named[name].site + distance] * STATES


def test_an_interrupt_leaves_everything_as_it_was(named: dict[str, Hazard]) -> None:
    assert named["interrupted"].words(R[6]) == [R3[state] + R4[state] & MASK for state in range(STATES)]
    assert named["interrupted"].words(MSR) == named["nop"].words(MSR)


def test_a_global_entry_finds_the_table_of_contents(named: dict[str, Hazard]) -> None:
    assert named["global_entry"].words(R[2]) == named["nop"].words(R[2])
    assert named["global_entry"].words(R[31]) == named["nop"].words(R[31])


def test_prefixed_instructions_stand_at_both_ends_of_a_block(named: dict[str, Hazard]) -> None:
    assert named["prefixed_ends_block"].site % 64 == 56
    assert named["prefixed_begins_block"].site % 64 == 0


def taken(bo: int, condition: bool, count: int) -> tuple[bool, int]:
    """Whether a conditional branch is taken, and what it leaves in CTR (Power ISA 3.1B, 2.4)."""
    if not bo & 4:
        count = count - 1 & MASK
    counted = bool(bo & 4) or (count != 0) != bool(bo & 2)
    return counted and (bool(bo & 16) or condition == bool(bo & 8)), count


@pytest.mark.parametrize("form", ["bc", "bclr", "bc_far"])
@pytest.mark.parametrize(
    ("name", "bo"),
    [
        *(("dnz_false", 0), ("dz_false", 2), ("false", 4), ("false_unlikely", 6), ("false_likely", 7)),
        *(("dnz_true", 8), ("dz_true", 10), ("true", 12), ("true_unlikely", 14), ("true_likely", 15)),
        *(("dnz", 16), ("dz", 18), ("always", 20), ("dnz_unlikely", 24), ("dz_likely", 27)),
    ],
)
def test_conditional_branches(named: dict[str, Hazard], form: str, name: str, bo: int) -> None:
    hazard = named[f"{form}_{name}"]
    for state in range(STATES):
        goes, count = taken(bo, bool(EQUAL[state]), COUNT[state])
        assert hazard.words(CTR)[state] == count
        assert hazard.words(R[9])[state] == (R9[state] + (not goes) & MASK)


@pytest.mark.parametrize(
    ("name", "size", "at", "is_signed"),
    [
        ("lbz", 1, -6, False),
        ("lhz", 2, -6, False),
        ("lha", 2, -6, True),
        ("lwz", 4, -6, False),
        ("lwa", 4, -12, True),
        ("ld", 8, -16, False),
        ("pld", 8, 16, False),
        ("pld_pcrel", 8, 0, False),
        ("plwa_pcrel", 4, 4, True),
        ("plha_pcrel", 2, 6, True),
        ("lwz_unaligned", 4, 3, False),
    ],
)
def test_loads(named: dict[str, Hazard], name: str, size: int, at: int, is_signed: bool) -> None:
    value = number(MIDDLE + at, size)
    assert named[name].words(R[3]) == [(signed(value, 8 * size) if is_signed else value) & MASK] * STATES


@pytest.mark.parametrize(
    ("name", "size", "reverse"),
    [("lbzux", 1, False), ("lhzux", 2, False), ("lwzux", 4, False), ("ldux", 8, False), ("ldbrx", 8, True)],
)
def test_indexed_loads(named: dict[str, Hazard], name: str, size: int, reverse: bool) -> None:
    base = named["ld_own"]
    assert base.words(R[4]) == [number(MIDDLE, 8)] * STATES
    address = named["lbz"].words(R[4])[0]
    for state in range(STATES):
        data = SCRATCH[MIDDLE + index(state) :][:size]
        assert named[name].words(R[3])[state] == int.from_bytes(data, "big" if reverse else "little")
        assert named[name].words(R[4])[state] == address + (0 if reverse else index(state))


@pytest.mark.parametrize(
    ("name", "size", "at", "updates"),
    [
        ("stb", 1, -6, False),
        ("stbu", 1, -6, True),
        ("sthu", 2, -6, True),
        ("stwu", 4, -6, True),
        ("std", 8, -16, False),
        ("stdu", 8, 8, True),
        ("pstd", 8, 24, False),
        ("pstd_pcrel", 8, 0, False),
        ("pstw_pcrel", 4, 4, False),
    ],
)
def test_stores(named: dict[str, Hazard], name: str, size: int, at: int, updates: bool) -> None:
    address = named["lbz"].words(R[4])[0]
    for state, result in enumerate(named[name].results):
        expected = bytearray(SCRATCH)
        expected[MIDDLE + at : MIDDLE + at + size] = (R3[state] & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        assert result[MEMORY : MEMORY + 256] == expected
        assert struct.unpack_from("<Q", result, R[4])[0] == address + (at if updates else 0)


@pytest.mark.parametrize("name", ["stdu_r1", "stdux_r1", "addi_r1", "ld_r1_from_r1", "frame", "frame_ends"])
def test_the_stack_pointer_comes_back(named: dict[str, Hazard], name: str) -> None:
    assert named[name].words(R[1]) == named["nop"].words(R[1])


@pytest.mark.parametrize(("name", "depth"), [("stdu_r1", 112), ("stdux_r1", 112)])
def test_a_frame_holds_the_back_chain(named: dict[str, Hazard], name: str, depth: int) -> None:
    assert named[name].words(R[3]) == named["nop"].words(R[1])
    assert named[name].words(STACK_POINTER - depth) == named["nop"].words(R[1])


ARITHMETIC: dict[str, Callable[[int], int]] = {
    "addi": lambda state: R3[state] - 5,
    "addis": lambda state: R3[state] + 0x12340000,
    "add": lambda state: R3[state] + R4[state],
    "adde": lambda state: R3[state] + R4[state] + CARRY[state],
    "subfe": lambda state: ~R3[state] + R4[state] + CARRY[state],
    "mulld": lambda state: R3[state] * R4[state],
    "mulhdu": lambda state: R3[state] * R4[state] >> 64,
    "maddld": lambda state: R3[state] * R4[state] + R5[state],
    "sradi": lambda state: signed(R3[state], 64) >> 33,
    "extsw": lambda state: signed(R3[state], 32),
    "cntlzd": lambda state: 64 - R3[state].bit_length(),
    "popcntd": lambda state: R3[state].bit_count(),
    "brd": lambda state: int.from_bytes(R3[state].to_bytes(8, "little"), "big"),
    "isel": lambda state: R4[state] if EQUAL[state] else R5[state],
    "isel_r0": lambda state: 0 if EQUAL[state] else R5[state],
    "setbc": lambda state: EQUAL[state],
    "setnbcr": lambda state: EQUAL[state] - 1,
    "pli": lambda state: 0x123456789,
    "sc": lambda state: R3[state] + 0xC00,
    "scv": lambda state: R3[state] + 0x300,
    "trap": lambda state: R3[state] + 0x700,
    "tdi_never": lambda state: R3[state],
    "tw_equal": lambda state: R3[state] + 0x700 * (signed(R3[state], 32) == signed(R4[state], 32)),
    "td_less": lambda state: R3[state] + 0x700 * (signed(R3[state], 64) < 5),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_what_comes_out_of_one_instruction(named: dict[str, Hazard], name: str) -> None:
    assert named[name].words(R[3]) == [ARITHMETIC[name](state) & MASK for state in range(STATES)]


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("site", ["", "_inside", "_store", "_branch"])
def test_reservations_are_kept(named: dict[str, Hazard], size: int, site: str) -> None:
    hazard = named[f"l{'bhwd'[size.bit_length() - 1]}arx{site}"]
    expected = bytearray(SCRATCH)
    expected[MIDDLE : MIDDLE + size] = (number(MIDDLE, size) + 1).to_bytes(size, "little")
    assert [result[MEMORY : MEMORY + 256] for result in hazard.results] == [expected] * STATES


def test_what_each_branch_reaches(named: dict[str, Hazard]) -> None:
    far = named["b_distant"].site
    assert 0 <= 0x2420000 - (far & 0xFFFFFFFF) < 1 << 25, "in reach from the table's functions"
    assert 0x2420000 - 0x41FFFC >= 1 << 25, "out of reach from the arena"
    assert (named["beyond_any_branch"].site & 0xFFFFFFFF) - 0x41FFFC >= 1 << 25


def test_ticks_count_instructions_under_icount(boot: Boot, tmp_path: Path) -> None:
    hazards = run_rounds(boot(arch="ppc64le", micro=True, icount="shift=0,sleep=off"), tmp_path, 1, RECORD)
    ticks = {hazard.name: hazard.words(TICKS) for hazard in hazards}
    assert {count - ticks["blr"][0] for count in ticks["nop"]} == {2}
    turns = [(r3 & 3) + 1 for r3 in R3]
    assert [count - ticks["bdnz_self"][0] for count in ticks["bdnz_self"]] == [turn - turns[0] for turn in turns]


def test_an_exception_is_seen(boot: Boot) -> None:
    run_until_trouble(boot(arch="ppc64le", micro=True), "set var *(int*)&leaf = 0")
