"""Frames of programs (64-Bit ELF V2 ABI Specification, 2.2.2, 2.4): each leads to its caller's by the back chain.

DWARF's number of LR is 65. A function that has just begun may have it in r0 alone.
"""

from __future__ import annotations

from gdb_optprobe.isa.ppc64le.abi import CALLEE_SAVED, LR, LR_SAVE, PC, SP
from gdb_optprobe.isa.user_frames import UserFrames

COST = 170
"""Measured in a guest that counts instructions, with radix page tables."""
_NUMBERS = {number: f"r{number}" for number in (0, 1, 12, *range(28, 32))} | {65: LR}
FRAMES = {64: UserFrames(8, COST, SP, PC, _NUMBERS, CALLEE_SAVED, LR, LR_SAVE)}
