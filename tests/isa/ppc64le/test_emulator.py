"""What we compute is what the CPU does, over the kernel's text."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.ppc64le import PPC64LE, abi
from gdb_optprobe.isa.ppc64le.fields import rt, to_bytes, word_of
from tests.examples import samples

from .differential import fitting_state
from .kernel import kernel
from .oracle import HERE, SIGSEGV, SIGTRAP, Case, needs_oracle, random_state, run

PROBED = HERE + 0x8000


def is_emulated(insn: Insn) -> bool:
    """Whatever the registers."""
    return PPC64LE.emulate(insn, dict.fromkeys(abi.REGISTERS, 0), lambda _, size: bytes(size)) is not None


def some(rng: random.Random, wanted: int) -> list[Insn]:
    """Instructions of the kernel that are emulated, few of each kind."""
    words, found, kinds = kernel().words(), [], Counter[str]()
    for _ in range(40 * wanted):
        _, data = rng.choice(words)
        for insn in PPC64LE.decode(data, PROBED)[:1]:
            kind = insn.text.split()[0]
            if is_emulated(insn) and insn.target != PROBED and kinds[kind] < wanted // 25:
                kinds[kind] += 1
                found.append(insn)
    return found[:wanted]


def wrong(insns: list[Insn], rng: random.Random) -> list[str]:
    states = [fitting_state([insn], rng) | {abi.PC: PROBED} for insn in insns]
    outcomes = run([Case(state, {PROBED: insn.data}) for insn, state in zip(insns, states, strict=True)])
    found = []
    for insn, state, outcome in zip(insns, states, outcomes, strict=True):
        assert outcome.signal in (SIGTRAP, SIGSEGV)
        if outcome.pc == PROBED:
            continue  # a fault: nothing was done
        registers = {name: state.get(name, 0) for name in abi.REGISTERS}
        loaded = outcome.registers[abi.GENERAL[rt(word_of(insn.data))]].to_bytes(8, "little")
        effects = PPC64LE.emulate(insn, registers, lambda _, size, loaded=loaded: loaded[:size])  # type: ignore[misc]
        assert effects is not None, insn
        expected = registers | dict(effects.registers)
        different = {name for name in abi.REGISTERS if expected[name] != outcome.registers[name]}
        if different:
            found.append(f"{insn.text} ({insn.data.hex()}): {', '.join(sorted(different))}")
        for address, data in effects.writes:
            low = address & ~7
            word = outcome.memory.get(low, 0).to_bytes(8, "little") + outcome.memory.get(low + 8, 0).to_bytes(
                8, "little"
            )
            if word[address - low : address - low + len(data)] != data:
                found.append(f"{insn.text} stores something else")
    return found


@needs_oracle
def test_the_kernels_instructions() -> None:
    rng = random.Random(1)
    insns = some(rng, samples(2_000, 12_000))
    assert len({insn.text.split()[0] for insn in insns}) > 50
    assert not wrong(insns, rng)


@needs_oracle
def test_every_bo() -> None:
    words = [0x40020040 | bo << 21 | lk for bo in range(32) for lk in (0, 1)] + [
        0x4C020020 | bo << 21 | lk for bo in range(32) for lk in (0, 1)
    ]
    insns = [PPC64LE.decode(to_bytes(word), PROBED)[0] for word in words for _ in range(4)]
    assert all(is_emulated(insn) for insn in insns)
    assert not wrong(insns, random.Random(2))


@needs_oracle
def test_constants_and_addresses() -> None:
    words = [(0x4C608005,), (0x429F0005,), (0x06100001, 0x38600010), (0x0603FFFF, 0x3865FFF0)]
    assert not wrong([PPC64LE.decode(to_bytes(*pair), PROBED)[0] for pair in words], random.Random(3))


@pytest.mark.parametrize(
    "word",
    [
        0xE8640000,
        0xF8640000,
        0x7C64282A,
        0x7FE00008,
        0x44000002,
        0x7C6102A6,
        0x7C6FF120,
        0x7864000C,
        0x7C0001AD,
    ],
    ids=["ld r3,0(r4)", "std r3,0(r4)", "ldx", "trap", "sc", "mfxer", "mtcr", "rldimi", "stdcx."],
)
def test_what_is_not_emulated(word: int) -> None:
    [insn] = PPC64LE.decode(to_bytes(word), PROBED)
    state = dict.fromkeys(abi.REGISTERS, 0x1000)
    assert not is_emulated(insn)
    assert PPC64LE.emulate(insn, state, lambda _, size: bytes(size)) is None


def test_first_instructions_of_a_function() -> None:
    """mflr r0; std r0,16(r1); stdu r1,-128(r1): what a probe on an entry meets."""
    state = {name: 0x1000 + 8 * n for n, name in enumerate(abi.REGISTERS)} | random_state(random.Random(5))
    for word in (0x7C0802A6, 0xF8010010, 0xF821FF81):
        [insn] = PPC64LE.decode(to_bytes(word), PROBED)
        effects = PPC64LE.emulate(insn, state, lambda _, size: bytes(size))
        assert effects is not None and effects.registers[abi.PC] == PROBED + 4
        state |= effects.registers
    assert state["r0"] == state["lr"] and effects is not None
    assert effects.writes == ((state["r1"], (state["r1"] + 128).to_bytes(8, "little")),)
