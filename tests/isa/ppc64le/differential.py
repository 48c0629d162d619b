"""Run original code and its relocated copy from the same state, and compare all that either left.

original run                       relocated run
┌──────────────────────┐           ┌──────────────────────┐        ┌──────────────────────┐
│ window as it is      │           │ b copy; trap …       ├───────►│ program, copy, back  │
└──────────┬───────────┘           └──────────────────────┘        └──────────┬───────────┘
           ▼ first address outside                                             ▼ first address outside
compared: where it left to (or the fault), every register, every word of memory but those below the red zone that
the original run did not write, and the counter: each arrival at the probed address is one hit.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.isa.base import Dead, Insn, OutOfReach, Relocated, Unrelocatable
from gdb_optprobe.isa.ppc64le import abi, decoder, register_effects, relocator, writer
from gdb_optprobe.isa.ppc64le.fields import opcode, ra, rb, word_of, xo
from tests.isa.ppc64le.oracle import ABOVE, BELOW, COUNTER, DATA, HERE, NEAR, Case, Outcome, random_state, run

PLACES = (NEAR, ABOVE, BELOW)
State = Mapping[str, int]


@dataclass(frozen=True)
class Trial:
    """A window and its copy, from one state. dead: what the program before the copy may use; None for no program."""

    window: tuple[Insn, ...]
    to: int
    state: State
    dead: Dead | None = None
    toc: int | None = None

    def program(self) -> bytes:
        return b"" if self.dead is None else writer.count(COUNTER, self.to, self.dead, self.toc)

    def copy(self) -> Relocated:
        return relocator.relocate(self.window, self.to + len(self.program()), dead=self.dead)

    def cases(self) -> tuple[Case, Case]:
        start = self.window[0].address
        code = b"".join(insn.data for insn in self.window)
        state = {**self.state, abi.PC: start}
        patched = writer.branch(start, self.to) + code[4:]
        return Case(state, {start: code}), Case(state, {start: patched, self.to: self.program() + self.copy().data})


def differences(trials: Sequence[Trial]) -> Iterator[tuple[Trial, str]]:
    """What differs between each window and its copy."""
    outcomes = run([case for trial in trials for case in trial.cases()])
    for trial, before, after in zip(trials, outcomes[::2], outcomes[1::2], strict=True):
        found = "; ".join(_differences(trial, before, after))
        if found:
            yield trial, found


def _differences(trial: Trial, before: Outcome, after: Outcome) -> Iterator[str]:
    copy = trial.copy()
    reached = next((to for offset, to in reversed(copy.origins) if copy.address + offset <= after.pc), after.pc)
    reached = reached if copy.address <= after.pc < copy.address + len(copy.data) else after.pc
    if before.signal != after.signal or before.pc != reached:
        yield f"signal {before.signal} at {before.pc:#x} and {after.signal} at {after.pc:#x}"
    unused = trial.dead.registers if trial.dead else frozenset()
    for name, value in before.registers.items():
        mask = ~_dead_bits(name, trial.dead)
        if name not in unused and name != abi.PC and (value ^ after.registers[name]) & mask:
            yield f"{name} {value:#x} and {after.registers[name]:#x}"
    free = range(trial.state[abi.SP] - 1024, trial.state[abi.SP] - abi.RED_ZONE)
    for address in sorted({*before.memory, *after.memory}):
        if address == COUNTER or (address in free and address not in before.memory):
            continue
        if before.memory.get(address) != after.memory.get(address):
            yield f"memory {address:#x}: {before.memory.get(address, 0):#x} and {after.memory.get(address, 0):#x}"
    if trial.dead is not None and COUNTER not in after.memory:
        yield "not counted"


def _dead_bits(name: str, dead: Dead | None) -> int:
    if name != abi.FLAGS or dead is None:
        return 0
    fields = [number for number, field in enumerate(abi.CR_FIELDS) if field in dead.registers]
    return sum(0xF << 28 - 4 * number for number in (*fields, *([0] if dead.flags else [])))


# Privileged, or about the machine itself; what is not the same twice.
_SPRS = (1, 8, 9, 256)  # XER LR CTR VRSAVE
_UNFIT_31 = frozenset((371, 755, 838, 902, 774, 83))  # mftb darn cpabort paste copy mfmsr
_INDEXED = range(1024)


def is_fit(insn: Insn) -> bool:
    """Whether two runs of `insn` must agree, and it leaves code."""
    word = word_of(insn.data)
    if opcode(word) == 31 and xo(word) in (339, 467):
        return (rb(word) << 5 | ra(word)) in _SPRS
    return insn.target != insn.address and not (opcode(word) == 31 and xo(word) in _UNFIT_31)


def fitting_state(window: Sequence[Insn], rng: random.Random) -> dict[str, int]:
    """A random state in which the first instruction's memory is likely to be there, and its branch to end."""
    state = random_state(rng)
    word = word_of(window[0].data)
    base = ra(word)
    if opcode(word) >= 32 and base not in (0, 1) and rng.random() < 0.9:
        state[f"r{base}"] = DATA + 0x8000 + 8 * rng.randrange(64)
    if opcode(word) == 31 and base not in (0, 1) and rng.random() < 0.9:
        state[f"r{base}"] = DATA + 0x4000 + 8 * rng.randrange(64)
        if rb(word) not in (0, 1, base):
            state[f"r{rb(word)}"] = 8 * rng.randrange(64)
    return state


