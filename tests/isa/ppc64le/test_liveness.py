"""What is dead: the tables against what qemu-ppc64le does, and each way in which something can be alive."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from gdb_optprobe.isa.base import Dead, Flow, Insn
from gdb_optprobe.isa.liveness import RegisterEffects
from gdb_optprobe.isa.ppc64le import PPC64LE, abi
from gdb_optprobe.isa.ppc64le.fields import to_bytes, word_of
from gdb_optprobe.isa.ppc64le.register_effects import ALL_NAMES, effects_of
from tests.isa.ppc64le.differential import fitting_state, is_fit
from tests.isa.ppc64le.kernel import kernel
from tests.isa.ppc64le.oracle import HERE, Case, Outcome, needs_oracle, run
from tests.isa.ppc64le.test_decoder import random_prefixed, random_words

START = HERE + 0x8000
BLR, NOP = 0x4E800020, 0x60000000
LI_R9, MR_R9_R4, CMP_R3 = 0x39200000, 0x7C892378, 0x2C230000


def dead(*words: int, **more: object) -> Dead:
    insns = PPC64LE.decode(to_bytes(*words), START)
    assert sum(insn.size for insn in insns) == 4 * len(words)
    return PPC64LE.dead_at(START, {insn.address: insn for insn in insns}, **more)  # type: ignore[arg-type]


def test_a_register_that_is_overwritten() -> None:
    assert dead(LI_R9, BLR) == Dead(False, frozenset({"r9"}))


def test_a_register_that_is_read_first() -> None:
    assert dead(0x7C844A14, LI_R9, BLR) == Dead(False, frozenset())  # add r4,r4,r9


def test_cr0_and_the_other_fields() -> None:
    assert dead(CMP_R3, BLR) == Dead(True, frozenset())
    assert dead(0x2F830000, BLR) == Dead(False, frozenset({"cr7"}))
    assert dead(0x7C632215, BLR).flags  # add.
    assert not dead(0x41820008, CMP_R3, CMP_R3, BLR).flags  # beq


def test_mtcr_and_mtocrf() -> None:
    assert dead(0x7C6FF120, BLR) == Dead(True, frozenset(f"cr{n}" for n in range(1, 8)))
    assert dead(0x7C708120, BLR) == Dead(False, frozenset({"cr4"}))
    assert dead(0x7C600026, 0x7C6FF120, BLR) == Dead(False, frozenset({"r3"}))  # mfcr first


def test_a_nop_reads_nothing() -> None:
    """It is `ori r0,r0,0`; there are others, with a meaning to a processor's threads or caches."""
    assert dead(NOP, 0x38000000, BLR).registers == {"r0"}
    assert dead(0x63FF0000, 0x3BE00000, BLR).registers == {"r31"}
    assert dead(0x60000001, 0x38000000, BLR).registers == frozenset()


def test_both_ways_of_a_branch() -> None:
    assert "r9" not in dead(0x41820008, LI_R9, BLR).registers
    assert "r9" in dead(0x41820008, LI_R9, LI_R9, BLR).registers


def test_lr_dies_at_a_call_and_nothing_else() -> None:
    assert dead(LI_R9, 0x48001001) == Dead(False, frozenset({"r9", "lr"}))


def test_ctr_is_read_by_bctr_and_bdnz() -> None:
    assert "ctr" not in dead(0x4E800420).registers
    assert "ctr" not in dead(0x4200FFFC, 0x7C6903A6, BLR).registers
    assert "ctr" in dead(0x7C6903A6, 0x4E800420).registers


@pytest.mark.parametrize(
    "word", [BLR, 0x4D820020, 0x4E800421, 0x48001001, 0x7FE00008, 0x44000002, 0x7C600164, 0x48001000]
)
def test_everything_lives_where_the_code_is_left(word: int) -> None:
    found = dead(LI_R9, word, CMP_R3, MR_R9_R4, BLR)
    assert found.registers - {"lr"} == {"r9"} and not found.flags


def test_what_a_tracer_may_clobber_is_dead_where_the_code_is_left() -> None:
    at_entry = dead(0x48001001, leaving=lambda insn: PPC64LE.dead_at_entry())
    assert at_entry == Dead(True, frozenset({"r0", "r11", "r12", "ctr", "lr"}))
    assert dead(BLR, leaving=lambda insn: PPC64LE.dead_at_return()).registers >= {"r0", "r11", "r12"}
    assert not dead(0x4E800421, leaving=lambda insn: PPC64LE.dead_at_entry()).flags


def test_another_way_on_is_explored() -> None:
    load = 0xE8640000
    assert "r9" in dead(load, LI_R9, BLR).registers
    assert "r9" not in dead(load, LI_R9, BLR, also={START: [START + 8]}).registers


