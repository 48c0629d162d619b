"""What a return probe on a program does, from what was typed, tried before anything is written into the guest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.handlers import lower_user_returns
from gdb_optprobe.handlers.compile import ProgramLimits
from gdb_optprobe.handlers.ir import WORD
from gdb_optprobe.handlers.lower_user_returns import FunctionContext, PlacedUserCallTable
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.codegen import ProbeReadRoutines
from gdb_optprobe.isa.user import UserTrapping
from gdb_optprobe.isa.user_returns import UserReturning
from gdb_optprobe.maps.user_call_table import UserCallTableLayout
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.user.target import UserTarget
from gdb_optprobe.probes.user.trap_context import TrapSite, is_process, saved_registers
from gdb_optprobe.probes.user.uprobe_handler import check_stop, trial_pad
from gdb_optprobe.probes.user.uretprobe_program import compile_program, entry_code, entry_parts, return_handler

RETURN_TWICE = ("setjmp", "_setjmp", "sigsetjmp", "__sigsetjmp", "vfork", "__vfork", "getcontext", "swapcontext")
"""Return once more with a return address that they have kept (GCC's special_function_p, of what C libraries have)."""
SOME, JUMPS = 128, 4
"""Bytes of code that are looked at, and how often."""


def compile_uretprobe(
    spec: Spec, program: Program, address: int, user: UserTarget, target: Target, settings: Settings
) -> Handler:
    """Of the function that is entered at `address`. Raises OptprobeError, pointing at what cannot be done."""
    isa = user.kernel.returning().isa
    _check_function(program, address, user.kernel.isa, isa)
    at_entry = user.names(address, True, program.bits)
    if spec.is_plain_count and not spec.pid:
        return Handler()
    limits = ProgramLimits(text=settings.string_length, stack=settings.stack_size // WORD)
    only = is_process(at_entry, spec.pid) if spec.pid else None
    registers = saved_registers(user.kernel.isa, target.isa.pc)
    compiled, entry = compile_program(spec, at_entry, user.names_at_return(program.bits), only, registers, limits)
    check_stop(compiled, user.kernel.isa)
    bits = [number.bit_length() - 1 for number in (settings.table_keys, settings.ring_records)]
    handler = Handler.of(compiled, at_entry.per_cpu, at_entry.cpu, at_entry.reads, *bits)
    handler = replace(handler, entry=entry)
    near = user.kernel.calls.handler
    probe = Probe(0, spec, address, handler)
    probe.readers = None if isinstance(at_entry.reads, Missing) else ProbeReadRoutines(near, near)
    (part,) = entry_parts([probe])
    with handler.errors_at_source(spec):
        table = PlacedUserCallTable(UserCallTableLayout(2), near, user.kernel.returning().mm)
        entry_code(table, FunctionContext(near, near, 0, program.bits // 8, 1), [probe], user, near, target)
        dead = lower_user_returns.dead_at_return(user.kernel.isa, isa)
        return_handler(handler, part, isa).code(target.isa, TrapSite(near), dead, near, probe.readers, trial_pad(near))
    return handler


def _check_function(program: Program, address: int, traps: UserTrapping, isa: UserReturning) -> None:
    """Raises OptprobeError where no call is entered there that returns where the stack says, once."""
    bounds, place = program.function(address), program.spell(address)
    name = place.rpartition(":")[2]
    if bounds is not None and not program.is_entry(address):
        raise OptprobeError(f"{place} is not where a function is entered", f"probe {program.spell(bounds[0])}")
    if address == program.elf.entry:
        raise OptprobeError(f"{place} is where the program begins: it returns to nobody")
    if name in RETURN_TWICE:
        raise OptprobeError(f"{place} returns more than once from one call")
    if any(isa.reads(code) for code in _entry_code(program, address, traps)):
        raise OptprobeError(f"{place} looks at its return address, which would be ours")


def _entry_code(program: Program, address: int, traps: UserTrapping) -> Iterator[Sequence[Insn]]:
    """The code that a function begins with, and that it goes on with by jumps."""
    for _ in range(JUMPS):
        code = traps.decode(program.text(address, SOME), address, program.bits)
        yield code
        leaves = next((insn for insn in code if insn.flow is not Flow.NEXT), None)
        if leaves is None or leaves.flow is not Flow.JUMP or leaves.target is None:
            return
        address = leaves.target
