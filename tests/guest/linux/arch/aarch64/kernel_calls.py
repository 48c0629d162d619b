"""A processor for code that calls the kernel's functions: these note what they are called with, and spoil registers."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import unicorn
from unicorn import arm64_const

from gdb_optprobe.isa.aarch64.abi import FLAGS, GENERAL, LR, NZCV, PC, SP
from gdb_optprobe.isa.aarch64.fields import to_bytes

PAGE, SIZE = 4096, 0x8000
CODE, KERNEL, DATA, STACK = 0x2000_0000, 0x2800_0000, 0x4000_0000, 0x5000_4000
BACK = CODE + 0x4000
MOST = 5_000
REGISTERS = {name: getattr(arm64_const, f"UC_ARM64_REG_{name.upper()}") for name in (*GENERAL, SP, PC)}
REGISTERS[FLAGS] = arm64_const.UC_ARM64_REG_NZCV
SPOILT = (*(f"x{number}" for number in range(18)), LR)
_RET = to_bytes(0xD65F_03C0)
CURRENT = (13, 0, 3, 0, 4)  # TPIDR_EL1, by crn, crm, op0, op1, op2


@dataclass
class Calls:
    """functions: by address, what each returns for its arguments. notes: (address, arguments), in order."""

    functions: Mapping[int, Callable[[Calls, list[int]], int]]
    notes: list[tuple[int, list[int]]] = field(default_factory=list)
    per_cpu: int = 0

    def __post_init__(self) -> None:
        self.uc: Any = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        for at in (CODE, KERNEL, DATA, STACK - SIZE // 2):
            self.uc.mem_map(at, SIZE)
        for at in self.functions:
            self.uc.mem_write(at, _RET)
        self.uc.hook_add(unicorn.UC_HOOK_CODE, self._called)

    def run(self, code: bytes, memory: Mapping[int, bytes], registers: Mapping[str, int]) -> dict[str, int]:
        """Run code at CODE until it goes to BACK, and return all registers then."""
        self.uc.mem_write(CODE, code)
        for at, data in memory.items():
            self.uc.mem_write(at, data)
        self.uc.reg_write(arm64_const.UC_ARM64_REG_CP_REG, (*CURRENT, self.per_cpu))
        for name, value in registers.items():
            self.uc.reg_write(REGISTERS[name], value)
        self.uc.emu_start(CODE, BACK, count=MOST)
        found = {name: int(self.uc.reg_read(number)) for name, number in REGISTERS.items()}
        assert found[PC] == BACK
        return found

    def word(self, at: int, size: int = 8) -> int:
        return int.from_bytes(self.uc.mem_read(at, size), "little")

    def inside(self) -> list[int]:
        """Words of the stack that a scan would take for a thread in the code."""
        data = bytes(self.uc.mem_read(STACK - SIZE // 2, SIZE // 2))
        return [word for (word,) in struct.iter_unpack("<Q", data) if CODE <= word < BACK]

    def _called(self, _: object, address: int, *__: object) -> None:
        if address not in self.functions:
            return
        registers = {name: self.uc.reg_read(number) for name, number in REGISTERS.items()}
        arguments = [registers[f"x{number}"] for number in range(6)]
        self.notes.append((address, arguments))
        # As a function of C does it: its record is in a frame below.
        assert registers[SP] % 16 == 0
        self.uc.mem_write(registers[SP] - 64, struct.pack("<2Q", registers["x29"], registers[LR]))
        result = self.functions[address](self, arguments)
        spoilt = random.Random(address)
        for name in SPOILT[1:-1]:
            self.uc.reg_write(REGISTERS[name], spoilt.getrandbits(64))
        self.uc.reg_write(REGISTERS[FLAGS], spoilt.getrandbits(4) << 28 & NZCV)
        self.uc.reg_write(REGISTERS["x0"], result & (1 << 64) - 1)
