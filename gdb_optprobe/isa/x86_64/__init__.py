"""x86-64: `X86_64` is the `Isa`; each verb has a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.codegen import Backend
from gdb_optprobe.isa.record import Isa, Pools
from gdb_optprobe.isa.return_codegen import ReturnBackend
from gdb_optprobe.isa.routines import RoutineCalls
from gdb_optprobe.isa.x86_64 import (
    abi,
    codegen,
    decoder,
    emulator,
    liveness,
    relocator,
    return_codegen,
    routines,
    writer,
)

# What probes write into code: an invalid opcode of one byte, where the saved PC stays. No `int3`: a breakpoint that GDB
# sets on one is permanent to GDB, which never writes it and steps over it itself. A far jump or a far call, which the
# guest's own kprobes refuse (prepare_emulation in kprobes/core.c): a copy would trap elsewhere.
_TRAPS = (b"\xea", b"\x9a")  # jmp ptr16:32, call ptr16:32: #UD in 64-bit mode (SDM volume 2, JMP, CALL)

# movq $0, -40(%rsp); movq $0, -48(%rsp): the PC of the frame that iretq has just left, in both places that the stack's
# alignment gives it (SDM volume 3, 6.14.2). A thread that sleeps on a stack where it stays would seem to be in the
# detour. The kernel keeps nothing below the stack pointer (-mno-red-zone).
_LANDING = bytes.fromhex("48c74424d800000000 48c74424d000000000")


class _X86_64:
    """The verbs of `Isa`."""

    name = "i386:x86-64"
    other_modes: tuple[str, ...] = ("i386", "i8086", "i386:x64-32")
    alignment = 1
    pools: Pools | None = None
    earlier: Sequence[Isa] = ()
    branch_size = writer.BRANCH_SIZE
    branch_reach = data_reach = (1 << 31) - 1
    pc, sp, flags = abi.PC, abi.SP, abi.FLAGS
    registers: tuple[str, ...] = abi.REGISTERS
    breakpoint = b"\xcc"
    traps: tuple[bytes, ...] = _TRAPS
    trap = traps[0]
    landing = _LANDING
    short_registers: tuple[str, ...] = abi.SHORT
    stub_numbers: Mapping[str, int] = abi.STUB_NUMBERS
    system = abi.SYSTEM
    convention = abi.CONVENTION
    elf = abi.MACHINE
    codegen: Backend = codegen.BACKEND
    returning: ReturnBackend | None = return_codegen.RETURN_BACKEND
    routines: Sequence[RoutineCalls] = (routines.ROUTINE_CALLS,)

    decode = staticmethod(decoder.decode)
    branch = staticmethod(writer.branch)
    branches = staticmethod(writer.branches)
    redirect = staticmethod(writer.redirect)
    relocate = staticmethod(relocator.relocate)
    hazard = staticmethod(relocator.hazard)
    forbidden = staticmethod(relocator.forbidden)
    moves_as_it_is = staticmethod(relocator.moves_as_it_is)
    is_landing_pad = staticmethod(relocator.is_landing_pad)
    fills = staticmethod(relocator.fills)
    shadows = staticmethod(relocator.shadows)
    restarts = staticmethod(relocator.restarts)
    dead_at = staticmethod(liveness.dead_at)
    dead_at_entry = staticmethod(liveness.dead_at_entry)
    dead_at_return = staticmethod(liveness.dead_at_return)
    bases = staticmethod(writer.bases)
    count = staticmethod(writer.count)
    counts = staticmethod(writer.counts)
    pushed = staticmethod(writer.pushed)
    saves = staticmethod(writer.saves)
    emulate = staticmethod(emulator.emulate)
    pointer = staticmethod(emulator.pointer)
    addresses_in = staticmethod(decoder.addresses_in)
    switches = staticmethod(decoder.switches)

    def step_runs_on(self, insn: Insn, behind: Iterable[Insn]) -> bool:
        """Return that it does not: each is stepped over alone."""
        return False

    def for_cpus(self, each: Callable[[str], Sequence[int]]) -> Isa:
        """Return this one: its code runs on every CPU."""
        return self

    def for_guarded_code(self, each: Callable[[str], Sequence[int]]) -> Isa:
        """Return this one: a landing pad has an instruction of its own."""
        return self


X86_64 = _X86_64()
_: Isa = X86_64
