"""ppc64le: `PPC64LE` is the `Isa`; each verb has a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.codegen import Backend
from gdb_optprobe.isa.ppc64le import (
    abi,
    codegen,
    decoder,
    emulator,
    jump_tables,
    liveness,
    relocator,
    reservations,
    return_codegen,
    routines,
    writer,
)
from gdb_optprobe.isa.ppc64le.fields import TRAP, to_bytes
from gdb_optprobe.isa.record import Isa, Pools
from gdb_optprobe.isa.return_codegen import ReturnBackend
from gdb_optprobe.isa.routines import RoutineCalls


class _PPC64LE:
    """The verbs of `Isa`, and what ppc64le has beyond them.

    jump_tables: of a whole function. entry, toc, makes_toc: of its first two instructions.
    """

    name = "powerpc:common64"
    other_modes: tuple[str, ...] = ()
    alignment = 4
    pools: Pools | None = None
    earlier: Sequence[Isa] = ()
    branch_size = writer.BRANCH_SIZE
    branch_reach = writer.BRANCH_REACH
    data_reach = 1 << 64
    pc, sp, flags = abi.PC, abi.SP, abi.FLAGS
    registers: tuple[str, ...] = abi.REGISTERS
    trap = to_bytes(relocator.PROBE)  # a program check on every CPU
    traps: tuple[bytes, ...] = (trap,)
    landing = b""  # a trap is in registers
    breakpoint = to_bytes(TRAP)  # trap: BREAKPOINT_INSTRUCTION of asm/probes.h
    short_registers: tuple[str, ...] = abi.SHORT
    stub_numbers: Mapping[str, int] = abi.STUB_NUMBERS
    system = abi.SYSTEM
    convention = abi.CONVENTION
    elf = abi.MACHINE
    codegen: Backend = codegen.BACKEND
    returning: ReturnBackend | None = return_codegen.RETURN_BACKEND
    routines: Sequence[RoutineCalls] = routines.ROUTINE_CALLS

    decode = staticmethod(decoder.decode)
    branch = staticmethod(writer.branch)
    branches = staticmethod(writer.branches)
    redirect = staticmethod(writer.redirect)
    relocate = staticmethod(relocator.relocate)
    hazard = staticmethod(relocator.hazard)
    forbidden = staticmethod(reservations.forbidden)
    moves_as_it_is = staticmethod(relocator.moves_as_it_is)
    fills = staticmethod(relocator.fills)
    shadows = staticmethod(relocator.shadows)
    restarts = staticmethod(relocator.restarts)
    switches = staticmethod(jump_tables.switches)
    jump_tables = staticmethod(jump_tables.jump_tables)
    entry = staticmethod(abi.entry)
    toc = staticmethod(abi.toc)
    makes_toc = staticmethod(abi.makes_toc)
    dead_at = staticmethod(liveness.dead_at)
    dead_at_entry = staticmethod(liveness.dead_at_entry)
    dead_at_return = staticmethod(liveness.dead_at_return)
    bases = staticmethod(abi.bases)
    count = staticmethod(writer.count)
    counts = staticmethod(writer.counts)
    pushed = staticmethod(writer.pushed)
    saves = staticmethod(writer.saves)
    emulate = staticmethod(emulator.emulate)
    pointer = staticmethod(emulator.pointer)

    def addresses_in(self, insn: Insn) -> Sequence[tuple[int, int]]:
        """Return none: an instruction has no room for an address."""
        return ()

    def step_runs_on(self, insn: Insn, behind: Iterable[Insn]) -> bool:
        """Return that it does not: a load that reserves memory has its store."""
        return False

    def for_cpus(self, each: Callable[[str], Sequence[int]]) -> Isa:
        """Return this one: its code runs on every CPU."""
        return self

    def is_landing_pad(self, insn: Insn) -> bool:
        """Return that it is none."""
        return False

    def for_guarded_code(self, each: Callable[[str], Sequence[int]]) -> Isa:
        """Return this one: no CPU checks where branches arrive."""
        return self


PPC64LE = _PPC64LE()
_: Isa = PPC64LE
