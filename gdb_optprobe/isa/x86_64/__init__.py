"""x86-64: `X86_64` is the `Isa`; each verb has a file of its own."""

from __future__ import annotations

from collections.abc import Mapping

from gdb_optprobe.isa.codegen import Backend
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.return_codegen import ReturnBackend
from gdb_optprobe.isa.x86_64 import (
    abi,
    codegen,
    convention,
    decoder,
    elf,
    emulator,
    liveness,
    relocator,
    return_codegen,
    writer,
)
from gdb_optprobe.isa.x86_64.trap import LANDING, TRAPS


class _X86_64:
    """The verbs of `Isa`."""

    name = "i386:x86-64"
    other_modes: tuple[str, ...] = ("i386", "i8086", "i386:x64-32")
    alignment = 1
    branch_size = writer.BRANCH_SIZE
    branch_reach = data_reach = (1 << 31) - 1
    pc, sp, flags = abi.PC, abi.SP, abi.FLAGS
    registers: tuple[str, ...] = abi.REGISTERS
    breakpoint = b"\xcc"
    traps: tuple[bytes, ...] = TRAPS
    trap = traps[0]
    landing = LANDING
    short_registers: tuple[str, ...] = abi.SHORT
    stub_numbers: Mapping[str, int] = abi.STUB_NUMBERS
    convention = convention.CONVENTION
    elf = elf.MACHINE
    codegen: Backend = codegen.BACKEND
    returning: ReturnBackend | None = return_codegen.RETURN_BACKEND

    decode = staticmethod(decoder.decode)
    branch = staticmethod(writer.branch)
    redirect = staticmethod(writer.redirect)
    relocate = staticmethod(relocator.relocate)
    hazard = staticmethod(relocator.hazard)
    forbidden = staticmethod(relocator.forbidden)
    moves_as_it_is = staticmethod(relocator.moves_as_it_is)
    fills = staticmethod(relocator.fills)
    shadows = staticmethod(relocator.shadows)
    restarts = staticmethod(relocator.restarts)
    dead_at = staticmethod(liveness.dead_at)
    dead_at_entry = staticmethod(liveness.dead_at_entry)
    dead_at_return = staticmethod(liveness.dead_at_return)
    bases = staticmethod(writer.bases)
    count = staticmethod(writer.count)
    pushed = staticmethod(writer.pushed)
    emulate = staticmethod(emulator.emulate)


X86_64 = _X86_64()
_: Isa = X86_64
