"""The function that is registered on a tracepoint: one that does nothing, with a place for a probe.

    nop                     the probed instruction: it is replaced by a branch
    ret
The kernel calls it by its address, from anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.linux.arch.aarch64 import event_fields
from gdb_optprobe.guest.linux.arch.aarch64.constants import constants
from gdb_optprobe.guest.linux.arch.aarch64.event_fields import NOP, RECORD
from gdb_optprobe.guest.linux.arch.aarch64.user_kernel import RETURNS, VCPUS
from gdb_optprobe.guest.linux.event_fields import EventFormat
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.tracepoints import HandlerCode
from gdb_optprobe.guest.linux.user.vcpus import Vcpus
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.aarch64.abi import FP, LR, PC, SP
from gdb_optprobe.isa.aarch64.calling import CALLING
from gdb_optprobe.isa.aarch64.fields import to_bytes
from gdb_optprobe.isa.base import Code, ReadMemory
from gdb_optprobe.isa.calling import Calling

GOES, VENEER = to_bytes(0xD61F_0200), 12
"""br x16, the end of a veneer, and a veneer's bytes."""
CHECKS = ("report_cfi_failure", "__cfi_slowpath")
"""Of kernels that check the type of what they call (kernel/cfi.c)."""


class _Tracepoints:
    calling: Calling = CALLING
    vcpus: Vcpus = VCPUS

    def handler(self) -> HandlerCode:
        return HandlerCode(to_bytes(NOP) + RETURNS, 0)

    def fields_handler(self, made: EventFormat, missed: int, address: int) -> HandlerCode:
        return HandlerCode(*event_fields.handler(made, missed))

    def gates(self, made: EventFormat) -> Sequence[tuple[int, Code]]:
        return (
            (made.reserve, partial(event_fields.reserve, made)),
            (made.commit, partial(event_fields.commit, made)),
        )

    def called(self, target: int, read: ReadMemory) -> int:
        """See TracepointArch. A veneer is `adrp x16; add x16; br x16` (arch/arm64/kernel/module-plts.c)."""
        try:
            code = read(target, VENEER)
        except Unreadable:
            return target
        made = constants(AARCH64.decode(code, target)).made
        return made[0] if code.endswith(GOES) and len(made) == 1 else target

    def caller(self, registers: Mapping[str, int], frame: int, read: ReadMemory) -> Mapping[str, int]:
        if not frame:
            return {**registers, PC: registers[LR]}
        above = registers[SP] + frame
        data = read(above - RECORD, RECORD)
        words = {FP: int.from_bytes(data[:8], "little"), PC: int.from_bytes(data[8:], "little")}
        return {**registers, **words, SP: above}

    def why_not(self, kernel: Kernel) -> str:
        if any(kernel.symbols.address(name) is not None for name in CHECKS):
            return "this kernel checks the type of what it calls (CFI)"
        return ""

    def why_not_at(self, kernel: Kernel, address: int) -> str:
        return ""


TRACEPOINTS = _Tracepoints()
