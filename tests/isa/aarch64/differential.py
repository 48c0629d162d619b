"""Run original code and its relocated copy from the same state, and compare all that either left.

original run                       relocated run
┌──────────────────────┐           ┌──────────────────────┐        ┌──────────────────────┐
│ window as it is      │           │ b copy; brk …        ├───────►│ program, copy, back  │
└──────────┬───────────┘           └──────────────────────┘        └──────────┬───────────┘
           ▼ first address outside                                             ▼ first address outside
compared: where it left to (or the fault), every register but x16 at a call by a register, every byte of data but those
below the stack pointer that the original run did not write, and the counter: each arrival at the probed address is one
hit.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.isa.aarch64 import AARCH64, AARCH64_LSE, abi, decoder, fields, register_effects, relocator, writer
from gdb_optprobe.isa.base import Dead, Flow, Insn, OutOfReach, Relocated, Unrelocatable, with_pool
from gdb_optprobe.isa.record import Isa, counting
from tests.isa.aarch64.processor import (
    ABOVE,
    BELOW,
    CODE_SIZE,
    COUNTER,
    DATA,
    HERE,
    NAMES,
    NEAR,
    STACK,
    Outcome,
    random_state,
    run,
)

PLACES = (NEAR, ABOVE, BELOW)
BELOW_STACK = 64
"""More than a count stores below the stack pointer."""


@dataclass(frozen=True)
class Trial:
    """A window and its copy, from one state. dead: what the program before the copy may use; None for no program."""

    window: tuple[Insn, ...]
    to: int
    state: Mapping[str, int]
    dead: Dead | None = None
    isa: Isa = AARCH64

    @property
    def start(self) -> int:
        return self.window[0].address

    def program(self, pool: int) -> bytes:
        if self.dead is None:
            return b""
        (count,) = with_pool([counting(self.isa, COUNTER, self.dead)], pool)
        return count(self.to)

    def copy(self) -> Relocated:
        return relocator.relocate(self.window, self.to + len(self.program(self.to)), dead=self.dead)

    def detour(self, copy: Relocated) -> bytes:
        """Return the program, the copy, and the address of the counter, which the program reads there."""
        assert self.isa.pools is not None
        end = copy.address + len(copy.data)
        return self.program(self.isa.pools.at(end)) + copy.data + self.isa.pools.behind(end, [COUNTER])

    def differences(self) -> Iterator[str]:
        """Yield what differs between the window and its copy."""
        code, copy = b"".join(insn.data for insn in self.window), self.copy()
        before = run({self.start: code}, self.start, self.state)
        patched = writer.branch(self.start, self.to) + fields.to_bytes(fields.BRK) * (len(self.window) - 1)
        after = run({self.start: patched, self.to: self.detour(copy)}, self.start, self.state)
        reached = after.pc
        if copy.address <= after.pc < copy.address + len(copy.data):
            reached = next(to for offset, to in reversed(copy.origins) if copy.address + offset <= after.pc)
        if (before.fault, before.pc) != (after.fault, reached):
            yield f"{before.fault} at {before.pc:#x} and {after.fault} at {reached:#x} ({after.pc:#x})"
        yield from self._changed(before, after)

    def _changed(self, before: Outcome, after: Outcome) -> Iterator[str]:
        unused = {*(self.dead.registers if self.dead else ())}
        unused |= {"x16"} if self.window[-1].flow is Flow.INDIRECT_CALL else set()
        for name in NAMES:
            if name not in unused and before.registers[name] != after.registers[name]:
                yield f"{name} {before.registers[name]:#x} and {after.registers[name]:#x}"
        if before.vectors != after.vectors:
            yield "vector registers"
        counter, stack = COUNTER - DATA, STACK - DATA
        for first, end in ((0, stack - BELOW_STACK), (stack, counter)):
            if before.data[first:end] != after.data[first:end]:
                yield "data"
        hits = int.from_bytes(after.data[counter:], "little") - int.from_bytes(before.data[counter:], "little")
        if hits != (self.dead is not None):
            yield f"{hits} hits"


# Of the machine itself: what is not the same twice, or changes how the machine runs.
_HINTS_AND_BARRIERS = (0xD503_2000, 0xD503_3000)
_OF_NZCV = (0xD51B_4200, 0xD53B_4200)


def is_fit(insn: Insn) -> bool:
    """Return whether two runs of `insn` must agree, and it leaves code."""
    word = fields.word_of(insn.data)
    if word >> 22 == 0xD500_0000 >> 22 and word & 0xFFFF_F000 not in _HINTS_AND_BARRIERS:
        return word & ~31 in _OF_NZCV
    waits = word in (0xD503_205F, 0xD503_207F)  # wfe wfi
    return insn.target != insn.address and not waits and not _is_exclusive_store(word)


def _is_exclusive_store(word: int) -> bool:
    """Return whether it depends on what ran before: alone it fails or not."""
    return word & 0x3FC0_0000 == 0x0800_0000


def fitting_state(window: Sequence[Insn], rng: random.Random) -> dict[str, int]:
    """Return a random state in which the first instruction's memory is likely to be there."""
    state = random_state(rng)
    word = fields.word_of(window[0].data)
    if word >> 25 & 0b0101 == 0b0100 and rng.random() < 0.9:  # a load or a store
        base, index = (abi.GENERAL[n] if n < 31 else "" for n in (fields.rn(word), fields.rm(word)))
        if index:
            state[index] = 8 * rng.randrange(64)
        if base:
            state[base] = DATA + 0x4000 + 16 * rng.randrange(64)
    return state


