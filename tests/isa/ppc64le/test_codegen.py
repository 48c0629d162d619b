"""Each verb of the register machine alone, under qemu-ppc64le: its result, and that nothing else changes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from gdb_optprobe.handlers import arithmetic
from gdb_optprobe.handlers.ir import Op, UnaryOp
from gdb_optprobe.isa.base import Dead, OutOfReach
from gdb_optprobe.isa.codegen import Address, Arithmetic, Comparison, EntryState, Label, MemoryValue, RegisterPool
from gdb_optprobe.isa.ppc64le import PPC64LE, abi
from gdb_optprobe.isa.ppc64le.codegen import BACKEND, PowerEmitter
from gdb_optprobe.isa.ppc64le.fields import rotated, to_bytes
from tests.examples import samples

from .oracle import DATA, HERE, MASK, STACK, TRAP, Outcome, execute, needs_oracle

CASES = samples(6_000, 40_000)
PACA, DATA_OFFSET, FAR = DATA + 0x2000, 0x30, 0xC000_0000_0E34_5678
USABLE = [name for name in abi.GENERAL if name not in (*abi.RESERVED, "r0")]
EDGES = (0, 1, 2, 7, 8, 15, 16, 31, 32, 33, 47, 48, 63, 64, 65, 127, 128, 0x7F, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x1_0000)
HIGH = tuple(1 << bit for bit in range(16, 64)) + tuple((1 << bit) - 1 for bit in range(17, 65))
MASKS = tuple((MASK << low & MASK >> high) for low in range(0, 64, 5) for high in range(0, 64, 7))
MASKS += tuple(MASK << low & MASK for low in range(64))


@dataclass
class Attempt:
    """One verb, or a few. results: what registers must hold; all others what they held, but for what it used."""

    emitter: PowerEmitter
    registers: dict[str, int]
    results: dict[str, int] = field(default_factory=dict)
    memory: Mapping[int, int] = field(default_factory=dict)
    said: str = ""

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


def word(rng: random.Random) -> int:
    edge = rng.choice(
        (rng.choice(EDGES), rng.choice(HIGH), rng.choice(MASKS), rng.getrandbits(64), rng.getrandbits(32))
    )
    return rng.choice((edge, -edge & MASK))


def attempt(rng: random.Random) -> Attempt:
    """Before a verb: anything in the registers, and anything dead."""
    fields = frozenset(name for name in abi.CR_FIELDS[1:] if rng.random() < 0.3)
    base = rng.choice((None, DATA, DATA + 0x5_0000, FAR - 0x1234_5678, 0xC000_0000_0212_C100))
    emitter = BACKEND.emitter(EntryState(Dead(rng.random() < 0.5, fields), frozenset(), DATA_OFFSET, base))
    assert isinstance(emitter, PowerEmitter)
    registers = {name: word(rng) for name in (*abi.GENERAL, abi.CTR, abi.LR)}
    registers |= {abi.FLAGS: rng.getrandbits(32), abi.XER: rng.getrandbits(32) & 0xE000_007F, abi.PC: HERE}
    registers |= {abi.SP: STACK, "r13": PACA} | ({} if base is None else {"r2": base})
    return Attempt(emitter, registers)


def registers(rng: random.Random, made: Attempt, number: int) -> list[str]:
    """The first one is taken, for a result; others may be the same."""
    names = rng.choices(rng.sample(USABLE, rng.randrange(1, number + 1)), k=number)
    made.emitter.pool.reserve(names[0])
    return names


def run(attempts: Sequence[Attempt]) -> None:
    outcomes = execute([each.step() for each in attempts], 128, cpu="power8")
    found = [
        f"{'; '.join(wrong)}: {each.said}\n"
        + "\n".join(i.text for i in PPC64LE.decode(each.emitter.finish(HERE), HERE))
        for each, left in zip(attempts, outcomes, strict=True)
        if (wrong := list(each.wrong(left)))
    ]
    assert not found, f"{len(found)} of {len(attempts)}; the shortest:\n{min(found, key=len)}"


def canonical(rng: random.Random) -> tuple[int, bool, Callable[[], int]]:
    bits, signed = rng.choice((32, 64)), rng.random() < 0.5
    return bits, signed, lambda: arithmetic.extend(word(rng), bits, signed)


def binary(rng: random.Random, made: Attempt) -> None:
    bits, signed, value = canonical(rng)
    to, left, right = registers(rng, made, 3)
    op = rng.choice(list(Arithmetic))
    one, other = value(), word(rng) if op in (Arithmetic.SHL, Arithmetic.SHR) else value()
    if op in (Arithmetic.AND, Arithmetic.OR, Arithmetic.XOR) and rng.random() < 0.7:
        other = arithmetic.extend(rng.choice(MASKS), bits, signed)
    if left == right:
        one = other = value()
    if op in (Arithmetic.DIV, Arithmetic.MOD) and (other == 0 or (signed and other == MASK)):
        one = other = 3
    is_constant = rng.random() < 0.5
    made.registers |= {left: one} if is_constant else {left: one, right: other}
    made.results[to] = arithmetic.binary(Op[op.name], one, other, bits, signed)
    made.said = f"{to} = {left}: {one:#x} {op.value} {right}: {other:#x}, {bits} {signed} {is_constant}"
    made.emitter.binary(op, to, left, other if is_constant else right, bits, signed)


def unary(rng: random.Random, made: Attempt) -> None:
    bits, signed, value = canonical(rng)
    to, source = registers(rng, made, 2)
    made.registers[source] = one = value()
    op = rng.choice(list(UnaryOp))
    made.results[to] = arithmetic.unary(op, one, bits, signed)
    (made.emitter.negate if op is UnaryOp.NEGATE else made.emitter.invert)(to, source, bits, signed)
    made.said = f"{op} {one:#x} {bits} {signed}"


def extend(rng: random.Random, made: Attempt) -> None:
    bits, signed = rng.randrange(1, 64), rng.random() < 0.5
    to, source = registers(rng, made, 2)
    made.results[to] = arithmetic.extend(made.registers[source], bits, signed)
    made.emitter.extend(to, source, bits, signed)
    made.said = f"{made.registers[source]:#x} {bits} {signed}"


def compare(rng: random.Random, made: Attempt) -> None:
    signed, test, is_constant, jumps = (
        rng.random() < 0.5,
        rng.choice(list(Comparison)),
        rng.random() < 0.6,
        rng.random() < 0.5,
    )
    to, left, right = registers(rng, made, 3)
    other = rng.choice((made.registers[right], made.registers[left]))
    other = other + rng.choice((-1, 0, 0, 1)) & MASK
    if not is_constant:
        made.registers[right] = other
    result = arithmetic.binary(Op[test.name], made.registers[left], other, 64, signed)
    operand = other if is_constant else right
    made.said = f"{made.registers[left]:#x} {test.value} {other:#x} {signed} {is_constant} {jumps}"
    if jumps and to not in (left, right):
        tell(made, to, result, lambda label: made.emitter.branch(test, left, operand, signed, label))
    else:
        made.results[to] = result
        made.emitter.compare(test, to, left, operand, signed)


def tell(made: Attempt, to: str, result: int, branch: Callable[[Label], None]) -> None:
    label = Label()
    made.registers[to] = 1
    made.results[to] = result
    branch(label)
    made.emitter.constant(to, 0)
    made.emitter.bind(label)


def bits(rng: random.Random, made: Attempt) -> None:
    mask, any_set = rng.choice((rng.choice(MASKS), word(rng))), rng.random() < 0.5
    to, source = rng.sample(USABLE, 2)
    made.emitter.pool.reserve(to)
    if rng.random() < 0.4:
        made.registers[source] &= ~mask
    made.said = f"{made.registers[source]:#x} & {mask:#x} {any_set}"
    result = int(bool(made.registers[source] & mask) is any_set)
    tell(made, to, result, lambda label: made.emitter.branch_bits(source, mask, any_set, label))


def in_memory(rng: random.Random, made: Attempt) -> None:
    """Comparisons and tests of what is there."""
    to, *names = rng.sample(USABLE, 3)
    for name in (to, *names):
        made.emitter.pool.reserve(name)
    at, size, signed_there = DATA + 8 * rng.randrange(0x200), rng.choice((1, 2, 4, 8)), rng.random() < 0.5
    loaded = int.from_bytes(_pristine(at)[:size], "little")
    loaded = loaded if size == 8 else arithmetic.extend(loaded, 8 * size, signed_there)
    there = MemoryValue(_memory(rng, made, names, at), size, signed_there)
    if rng.random() < 0.5:
        mask, any_set = rng.choice((rng.choice(MASKS), word(rng), 1 << 40 | 1)), rng.random() < 0.5
        made.said = f"{there} {loaded:#x} & {mask:#x} {any_set}"
        result = int(bool(loaded & mask) is any_set)
        tell(made, to, result, lambda label: made.emitter.branch_bits(there, mask, any_set, label))
        return
    test, signed = rng.choice(list(Comparison)), rng.random() < 0.5
    other = rng.choice((loaded, loaded + 1, loaded - 1, word(rng))) & MASK
    made.said = f"{there} {loaded:#x} {test} {other:#x} {signed}"
    result = arithmetic.binary(Op[test.name], loaded, other, 64, signed)
    tell(made, to, result, lambda label: made.emitter.branch(test, there, other, signed, label))


def logarithm(rng: random.Random, made: Attempt) -> None:
    to, source = registers(rng, made, 2)
    made.results[to] = made.registers[source].bit_length() - 1 & MASK
    made.emitter.logarithm(to, source)


def constant(rng: random.Random, made: Attempt) -> None:
    [to] = registers(rng, made, 1)
    made.results[to] = value = word(rng)
    made.emitter.constant(to, value)


def _pristine(at: int) -> bytes:
    """Of memory, as oracle.s fills it."""
    return struct.pack("<Q", rotated(at * -0x61C8_864F, 29))


def _memory(rng: random.Random, made: Attempt, names: Sequence[str], at: int) -> Address:
    """Some way to write the address."""
    base, index = (rng.choice((name, None)) for name in names)
    if base is not None and base == index:
        index = None
    per_cpu = rng.random() < 0.2
    offset = rng.choice((0, 1, 4, -8, 0x7FFF, -0x8000, 0x8000, 0x1234_5678, FAR, word(rng)))
    if per_cpu:
        at = at - int.from_bytes(_pristine(PACA + DATA_OFFSET), "little") & MASK
    if index is not None:
        made.registers[index] = rng.randrange(100)
        at -= 8 * made.registers[index]
    if base is None:
        offset = at
    else:
        made.registers[base] = at - offset & MASK
    if base is None and index is None and rng.random() < 0.5:
        return Address(None, offset & MASK, None, per_cpu)
    return Address(base, (offset & MASK) - (1 << 64 if offset >> 63 & 1 else 0), index, per_cpu)


def address(rng: random.Random, made: Attempt) -> None:
    to, *names = registers(rng, made, 3)
    at = rng.choice((DATA + rng.randrange(0x1000), FAR, word(rng)))
    memory = _memory(rng, made, names, at)
    if memory.per_cpu:
        return
    made.results[to] = at
    made.said = f"{to} = {memory}"
    made.emitter.address(to, memory)


def load(rng: random.Random, made: Attempt) -> None:
    to, *names = registers(rng, made, 3)
    at, size, signed = DATA + rng.randrange(0x1000), rng.choice((1, 2, 4, 8)), rng.random() < 0.5
    memory = _memory(rng, made, names, at)
    around = _pristine(at & -8) + _pristine((at & -8) + 8)
    there = int.from_bytes(around[at & 7 : (at & 7) + size], "little")
    made.results[to] = there if size == 8 else arithmetic.extend(there, 8 * size, signed)
    made.said = f"{to} = {memory} {size} {signed}"
    made.emitter.load(to, MemoryValue(memory, size, signed))


def store(rng: random.Random, made: Attempt) -> None:
    source, *names = rng.sample(USABLE, 3)
    at, size = DATA + rng.randrange(0x800) * 2, rng.choice((1, 2, 4, 8))
    memory = _memory(rng, made, names, at)
    for name in (source, *names):
        made.emitter.pool.reserve(name)
        made.results[name] = made.registers[name]
    value = word(rng) & (1 << 8 * size) - 1
    is_constant = rng.random() < 0.5
    if not is_constant:
        made.registers[source] = made.results[source] = value
    first = at & -8
    data = bytearray(_pristine(first) + _pristine(first + 8))
    data[at & 7 : (at & 7) + size] = value.to_bytes(size, "little")
    words = zip((first, first + 8), struct.unpack("<QQ", data), strict=True)
    made.memory = {at: word for at, word in words if word.to_bytes(8, "little") != _pristine(at)}
    made.said = f"{memory} = {value:#x} {size} {is_constant}"
    verb = made.emitter.publish if size == 8 and rng.random() < 0.5 else made.emitter.store
    if verb == made.emitter.publish and not memory.per_cpu:
        made.emitter.publish(memory, value if is_constant else source)
    else:
        made.emitter.store(memory, value if is_constant else source, size)


def atomic(rng: random.Random, made: Attempt) -> None:
    to, source, *names = rng.sample(USABLE, 4)
    at = DATA + rng.randrange(0x200) * 8
    memory = _memory(rng, made, names, at)
    if memory.per_cpu:
        return
    for name in (to, source, *names):
        made.emitter.pool.reserve(name)
        made.results[name] = made.registers[name]
    there = int.from_bytes(_pristine(at), "little")
    operand = rng.choice((source, rng.choice((1, MASK, 0x7FFF, 0x8000, word(rng)))))
    value = made.registers[source] if isinstance(operand, str) else operand
    kind = rng.randrange(4)
    made.said = f"{memory} {operand} {kind}"
    after = there + value & MASK
    if kind == 0:
        made.emitter.atomic_add(memory, operand)
    elif kind == 1:
        if rng.random() < 0.3 and memory.base is not None:
            to = memory.base
        made.results[to] = there
        after = there + 5 & MASK
        made.emitter.atomic_fetch_add(to, memory, 5)
    elif kind == 2:
        test, signed = rng.choice((Comparison.LT, Comparison.GT)), rng.random() < 0.5
        made.registers[source] = made.results[source] = value = (
            rng.choice((there, there + 1, there - 1, word(rng))) & MASK
        )
        after = value if arithmetic.binary(Op[test.name], value, there, 64, signed) else there
        made.emitter.atomic_extreme(test, memory, source, signed)
    else:
        after = there | 1
        tell(made, to, there & 1, lambda label: made.emitter.claim(memory, label))
    made.memory = {} if after == there else {at: after}


KINDS = (
    binary,
    binary,
    binary,
    unary,
    extend,
    compare,
    compare,
    bits,
    in_memory,
    logarithm,
    constant,
    address,
    load,
    store,
    atomic,
)


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