@dataclass
class Survey:
    windows: int = 0
    executed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    unfit: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)
    signals: Counter[int] = field(default_factory=Counter)


def survey(text: Sequence[tuple[int, bytes]], windows: int, seed: int) -> Survey:
    """Relocate and run `windows` random instructions of `text`, as they are at other addresses; collect what differs.

    Reproducible: the windows and states depend on `seed` alone.
    """
    rng = random.Random(seed)
    found = Survey()
    while found.windows < windows:
        trials: list[Trial] = []
        for _ in range(min(5000, windows - found.windows)):
            found.windows += 1
            trial = _trial(text, rng, found)
            if trial is not None:
                trials.append(trial)
        found.executed += len(trials)
        for trial, difference in differences(trials):
            shown = "; ".join(insn.text for insn in trial.window)
            found.differences.append(f"{shown} at {trial.window[0].address:#x} to {trial.to:#x}: {difference}")
    return found


def _trial(text: Sequence[tuple[int, bytes]], rng: random.Random, found: Survey) -> Trial | None:
    _, data = rng.choice(text)
    at = HERE + 0x8000 + 4 * rng.randrange(0x2000)
    window = decoder.decode(data, at)[:1]
    if not window or not is_fit(window[0]):
        found.unfit += 1
        return None
    to = rng.choice(PLACES) + 4 * rng.randrange(0x4000)
    state = fitting_state(window, rng)
    toc = rng.choice((None, DATA))
    dead = random_dead(rng)
    if toc is not None:
        state["r2"] = toc
    trial = Trial(tuple(window), to, state, rng.choice((None, dead, dead)), toc)
    try:
        found.sizes[len(trial.copy().data)] += 1
    except (Unrelocatable, OutOfReach) as refusal:
        why = refusal.hazard.name if isinstance(refusal, Unrelocatable) else "OUT_OF_REACH"
        found.refused[why] += 1
        return None
    # A register that is said to be dead must not be read by the window.
    return trial if trial.dead is None or (not trial.dead.registers and not trial.dead.flags) else _honest(trial)


def _honest(trial: Trial) -> Trial:
    """The same with nothing dead that the window reads: the liveness of one instruction, everything alive behind it."""
    assert trial.dead is not None
    insn = trial.window[0]
    used = register_effects.effects_of(insn.data)
    names = register_effects.ALL_NAMES
    reads = {name for bit, name in enumerate(names) if used is None or used.reads >> bit & 1}
    return Trial(
        trial.window,
        trial.to,
        trial.state,
        Dead(trial.dead.flags and "cr0" not in reads, trial.dead.registers - reads),
        trial.toc,
    )


def random_dead(rng: random.Random) -> Dead:
    names = [*abi.GENERAL[3:13], "r0", *abi.CR_FIELDS[1:], abi.CTR, abi.LR]
    return Dead(rng.random() < 0.5, frozenset(name for name in names if rng.random() < rng.choice((0.1, 0.5))))