@dataclass
class Survey:
    """How many windows were tried, how many ran, why others were refused, and what differed."""

    windows: int = 0
    executed: int = 0
    unfit: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


def survey(words: Sequence[bytes], windows: int, seed: int) -> Survey:
    """Relocate and run `windows` random instructions, as they are at other addresses; collect what differs.

    Reproducible: the windows and states depend on `seed` alone.
    """
    rng, found = random.Random(seed), Survey()
    for _ in range(windows):
        found.windows += 1
        try:
            trial = _trial(words, rng, found)
        except (Unrelocatable, OutOfReach) as refusal:
            found.refused[refusal.hazard.name if isinstance(refusal, Unrelocatable) else "OUT_OF_REACH"] += 1
            continue
        if trial is not None:
            found.executed += 1
            if differences := "; ".join(trial.differences()):
                shown = "; ".join(f"{insn.text} ({insn.data[::-1].hex()})" for insn in trial.window)
                found.differences.append(f"{shown} at {trial.start:#x} to {trial.to:#x}: {differences}")
    return found


def _trial(words: Sequence[bytes], rng: random.Random, found: Survey) -> Trial | None:
    at = HERE + CODE_SIZE // 4 + 4 * rng.randrange(CODE_SIZE // 8)
    window = decoder.decode(rng.choice(words), at)
    if not window or not is_fit(window[0]):
        found.unfit += 1
        return None
    to = rng.choice(PLACES) + 4 * rng.randrange(CODE_SIZE // 8)
    # A register that is said to be dead must not be read by the window.
    dead = rng.choice((None, honest(random_dead(rng), window[0])))
    trial = Trial(tuple(window), to, fitting_state(window, rng), dead, rng.choice((AARCH64, AARCH64_LSE)))
    trial.copy()
    return trial


def honest(dead: Dead, insn: Insn) -> Dead:
    """Return what is dead before `insn` if it is behind it: the liveness of one instruction."""
    used = register_effects.effects_of(insn.data)
    reads = {name for bit, name in enumerate(abi.GENERAL) if used is None or used.reads >> bit & 1}
    return Dead(dead.flags, dead.registers - reads)


def random_dead(rng: random.Random) -> Dead:
    chance = rng.choice((0.0, 0.1, 0.5, 1.0))
    return Dead(False, frozenset(name for name in abi.GENERAL[:18] if rng.random() < chance))
