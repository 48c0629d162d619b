"""The traps that probes write into code: an invalid opcode of one byte, at which the saved PC is.

No `int3`: GDB takes a breakpoint that it sets on one for a permanent one, which it never writes and steps over itself.
A far jump or a far call, which the guest's own kprobes refuse (prepare_emulation in kprobes/core.c): a copy would trap
elsewhere.
"""

from __future__ import annotations

TRAPS: tuple[bytes, ...] = (b"\xea", b"\x9a")
"""jmp ptr16:32 and call ptr16:32: #UD in 64-bit mode (SDM volume 2, JMP, CALL)."""

LANDING = bytes.fromhex("48c74424d800000000 48c74424d000000000")  # movq $0, -40(%rsp); movq $0, -48(%rsp)
"""The PC of the frame that iretq has just left, of the two places that the stack's alignment gives it (SDM volume 3,
6.14.2): were it to stay, a thread that sleeps on it would seem to be in the detour. Below the stack pointer the kernel
has nothing (-mno-red-zone)."""
