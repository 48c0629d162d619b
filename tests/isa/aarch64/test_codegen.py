"""Each verb of the codegen backend alone, in Unicorn: its result, and that nothing else changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import unicorn

from gdb_optprobe.isa.aarch64 import AARCH64, abi
from gdb_optprobe.isa.aarch64.codegen import BACKEND, BACKEND_LSE, A64Backend, A64Emitter
from gdb_optprobe.isa.aarch64.encodings import mask_fields
from gdb_optprobe.isa.aarch64.return_codegen import RETURN_BACKEND
from gdb_optprobe.isa.base import Dead, OutOfReach
from gdb_optprobe.isa.codegen import Address, Arithmetic, Comparison, EntryState, Label, RegisterPool
from tests.examples import samples
from tests.handlers.arm import CODE, FAULTS, PAGE, STACK, TPIDR_EL1, Processor, pristine, processor
from tests.isa.verbs import KINDS, MASK, Attempt, atomic, word

CASES = samples(6_000, 40_000)
FAR, BASE = 0xFFFF_8000_0A34_5678, 0x8000_1234_5008
USABLE = [name for name in abi.GENERAL if name not in (*abi.RESERVED, "x17", "x30")]


def before(at: int) -> bytes:
    """Return a word of memory, before a verb."""
    return pristine(FAULTS)[at - FAULTS : at - FAULTS + 8]


def attempt(rng: random.Random) -> Attempt:
    """Before a verb: anything in the registers, and anything dead."""
    emitter = rng.choice((BACKEND, BACKEND_LSE)).emitter(EntryState(Dead(rng.random() < 0.5), per_cpu=1))
    registers = {name: word(rng) for name in abi.GENERAL}
    registers |= {abi.FLAGS: rng.getrandbits(4) << 28, abi.SP: STACK}
    return Attempt(emitter, registers, USABLE, FAULTS, before, BASE, FAR)


def run(attempts: Sequence[Attempt]) -> None:
    machine = processor()
    machine.set_system(TPIDR_EL1, BASE)
    machine.write(FAULTS, pristine(FAULTS))
    found = []
    for made in attempts:
        code = made.emitter.finish(CODE)
        if wrong := "; ".join(_wrong(machine, made, code)):
            found.append(f"{wrong}: {made.said}\n" + "\n".join(i.text for i in AARCH64.decode(code, CODE)))
            machine.write(FAULTS, pristine(FAULTS))
    assert not found, f"{len(found)} of {len(attempts)}; the shortest:\n{min(found, key=len)}"


def _wrong(machine: Processor, made: Attempt, code: bytes) -> Iterator[str]:
    machine.uc.ctl_flush_tb()
    machine.write(CODE, code)
    machine.set_registers(made.registers)
    try:
        if code:
            machine.uc.emu_start(CODE, CODE + len(code), count=1000)
    except unicorn.UcError as error:
        yield f"{error} at {machine.pc:#x}"
        return
    if code and machine.pc != CODE + len(code):
        yield f"it ended at {machine.pc:#x}"
    left = machine.registers()
    for name, value in {**made.registers, **made.results}.items():
        if (name in made.results or name not in made.emitter.pool.used) and left[name] != value:
            yield f"{name} is {left[name]:#x}, not {value:#x}"
    size = len(pristine(FAULTS))
    now, expected = bytearray(machine.read(FAULTS, size)), bytearray(pristine(FAULTS))
    for at, changed in made.memory.items():
        expected[at - FAULTS : at - FAULTS + 8] = changed.to_bytes(8, "little")
        machine.write(at, before(at))
    if now != expected:
        yield "memory"


def test_verbs() -> None:
    rng = random.Random(5)
    attempts = []
    for number in range(CASES):
        made = attempt(rng)
        KINDS[number % len(KINDS)](rng, made)
        attempts.append(made)
    run(attempts)


def test_what_is_saved_is_read_and_restored() -> None:
    """In any layers, and whatever a program reads; the flags through x17, which is saved too where it lives."""
    rng = random.Random(6)
    attempts = []
    for _ in range(CASES // 10):
        made = attempt(rng)
        reads = frozenset(name for name in (*abi.GENERAL, abi.SP) if rng.random() < 0.2)
        state = EntryState(Dead(False, frozenset({"x17"} if rng.random() < 0.3 else ())), reads)
        emitter = BACKEND.emitter(state)
        used = {*rng.sample(USABLE, rng.choice((2, 3, 4, 7, 20))), "x17", *([abi.FLAGS] if rng.random() < 0.5 else [])}
        layers = [BACKEND.kept(used, state)]
        assert ("x17" in layers[0]) is (not state.dead.registers or "x17" in reads)
        to, *changed = [name for name in USABLE if name in layers[0]]
        layers.append(tuple(name for name in USABLE if name not in layers[0])[: rng.randrange(6)])
        frame = rng.choice((0, 16, 512))
        for names in layers:
            emitter.save(names)
        if frame:
            emitter.open_frame(frame)
        read = rng.choice(sorted(reads - {to}) or [abi.SP])
        emitter.read(to, read)
        emitter.store(Address(offset=FAULTS, near=True), to)
        if abi.FLAGS in used:
            emitter.branch(Comparison.LT, changed[0], 5, True, label := Label())
            emitter.bind(label)
        for each in changed:
            emitter.constant(each, 0x1234)
        if frame:
            emitter.close_frame()
        for names in reversed(layers):
            emitter.restore(names)
        emitter.pool = RegisterPool(())
        emitter.pool.used = {*state.dead.registers}
        made.emitter = emitter
        made.memory = {FAULTS: made.registers[read]}
        made.said = f"{layers} {read} {state.dead}"
        assert sum(map(AARCH64.pushed, AARCH64.decode(emitter.finish(CODE), CODE))) == 0
        attempts.append(made)
    run(attempts)


def test_masks_of_bitwise_operations() -> None:
    """Whatever is encoded, capstone reads as the same number; what a manual's rule says can be encoded, is."""
    for size in (2, 4, 8, 16, 32, 64):
        for ones in range(1, size):
            for turned in (0, 1, size // 2, size - 1):
                part = ((1 << ones) - 1 >> turned | (1 << ones) - 1 << size - turned) & (1 << size) - 1
                mask = sum(part << at for at in range(0, 64, size))
                emitter = BACKEND.emitter(EntryState())
                emitter.binary(Arithmetic.XOR, "x1", "x2", mask, 64, False)
                (insn,) = AARCH64.decode(emitter.finish(0), 0)
                assert int(insn.text.split("#")[1], 0) & MASK == mask
    assert [mask_fields(mask) for mask in (0, MASK, 5, 0x1_0000_0001_0001)] == [None] * 4


def test_the_clock_is_the_virtual_count() -> None:
    emitter = BACKEND.emitter(EntryState())
    emitter.clock("x3")
    emitter.clock("x4", 1 << 20)
    first, second, _ = (insn.text for insn in AARCH64.decode(emitter.finish(0), 0))
    assert (first, second) == ("mrs x3, cntvct_el0", "mrs x4, cntvct_el0")


def test_what_cannot_be_read() -> None:
    emitter = BACKEND.emitter(EntryState())
    with pytest.raises(KeyError):
        emitter.per_cpu_base("x3")
    with pytest.raises(KeyError):
        emitter.read("x3", abi.FLAGS)


def test_per_cpu_data_of_a_kernel_at_el2() -> None:
    texts = []
    for level in (1, 2):
        emitter = BACKEND.emitter(EntryState(per_cpu=level))
        emitter.per_cpu_base("x3")
        texts += [insn.text for insn in AARCH64.decode(emitter.finish(0), 0)]
    assert texts == ["mrs x3, tpidr_el1", "mrs x3, tpidr_el2"]


def test_too_far() -> None:
    emitter, label = BACKEND.emitter(EntryState()), Label()
    emitter.branch_bits("x3", 4, True, label)
    for _ in range(1 << 13):
        emitter.constant("x3", 0)
    emitter.bind(label)
    with pytest.raises(OutOfReach):
        emitter.finish(CODE)
    far = BACKEND.emitter(EntryState())
    far.atomic_add(Address(offset=CODE + (1 << 32) + PAGE, near=True), 1)
    with pytest.raises(OutOfReach):
        far.finish(CODE)
    assert far.finish(CODE + 2 * PAGE)


def test_order_of_stores_and_loads() -> None:
    """It cannot be seen on one CPU."""
    where = Address("x4")
    assert names(BACKEND, lambda emit, _: emit.publish(where, "x3")) == ["stlr"]
    assert names(BACKEND, lambda emit, _: emit.acquire()) == ["dmb"]

    def claim(emit: A64Emitter, label: Label) -> None:
        emit.claim(where, label)

    def swap(emit: A64Emitter, label: Label) -> None:
        emit.compare_and_swap(where, 0, "x3", label)

    def claim_for(emit: A64Emitter, label: Label) -> None:
        assert emit.claim_for(where, "x3", label) == 1

    def claim_pair(emit: A64Emitter, label: Label) -> None:
        done.append(emit.claim_for(where, "x3", label, "x30"))

    done = list[int]()
    assert names(BACKEND, claim_pair) == ["ldaxp", "cbnz", "stxp", "cbz", "b"]
    assert names(BACKEND_LSE, claim_pair) == ["mov", "casa", "cbz"]
    assert done == [2, 1]
    assert names(BACKEND, claim_for) == ["ldaxr", "cbnz", "stxr", "cbz", "b"]
    assert names(BACKEND_LSE, claim_for) == ["mov", "casa", "cbz"]
    assert names(BACKEND, claim) == ["ldaxr", "tbnz", "orr", "stxr", "cbnz"]
    assert names(BACKEND, swap) == ["ldxr", "cbnz", "stlxr", "cbnz"]
    assert names(BACKEND_LSE, claim) == ["mov", "ldseta", "tbnz"]
    assert names(BACKEND_LSE, swap) == ["mov", "casl", "cbnz"]


def test_an_address_near_the_last_one_is_found_from_it() -> None:
    first, second = (Address(offset=PAGE + at, near=True) for at in (0x678, 0x690))

    def twice(emit: A64Emitter, _: Label) -> None:
        emit.atomic_add(first, 1)
        emit.atomic_add(second, 1)

    def joined(emit: A64Emitter, _: Label) -> None:
        emit.atomic_add(first, 1)
        emit.bind(Label())
        emit.atomic_add(second, 1)

    def overwritten(emit: A64Emitter, _: Label) -> None:
        emit.atomic_add(first, 1)
        emit.constant("x17", 5)
        emit.atomic_add(second, 1)

    def far(emit: A64Emitter, _: Label) -> None:
        emit.atomic_add(first, 1)
        emit.atomic_add(replace(second, offset=second.offset + PAGE), 1)

    def saved_between(emit: A64Emitter, _: Label) -> None:
        emit.atomic_add(first, 1)
        emit.open_save()
        emit.atomic_add(second, 1)
        assert emit.close_save([abi.FLAGS])

    adds = ["ldxr", "add", "stxr", "cbnz"]
    whole = ["adrp", "add", *adds]
    assert names(BACKEND, twice) == [*whole, "add", *adds]
    for verbs in (joined, far):
        assert names(BACKEND, verbs) == whole * 2
    assert names(BACKEND, overwritten) == [*whole, "mov", *whole]
    assert names(BACKEND, saved_between) == [*whole, "mrs", "str", *whole]


def test_the_address_of_a_page_is_one_instruction() -> None:
    for address, expected in ((2 * PAGE, ["adrp"]), (2 * PAGE + 4, ["adrp", "add"])):
        emitter = RETURN_BACKEND.emitter(EntryState())
        emitter.return_to(address)
        assert [insn.text.split()[0] for insn in AARCH64.decode(emitter.finish(0), 0)] == expected


def test_a_key_s_home_takes_the_place_of_bits_of_its_table_s_address() -> None:
    emitter = RETURN_BACKEND.emitter(EntryState())
    emitter.insert("x9", "x11", 4, 8, 2 * PAGE)
    assert [insn.text for insn in AARCH64.decode(emitter.finish(0), 0)] == ["adrp x9, #0x2000", "bfi x9, x11, #4, #8"]
    with pytest.raises(AssertionError):
        emitter.insert("x9", "x11", 4, 8, 2 * PAGE + 24)


def test_atomics_of_newer_cpus_are_one_instruction() -> None:
    where = Address("x4")
    assert names(BACKEND_LSE, lambda emit, _: emit.atomic_add(where, "x3")) == ["stadd"]
    assert names(BACKEND_LSE, lambda emit, _: emit.atomic_add(where, 1)) == ["mov", "stadd"]
    assert names(BACKEND_LSE, lambda emit, _: emit.atomic_fetch_add("x3", where, 1)) == ["mov", "ldadd"]
    assert names(BACKEND_LSE, lambda emit, _: emit.atomic_extreme(Comparison.GT, where, "x3", True)) == ["stsmax"]


def names(backend: A64Backend, verb: Callable[[A64Emitter, Label], None]) -> list[str]:
    """Return the names of a verb's instructions, before the label that it may jump to."""
    emitter, label = backend.emitter(EntryState()), Label()
    verb(emitter, label)
    emitter.bind(label)
    return [insn.text.split()[0] for insn in AARCH64.decode(emitter.finish(0), 0)]


def test_nothing_but_registers_is_between_a_load_exclusive_and_its_store() -> None:
    """An access of memory there may end the reservation, for ever."""
    rng = random.Random(9)
    pairs = 0
    for _ in range(CASES // 5):
        made = attempt(rng)
        made.emitter = BACKEND.emitter(EntryState(per_cpu=1))
        atomic(rng, made)
        inside = False
        for insn in AARCH64.decode(made.emitter.finish(CODE), CODE):
            name = insn.text.split()[0]
            assert not (inside and name[:2] in ("ld", "st", "mr", "ms") and not name.startswith(("stxr", "stlxr")))
            inside = name in ("ldxr", "ldaxr") or (inside and not name.startswith(("stxr", "stlxr")))
            pairs += name in ("stxr", "stlxr")
            if name in ("stxr", "stlxr"):
                status, value, base = insn.text.replace("[", "").replace("]", "").replace(",", "").split()[1:]
                assert status[1:] not in (value[1:], base[1:])
    assert pairs > CASES // 10


def test_registers() -> None:
    """The dead ones first, what is read last; x17, x18 and what leads to callers are never taken."""
    state = EntryState(Dead(True, frozenset(("x5", "x9"))), frozenset(("x9", "x3")))
    order = BACKEND.order(state)
    assert order[0] == "x5" and order[-2:] == ("x9", "x3")
    assert not {"x17", "x18", "x29", "x30", abi.SP} & {*order}
    emitter = BACKEND.emitter(state)
    assert [emitter.register(name) for name in ("x17", "x30", abi.SP, abi.FLAGS)] == [None, "x30", None, None]
    emitter.save(("x14",))
    assert emitter.register("x14") is None and emitter.register("x13") == "x13"


def test_equality_takes_no_flags_that_live() -> None:
    for dead in (False, True):
        emitter, label = BACKEND.emitter(EntryState(Dead(dead))), Label()
        emitter.branch(Comparison.EQ, "x3", 77, False, label)
        emitter.bind(label)
        assert (abi.FLAGS in emitter.pool.used) is dead
        assert ("x17" in emitter.pool.used) is not dead