def test_another_way_on_from_a_call_is_explored_whoever_is_called() -> None:
    call = 0x48001001
    assert dead(call, leaving=lambda insn: PPC64LE.dead_at_entry(), also={START: [0]}) == Dead()


def test_registers_with_a_role_never_die() -> None:
    assert not dead(0x38200000, 0x38400000, 0x39A00000, BLR).registers & set(abi.RESERVED)


def test_entry_is_what_ftrace_does_not_save() -> None:
    assert PPC64LE.dead_at_entry() == Dead(True, frozenset({"r0", "r11", "r12", "ctr"}))


# Against qemu-ppc64le


def unread(uses: RegisterEffects) -> set[str]:
    """What the tables say that the instruction does not read; the stack pointer is no part of the game."""
    return {name for bit, name in enumerate(ALL_NAMES) if not uses.reads >> bit & 1} - {abi.SP}


def shaken(state: dict[str, int], names: set[str], rng: random.Random) -> dict[str, int]:
    """Other values in these registers and fields of CR."""
    changed = {name: rng.getrandbits(64) for name in sorted(names) if not name.startswith("cr")}
    fields = [int(name[2]) for name in sorted(names) if name in abi.CR_FIELDS]
    noise = sum(rng.getrandbits(4) << 28 - 4 * field for field in fields)
    keeps = sum(0xF << 28 - 4 * field for field in range(8) if field not in fields)
    return {**state, **changed, abi.FLAGS: state[abi.FLAGS] & keeps | noise}


def value(outcome: Outcome, name: str) -> int:
    if name in abi.CR_FIELDS:
        return outcome.registers[abi.FLAGS] >> 28 - 4 * int(name[2]) & 0xF
    return outcome.registers[name]


def before(state: dict[str, int], name: str) -> int:
    return state[abi.FLAGS] >> 28 - 4 * int(name[2]) & 0xF if name in abi.CR_FIELDS else state[name]


def lies(insn: Insn, uses: RegisterEffects, states: list[dict[str, int]], one: Outcome, two: Outcome) -> Iterator[str]:
    """Two runs that differ in what is not read must do the same: also to what is said to be overwritten."""
    if (one.signal, one.pc, one.memory) != (two.signal, two.pc, two.memory):
        yield f"{insn.text} goes to {one.pc:#x} and {two.pc:#x}, or stores other things"
    faulted = one.pc == insn.address
    free = unread(uses)
    for bit, name in enumerate(ALL_NAMES):
        first, second = value(one, name), value(two, name)
        if first != second and not faulted and (uses.kills >> bit & 1 or name not in free):
            yield f"{insn.text} leaves {name} {first:#x} and {second:#x}"
        written = (first ^ before(states[0], name)) | (second ^ before(states[1], name))
        if (first ^ second) & written:  # bits that it did not leave alone
            yield f"{insn.text} uses {name}"


def instructions(rng: random.Random, wanted: int) -> list[Insn]:
    """Of the kernel, few of each kind; and random ones, of every form that the tables know."""
    found, kinds, words = [], Counter[str](), kernel().words()
    data = [rng.choice(words)[1] for _ in range(30 * wanted)]
    data += [to_bytes(word) for word in random_words(rng, 8 * wanted)]
    data += [to_bytes(*random_prefixed(rng)) for _ in range(wanted // 8)]
    for code in data:
        for insn in PPC64LE.decode(code, START)[:1]:
            kind = insn.text.split()[0]
            if word_of(insn.data) >> 26 == 60:
                continue  # of vectors whose second halves the oracle cannot set
            known = effects_of(insn.data) is not None and insn.flow not in (Flow.SYSTEM, Flow.TRAP)
            if known and is_fit(insn) and kinds[kind] < max(4, wanted // 300):
                kinds[kind] += 1
                found.append(insn)
    assert len(kinds) > 300
    return found


@needs_oracle
@pytest.mark.thorough
def test_the_tables_against_the_cpu() -> None:
    rng = random.Random(1)
    insns = instructions(rng, 20_000 if os.environ.get("OPTPROBE_FULL") else 2_000)
    pairs, cases = [], []
    for insn in insns:
        uses = effects_of(insn.data)
        assert uses is not None
        state = fitting_state([insn], rng) | {abi.PC: START}
        states = [state, shaken(state, unread(uses), rng)]
        pairs.append((insn, uses, states))
        cases += [Case(one, {START: insn.data}) for one in states]
    outcomes = run(cases)
    found = [
        lie
        for (insn, uses, states), one, two in zip(pairs, outcomes[::2], outcomes[1::2], strict=True)
        for lie in lies(insn, uses, states, one, two)
    ]
    assert not found
