"""aarch64, a third ISA of which a few instructions are known: enough for a count on a bare-metal guest.

It is a folder beside those of `gdb_optprobe/isa`, and `AARCH64` is what a line in `isa/registry.py` would add. It has
no folder in `guest/linux/arch`, so its guests run no Linux that optprobe knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import capstone

from gdb_optprobe.isa.abi import Convention, ElfMachine, Holds, SystemRegisters
from gdb_optprobe.isa.base import (
    Dead,
    Effects,
    Flow,
    Hazard,
    Insn,
    OutOfReach,
    Pointer,
    ReadMemory,
    Unrelocatable,
    padded,
)
from gdb_optprobe.isa.codegen import Backend
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.relocation import DisplacedRegion, Relocation
from gdb_optprobe.isa.return_codegen import ReturnBackend

SIZE = 4
BRANCH_REACH = (1 << 27) - SIZE
BRANCHES = {
    "b": Flow.JUMP, "bl": Flow.CALL, "br": Flow.INDIRECT_JUMP, "blr": Flow.INDIRECT_CALL, "ret": Flow.RETURN,
    "cbz": Flow.BRANCH, "cbnz": Flow.BRANCH, "tbz": Flow.BRANCH, "tbnz": Flow.BRANCH,
    "brk": Flow.TRAP, "udf": Flow.TRAP, "svc": Flow.SYSTEM, "eret": Flow.SYSTEM,
}  # fmt: skip
COPIED = ("add", "adds", "sub", "mul", "madd", "mov", "eor", "orr", "and", "ldr", "str", "ldp", "stp", "nop")
"""What does the same anywhere, but for a load of the words beside it."""
GENERAL = (*(f"x{number}" for number in range(31)), "sp")
NOP = bytes.fromhex("1f2003d5")


def word(value: int) -> bytes:
    return value.to_bytes(SIZE, "little")


def decode(code: bytes, address: int) -> list[Insn]:
    """See Isa.decode."""
    found = []
    engine = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    for at, size, mnemonic, operands in engine.disasm_lite(code, address):
        flow = BRANCHES.get(mnemonic, Flow.BRANCH if mnemonic.startswith("b.") else Flow.NEXT)
        is_direct = flow in (Flow.JUMP, Flow.CALL, Flow.BRANCH)
        target = int(operands.split("#")[-1], 0) if is_direct else None
        start = at - address
        found.append(Insn(at, code[start : start + size], f"{mnemonic} {operands}".strip(), flow, target))
    return found


def branch(source: int, target: int) -> bytes:
    """See Isa.branch: `b`, 26 bits of words."""
    distance = target - source
    if abs(distance) > BRANCH_REACH:
        raise OutOfReach(source, target)
    return word(0x14000000 | distance >> 2 & 0x3FFFFFF)


def branches(sources: Sequence[int], targets: Sequence[int]) -> list[bytes]:
    """See Isa.branches."""
    return [branch(source, target) for source, target in zip(sources, targets, strict=True)]


def hazard(insn: Insn) -> Hazard | None:
    """See Isa.hazard: what is not known to do the same elsewhere does not move."""
    if insn.flow is Flow.TRAP:
        return Hazard.TRAP
    if insn.flow is Flow.SYSTEM:
        return Hazard.SYSTEM
    is_literal = insn.text.startswith("ldr") and "[" not in insn.text
    moves = insn.flow in (Flow.RETURN, Flow.JUMP) or (insn.text.split()[0] in COPIED and not is_literal)
    return None if moves else Hazard.NOT_SUPPORTED


def copy(insn: Insn, at: int, region: DisplacedRegion) -> bytes:
    """See Relocation.copy."""
    found = hazard(insn)
    if found is not None:
        raise Unrelocatable(found, insn)
    return insn.data if insn.target is None else branch(at, region.resolve(insn, insn.target))


def count(counter: int, to: int, dead: Dead, base: int | None = None) -> bytes:
    """See Isa.count. The flags are left alone."""
    parts = [counter >> 16 * half & 0xFFFF for half in range(4)]
    address = [0xD2800010 | parts[0] << 5]  # movz x16, #part; movk x16, #part, lsl #16; …
    address += [0xF2800010 | half << 21 | part << 5 for half, part in enumerate(parts) if half]
    saved = [0xA9BE47F0, 0xF9000BF2]  # stp x16, x17, [sp, #-32]!; str x18, [sp, #16]
    add = [0xC85F7E11, 0x91000631, 0xC8127E11, 0x35FFFFB2]  # ldxr x17, [x16]; add …, #1; stxr w18, x17, …; cbnz w18
    restored = [0xF9400BF2, 0xA8C247F0]
    return b"".join(map(word, saved + address + add + restored))


def counts(
    at: int, step: int, counters: Sequence[int], ends: Sequence[int], dead: Dead, moved: bytes = b""
) -> bytes:
    """See Isa.counts."""
    places = range(at, at + step * len(counters), step)
    pieces = [count(counter, place, dead) + moved for place, counter in zip(places, counters, strict=True)]
    return padded(pieces, at, step, ends, branch, word(0xD4200000))  # brk #0


class _AArch64:
    """The verbs of `Isa`."""

    name = "aarch64"
    other_modes: tuple[str, ...] = ("arm",)
    alignment = branch_size = SIZE
    branch_reach = BRANCH_REACH
    data_reach = 1 << 64
    pc, sp, flags = "pc", "sp", "cpsr"
    registers: tuple[str, ...] = (*GENERAL, "pc", "cpsr")
    breakpoint = word(0xD4200000)  # brk #0
    trap = word(0x00000001)  # udf #1
    traps: tuple[bytes, ...] = (trap,)
    landing = b""
    short_registers: tuple[str, ...] = ("cpsr",)
    stub_numbers: Mapping[str, int] = {name: number for number, name in enumerate(registers)}
    system = SystemRegisters({})
    convention = Convention(
        dict.fromkeys(GENERAL, Holds.SIGNED) | {"pc": Holds.CODE, "cpsr": Holds.FLAGS}, {}, "pc", "sp",
        arguments=GENERAL[:8], stacked=0, aggregate=16, result="x0", signed_char=False,
    )  # fmt: skip
    elf = ElfMachine("aarch64", 183, 0, b"")
    codegen = cast(Backend, None)  # conditions are not lowered
    returning: ReturnBackend | None = None
    routines = ()

    decode = staticmethod(decode)
    branch = staticmethod(branch)
    branches = staticmethod(branches)
    relocate = Relocation(
        copy, branch, lambda data: data == NOP, lambda _: False, lambda insn: insn.falls_through, lambda _: False
    ).relocate
    hazard = staticmethod(hazard)
    count = staticmethod(count)
    counts = staticmethod(counts)

    def redirect(self, insn: Insn, target: int) -> bytes:
        return branch(insn.address, target)

    def forbidden(self, code: Mapping[int, Insn]) -> Mapping[int, Hazard]:
        return {}

    def moves_as_it_is(self, insn: Insn) -> bool:
        return insn.target is None and hazard(insn) is None

    def fills(self, insn: Insn) -> bool:
        return insn.data == NOP

    def shadows(self, insn: Insn) -> bool:
        return False

    restarts = shadows

    def dead_at(self, *_: Any) -> Dead:
        """Return what is proven to be dead: nothing."""
        return Dead()

    dead_at_entry = dead_at_return = dead_at

    def bases(self, start: int, code: Mapping[int, Insn]) -> Mapping[int, int]:
        return {}

    def saves(self, insn: Insn) -> str:
        return ""

    def pushed(self, insn: Insn) -> int:
        raise AssertionError("no program is lowered")

    def emulate(self, insn: Insn, registers: Mapping[str, int], read: ReadMemory) -> Effects | None:
        return None

    def pointer(self, insn: Insn) -> Pointer | None:
        return None


AARCH64 = _AArch64()
_: Isa = AARCH64
