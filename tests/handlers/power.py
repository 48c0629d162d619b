"""Run the code of programs for ppc64le under qemu-ppc64le, and compare all that each leaves with the interpreter.

0x20000000            code, and behind it a trap
0x40000000 DATA       as it was again for every program
         + 0x1000     what POINTERS point into                 kept
         + 0x2000     the PACA, with where per-CPU data are    kept
         + 0x4000     per-CPU data                             kept
         + 0xc000     the stack, the 288 bytes below it too    kept
         + 0x10000    faults and objects                       as the interpreter says
0x20010000            in place of what reads memory that may not be there: of POINTED's page alone, by the same rules
Programs are those of programs.py, with other names and addresses.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.handlers import interpreter
from gdb_optprobe.handlers.ir import Program
from gdb_optprobe.handlers.lower_program import LoweringContext, lower
from gdb_optprobe.isa.base import Dead
from gdb_optprobe.isa.codegen import Label, ProbeReadRoutines
from gdb_optprobe.isa.ppc64le import abi, encodings
from gdb_optprobe.isa.ppc64le.codegen import BACKEND
from gdb_optprobe.isa.ppc64le.encodings import Item, LabelBranch, compare, logical, number, plain, rotate
from gdb_optprobe.isa.ppc64le.fields import rotated, to_bytes
from gdb_optprobe.isa.ppc64le.templates import load

from ..isa.ppc64le.oracle import ABOVE as PAD
from ..isa.ppc64le.oracle import DATA, DATA_SIZE, HERE, INTERESTING, MASK, SIGTRAP, STACK, TRAP, Outcome, execute
from . import running

POINTED, PACA, PER_CPU, FAULTS = DATA + 0x1000, DATA + 0x2000, DATA + 0x4000, DATA + DATA_SIZE
SIZE = 0x3_0000
ROUTINE = HERE + 0x1_0000
DATA_OFFSET = 0x30  # in the PACA
_USABLE = [name for name in abi.GENERAL if name not in abi.RESERVED]
_CAN_BE_DEAD = (*_USABLE, *abi.CR_FIELDS[1:], abi.CTR, abi.LR)
_ROOMS = (128, 512, 3900)  # the last is what oracle.s can take
PRISTINE = b"".join(
    struct.pack("<Q", rotated(at * -0x61C8_864F, 29)) for at in range(DATA, DATA + DATA_SIZE, 8)
).ljust(SIZE, b"\0")  # as oracle.s fills it


@dataclass(frozen=True)
class Trial:
    """A program of programs.py, and all else by chance."""

    original: Program
    seed: int

    @cached_property
    def names(self) -> Mapping[str, str]:
        """Of x86-64's registers."""
        usable = random.Random(self.seed).sample(_USABLE, len(_USABLE))
        pointers = dict(zip(running.POINTERS, usable, strict=False))
        others = [*usable[len(pointers) :][:8], "r2", "r13", abi.CTR, abi.LR, abi.XER, abi.FLAGS, abi.PC, abi.SP]
        chosen = random.Random(self.seed + 1).sample(others, len(running.NUMBERS))
        return pointers | dict(zip(running.NUMBERS, chosen, strict=True)) | {running.SP: abi.SP}

    @cached_property
    def per_cpu(self) -> int:
        """Where per-CPU data are, as programs have it."""
        return random.Random(self.seed).choice((running.PER_CPU, 0x12_3456, 0xC000_0000_0123_4568, 0x40))

    @cached_property
    def program(self) -> Program:
        return running.translated(self.original, self.names, POINTED, self.per_cpu)

    @cached_property
    def around(self) -> LoweringContext:
        rng = random.Random(self.seed + 2)
        density = rng.choice((0, 0.1, 0.5, 1))
        registers = frozenset(name for name in _CAN_BE_DEAD if rng.random() < density)
        dead = rng.choice((Dead(rng.random() < 0.5, registers), Dead(True, abi.CLOBBERED_BY_TRACER)))
        base = rng.choice((None, FAULTS - 0x9000, FAULTS, DATA - 0x1234_5678))
        around = running.surroundings(self.program, dead, FAULTS)
        readers = ProbeReadRoutines(ROUTINE, ROUTINE)
        return replace(around, address=HERE, per_cpu=DATA_OFFSET, base=base, pad=PAD, readers=readers)

    @cached_property
    def code(self) -> bytes:
        return lower(self.program, self.around, BACKEND)(HERE)

    @cached_property
    def registers(self) -> Mapping[str, int]:
        rng = random.Random(self.seed + 3)
        found = {name: _number(rng) for name in (*abi.GENERAL, abi.CTR, abi.LR)}
        found |= {abi.FLAGS: rng.getrandbits(32), abi.XER: rng.getrandbits(32) & 0xE000_007F, abi.PC: HERE}
        found |= {self.names[name]: POINTED + 16 * index for index, name in enumerate(running.POINTERS)}
        return found | {abi.SP: STACK, "r13": PACA} | ({} if self.around.base is None else {"r2": self.around.base})

    @cached_property
    def base(self) -> int:
        """What is added to per-CPU addresses."""
        return PER_CPU - self.per_cpu & MASK

    @cached_property
    def memory(self) -> bytes:
        """Before the program."""
        memory = bytearray(PRISTINE)
        struct.pack_into("<Q", memory, PACA + DATA_OFFSET - DATA, self.base)
        for at, data in running.objects(self.program, FAULTS).items():
            memory[at - DATA : at - DATA + len(data)] = data
        return bytes(memory)

    def step(self) -> tuple[Mapping[str, int], Sequence[tuple[int, bytes]]]:
        """For execute."""
        code = self.code + to_bytes(TRAP)
        patches = [(HERE + i, code[i : i + 4]) for i in range(0, len(code), 4)]
        if self.program.dereferences:
            routine = encodings.encode_items([*read_routine()])
            patches += [(ROUTINE + i, routine[i : i + 4]) for i in range(0, len(routine), 4)]
        words = zip(memoryview(self.memory).cast("I"), memoryview(PRISTINE).cast("I"), strict=True)
        data = [(DATA + 4 * i, word.to_bytes(4, "little")) for i, (word, there) in enumerate(words) if word != there]
        return self.registers, patches + data

    def differences(self, left: Outcome) -> Iterator[str]:
        """What is not as the interpreter says, or not as it was."""
        if left.signal != SIGTRAP or left.pc not in (HERE + len(self.code), PAD):
            yield f"signal {left.signal} at {left.pc:#x}"
        dead = self.around.dead if self.program.stop is None else Dead()
        for name, value in self.registers.items():
            lost = _dead_bits(name, dead)
            if name != abi.PC and (value ^ left.registers[name]) & ~lost:
                yield f"{name}: {left.registers[name]:#x} for {value:#x}"
        memory = bytearray(PRISTINE)
        for at, word in left.memory.items():
            struct.pack_into("<Q", memory, at - DATA, word)
        for kept in (slice(DATA_SIZE // 2), slice(STACK - abi.RED_ZONE - DATA, DATA_SIZE)):
            if memory[kept] != self.memory[kept]:
                yield f"memory at {kept} changed"

        def read(address: int, size: int) -> bytes:
            assert DATA <= address <= DATA + DATA_SIZE - size, f"{address:#x} is not there"
            return self.memory[address - DATA : address - DATA + size]

        def peeked(address: int, size: int) -> bytes:
            if not POINTED <= address <= POINTED + running.PAGE - size:
                raise Unreadable(address, size)
            return read(address, size)

        found = running.Left(left.registers, {DATA: bytes(memory)}, 0, {}, left.pc == PAD)
        clock = running.clock_of(self.program, found, FAULTS)
        yield from self.wrong_results(found, interpreter.Hit(self.registers, read, self.base, clock, probe_read=peeked))

    def wrong_results(self, left: running.Left, hit: interpreter.Hit) -> Iterator[str]:
        """What objects have that is not as the interpreter says."""
        yield from running.wrong_objects(self.program, left, interpreter.run(self.program, hit), FAULTS)


def differences(trials: Sequence[Trial]) -> Iterator[tuple[Trial, str]]:
    """Of the trials whose code did anything else; one run for those of a size."""
    steps = [(trial, trial.step()) for trial in trials]
    smallest = 0
    for room in _ROOMS:
        some = [(trial, step) for trial, step in steps if smallest < len(step[1]) <= room]
        outcomes = execute([step for _, step in some], room, SIZE, "power8") if some else []
        for (trial, _), outcome in zip(some, outcomes, strict=True):
            found = "; ".join(trial.differences(outcome))
            if found:
                yield trial, found
        smallest = room
    assert all(len(patches) <= smallest for _, (_, patches) in steps)


def read_routine() -> Iterator[Item]:
    """As guest/linux/arch/ppc64le/probe_read.py has it, of the page at POINTED; what is lost is lost."""
    some, fault, out = Label(), Label(), Label()
    yield from load(9, POINTED)
    yield from (plain("subf", "r9", "r9", "r11"), compare("cmpldi", 0, "r9", running.PAGE), LabelBranch(fault, 4, 0))
    yield from (plain("neg", "r10", "r9"), number("addi", "r10", "r10", running.PAGE))
    yield from (compare("cmpldi", 0, "r10", 8), LabelBranch(some, 12, 0), number("ld", "r11", "r11", 0))
    yield from (number("addi", "r12", "r0", 8), LabelBranch(out), some)
    yield from load(9, POINTED + running.PAGE - 8)
    yield from (number("ld", "r11", "r9", 0), rotate("rldicr", "r9", "r10", 3, 60), plain("neg", "r8", "r9"))
    yield from (number("addi", "r8", "r8", 64), logical("srd", "r11", "r11", "r8"), number("addi", "r8", "r0", -1))
    yield from (logical("sld", "r8", "r8", "r9"), logical("or", "r11", "r11", "r8"), logical("or", "r12", "r10", "r10"))
    yield from (LabelBranch(out), fault, number("addi", "r11", "r0", -1), number("addi", "r12", "r0", 0), out)
    yield from (number("addi", name, "r0", 0x123) for name in ("r8", "r9", "r10"))
    yield from (compare("cmpldi", 0, "r8", 0x123), plain("blr"))


def _number(rng: random.Random) -> int:
    edge = rng.choice(INTERESTING)
    return rng.choice((edge, -edge & MASK, rng.getrandbits(64), rng.getrandbits(6)))


def _dead_bits(name: str, dead: Dead) -> int:
    if name != abi.FLAGS:
        return MASK if name in dead.registers else 0
    fields = [number for number, field in enumerate(abi.CR_FIELDS) if field in dead.registers]
    return sum(0xF << 28 - 4 * number for number in (*fields, *([0] if dead.flags else [])))
