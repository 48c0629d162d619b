"""The verbs of the codegen backend, each alone with anything in the registers, and what it must leave.

An ISA's test makes attempts, has one of KINDS choose a verb for each, runs the code, and compares.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.handlers import arithmetic
from gdb_optprobe.handlers.ir import Op, UnaryOp
from gdb_optprobe.isa.codegen import Address, Arithmetic, Comparison, Emitter, Label, MemoryValue

MASK = (1 << 64) - 1
EDGES = (0, 1, 2, 7, 8, 15, 16, 31, 32, 33, 47, 48, 63, 64, 65, 127, 128, 0x7F, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x1_0000)
HIGH = tuple(1 << bit for bit in range(16, 64)) + tuple((1 << bit) - 1 for bit in range(17, 65))
MASKS = tuple((MASK << low & MASK >> high) for low in range(0, 64, 5) for high in range(0, 64, 7))
MASKS += tuple(MASK << low & MASK for low in range(64))


@dataclass
class Attempt:
    """One verb, or a few. results: what registers must hold; all others what they held, but for what it used.

    usable: registers of the pool. data: where memory is, of 4 KiB, and `pristine` has what each word is before.
    memory: words that it must have changed, by address. per_cpu: what is added to per-CPU addresses.
    far: some address that is in no memory, but near the code.
    """

    emitter: Emitter
    registers: dict[str, int]
    usable: Sequence[str]
    data: int
    pristine: Callable[[int], bytes]
    per_cpu: int
    far: int
    results: dict[str, int] = field(default_factory=dict)
    memory: Mapping[int, int] = field(default_factory=dict)
    said: str = ""


def word(rng: random.Random) -> int:
    edge = rng.choice(
        (rng.choice(EDGES), rng.choice(HIGH), rng.choice(MASKS), rng.getrandbits(64), rng.getrandbits(32))
    )
    return rng.choice((edge, -edge & MASK))


def registers(rng: random.Random, made: Attempt, number: int) -> list[str]:
    """The first one is taken, for a result; others may be the same."""
    names = rng.choices(rng.sample(made.usable, rng.randrange(1, number + 1)), k=number)
    made.emitter.pool.reserve(names[0])
    return names


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
    to, source = rng.sample(made.usable, 2)
    made.emitter.pool.reserve(to)
    if rng.random() < 0.4:
        made.registers[source] &= ~mask
    made.said = f"{made.registers[source]:#x} & {mask:#x} {any_set}"
    result = int(bool(made.registers[source] & mask) is any_set)
    tell(made, to, result, lambda label: made.emitter.branch_bits(source, mask, any_set, label))


def in_memory(rng: random.Random, made: Attempt) -> None:
    """Comparisons and tests of what is there."""
    to, *names = rng.sample(made.usable, 3)
    for name in (to, *names):
        made.emitter.pool.reserve(name)
    at, size, signed_there = made.data + 8 * rng.randrange(0x200), rng.choice((1, 2, 4, 8)), rng.random() < 0.5
    loaded = int.from_bytes(made.pristine(at)[:size], "little")
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
    less = 0
    if rng.random() < 0.5:
        less = made.emitter.logarithm_less(to, source)
    else:
        made.emitter.logarithm(to, source)
    made.results[to] = made.registers[source].bit_length() - 1 - less & MASK


def multiply(rng: random.Random, made: Attempt) -> None:
    to, left, right = registers(rng, made, 3)
    other = made.registers[right]
    made.results[to] = made.registers[left] * other >> 64
    made.emitter.multiply_high(to, left, rng.choice((right, other)))


def constant(rng: random.Random, made: Attempt) -> None:
    [to] = registers(rng, made, 1)
    made.results[to] = value = word(rng)
    made.emitter.constant(to, value)


def _memory(rng: random.Random, made: Attempt, names: Sequence[str], at: int) -> Address:
    """Some way to write the address."""
    base, index = (rng.choice((name, None)) for name in names)
    if base is not None and base == index:
        index = None
    per_cpu = rng.random() < 0.2
    offset = rng.choice((0, 1, 4, -8, 0x7FFF, -0x8000, 0x8000, 0x1234_5678, made.far, word(rng)))
    if per_cpu:
        at = at - made.per_cpu & MASK
    if index is not None:
        made.registers[index] = rng.randrange(100)
        at -= 8 * made.registers[index]
    if base is None:
        offset = at
    else:
        made.registers[base] = at - offset & MASK
    near = rng.random() < 0.5 and (offset == made.far or made.data <= offset < made.data + 0x1_0000)
    if base is None and index is None and rng.random() < 0.5:
        return Address(None, offset & MASK, None, per_cpu, near)
    return Address(base, (offset & MASK) - (1 << 64 if offset >> 63 & 1 else 0), index, per_cpu, near)


def address(rng: random.Random, made: Attempt) -> None:
    to, *names = registers(rng, made, 3)
    at = rng.choice((made.data + rng.randrange(0x1000), made.far, word(rng)))
    memory = _memory(rng, made, names, at)
    if memory.per_cpu:
        return
    made.results[to] = at
    made.said = f"{to} = {memory}"
    made.emitter.address(to, memory)


def load(rng: random.Random, made: Attempt) -> None:
    to, *names = registers(rng, made, 3)
    at, size, signed = made.data + rng.randrange(0x1000), rng.choice((1, 2, 4, 8)), rng.random() < 0.5
    memory = _memory(rng, made, names, at)
    around = made.pristine(at & -8) + made.pristine((at & -8) + 8)
    there = int.from_bytes(around[at & 7 : (at & 7) + size], "little")
    made.results[to] = there if size == 8 else arithmetic.extend(there, 8 * size, signed)
    made.said = f"{to} = {memory} {size} {signed}"
    made.emitter.load(to, MemoryValue(memory, size, signed))


def store(rng: random.Random, made: Attempt) -> None:
    source, *names = rng.sample(made.usable, 3)
    at, size = made.data + rng.randrange(0x800) * 2, rng.choice((1, 2, 4, 8))
    memory = _memory(rng, made, names, at)
    for name in (source, *names):
        made.emitter.pool.reserve(name)
        made.results[name] = made.registers[name]
    value = word(rng) & (1 << 8 * size) - 1
    is_constant = rng.random() < 0.5
    if not is_constant:
        made.registers[source] = made.results[source] = value
    first = at & -8
    data = bytearray(made.pristine(first) + made.pristine(first + 8))
    data[at & 7 : (at & 7) + size] = value.to_bytes(size, "little")
    words = zip((first, first + 8), struct.unpack("<QQ", data), strict=True)
    made.memory = {at: word for at, word in words if word.to_bytes(8, "little") != made.pristine(at)}
    made.said = f"{memory} = {value:#x} {size} {is_constant}"
    verb = made.emitter.publish if size == 8 and rng.random() < 0.5 else made.emitter.store
    if verb == made.emitter.publish and not memory.per_cpu:
        made.emitter.publish(memory, value if is_constant else source)
    else:
        made.emitter.store(memory, value if is_constant else source, size)


def atomic(rng: random.Random, made: Attempt) -> None:
    to, source, *names = rng.sample(made.usable, 4)
    at = made.data + rng.randrange(0x200) * 8
    memory = _memory(rng, made, names, at)
    if memory.per_cpu:
        return
    for name in (to, source, *names):
        made.emitter.pool.reserve(name)
        made.results[name] = made.registers[name]
    there = int.from_bytes(made.pristine(at), "little")
    operand = rng.choice((source, rng.choice((1, MASK, 0x7FFF, 0x8000, word(rng)))))
    value = made.registers[source] if isinstance(operand, str) else operand
    kind = rng.randrange(5)
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
    elif kind == 3:
        expected = rng.choice((there, there ^ 1, 0))
        after = made.registers[source] if expected == there else there
        if rng.random() < 0.5:
            made.registers[to] = made.results[to] = expected
            expected_at: str | int = to
            (to,) = rng.sample([name for name in made.usable if name not in made.emitter.pool.taken], 1)
            made.emitter.pool.reserve(to)
        else:
            expected_at = expected
        tell(
            made, to, int(expected != there),
            lambda label: made.emitter.compare_and_swap(memory, expected_at, source, label),
        )  # fmt: skip
    else:
        after = there | 1
        tell(made, to, there & 1, lambda label: made.emitter.claim(memory, label))
    made.memory = {} if after == there else {at: after}


KINDS = (
    *[binary] * 3, unary, extend, *[compare] * 2, multiply, bits, in_memory, logarithm, constant, address, load, store,
    *[atomic] * 2,
)  # fmt: skip
