"""The registers of the probe_read routine, which reads memory that may not be mapped.

    x16   address     ─►  bytes
    x15   size, 1-8   ─►  how many could be read
    x17   the caller's x30, kept          x12 x13 x14 x30 and the flags   lost
The routine itself is the kernel's arch's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdb_optprobe.isa.aarch64.abi import LR, PC, SP
from gdb_optprobe.isa.aarch64.encodings import constant, masked, number, plain
from gdb_optprobe.isa.base import ReadMemory

WORD, SIZE, TEMPORARY, LINK = "x16", "x15", ("x14", "x13", "x12"), "x17"
_LOW, _HIGH = 0x0101_0101_0101_0101, 0x8080_8080_8080_8080


def cut() -> Sequence[int]:
    """Return code that turns the result into text: 0 after the first 0 byte, and then the size of a full read.

    Of a word w, (w - 0x01…) & ~w & 0x80… has its lowest bit in the first 0 byte.
    """
    zeros, below, _ = TEMPORARY
    high = masked("andi", zeros, zeros, _HIGH)
    assert high is not None
    return (
        *constant(zeros, _LOW),
        plain("sub", zeros, WORD, zeros),
        plain("bic", zeros, zeros, WORD),
        high,
        number("subi", below, zeros, 1),
        plain("bic", below, below, zeros),
        plain("and", WORD, WORD, below),
        plain("orr", SIZE, SIZE, zeros),
    )


def caller(routine: bytes, at: int, registers: Mapping[str, int], read: ReadMemory) -> Mapping[str, int]:
    """Do as Backend.caller. A part of the routine that calls another one has x30 in a frame that `frame` opens."""
    words = [int.from_bytes(routine[i : i + 4], "little") for i in range(0, at, 4)]
    opened, closed = (words.count(word) for word in frame())
    start = registers[PC] - at
    if opened > closed:
        link = int.from_bytes(read(registers[SP], 8), "little")
        return {**registers, PC: link, SP: registers[SP] + FRAME, LR: registers[LINK]}
    if start <= registers[LR] < start + len(routine):  # called by the routine itself
        return {**registers, PC: registers[LR]}
    return {**registers, PC: registers[LR], LR: registers[LINK]}


FRAME = 48
"""Bytes of the frame of a part of the routine that calls another one; x30 is its first word."""


def frame() -> tuple[int, int]:
    """Return the words that open the frame, with x30 in it, and close it, with x30 restored."""
    return plain("push", LR) | (-FRAME & 0x1FF) << 12, plain("pop", LR) | FRAME << 12


def resumed(registers: Mapping[str, int]) -> Mapping[str, int]:
    """Do as Backend.resumed. Right behind the call x30 is not restored yet."""
    return {**registers, LR: registers[LINK]} if registers[PC] == registers[LR] else registers
