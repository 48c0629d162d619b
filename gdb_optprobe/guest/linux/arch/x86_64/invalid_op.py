"""The opcode byte of our traps: one that this kernel's handler of invalid opcodes does not take for one of its own.

    asm_exc_invalid_op ──► ours ── not ours ──► exc_invalid_op ─► handle_bug ─► decode_bug: 0f 0b, 0f b9, ea or d6 …
A kernel with FineIBT knows a trap of its own by a byte: EA, later D6 (arch/x86/kernel/traps.c). Our byte is one of the
ISA's that the code on this path does not compare with; every session of this kernel chooses the same.
"""

from __future__ import annotations

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.trap_calls import Originals, code_at, targets
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.isa.x86_64.decoder import shape

DEPTH = 2
"""Calls from the handler to what looks at the opcode."""


def trap(kernel: Kernel, originals: Originals, handler: int) -> bytes:
    """Return the first of the ISA's traps that is free. Raises OptprobeError where none is."""
    known = set().union(*map(_numbers, _way(kernel, originals, handler)))
    found = next((trap for trap in X86_64.traps if trap[0] not in known), None)
    if found is None:
        names = ", ".join(trap.hex() for trap in X86_64.traps)
        raise OptprobeError(f"the kernel's handler of invalid opcodes may take each trap for one of its own ({names})")
    return found


def _way(kernel: Kernel, originals: Originals, handler: int) -> list[Insn]:
    """Return the code of the handler and of the functions that it calls, without a tracer's trampoline, which has no
    symbol.
    """
    found: list[Insn] = []
    now, seen = {handler}, {handler}
    for _ in range(DEPTH + 1):
        code = [insn for at in sorted(now) for insn in code_at(kernel, X86_64, originals, at)]
        found += code
        now = targets(kernel, (insn for insn in code if insn.flow is Flow.CALL)) - seen
        seen |= now
    return found


def _numbers(insn: Insn) -> set[int]:
    """Return the bytes that the instruction may compare with: its immediates, whatever their use."""
    if insn.target is not None:
        return set()
    immediate = insn.data[shape(insn.data).imm :]
    if not immediate or any(high not in (0, 0xFF) for high in immediate[1:]):
        return set()
    return {immediate[0]}
