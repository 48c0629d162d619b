"""Run pieces of code from a chosen state in Unicorn, and tell what each left.

Code stands in four areas, data in a fifth, which is as it was at the beginning of every run. A run ends where execution
leaves its code, or with a fault. Code of our own loads all registers before it, and stores them after it: Unicorn's
calls for that take ten times as long.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import unicorn
from unicorn import arm64_const

from gdb_optprobe.isa.aarch64 import abi
from gdb_optprobe.isa.assemble import assemble

HERE = 0x2000_0000
NEAR, ABOVE, BELOW = 0x2010_0000, 0x2780_0000, 0x1880_0000
CODE_SIZE = 0x4_0000
DATA, DATA_SIZE = 0x4000_0000, 0x1_0000
STACK = DATA + 0xC000
COUNTER = DATA + 0xFFF8
LONGEST = 64
MASK = (1 << 64) - 1
NAMES = (*abi.GENERAL, abi.SP, abi.FLAGS)
_FRAME, _LOAD, _STORE, _PAGE = 0x5000_0000, 0x6000_0000, 0x6000_1000, 0x1000
_VECTORS = 8 * len(NAMES) + 8  # from the frame on
_SIZE = _VECTORS + 16 * 32
_CONTENT = random.Random(0).randbytes(DATA_SIZE)
_NOISE = random.Random(1).randbytes(16 * 32)


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the fault or "", where, all registers, the vector registers, and the data."""

    fault: str
    pc: int
    registers: Mapping[str, int]
    vectors: bytes = field(repr=False)
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class _Engine:
    """load, store: ends of the code that loads all registers, and of that which stores them."""

    uc: Any
    load: int
    store: int


@cache
def _engine() -> _Engine:
    made: Any = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    made.ctl_set_cpu_model(arm64_const.UC_CPU_ARM64_MAX)
    for at, size in ((DATA, DATA_SIZE), (_FRAME, _PAGE), (_LOAD, _PAGE), (_STORE, _PAGE)):
        made.mem_map(at, size)
    for at in (HERE, NEAR, ABOVE, BELOW):
        made.mem_map(at, CODE_SIZE)
    made.reg_write(arm64_const.UC_ARM64_REG_CPACR_EL1, 3 << 20)  # vectors do not trap
    load = ["mov x0, #0x50000000", "ldr x1, [x0, #248]", "mov sp, x1", "ldr x1, [x0, #256]", "msr nzcv, x1"]
    load += [f"ldr q{number}, [x0, #{_VECTORS + 16 * number}]" for number in range(32)]
    load += [f"ldr x{number}, [x0, #{8 * number}]" for number in range(30, -1, -1)]
    store = ["msr tpidr_el0, x0", "mov x0, #0x50000000", *(f"str x{n}, [x0, #{8 * n}]" for n in range(1, 31))]
    store += ["mrs x1, tpidr_el0", "str x1, [x0]", "mov x1, sp", "str x1, [x0, #248]"]
    store += ["mrs x1, nzcv", "str x1, [x0, #256]"]
    store += [f"str q{number}, [x0, #{_VECTORS + 16 * number}]" for number in range(32)]
    ends = []
    for at, lines in ((_LOAD, load), (_STORE, store)):
        code = assemble("; ".join(lines), "KS_ARCH_ARM64", "KS_MODE_LITTLE_ENDIAN")
        assert len(code) == 4 * len(lines)
        made.mem_write(at, code)
        ends.append(at + len(code))
    return _Engine(made, *ends)


def run(code: Mapping[int, bytes], pc: int, state: Mapping[str, int]) -> Outcome:
    """Run `code`, by address, from `pc` on. state: registers; those not given are 0."""
    engine = _engine()
    uc = engine.uc
    for at, data in code.items():
        uc.mem_write(at, data)
        uc.ctl_remove_cache(at, at + len(data))
    uc.mem_write(DATA, _CONTENT)
    values = struct.pack(f"<{len(NAMES) + 1}Q", *(state.get(name, 0) for name in NAMES), 0)
    uc.mem_write(_FRAME, values + _NOISE)
    uc.emu_start(_LOAD, engine.load)
    fault = ""
    for _ in range(LONGEST):
        try:
            uc.emu_start(pc, 0, count=1)
        except unicorn.UcError as error:
            fault = str(error)
        pc = uc.reg_read(arm64_const.UC_ARM64_REG_PC)
        if fault or not any(at <= pc < at + len(data) for at, data in code.items()):
            break
    if not any(at <= pc < at + len(data) for at, data in code.items()):
        fault = ""  # it is that of what would have followed
    uc.emu_start(_STORE, engine.store)
    found = bytes(uc.mem_read(_FRAME, _SIZE))
    registers = dict(zip(NAMES, struct.unpack_from(f"<{len(NAMES)}Q", found), strict=True))
    return Outcome(fault, pc, registers, found[_VECTORS:], bytes(uc.mem_read(DATA, DATA_SIZE)))


def random_state(rng: random.Random) -> dict[str, int]:
    """Return registers that are numbers of any size, or addresses of data."""
    state = {name: _word(rng) for name in abi.GENERAL}
    return state | {abi.SP: STACK, abi.FLAGS: rng.getrandbits(4) << 28}


def _word(rng: random.Random) -> int:
    kind = rng.randrange(4)
    if kind == 0:
        return DATA + 0x4000 + 8 * rng.randrange(0x800)
    number = rng.getrandbits(64 if kind == 1 else rng.choice((1, 8, 16, 32)))
    return number * rng.choice((1, -1)) & MASK
