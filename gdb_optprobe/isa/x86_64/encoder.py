"""Encode instructions: prefixes, REX, opcode, ModRM, SIB, displacement, immediate (SDM volume 2, chapter 2).

    ┌────────┬──────┬────────┬────────────────┬───────────────────┬──────┬─────┐
    │ prefix │ REX  │ opcode │ ModRM          │ SIB               │ disp │ imm │
    │ f0 65  │ WRXB │ 1-2 B  │ mod│ reg │ r/m │ scale│index│ base │ 1, 4 │     │
    └────────┴──────┴────────┴────────────────┴───────────────────┴──────┴─────┘
Only an operand in the arena that is not in the upper or lower 2 GiB is relative to its own address: such an instruction
is completed when its address is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from gdb_optprobe.isa.codegen import Address
from gdb_optprobe.isa.x86_64.abi import FLAGS, GENERAL
from gdb_optprobe.isa.x86_64.writer import fits, rel32, signed

NUMBERS = {name: number for number, name in enumerate(GENERAL)}
LOCK, GS = b"\xf0", b"\x65"
_MASKS = {size: (1 << 8 * size) - 1 for size in (1, 2, 4, 8)}


@dataclass(frozen=True, slots=True)
class Relative:
    """An instruction with 32 bits at `number` that will be the distance from its end to `target`."""

    data: bytes
    number: int
    target: int

    def __len__(self) -> int:
        return len(self.data)

    def encode(self, at: int) -> bytes:
        """Encode it for its address. Raises OutOfReach."""
        distance = rel32(at, at + len(self.data), self.target)
        return self.data[: self.number] + distance + self.data[self.number + 4 :]


def push(name: str) -> bytes:
    """Encode a push of a register or of the flags."""
    number = NUMBERS.get(name, 0)
    return b"\x9c" if name == FLAGS else b"\x41" * (number > 7) + bytes((0x50 | number & 7,))


def pop(name: str) -> bytes:
    """Encode the pop of what `push` has saved."""
    number = NUMBERS.get(name, 0)
    return b"\x9d" if name == FLAGS else b"\x41" * (number > 7) + bytes((0x58 | number & 7,))


def immediate(value: int, size: int) -> bytes:
    """Return a word's lowest bytes."""
    return (value & _MASKS[size]).to_bytes(size, "little")


def is_relative(memory: Address) -> bool:
    """Return whether an address must be relative to its instruction."""
    alone = memory.base is None and memory.index is None and not memory.per_cpu
    return memory.near and alone and not fits(signed(memory.offset))


def relative(
    opcode: bytes, register: str | int, memory: Address, size: int = 8, tail: bytes = b"", prefix: bytes = b""
) -> Relative:
    """Encode an instruction with an address relative to it: ModRM 05 is disp32(%rip) (SDM volume 2, table 2-2)."""
    data = instruction(opcode, register, Address("rbp", 1 << 30), size, b"", prefix)
    head = data[:-5] + bytes((data[-5] & 0x38 | 5,))
    return Relative(head + bytes(4) + tail, len(head), memory.offset)


@lru_cache(1 << 12)
def instruction(
    opcode: bytes, register: str | int, operand: str | Address, size: int = 8, tail: bytes = b"", prefix: bytes = b""
) -> bytes:
    """Encode an instruction.

    register: of the reg field, or an opcode's extension. operand: of r/m. size: of the operands, 1 to 8 bytes.
    """
    reg = NUMBERS[register] if isinstance(register, str) else register
    # Without REX, the byte registers 4 to 7 are ah to bh.
    needed = size == 1 and isinstance(register, str) and 4 <= reg < 8
    if isinstance(operand, str):
        number = NUMBERS[operand]
        needed |= size == 1 and 4 <= number < 8
        rex, rest = number >> 3, bytes((0xC0 | (reg & 7) << 3 | number & 7,))
    else:
        rex, rest = _addressed(operand, reg & 7)
        prefix += GS if operand.per_cpu else b""
    rex |= 8 * (size == 8) | reg >> 3 << 2
    prefix += b"\x66" if size == 2 else b""
    return prefix + (bytes((0x40 | rex,)) if rex or needed else b"") + opcode + rest + tail


def _addressed(memory: Address, reg: int) -> tuple[int, bytes]:
    """Return the REX bits, and ModRM with SIB and displacement; the offset must fit into 32 bits."""
    base = None if memory.base is None else NUMBERS[memory.base]
    index = None if memory.index is None else NUMBERS[memory.index]
    offset = signed(memory.offset)
    if not fits(offset) or index == 4:
        raise ValueError(f"no such address: {memory}")
    rex = (base or 0) >> 3 | (index or 0) >> 3 << 1
    if base is None:
        sib = 0x25 if index is None else 0xC5 | (index & 7) << 3
        return rex, bytes((reg << 3 | 4, sib)) + immediate(offset, 4)
    if offset == 0 and base & 7 != 5:
        mod, displacement = 0x00, b""
    elif fits(offset, 8):
        mod, displacement = 0x40, immediate(offset, 1)
    else:
        mod, displacement = 0x80, immediate(offset, 4)
    if index is not None:
        return rex, bytes((mod | reg << 3 | 4, 0xC0 | (index & 7) << 3 | base & 7)) + displacement
    if base & 7 == 4:
        return rex, bytes((mod | reg << 3 | 4, 0x24)) + displacement
    return rex, bytes((mod | reg << 3 | base & 7,)) + displacement
