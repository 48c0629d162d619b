"""Each verb of the register machine alone, under qemu-ppc64le: its result, and that nothing else changes."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Mapping, Sequence

import pytest

from gdb_optprobe.isa.base import Dead, OutOfReach
from gdb_optprobe.isa.codegen import Address, Comparison, EntryState, Label, RegisterPool
from gdb_optprobe.isa.ppc64le import PPC64LE, abi
from gdb_optprobe.isa.ppc64le.codegen import BACKEND, PowerEmitter
from gdb_optprobe.isa.ppc64le.fields import rotated, to_bytes
from tests.examples import samples
from tests.isa.verbs import KINDS, Attempt, word

from .oracle import DATA, HERE, MASK, STACK, TRAP, Outcome, execute, needs_oracle

CASES = samples(6_000, 40_000)
PACA, DATA_OFFSET, FAR = DATA + 0x2000, 0x30, 0xC000_0000_0E34_5678
USABLE = [name for name in abi.GENERAL if name not in (*abi.RESERVED, "r0")]


class PowerAttempt(Attempt):
    """One verb, or a few, as the oracle runs it."""

    def step(self) -> tuple[Mapping[str, int], Sequence[tuple[int, bytes]]]:
        code = self.emitter.finish(HERE) + to_bytes(TRAP)
        return self.registers, [(HERE + i, code[i : i + 4]) for i in range(0, len(code), 4)]

    def wrong(self, left: Outcome) -> Iterator[str]:
        if left.pc != HERE + len(self.emitter.finish(HERE)):
            yield f"ends at {left.pc:#x} with {left.signal}"
        used = self.emitter.pool.used
        for name, value in {**self.registers, **self.results}.items():
            lost = sum(0xF << 28 - 4 * n for n, each in enumerate(abi.CR_FIELDS) if each in used)
            ignored = 0 if name in self.results else lost if name == abi.FLAGS else MASK * (name in used)
            if name != abi.PC and (value ^ left.registers[name]) & ~ignored:
                yield f"{name} is {left.registers[name]:#x}, not {value:#x}"
        if left.memory != self.memory:
            yield f"memory {left.memory} for {self.memory}"


def attempt(rng: random.Random) -> PowerAttempt:
    """Before a verb: anything in the registers, and anything dead."""
    fields = frozenset(name for name in abi.CR_FIELDS[1:] if rng.random() < 0.3)
    base = rng.choice((None, DATA, DATA + 0x5_0000, FAR - 0x1234_5678, 0xC000_0000_0212_C100))
    emitter = BACKEND.emitter(EntryState(Dead(rng.random() < 0.5, fields), frozenset(), DATA_OFFSET, base))
    assert isinstance(emitter, PowerEmitter)
    registers = {name: word(rng) for name in (*abi.GENERAL, abi.CTR, abi.LR)}
    registers |= {abi.FLAGS: rng.getrandbits(32), abi.XER: rng.getrandbits(32) & 0xE000_007F, abi.PC: HERE}
    registers |= {abi.SP: STACK, "r13": PACA} | ({} if base is None else {"r2": base})
    per_cpu = int.from_bytes(_pristine(PACA + DATA_OFFSET), "little")
    return PowerAttempt(emitter, registers, USABLE, DATA, _pristine, per_cpu, FAR)


def _pristine(at: int) -> bytes:
    """Of memory, as oracle.s fills it."""
    return struct.pack("<Q", rotated(at * -0x61C8_864F, 29))


def run(attempts: Sequence[PowerAttempt]) -> None:
    outcomes = execute([each.step() for each in attempts], 128, cpu="power8")
    found = [
        f"{'; '.join(wrong)}: {each.said}\n"
        + "\n".join(i.text for i in PPC64LE.decode(each.emitter.finish(HERE), HERE))
        for each, left in zip(attempts, outcomes, strict=True)
        if (wrong := list(each.wrong(left)))
    ]
    assert not found, f"{len(found)} of {len(attempts)}; the shortest:\n{min(found, key=len)}"


@needs_oracle
def test_verbs() -> None:
    rng = random.Random(5)
    attempts = []
    for number in range(CASES):
        made = attempt(rng)
        KINDS[number % len(KINDS)](rng, made)
        attempts.append(made)
    run(attempts)


@needs_oracle
def test_what_is_saved_is_read_and_restored() -> None:
    rng = random.Random(6)
    attempts = []
    for _ in range(CASES // 10):
        made = attempt(rng)
        number = rng.choice((2, 3, 4, 8, 26))
        dead = {name for name in (*abi.CR_FIELDS[1:], abi.CTR, abi.LR) if rng.random() < 0.4}
        reads = frozenset(name for name in (*abi.GENERAL, abi.FLAGS, abi.CTR, abi.LR, abi.XER) if rng.random() < 0.2)
        before = EntryState(Dead(False, frozenset(dead)), reads, DATA_OFFSET)
        emitter = BACKEND.emitter(before)
        assert isinstance(emitter, PowerEmitter)
        some = [name for name in abi.CR_FIELDS if rng.random() < 0.2]
        used = {*rng.sample(USABLE, number), *some, "cr0", "r0"}
        layers = [BACKEND.kept(used, before)]
        changed = [name for name in USABLE if name in layers[0]]
        if len(changed) < 2:
            continue
        to, *others = changed
        emitter.pool = RegisterPool(others)
        layers.append(tuple(name for name in USABLE if name not in layers[0])[: rng.randrange(6)])
        for names in layers:
            emitter.save(names)
        name = rng.choice([name for name in reads if name != to] or [abi.SP])
        emitter.atomic_add(Address(offset=DATA + 8), 0)  # changes CR0
        emitter.read(to, name)
        emitter.store(Address(offset=DATA), to)
        for each in changed:
            emitter.constant(each, 0x1234)
        for names in reversed(layers):
            emitter.restore(names)
        emitter.pool.used = {*dead, *abi.CR_FIELDS} - {each for each in abi.CR_FIELDS if each not in dead}
        made.emitter = emitter
        value = made.registers[name]
        made.memory = {} if value.to_bytes(8, "little") == _pristine(DATA) else {DATA: value}
        made.said = f"{layers} {name} {dead}"
        attempts.append(made)
    outcomes = execute([each.step() for each in attempts], 300, cpu="power8")
    for made, left in zip(attempts, outcomes, strict=True):
        assert sum(map(PPC64LE.pushed, PPC64LE.decode(made.emitter.finish(HERE), HERE))) == 0
        stack = range(STACK - 2048, STACK - abi.RED_ZONE)
        left = Outcome(left.signal, left.registers, {at: word for at, word in left.memory.items() if at not in stack})
        assert not list(made.wrong(left)), made.said


@needs_oracle
def test_the_clock_is_the_time_base() -> None:
    rng = random.Random(7)
    made = attempt(rng)
    made.emitter.clock("r3")
    made.emitter.clock("r4")
    [left] = execute([made.step()], cpu="power8")
    assert 0 < left.registers["r3"] <= left.registers["r4"] < left.registers["r3"] + (1 << 40)


def test_what_cannot_be_read() -> None:
    emitter = BACKEND.emitter(EntryState())
    with pytest.raises(KeyError):
        emitter.per_cpu_base("r3")
    with pytest.raises(KeyError):
        emitter.read("r3", "msr")


def test_too_far_to_branch() -> None:
    emitter, label = BACKEND.emitter(EntryState()), Label()
    emitter.branch(Comparison.EQ, "r3", 0, False, label)
    for _ in range(1 << 13):
        emitter.constant("r3", 0)
    emitter.bind(label)
    with pytest.raises(OutOfReach):
        emitter.finish(HERE)


def test_order_of_stores_and_loads() -> None:
    """It cannot be seen on one CPU."""
    where, label = Address("r4"), Label()
    published, acquired, claimed = (BACKEND.emitter(EntryState()) for _ in range(3))
    published.publish(where, "r3")
    acquired.acquire()
    claimed.claim(where, label)
    claimed.bind(label)

    def names(emitter: PowerEmitter) -> list[str]:
        return [insn.text.split()[0] for insn in PPC64LE.decode(emitter.finish(0), 0)]

    assert names(published) == ["lwsync", "std"] and names(acquired) == ["lwsync"]
    assert names(claimed)[0] == "ldarx" and names(claimed)[-3:] == ["stdcx.", "bne-", "lwsync"]


def test_registers() -> None:
    """The dead ones first, what is read last; r0 is never an operand."""
    before = EntryState(Dead(True, frozenset(("r5", "r9"))), frozenset(("r9", "r3")))
    order = BACKEND.order(before)
    assert order[0] == "r5" and order[-2:] == ("r9", "r3") and not {"r0", *abi.RESERVED} & {*order}
    emitter = BACKEND.emitter(before)
    assert emitter.register("r0") is None and emitter.register("r13") == "r13" and emitter.register("lr") is None
    assert emitter.register("r1") == "r1"
    emitter.save(("r14",))
    assert emitter.register("r1") is None and emitter.register("r14") is None


def test_what_is_kept_without_a_frame() -> None:
    """Two layers, each in a register of its own; none where the program reads it."""
    dead = Dead(False, frozenset((abi.CTR, abi.LR, "cr5", "cr6", "cr7")))
    emitter = BACKEND.emitter(EntryState(dead))
    emitter.save(("r14",))
    emitter.save(("r15", "cr0"))
    texts = [insn.text for insn in PPC64LE.decode(emitter.finish(0), 0)]
    assert texts == ["mtctr r14", "mcrf cr6, cr0", "mtlr r15"]
    reader = BACKEND.emitter(EntryState(dead, frozenset((abi.CTR, abi.LR))))
    reader.save(("r14",))
    assert reader.finish(0)[3] == 0xF8  # stdu
