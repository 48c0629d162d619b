"""The bare-metal aarch64 guest runs its whole table; what the architecture fixes comes out."""

from __future__ import annotations

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
X = tuple(range(0, 248, 8))
SP, NZCV, DAIF, RUNS, TICKS = 248, 256, 264, 296, 304
MEMORY = 704
MASK = (1 << 64) - 1
LSE, PAC, RCPC, FLAGM, SVE, PAN = (1 << bit for bit in range(6))

# The guest's inputs, as far as they are looked at here.
X3 = (0, MASK, 0x0303030303030303, 0xBF58476D1CE4E5B9)
X4 = (0, MASK, 0x0404040404040404, 0x94D049BB133111EB)
X5 = (0, MASK, 0x0505050505050505, 0x2545F4914F6CDD1D)
X9 = (0, MASK, 0x0909090909090909, 0x8000000000000000)
X11 = (0, MASK, 0x0B0B0B0B0B0B0B0B, 0x00000000FFFFFFFF)
FLAGS = (0, 0b1111, 0b0010, 0b1000)  # N Z C V


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Hazard]:
    with Guest.start(Options(arch="aarch64", micro=True, cpu="max")) as guest:
        return {one.name: one for one in run_rounds(guest, tmp_path_factory.mktemp("micro"), 1, RECORD)}


@pytest.mark.parametrize(
    ("cpu", "features"),
    [("cortex-a57", 0), ("neoverse-n1", LSE | RCPC | PAN), ("max", LSE | PAC | RCPC | FLAGM | SVE | PAN)],
)
def test_every_hazard_runs(boot: Boot, tmp_path: Path, cpu: str, features: int) -> None:
    guest = boot(arch="aarch64", micro=True, cpu=cpu)
    hazards = run_rounds(guest, tmp_path, 2, RECORD)
    assert len(hazards) > 450 and len({hazard.name for hazard in hazards}) == len(hazards)
    for hazard in hazards:
        assert hazard.words(RUNS) == [0 if hazard.needs & ~features else 2] * STATES, hazard.name
        assert hazard.code <= hazard.site < hazard.end and hazard.site % 4 == 0, hazard.name
    assert guest.healthy


def test_two_runs_leave_the_same(boot: Boot, tmp_path: Path, named: dict[str, Hazard]) -> None:
    settled = LAYOUTS["aarch64"].settled
    for again in run_rounds(boot(arch="aarch64", micro=True, cpu="max"), tmp_path, 2, RECORD):
        assert settled(b"".join(named[again.name].results)) == settled(b"".join(again.results)), again.name


@pytest.mark.parametrize("name", ["bl", "blr", "blr_veneer", "blr_lr", "blraa", "bl_next", "bl_distant", "guarded_blr"])
def test_the_address_of_the_next_instruction(named: dict[str, Hazard], name: str) -> None:
    assert named[name].words(X[3]) == [named[name].site + 4] * STATES


@pytest.mark.parametrize(
    ("name", "distance"), [("adr", 0x100), ("adr_back", -0x100), ("adr_self", 0), ("adr_next", 4), ("adr_far", 0xFFFFC)]
)
def test_addresses_relative_to_an_instruction(named: dict[str, Hazard], name: str, distance: int) -> None:
    assert named[name].words(X[3]) == [named[name].site + distance] * STATES


@pytest.mark.parametrize(("name", "pages"), [("adrp_self", 0), ("adrp_back", -1), ("adrp_far", (1 << 20) - 1)])
def test_addresses_of_pages(named: dict[str, Hazard], name: str, pages: int) -> None:
    assert named[name].words(X[3]) == [((named[name].site & -4096) + pages * 4096) & MASK] * STATES


def test_an_interrupt_leaves_everything_as_it_was(named: dict[str, Hazard]) -> None:
    assert named["interrupted"].words(X[6]) == [X3[state] + X4[state] & MASK for state in range(STATES)]
    assert named["interrupted"].words(DAIF) == named["nop"].words(DAIF)


def holds(condition: int, flags: int) -> bool:
    """Return whether a condition holds (DDI 0487, C1.2.4)."""
    n, z, c, v = (bool(flags & bit) for bit in (8, 4, 2, 1))
    found = (z, c, n, v, c and not z, n == v, n == v and not z, True)[condition >> 1]
    return found != bool(condition & 1) or condition >> 1 == 7


@pytest.mark.parametrize(
    ("condition", "name"),
    [*enumerate(("eq", "ne", "hs", "lo", "mi", "pl", "vs", "vc", "hi", "ls", "ge", "lt", "gt", "le", "al", "nv"))],
)
def test_conditional_branches(named: dict[str, Hazard], condition: int, name: str) -> None:
    expected = [X9[state] + (not holds(condition, FLAGS[state])) & MASK for state in range(STATES)]
    assert named[f"b_{name}"].words(X[9]) == expected


