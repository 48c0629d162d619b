"""The function that is registered on a tracepoint: one that does nothing, with a place for a probe.

    endbr64                 the kernel calls it by a pointer, too (IBT)
    nopl 0(%rax,%rax)       the probed instruction: it is replaced by a branch
    ret
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from gdb_optprobe.guest.linux.arch.x86_64 import event_fields
from gdb_optprobe.guest.linux.arch.x86_64.text import MODULES
from gdb_optprobe.guest.linux.arch.x86_64.user_kernel import VCPUS
from gdb_optprobe.guest.linux.event_fields import EventFormat
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.tracepoints import HandlerCode
from gdb_optprobe.guest.linux.user.vcpus import Vcpus
from gdb_optprobe.isa.base import Code, ReadMemory
from gdb_optprobe.isa.calling import Calling
from gdb_optprobe.isa.x86_64.calling import CALLING

LANDING_PAD, PROBED, RETURN = (bytes.fromhex(code) for code in ("f30f1efa", "0f1f440000", "c3"))
REACH = 1 << 31
"""Of a call, by which a static call site leads to the only function of a tracepoint."""
FIRST = "tracepoint_probe_register"


class _Tracepoints:
    calling: Calling = CALLING
    vcpus: Vcpus = VCPUS

    def handler(self) -> HandlerCode:
        return HandlerCode(LANDING_PAD + PROBED + RETURN, len(LANDING_PAD))

    def fields_handler(self, made: EventFormat, missed: int, address: int) -> HandlerCode:
        return HandlerCode(*event_fields.handler(made, missed, address))

    def gates(self, made: EventFormat) -> Sequence[tuple[int, Code]]:
        return (
            (made.reserve, partial(event_fields.reserve, made)),
            (made.commit, partial(event_fields.commit, made)),
        )

    def called(self, target: int, read: ReadMemory) -> int:
        return target

    def caller(self, registers: Mapping[str, int], frame: int, read: ReadMemory) -> Mapping[str, int]:
        at = registers["rsp"] + frame
        return {**registers, "rip": int.from_bytes(read(at, 8), "little"), "rsp": at + 8}

    def why_not(self, kernel: Kernel) -> str:
        if kernel.symbols.address(f"__cfi_{FIRST}") is not None:
            return "this kernel checks the type of what it calls by a hash before it (kCFI)"
        return ""

    def why_not_at(self, kernel: Kernel, address: int) -> str:
        """Modules have static call sites of the kernel's tracepoints, too."""
        places = (*kernel.range("_stext", "_etext"), *MODULES)
        if all(abs(address - place) < REACH for place in places):
            return ""
        return "calls from modules would not reach a handler in the memory for detours"


TRACEPOINTS = _Tracepoints()
