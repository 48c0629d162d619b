"""What is dead: the tables against what Unicorn does, and each way in which something can be alive."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from gdb_optprobe.isa.aarch64 import AARCH64, abi
from gdb_optprobe.isa.aarch64.fields import to_bytes
from gdb_optprobe.isa.aarch64.register_effects import NZCV, effects_of
from gdb_optprobe.isa.base import Dead, Insn
from gdb_optprobe.isa.liveness import RegisterEffects
from tests.examples import samples
from tests.isa.aarch64.differential import fitting_state, is_fit
from tests.isa.aarch64.kernel import different_words
from tests.isa.aarch64.processor import HERE, run
from tests.isa.aarch64.test_relocator import random_words

START = HERE + 0x8000
RET, NOP, BL, BLR = 0xD65F03C0, 0xD503201F, 0x94000400, 0xD63F0060
MOV_X9, USE_X9, CMP = 0xD2800009, 0x8B090021, 0xF100001F  # mov x9, #0; add x1, x1, x9; cmp x0, #0


def dead(*words: int, **more: object) -> Dead:
    insns = AARCH64.decode(to_bytes(*words), START)
    assert len(insns) == len(words)
    return AARCH64.dead_at(START, {insn.address: insn for insn in insns}, **more)  # type: ignore[arg-type]


def test_a_register_that_is_overwritten() -> None:
    assert dead(MOV_X9, RET) == Dead(False, frozenset({"x9"}))
    assert dead(0x52800009, RET) == Dead(False, frozenset({"x9"}))  # mov w9: the upper half too


def test_a_register_that_is_read_first() -> None:
    assert dead(USE_X9, MOV_X9, RET) == Dead()


def test_a_part_that_is_overwritten() -> None:
    assert "x9" not in dead(0xF2A00009, RET).registers  # movk
    assert "x9" not in dead(0xB3780009, RET).registers  # bfi


def test_flags() -> None:
    assert dead(CMP, RET).flags
    assert dead(0xEA000000, RET).flags and not dead(0x8A000000, RET).flags  # ands, and
    assert not dead(0x54000040, CMP, CMP, RET).flags  # b.eq
    assert not dead(0x9A800000, CMP, RET).flags  # csel
    assert not dead(0xFA400000, RET).flags  # ccmp reads them
    assert dead(0xD51B4200, RET).flags and not dead(0xD53B4200, CMP, RET).flags  # msr, mrs nzcv


def test_signing_reads_x30() -> None:
    assert "x30" not in dead(0xD503233F, 0xAA0003FE, RET).registers
    assert "x30" in dead(NOP, 0xAA0003FE, RET).registers


def test_both_ways_of_a_branch() -> None:
    assert "x9" not in dead(0x54000040, MOV_X9, RET).registers
    assert "x9" in dead(0x54000040, MOV_X9, MOV_X9, RET).registers


def test_x30_dies_at_a_call_and_nothing_else() -> None:
    assert dead(MOV_X9, BL) == Dead(False, frozenset({"x9", "x30"}))
    assert dead(MOV_X9, BLR) == Dead(False, frozenset({"x9", "x30"}))


@pytest.mark.parametrize("word", [RET, BLR, BL, 0x14000400, 0xD61F0060, 0xD4200000, 0xD4000001, 0xD69F03E0])
def test_everything_lives_where_the_code_is_left(word: int) -> None:
    found = dead(MOV_X9, word, CMP, 0xD280000A, RET)
    assert found.registers - {"x30"} == {"x9"} and not found.flags


def test_what_a_tracer_may_clobber_is_dead_where_the_code_is_left() -> None:
    free = {f"x{number}" for number in range(9, 18)}
    assert dead(BL, leaving=lambda insn: AARCH64.dead_at_entry()) == Dead(True, frozenset({*free, "x30"}))
    assert dead(RET, leaving=lambda insn: AARCH64.dead_at_return()).registers == {*free, "x8"}
    assert not dead(BLR, leaving=lambda insn: AARCH64.dead_at_entry()).flags


def test_another_way_on_is_explored() -> None:
    load = 0xF9400001
    assert "x9" in dead(load, MOV_X9, RET).registers
    assert "x9" not in dead(load, MOV_X9, RET, also={START: [START + 8]}).registers


def test_registers_with_a_role_never_die() -> None:
    assert not dead(0xD2800012, 0xD280001D, 0x910003FF, RET).registers & set(abi.RESERVED)


def test_entry_is_what_ftrace_does_not_save() -> None:
    assert AARCH64.dead_at_entry() == Dead(True, frozenset(f"x{number}" for number in range(9, 18)))


# Against Unicorn

_ALL = (*abi.GENERAL, abi.FLAGS)


def bit(name: str) -> int:
    return NZCV if name == abi.FLAGS else 1 << abi.GENERAL.index(name)


def lies(insn: Insn, uses: RegisterEffects, rng: random.Random) -> Iterator[str]:
    """Two runs that differ in what is not read must do the same: also to what is said to be overwritten."""
    one = fitting_state([insn], rng)
    free = {name for name in _ALL if not uses.reads & bit(name)}
    two = one | {name: rng.getrandbits(4) << 28 if name == abi.FLAGS else rng.getrandbits(64) for name in sorted(free)}
    first, second = (run({insn.address: insn.data}, insn.address, state) for state in (one, two))
    if (first.fault, first.pc, first.data, first.vectors) != (second.fault, second.pc, second.data, second.vectors):
        yield f"{insn.text} goes to {first.pc:#x} and {second.pc:#x}, or stores other things"
    for name in () if first.fault else _ALL:
        left, right = first.registers[name], second.registers[name]
        if left != right and (uses.kills & bit(name) or name not in free):
            yield f"{insn.text} leaves {name} {left:#x} and {right:#x}"
        if (left ^ right) & ((left ^ one[name]) | (right ^ two[name])):  # bits that it did not leave alone
            yield f"{insn.text} uses {name}"


@pytest.mark.parametrize("real", [False, True], ids=["random words", "the kernel's"])
def test_the_tables(real: bool) -> None:
    rng, size = random.Random(1), samples(500, 20_000)
    words = rng.sample(different_words(), 2 * size) if real else random_words(size, 2)
    insns = [insn for word in words for insn in AARCH64.decode(word, START) if is_fit(insn)]
    known = [(insn, uses) for insn in insns if (uses := effects_of(insn.data)) is not None]
    assert len(known) > (0.98 if real else 0.8) * len(insns)
    assert not [lie for insn, uses in known for lie in lies(insn, uses, rng)]
