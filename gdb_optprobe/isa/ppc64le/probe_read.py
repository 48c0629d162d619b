"""The registers of the probe_read routine, which reads memory that may not be mapped, and its frame.

    r11   address     ─►  bytes
    r12   size, 1-8   ─►  how many could be read
    r0    the caller's LR, kept          r8 r9 r10 cr0 LR   lost
The routine itself is the kernel's arch's: it walks the kernel's page tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdb_optprobe.isa.base import ReadMemory
from gdb_optprobe.isa.ppc64le.abi import LR, PC, RED_ZONE, SP
from gdb_optprobe.isa.ppc64le.encodings import logical, number

WORD, SIZE, TEMPORARY = "r11", "r12", ("r10", "r9", "r8")
LINK = 32
"""Offset of LR in the routine's frame."""
_FRAME = RED_ZONE + 64


def cut() -> Sequence[int]:
    """Return code that turns the result into text: 0 after the first 0 byte, and then the size of a full read."""
    return (
        number("addi", "r10", "r0", 0),
        logical("cmpb", "r10", WORD, "r10"),
        number("addi", "r9", "r10", -1),
        logical("andc", "r9", "r9", "r10"),
        logical("and", WORD, WORD, "r9"),
        logical("or", SIZE, SIZE, "r10"),
    )


def caller(routine: bytes, at: int, registers: Mapping[str, int], read: ReadMemory) -> Mapping[str, int]:
    """Do as Backend.caller."""
    words = [int.from_bytes(routine[i : i + 4], "little") for i in range(0, at, 4)]
    opened, saved, closed = (words.count(word) for word in frame())
    start = registers[PC] - at
    if opened > closed:
        link = int.from_bytes(read(registers[SP] + LINK, 8), "little") if saved else registers[LR]
        return {**registers, PC: link, SP: registers[SP] + _FRAME, LR: registers["r0"]}
    if start <= registers[LR] < start + len(routine):
        return {**registers, PC: registers[LR]}
    return {**registers, PC: registers[LR], LR: registers["r0"]}


def resumed(registers: Mapping[str, int]) -> Mapping[str, int]:
    """Do as Backend.resumed. Right behind the call LR is not restored yet."""
    return {**registers, LR: registers["r0"]} if registers[PC] == registers[LR] else registers


def frame() -> tuple[int, int, int]:
    """Return the words that open the frame, store LR in it, and close it."""
    return number("stdu", SP, SP, -_FRAME), number("std", "r9", SP, LINK), number("addi", SP, SP, _FRAME)
