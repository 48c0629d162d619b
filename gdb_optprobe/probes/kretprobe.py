"""A kretprobe: which functions can carry one, and what it does, from what was typed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.detours.slots import ANYWHERE, Alignment
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.guest.text import Function, Text
from gdb_optprobe.handlers.compile import ProgramLimits
from gdb_optprobe.handlers.ir import Constant, Program, Put
from gdb_optprobe.handlers.lower_kernel_returns import PlacedCallTable, ProbedFunction, lower_entry
from gdb_optprobe.handlers.lower_returns import EntryPart
from gdb_optprobe.handlers.return_scope import EntryProgram
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.isa.base import Dead, Flow
from gdb_optprobe.isa.codegen import EntryState, ProbeReadRoutines
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.return_codegen import ReturnBackend
from gdb_optprobe.maps.call_table import PAGE, SAVED, CallTableLayout, Homing
from gdb_optprobe.probes.event_probes import names_at, names_at_return
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.return_program import compile_return, slot_word, with_return_address
from gdb_optprobe.probes.spec import Spec

UNBALANCED = frozenset(
    (
        # One thread enters them and another one leaves.
        *("__switch_to", "__switch_to_asm", "_switch"),
        # They are returned to: by new threads, by the guest's own return probes.
        *("ret_from_fork", "ret_from_kernel_thread", "arch_rethook_trampoline", "__kretprobe_trampoline"),
    )
)

NEAR = 8
"""Bytes behind the entry within which the tracer's site begins, if there is one."""

_PART = re.compile(r"\.cold(\.\d+)?$")


class FunctionFacts(Protocol):
    """What these checks need of a guest."""

    @property
    def isa(self) -> Isa: ...

    @property
    def text(self) -> Text: ...

    def names_at_return(self, address: int) -> object | None: ...

    def is_entered_by_calls(self, function: Function) -> bool: ...


def check_function(address: int, guest: FunctionFacts) -> None:
    """Raises Refused where a probe at `address` cannot see the function return."""
    function = guest.text.function(address)
    if guest.names_at_return(address) is None or function is None or _PART.search(function.name):
        raise Refused(Refusal.RETURN_NOT_ENTRY.because(address=guest.text.spell(address)))
    isa = guest.isa.returning
    if isa is None:
        raise Refused(Refusal.RETURN_NOT_BUILT.because(missing=guest.isa.name))
    is_traced = _is_traced(function, address, guest)
    if function.name in UNBALANCED or not (is_traced or isa.returns(address, function.code)):
        raise Refused(Refusal.RETURN_ELSEWHERE.because(function=function.name))
    if not (is_traced or guest.is_entered_by_calls(function)):
        raise Refused(Refusal.RETURN_UNTRACED.because(function=function.name))
    if not _can_return(function):
        raise Refused(Refusal.RETURN_NEVER.because(function=function.name))


def seen_returning(sites: Sequence[int], guest: Guest) -> list[int]:
    """Return those of the tracer's `sites` at which a probe sees its function return.

    A function is decoded only where its bytes leave a doubt, and its parts elsewhere never: what returns there alone is
    left out, as the search for them reads all of the kernel's text.
    """
    stubs = guest.isa.returning.stubs if guest.isa.returning is not None else None
    if stubs is None:
        return []
    found = []
    for function in guest.functions_entered(sites):
        if function.name in UNBALANCED or _PART.search(function.name):
            continue
        if stubs.may_return(function.code, function.start) or _leaves(guest.text.function(function.site), guest):
            found.append(function.site)
    return sorted(found)


def dead_at_return(address: int, guest: FunctionFacts) -> Dead:
    """Return what callers of the function that is entered at `address` cannot rely on when it has returned.

    By ABI, where a tracer could clobber the same. Callers of others may know which registers they leave alone (GCC's
    -fipa-ra), and assembly returns values in any.
    """
    function = guest.text.function(address)
    is_traced = function is not None and _is_traced(function, address, guest)
    return guest.isa.dead_at_return() if is_traced else Dead()


