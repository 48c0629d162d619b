"""The emulator against Unicorn: every instruction that it knows, from any state."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdb_optprobe.isa.aarch64 import AARCH64, abi
from gdb_optprobe.isa.aarch64.fields import to_bytes
from gdb_optprobe.isa.base import Insn
from tests.examples import examples, samples
from tests.isa.aarch64.kernel import different_words
from tests.isa.aarch64.processor import DATA, DATA_SIZE, HERE, STACK, random_state, run
from tests.isa.aarch64.test_relocator import random_words

PROBED = HERE + 0x8000
_MEMORY = run({PROBED: to_bytes(0xD503201F)}, PROBED, {}).data


def read(address: int, size: int) -> bytes:
    assert DATA <= address <= DATA + DATA_SIZE - size
    return _MEMORY[address - DATA :][:size]


def wrong(insn: Insn, state: dict[str, int]) -> list[str]:
    """Return what differs between the emulator's effects and Unicorn's."""
    effects = AARCH64.emulate(insn, state | {abi.PC: insn.address}, read)
    assert effects is not None
    real = run({insn.address: insn.data}, insn.address, state)
    data = bytearray(_MEMORY)
    for address, stored in effects.writes:
        data[address - DATA : address - DATA + len(stored)] = stored
    found = [] if effects.registers[abi.PC] == real.pc else [f"pc {effects.registers[abi.PC]:#x}, {real.pc:#x}"]
    for name, value in real.registers.items():
        if (ours := effects.registers.get(name, state[name])) != value:
            found.append(f"{name} {ours:#x} and {value:#x}")
    return [f"{insn.text} {insn.data[::-1].hex()}: {one}" for one in (found if data == real.data else [*found, "data"])]


def emulated(words: Sequence[bytes]) -> list[Insn]:
    """Return what the emulator knows of these."""
    state = dict.fromkeys(abi.REGISTERS, STACK)
    insns = (insn for word in words for insn in AARCH64.decode(word, PROBED))
    return [insn for insn in insns if AARCH64.emulate(insn, state, lambda _, size: bytes(size)) is not None]


def test_the_kernels_instructions() -> None:
    rng = random.Random(1)
    insns = emulated(rng.sample(different_words(), samples(1_500, 50_000)))
    assert len({insn.text.split()[0] for insn in insns}) > 30
    assert not [one for insn in insns for one in wrong(insn, random_state(rng))]


def test_random_instructions() -> None:
    rng = random.Random(2)
    insns = emulated(random_words(samples(1_000, 40_000), 3))
    assert not [one for insn in insns for one in wrong(insn, random_state(rng))]


_FORMS = (
    (0x12000000, 0xE07FFFFF),  # logic with a number
    (0x13000000, 0xE07FFFFF),  # bit fields
    (0x11000000, 0xE07FFFFF),  # add and sub of a number
    (0x0A000000, 0xE0FFFFFF),  # logic with a register
    (0x0B000000, 0xE0FFFFFF),  # add and sub of a register
    (0x1A800000, 0xC01FF7FF),  # csel …
    (0x3A400000, 0xC01FFBEF),  # ccmp …
    (0x12800000, 0xE07FFFFF),  # mov
    (0x1B000000, 0x801FFFFF),  # madd msub
    (0x13800000, 0x801FFFFF),  # extr
)  # with the bits of their fields


@settings(max_examples=examples(400))
@given(st.sampled_from(_FORMS), st.integers(0, (1 << 32) - 1), st.integers(0, 1 << 32))
def test_each_form_with_any_fields(form: tuple[int, int], fields: int, seed: int) -> None:
    word, free = form
    for insn in emulated([to_bytes(word | fields & free)]):
        assert not wrong(insn, random_state(random.Random(seed)))


@pytest.mark.parametrize("condition", range(16))
def test_every_condition(condition: int) -> None:
    for flags in range(16):
        for word in (0x54000100, 0x9A810000 | condition << 12, 0xFA410005 | condition << 12):
            [insn] = emulated([to_bytes(word | (condition if word == 0x54000100 else 0))])
            assert not wrong(insn, random_state(random.Random(flags)) | {abi.FLAGS: flags << 28})


@pytest.mark.parametrize(
    "word",
    [
        (0xF9400020),  # ldr x0, [x1]
        (0xA9000440),  # stp x0, x1, [x2]
        (0xF8626820),  # ldr x0, [x1, x2]
        (0x3D8003E0),  # str q0, [sp]
        (0xC85F7FE0),  # ldxr x0, [sp]
        (0xF82003FF),  # stadd x0, [sp]
        (0xD503233F),  # paciasp
        (0xD63F081F),  # blraaz x0
        (0xD65F0BFF),  # retaa
        (0xD4200000),
        (0xD4000001),
        (0xD5384100),  # mrs x0, sp_el0
        (0x9AC10800),  # udiv
        (0x5800001F),  # ldr xzr, .
    ],
)
def test_what_is_not_emulated(word: int) -> None:
    assert not emulated([to_bytes(word)])


def test_first_instructions_of_a_function() -> None:
    """mov x9, x30; nop; stp x29, x30, [sp, #-32]!; mov x29, sp: what a probe on an entry meets."""
    state = random_state(random.Random(5)) | {abi.PC: PROBED}
    for word in (0xAA1E03E9, 0xD503201F, 0xA9BE7BFD, 0x910003FD):
        [insn] = AARCH64.decode(to_bytes(word), state[abi.PC])
        effects = AARCH64.emulate(insn, state, read)
        assert effects is not None and effects.registers[abi.PC] == insn.end
        if effects.writes:
            saved = b"".join(state[name].to_bytes(8, "little") for name in ("x29", "x30"))
            assert effects.writes == ((STACK - 32, saved),)
        state |= effects.registers
    assert state["x9"] == state["x30"] and state["x29"] == state["sp"] == STACK - 32
