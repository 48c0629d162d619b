"""Frames of programs of both word sizes (System V ABI: AMD64 supplement, 3.6.2; Intel386 supplement, 2.4.2).

A register is called as in struct pt_regs, esp too. r10, or ecx, has the frame where a function aligns its stack.
"""

from __future__ import annotations

from gdb_optprobe.isa.user_frames import UserFrames
from gdb_optprobe.isa.x86_64.abi import CALLEE_SAVED, PC, SP

COST = 137
"""Two walks through page tables; counted in tests/handlers/test_lower_maps.py."""
_LONG = {3: "rbx", 6: "rbp", 7: SP, 10: "r10", 12: "r12", 13: "r13", 14: "r14", 15: "r15", 16: PC}
_SHORT = {1: "rcx", 3: "rbx", 4: SP, 5: "rbp", 6: "rsi", 7: "rdi", 8: PC}
FRAMES = {
    64: UserFrames(8, COST, SP, PC, _LONG, CALLEE_SAVED),
    32: UserFrames(4, COST, SP, PC, _SHORT, ("rbx", "rbp", "rsi", "rdi")),
}
