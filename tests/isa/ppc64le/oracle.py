"""Run pieces of code from a chosen state, under qemu-ppc64le in user mode, and tell what each left.

One process runs thousands of cases. Code stands in four areas, full of traps otherwise; data in a fifth, which is as it
was at the beginning of every case. A case ends where execution leaves its code: at a trap, or at an address that has no
memory, or with any other fault. oracle.s is the program inside.
"""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from gdb_optprobe.isa.ppc64le import abi

TOOLS = ("powerpc64le-linux-gnu-as", "powerpc64le-linux-gnu-ld", "qemu-ppc64le")
missing = next((tool for tool in TOOLS if shutil.which(tool) is None), None)
needs_oracle = pytest.mark.skipif(
    missing is not None, reason=f"no {missing}: install binutils-powerpc64le-linux-gnu and qemu-user"
)

HERE = 0x2000_0000
NEAR, ABOVE, BELOW = 0x2010_0000, 0x2180_0000, 0x1E80_0000
CODE_SIZE = 0x2_0000
DATA, DATA_SIZE = 0x4000_0000, 0x1_0000
STACK = DATA + 0xC000  # between, so that neither runs into the other
COUNTER = DATA + 0xFFF8
TRAP = 0x7FE0_0008
SIGILL, SIGTRAP, SIGFPE, SIGBUS, SIGSEGV = 4, 5, 8, 7, 11
MASK = (1 << 64) - 1

Step = tuple[Mapping[str, int], Sequence[tuple[int, bytes]]]
_GREGS = {abi.PC: 32, abi.CTR: 35, abi.LR: 36, abi.XER: 37, abi.FLAGS: 38} | {
    name: number for number, name in enumerate(abi.GENERAL)
}
_FLOATS, _VECTORS = 48, 48 + 33


@dataclass(frozen=True)
class Case:
    """registers: the PC among them; those not given are 0. code: by address, words of four bytes."""

    registers: Mapping[str, int]
    code: Mapping[int, bytes]


@dataclass(frozen=True)
class Outcome:
    """How a case ended, with all registers (f0…, v0… too) and the 8-byte words of memory that changed."""

    signal: int
    registers: Mapping[str, int]
    memory: Mapping[int, int] = field(repr=False)

    @property
    def pc(self) -> int:
        return self.registers[abi.PC]


@cache
def workplace() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="optprobe-oracle-")


@cache
def program(room: int, size: int) -> Path:
    folder = Path(workplace().name)
    source = Path(__file__).with_name("oracle.s")
    made, linked = folder / f"oracle{room}-{size}.o", folder / f"oracle{room}-{size}"
    symbols = ("--defsym", f"PATCHES={room}", "--defsym", f"DATA_SIZE={size}")
    subprocess.run(["powerpc64le-linux-gnu-as", *symbols, "-o", made, source], check=True)
    subprocess.run(["powerpc64le-linux-gnu-ld", "-Ttext=0x10000000", "-o", linked, made], check=True)
    return linked


def run(cases: Sequence[Case]) -> list[Outcome]:
    """In order."""
    return execute(list(_steps(cases)))


def _steps(cases: Sequence[Case]) -> Iterable[Step]:
    written: list[int] = []
    for case in cases:
        new = [(at + i, code[i : i + 4]) for at, code in case.code.items() for i in range(0, len(code), 4)]
        now = {at for at, _ in new}
        yield case.registers, [(at, struct.pack("<I", TRAP)) for at in written if at not in now] + new
        written = [at for at, _ in new]


def execute(steps: Sequence[Step], room: int = 64, size: int = DATA_SIZE, cpu: str = "power10") -> list[Outcome]:
    """Each from its registers, after its words of memory have been written.

    room: for so many words of each. size: of DATA; behind DATA_SIZE it begins as zeros.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as got:
        for registers, patches in steps:
            assert len(patches) <= room, "too much code"
            given.write(_registers(registers))
            given.write(b"".join(struct.pack("<I4s", at, word) for at, word in patches).ljust(8 * room, b"\0"))
        given.seek(0)
        subprocess.run(["qemu-ppc64le", "-cpu", cpu, program(room, size)], stdin=given, stdout=got, check=True)
        got.seek(0)
        outcomes = list(_parse(got.read()))
    assert len(outcomes) == len(steps) + 1, "the oracle ended early"
    return outcomes[1:]


def _registers(values: Mapping[str, int]) -> bytes:
    words = [0] * (_VECTORS + 68)
    for name, value in values.items():
        if name in _GREGS:
            words[_GREGS[name]] = value
        elif name[0] == "f":
            words[_FLOATS + int(name[1:])] = value
        else:
            at = _VECTORS + 2 * int(name[1:])
            words[at], words[at + 1] = value & MASK, value >> 64
    return struct.pack(f"<{len(words)}Q", *words)


def _parse(data: bytes) -> Iterable[Outcome]:
    at = 0
    while at < len(data):
        signal, changes = struct.unpack_from("<QQ", data, at)
        words = struct.unpack_from(f"<{_VECTORS + 68}Q", data, at + 16)
        at += 16 + 8 * len(words)
        pairs = struct.unpack_from(f"<{2 * changes}Q", data, at)
        at += 16 * changes
        registers = {name: words[index] for name, index in _GREGS.items()}
        registers |= {f"f{n}": words[_FLOATS + n] for n in range(32)}
        registers |= {f"v{n}": words[_VECTORS + 2 * n] | words[_VECTORS + 2 * n + 1] << 64 for n in range(32)}
        yield Outcome(signal, registers, dict(zip(pairs[::2], pairs[1::2], strict=True)))


INTERESTING = (0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 1 << 63, MASK)


def random_state(rng: random.Random) -> dict[str, int]:
    """Registers as a kernel might have them: pointers, small numbers, edges, noise."""
    state = {
        name: rng.choice(
            (DATA + 0x4000 + 8 * rng.randrange(0x400), rng.choice(INTERESTING), rng.getrandbits(64), rng.getrandbits(8))
        )
        for name in abi.GENERAL
    }
    state[abi.SP] = STACK + 16 * rng.randrange(64)
    state[abi.CTR] = rng.choice((0, 1, 2, 3, 5, HERE + 0x40 * rng.randrange(0x400), rng.getrandbits(64)))
    state[abi.LR] = rng.choice((HERE + 0x40 * rng.randrange(0x400), rng.getrandbits(64)))
    state[abi.FLAGS] = rng.getrandbits(32)
    state[abi.XER] = rng.getrandbits(32) & 0xE00C_007F
    state |= {f"f{n}": rng.getrandbits(64) for n in range(4)} | {f"v{n}": rng.getrandbits(128) for n in range(4)}
    return state
