"""What can be wrong with a branch over some instructions: one question each, answered with a Reason or None."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gdb_optprobe.detours.place import Place
from gdb_optprobe.detours.refusal import Reason, Refusal
from gdb_optprobe.guest.text import Area, Fact, FtraceSite, Text
from gdb_optprobe.isa.base import Flow, Hazard, Insn, OutOfReach, Unrelocatable


def taken(place: Place, end: int) -> Reason | None:
    """Somebody else's breakpoint or probe on these bytes."""
    spell = place.text.spell
    for stop in sorted(place.site.breakpoints):
        if place.address <= stop < end:
            return Refusal.USER_BREAKPOINT.because(breakpoint=spell(stop))
    for other in place.site.neighbours:
        if other.start < end and place.address < other.end and other.start != place.address:
            return Refusal.OVERLAPS_PROBE.because(number=other.number, other=spell(other.start))
    return None


def ftrace(place: Place, sites: Sequence[FtraceSite]) -> Reason | None:
    """A tracer's site may be covered only whole, alone and while nobody is there: the guest checks these bytes."""
    spell = place.text.spell
    for site in sites:
        if site.address != place.address:
            return Refusal.FTRACE_SITE.because(site=spell(site.address))
        if site.in_use:
            return Refusal.FTRACE_IN_USE.because(site=spell(site.address))
        if place.insn.data != site.idle:
            return Refusal.FTRACE_CHANGED.because(site=spell(site.address))
    return None


def rewritten_by_guest(place: Place, start: int, end: int) -> Reason | None:
    """The guest compares what stands at such places before it writes there: it must find its own bytes."""
    codes = {
        Fact.JUMP_LABEL: Refusal.JUMP_LABEL,
        Fact.STATIC_CALL: Refusal.STATIC_CALL,
        Fact.BUG: Refusal.BUG_TABLE,
    }
    for mark in place.text.marks(start, end):
        if mark.fact in codes:
            return codes[mark.fact].because(address=place.text.spell(mark.address))
    return None


_LANDING_PADS = ("endbr64", "endbr32", "bti")


def is_landing_pad(insn: Insn) -> bool:
    """Whether an indirect branch must find this instruction where it lands (CET, BTI)."""
    return insn.text.split()[0] in _LANDING_PADS


def shadowed(place: Place) -> Reason | None:
    """In `sti; hlt` an interrupt can come only once `hlt` waits for it: nothing may run between the two."""
    before = next((insn for insn in place.function.hot if insn.end == place.address), None)
    if before is None or not place.isa.shadows(before):
        return None
    return Refusal.INTERRUPT_SHADOW.because(insn=before.text, address=place.text.spell(before.address))


def unmovable(place: Place, displaced: Sequence[Insn]) -> Reason | None:
    for insn in displaced:
        facts = {"insn": insn.text, "address": place.text.spell(insn.address)}
        if is_landing_pad(insn):
            return Refusal.LANDING_PAD.because(address=facts["address"], next=place.text.spell(insn.end))
        if insn.data == place.isa.breakpoint:
            return Refusal.FOREIGN_BREAKPOINT.because(address=facts["address"])
        match insn.flow:
            case Flow.TRAP:
                return Refusal.TRAP_INSTRUCTION.because(**facts)
            case Flow.SYSTEM:
                return Refusal.SYSTEM_INSTRUCTION.because(**facts)
        if insn.flow is Flow.JUMP and insn.target is not None and place.text.area(insn.target) is Area.NOT_TEXT:
            return Refusal.FOREIGN_JUMP.because(address=facts["address"])
    return None


def exception(place: Place, displaced: Sequence[Insn]) -> Reason | None:
    for mark in place.text.marks(displaced[0].address, displaced[-1].end):
        if mark.fact is Fact.EXCEPTION:
            return Refusal.EXCEPTION_TABLE.because(address=place.text.spell(mark.address))
    return None


def jumped_into(place: Place, displaced: Sequence[Insn], end: int) -> Reason | None:
    """Execution that may arrive inside the bytes the branch covers, other than from the displaced instructions."""
    function, spell = place.function, place.text.spell
    if not function.whole.complete:
        foreign = next((insn for before, insn in pairwise(function.hot) if _breaks_in(place, before, insn)), None)
        if foreign is not None:
            return Refusal.FOREIGN_BREAKPOINT.because(address=spell(foreign.address))
        return Refusal.UNDECODABLE.because(address=spell(function.start))
    inside = {insn.address for insn in displaced}
    for jump in function.jumps_into(place.address, end):
        if jump.source not in inside:
            return Refusal.JUMP_INTO_REGION.because(
                kind=jump.kind, source=spell(jump.source), target=spell(jump.target)
            )
    for insn in displaced:
        if insn.flow in (Flow.CALL, Flow.INDIRECT_CALL) and insn.end < end and insn.falls_through:
            return Refusal.RETURN_INTO_REGION.because(source=spell(insn.address), target=spell(insn.end))
    for source in function.whole.blind_jumps:
        return Refusal.INDIRECT_JUMP.because(source=spell(source), needed=place.isa.branch_size)
    return None


def _breaks_in(place: Place, before: Insn, insn: Insn) -> bool:
    """Whether `insn` is a breakpoint that code runs into: somebody's, with unknown bytes beneath."""
    return insn.data == place.isa.breakpoint and before.flow in (Flow.NEXT, Flow.BRANCH)


_HAZARDS = {
    Hazard.TRAP: Refusal.TRAP_INSTRUCTION,
    Hazard.SYSTEM: Refusal.SYSTEM_INSTRUCTION,
    Hazard.MASKS_INTERRUPTS: Refusal.INTERRUPT_SHADOW,
    Hazard.OUT_OF_REACH: Refusal.OUT_OF_REACH,
}


def relocation(place: Place, displaced: Sequence[Insn]) -> Reason | None:
    """Try it: the relocator knows best what it cannot move."""
    try:
        place.isa.relocate(displaced, place.detours)
    except Unrelocatable as stuck:
        return because_unrelocatable(stuck, place.text)
    except OutOfReach:
        return Refusal.OUT_OF_REACH.because(insn=displaced[0].text, address=place.text.spell(displaced[0].address))
    return None


def because_unrelocatable(stuck: Unrelocatable, text: Text) -> Reason:
    return _HAZARDS.get(stuck.hazard, Refusal.NOT_RELOCATABLE).because(
        insn=stuck.insn.text, address=text.spell(stuck.insn.address), hazard=stuck.hazard.value
    )