def _is_traced(function: Function, entry: int, guest: FunctionFacts) -> bool:
    return bool(guest.text.ftrace_sites(function.start, entry + NEAR))


def _leaves(function: Function | None, guest: Guest) -> bool:
    """Return whether some instruction of the function's first part leaves it for another function, or returns."""
    if function is None:
        return False
    for insn in function.own.values():
        if insn.flow in (Flow.RETURN, Flow.INDIRECT_JUMP):
            return True
        if insn.flow not in (Flow.JUMP, Flow.BRANCH) or insn.target is None:
            continue
        is_own = function.start <= insn.target < function.end
        if not (is_own or _PART.search(guest.symbol(insn.target).partition("+")[0])):
            return True
    return False


def _can_return(function: Function) -> bool:
    """Return whether some instruction leaves the function. Its parts elsewhere are decoded only if this one does not
    tell.
    """
    if any(insn.flow in (Flow.RETURN, Flow.INDIRECT_JUMP) for insn in function.own.values()):
        return True
    code = function.code
    return any(
        insn.flow in (Flow.RETURN, Flow.INDIRECT_JUMP)
        or (insn.flow in (Flow.JUMP, Flow.BRANCH) and insn.target not in code)
        for insn in code.values()
    )


def return_backend(guest: Guest) -> ReturnBackend:
    """Return what the ISA knows of returns, for a guest that a kretprobe was compiled for."""
    found = guest.isa.returning
    assert found is not None, "compile_kretprobe found none"
    return found


def call_table_layout(isa: Isa, slots: int, saved: int, window: int = 0) -> CallTableLayout:
    """Return the layout of a table of calls in a guest of this ISA."""
    return CallTableLayout(slots, saved, window, homing(isa))


def trampoline_alignment(isa: Isa) -> Alignment:
    """Return where trampolines begin where there is room: where the address of a page takes one instruction."""
    return Alignment(PAGE, is_needed=False) if homing(isa) is Homing.PAGE else ANYWHERE


def homing(isa: Isa) -> Homing:
    """Return how tables of calls have the homes of keys there."""
    return isa.returning.homing if isa.returning is not None else Homing.PRODUCT


def stacked_at(key: int, guest: Guest) -> int:
    """Return where a call has its return address at its entry, on an ISA that has it on the stack."""
    at = return_backend(guest).shown_at(key)
    assert at is not None, "a register has it"
    return at


def compile_kretprobe(
    spec: Spec, address: int, guest: Guest, limits: ProgramLimits
) -> tuple[Program, NamesAt, EntryProgram]:
    """Compile the programs for the return and the entry of the function that is entered at `address`.

    The names are those of the return. Raises OptprobeError, pointing.
    """
    names, isa = names_at_return(spec, address, guest), guest.isa.returning
    if names is None or isa is None:
        raise OptprobeError(f"{guest.text.spell(address)} is not where a function is entered")
    program, entry, scope = compile_return(spec, names_at(spec, address, guest), names, isa.slot, names.hertz, limits)
    return program, replace(names, names=scope), entry


def check_code(handler: Handler, plan: Plan, guest: Guest) -> None:
    """Lower what `handler` does at the entry, and at the return. Raises NotLowered where native code cannot do it."""
    isa = return_backend(guest)
    readers = None if isinstance(handler.unmapped, Missing) else ProbeReadRoutines(plan.address, plan.address)
    before = EntryState(plan.dead, per_cpu=handler.per_cpu, base=plan.base, readers=readers)
    part = EntryPart(handler.entry, around=handler.at_entry(plan.address))
    table = PlacedCallTable(call_table_layout(guest.isa, 1, len(handler.entry.words)), plan.address)
    lower_entry(table, ProbedFunction(plan.address, (plan.address, plan.end), plan.address), before, isa, [part])
    flag = [Put(slot_word(isa.slot, SAVED), Constant(1))] if handler.stops else []
    dead = dead_at_return(plan.address, guest)
    with_return_address(handler, isa.slot).storing(flag).code(guest.isa, plan, dead, plan.address, readers)