BRANCHES: dict[str, Callable[[int], bool]] = {
    "cbz": lambda state: not X3[state],
    "cbz_w": lambda state: not X11[state] & 0xFFFF_FFFF,
    "cbz_zero": lambda state: True,
    "cbnz": lambda state: bool(X3[state]),
    "cbnz_zero": lambda state: False,
    "tbz_0": lambda state: not X3[state] & 1,
    "tbz_63": lambda state: not X3[state] >> 63,
    "tbnz_32": lambda state: bool(X11[state] >> 32 & 1),
    "tbz_far": lambda state: not X3[state] >> 3 & 1,
    "b_eq_far": lambda state: bool(FLAGS[state] & 4),
    "cbnz_far": lambda state: bool(X3[state] & 0xFFFF_FFFF),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_branches_on_a_register(named: dict[str, Hazard], name: str) -> None:
    assert named[name].words(X[9]) == [X9[state] + (not BRANCHES[name](state)) & MASK for state in range(STATES)]


ARITHMETIC: dict[str, Callable[[int], int]] = {
    "add": lambda state: X3[state] + 5,
    "add_w": lambda state: X3[state] + 5 & 0xFFFF_FFFF,
    "sub_lsl": lambda state: X3[state] - (X4[state] << 3),
    "sub_sxtw": lambda state: X3[state] - signed(X4[state], 32),
    "adc": lambda state: X3[state] + X4[state] + (FLAGS[state] >> 1 & 1),
    "eor": lambda state: X3[state] ^ (X4[state] >> 9 | X4[state] << 55),
    "bic": lambda state: X3[state] & ~X4[state],
    "movn": lambda state: ~(0x1234 << 16),
    "movk": lambda state: X3[state] & ~(0xFFFF << 32) | 0x1234 << 32,
    "sbfx": lambda state: signed(X4[state] >> 7, 20),
    "extr": lambda state: (X3[state] << 64 | X4[state]) >> 13,
    "madd": lambda state: X3[state] * X4[state] + X5[state],
    "umulh": lambda state: X3[state] * X4[state] >> 64,
    "clz": lambda state: 64 - X3[state].bit_length(),
    "csel": lambda state: X4[state] if FLAGS[state] & 4 else X5[state],
    "csinc": lambda state: X4[state] if holds(8, FLAGS[state]) else X5[state] + 1,
    "mrs_nzcv": lambda state: FLAGS[state] << 28,
    "fmov_from": lambda state: (0, MASK, 0x3FF8000000000000, 0x7FF0000000000000)[state],
    "ldr": lambda state: number(MIDDLE + 8, 8),
    "ldrsb": lambda state: signed(number(MIDDLE + 8, 1), 8),
    "ldr_lsl": lambda state: number(MIDDLE + 8 * (X5[state] & 3), 8),
    "ldp": lambda state: number(MIDDLE + 16, 8),
    "ldpsw": lambda state: signed(number(MIDDLE + 4, 4), 32),
    "literal_x": lambda state: 0x9192939495969798,
    "literal_sw": lambda state: signed(0x95969798, 32),
    "literal_back": lambda state: 0x8182838485868788,
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_what_comes_out_of_one_instruction(named: dict[str, Hazard], name: str) -> None:
    assert named[name].words(X[3]) == [ARITHMETIC[name](state) & MASK for state in range(STATES)]


@pytest.mark.parametrize(("name", "added"), [("svc", 0xC00), ("brk_bug", 0x700), ("udf", 0x500), ("hlt", 0x500)])
def test_exceptions_are_seen(named: dict[str, Hazard], name: str, added: int) -> None:
    assert named[name].words(X[0]) == [value + added & MASK for value in named["nop"].words(X[0])]


@pytest.mark.parametrize(
    "name", ["stp_moves_sp", "ldp_moves_sp", "sub_sp", "add_sp_register", "and_sp", "frame_ends", "signed_frame_begins"]
)
def test_the_stack_pointer_comes_back(named: dict[str, Hazard], name: str) -> None:
    assert named[name].words(SP) == named["nop"].words(SP)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("site", ["", "_inside", "_store", "_branch"])
def test_exclusive_access_is_kept(named: dict[str, Hazard], size: int, site: str) -> None:
    load = {1: "ldxrb", 2: "ldxrh", 4: "ldxr_w", 8: "ldxr"}[size]
    expected = bytearray(SCRATCH)
    expected[MIDDLE : MIDDLE + size] = (number(MIDDLE, size) + 1).to_bytes(size, "little")
    assert [result[MEMORY : MEMORY + 256] for result in named[load + site].results] == [expected] * STATES


def test_a_store_without_exclusive_access_fails(named: dict[str, Hazard]) -> None:
    assert named["store_without_access"].words(X[7]) == named["access_given_up"].words(X[7]) == [1] * STATES


def test_what_each_branch_reaches(named: dict[str, Hazard]) -> None:
    reach, arena_end = 1 << 27, 0x4021FFFC
    far = named["b_distant"].site & 0xFFFF_FFFF
    assert 0 <= 0x48220000 - far < reach, "in reach from the table's functions"
    assert 0x48220000 - arena_end >= reach, "out of reach from the arena"
    assert (named["beyond_any_branch"].site & 0xFFFF_FFFF) - arena_end >= reach


def test_a_missed_landing_pad_is_an_exception(boot: Boot) -> None:
    """The CPU does check branches into the guarded pages."""
    guest = boot(arch="aarch64", micro=True, cpu="max")
    write = "set var *(int*)&hz_guarded_behind_pad = 0xd503201f"  # nop in place of `bti c`
    run_until_trouble(guest, write)


def test_ticks_count_instructions_under_icount(boot: Boot, tmp_path: Path) -> None:
    hazards = run_rounds(boot(arch="aarch64", micro=True, icount="shift=0,sleep=off"), tmp_path, 1, RECORD)
    ticks = {hazard.name: hazard.words(TICKS) for hazard in hazards}
    assert {count - ticks["ret"][0] for count in ticks["nop"]} == {2}
    turns = [(x3 & 3) + 1 for x3 in X3]
    assert [count - ticks["cbnz_back"][0] for count in ticks["cbnz_back"]] == [3 * (turn - turns[0]) for turn in turns]


def test_an_exception_is_seen(boot: Boot) -> None:
    run_until_trouble(boot(arch="aarch64", micro=True), "set var *(int*)&leaf = 0")
