"""A uretprobe: which functions of programs can carry one, and what it does, from what was typed.

At the entry and at the return it reads registers that a trap has saved, and words of the call's slot; `SLOT_ADDRESS`
is used for the slot's address until it is known where in the slot those words are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.handlers import ir, lower_user_returns
from gdb_optprobe.handlers.compile import ProgramLimits
from gdb_optprobe.handlers.ir import WORD, And
from gdb_optprobe.handlers.lower_returns import EntryPart
from gdb_optprobe.handlers.lower_user_returns import PlacedUserCallTable, ProbedUserFunction
from gdb_optprobe.handlers.return_scope import EntryProgram
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.handlers.trap_frame import read_from_frame
from gdb_optprobe.isa.base import Code, Flow, Insn
from gdb_optprobe.isa.codegen import EntryState, ProbeReadRoutines
from gdb_optprobe.isa.user import UserTrapping
from gdb_optprobe.isa.user_returns import UserReturning
from gdb_optprobe.maps.user_call_table import MOST_SAVED, SAVED, UserCallTableLayout
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.return_program import compile_return, entry_parts, return_handler
from gdb_optprobe.probes.session_maps import SessionMaps
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.user.exits import exits
from gdb_optprobe.probes.user.target import UserTarget
from gdb_optprobe.probes.user.trap_context import TrapSite, is_process, saved_registers
from gdb_optprobe.probes.user.uprobe_handler import trial_pad

RETURN_TWICE = ("setjmp", "_setjmp", "sigsetjmp", "__sigsetjmp", "vfork", "__vfork", "getcontext", "swapcontext")
"""They return again to a return address that they have kept (those of GCC's special_function_p in C libraries)."""
SLOT_ADDRESS = "a call's slot"
LAYOUT = UserCallTableLayout(1024)
SOMEWHERE = 0x12340
"""Bytes between a function and the trampoline of its program, where the trampoline is not there yet."""
SOME, JUMPS = 128, 4
"""Bytes of code that are searched at a time, and how many jumps are followed."""


def compile_uretprobe(
    spec: Spec, program: Program, address: int, user: UserTarget, settings: Settings, maps: SessionMaps
) -> Handler:
    """Return what a return of the function at `address` does. maps: the session's.

    Raises OptprobeError, pointing at what cannot be done.
    """
    guest, isa = user.guest, user.kernel.returning().isa
    _check_function(program, address, user.kernel.isa, isa)
    at_entry = guest.program_names_at(address, True, program.bits)
    if spec.is_plain_count and not spec.pid:
        return Handler()
    limits = ProgramLimits(text=settings.string_length, stack=settings.stack_size // WORD)
    returned = guest.program_names_at_return(program.bits)
    compiled, entry = _compile(spec, at_entry, returned, user.kernel.isa, guest, limits)
    bits = [number.bit_length() - 1 for number in (settings.table_keys, settings.ring_records)]
    handler = Handler.of(compiled, at_entry.per_cpu, at_entry.cpu, at_entry.reads, *bits, overwrites=spec.overwrite)
    handler = replace(handler, entry=entry).using(maps)
    with handler.errors_at_source(spec):
        trial_codes(Probe(0, spec, address, handler), program, user, user.kernel.calls.handler)
    return handler


def trial_codes(probe: Probe, program: Program, user: UserTarget, memory: int) -> tuple[Code, Code]:
    """Return what runs at the entry and at the return of a call for `probe` alone, to be checked and measured.

    memory: where data may be. Raises OptprobeError and NotLowered.
    """
    near, kernel, handler = user.kernel.calls.handler, user.kernel.returning(), probe.handler
    probe.counter = Slot(memory, handler.size)
    probe.readers = None if isinstance(handler.unmapped, Missing) else ProbeReadRoutines(near, near)
    (part,) = uretprobe_parts([probe])
    table = PlacedUserCallTable(LAYOUT, memory, kernel.mm)
    leaving = kernel.isa.leaving
    distance = SOMEWHERE if leaving is None else None
    function = ProbedUserFunction(memory, near, distance, program.bits // 8, probe.spec.maxactive or LAYOUT.slots)
    entry = entry_code(table, function, [probe], user, near, user.guest)
    dead = lower_user_returns.dead_at_return(user.kernel.isa, kernel.isa)
    at_return = return_handler(handler, part, SLOT_ADDRESS, kernel.isa.slot)
    code = at_return.code(user.guest.isa, TrapSite(near), dead, memory, probe.readers, trial_pad(near))
    return entry, return_code(table, memory, [code], user.kernel.isa, kernel.isa)


def return_code(
    table: PlacedUserCallTable, counters: int, programs: Sequence[Code], traps: UserTrapping, isa: UserReturning
) -> Code:
    """Lower what runs where a function's calls return."""
    if isa.leaving is None:
        return lower_user_returns.lower_return(counters, programs, traps, isa)
    return lower_user_returns.lower_call_left(table, counters, isa.leaving, programs, traps, isa)


def _compile(
    spec: Spec, at_entry: NamesAt, at_return: NamesAt, traps: UserTrapping, guest: Guest, limits: ProgramLimits
) -> tuple[ir.Program, EntryProgram]:
    """Compile what is done at the return and at the entry, over registers that a trap has saved.

    Raises OptprobeError, pointing.
    """
    if spec.program is not None:
        program, entry = spec.program, EntryProgram()
    else:
        program, entry, _ = compile_return(spec, at_entry, at_return, SLOT_ADDRESS, at_entry.hertz, limits)
    if spec.pid:
        only = is_process(at_entry, spec.pid)
        entry = replace(entry, condition=And(only, entry.condition) if entry.condition is not None else only)
    saved = saved_registers(traps, guest.isa.pc)
    # Where a call has returned, the saved PC is no trap's any more.
    return read_from_frame(program, replace(saved, behind=0), (SLOT_ADDRESS,)), read_from_frame(entry, saved)


def uretprobe_parts(probes: Sequence[Probe]) -> tuple[EntryPart, ...]:
    """Return what these uretprobes of one function do at its entry.

    Raises OptprobeError where a slot has no room for what they keep.
    """
    parts = entry_parts(probes, SAVED)
    end = max(part.area + WORD * len(part.entry.words) for part in parts)
    if (words := (end - SAVED) // WORD) > MOST_SAVED:
        raise OptprobeError(f"{words} values would be kept of each call", f"{MOST_SAVED} can be: save fewer")
    return parts


def entry_code(
    table: PlacedUserCallTable,
    function: ProbedUserFunction,
    probes: Sequence[Probe],
    user: UserTarget,
    writable: int,
    guest: Guest,
) -> Code:
    """Lower what runs at a trap on the function's entry. Raises OptprobeError and NotLowered."""
    traps, handler = user.kernel.isa, probes[0].handler
    readers = next((probe.readers for probe in probes if probe.readers is not None), None)
    before = EntryState(traps.scratch, per_cpu=handler.per_cpu, readers=readers)
    parts, machine, isa = uretprobe_parts(probes), guest.isa.codegen, user.kernel.returning().isa
    return lower_user_returns.lower_call_entered(table, function, parts, before, traps, isa, machine, writable)


def _check_function(program: Program, address: int, traps: UserTrapping, isa: UserReturning) -> None:
    """Raises OptprobeError unless each call that is entered there returns once, where its stack or LR says."""
    bounds, place = program.function(address), program.spell(address)
    name = place.rpartition(":")[2]
    if bounds is not None and not program.is_entry(address):
        raise OptprobeError(f"{place} is not where a function is entered", f"probe {program.spell(bounds[0])}")
    if address == program.elf.entry:
        raise OptprobeError(f"{place} is where the program begins: it has no caller")
    if name in RETURN_TWICE:
        raise OptprobeError(f"{place} returns more than once from one call")
    if any(isa.reads(code) for code in _entry_code(program, address, traps)):
        raise OptprobeError(f"{place} looks at its return address, which would be ours")
    if isa.leaving is not None:
        exits(program, address, traps, isa.leaving)


def _entry_code(program: Program, address: int, traps: UserTrapping) -> Iterator[Sequence[Insn]]:
    """Yield the code that a function begins with, and that to which it jumps from there."""
    for _ in range(JUMPS):
        code = traps.decode(program.text(address, SOME), address, program.bits)
        yield code
        leaves = next((insn for insn in code if insn.flow is not Flow.NEXT), None)
        if leaves is None or leaves.flow is not Flow.JUMP or leaves.target is None:
            return
        address = leaves.target
