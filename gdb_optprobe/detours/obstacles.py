"""What keeps an instruction where it is: one question each, answered with a Reason or None."""

from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.detours.refusal import Reason, Refusal, Spelled
from gdb_optprobe.guest.text import Area, Fact, FtraceSite, Mark, Text
from gdb_optprobe.isa.base import Flow, Hazard, Insn, OutOfReach, Unrelocatable
from gdb_optprobe.isa.record import Isa

# The guest's own code jumps to none of these, and into a module only from a module: any other jump is a patch.
_NEVER_CODE = (Area.NOT_TEXT, Area.MODULE)


def unmovable(insn: Insn, isa: Isa, text: Text) -> Reason | None:
    """Return why the instruction, by itself, may not run elsewhere; None if it may."""
    address = Spelled(text.spell, insn.address)
    if isa.is_landing_pad(insn):
        return Refusal.LANDING_PAD.because(address=address, next=Spelled(text.spell, insn.end))
    if insn.data == isa.breakpoint:
        return Refusal.FOREIGN_BREAKPOINT.because(address=address)
    if insn.flow is Flow.TRAP:
        return Refusal.TRAP_INSTRUCTION.because(insn=insn.text, address=address)
    if insn.flow is Flow.SYSTEM:
        return Refusal.SYSTEM_INSTRUCTION.because(insn=insn.text, address=address)
    if is_patch(insn, text):
        return Refusal.FOREIGN_JUMP.because(address=address)
    return None


def is_patch(insn: Insn, text: Text) -> bool:
    """Return whether `insn` is a jump written over other code, by a kprobe of the guest, say."""
    if insn.flow is not Flow.JUMP or insn.target is None:
        return False
    found = text.area(insn.target)
    return found in _NEVER_CODE or (found is Area.LOADED and text.area(insn.address) is not Area.LOADED)


def marked(mark: Mark, insn: Insn, text: Text) -> Reason:
    """Return why the guest needs these bytes as they are: it rewrites them, or knows a fault there by its address.

    Before it rewrites them it compares them, and must find its own bytes. It does not recognise the fault of a copy.
    Its kprobes write without comparing.
    """
    fact = mark.fact
    if fact is Fact.KPROBE_BREAKPOINT and insn.address != mark.address:
        fact = Fact.KPROBE
    codes = {
        Fact.EXCEPTION: Refusal.EXCEPTION_TABLE,
        Fact.JUMP_LABEL: Refusal.JUMP_LABEL,
        Fact.STATIC_CALL: Refusal.STATIC_CALL,
        Fact.LOCK_PREFIX: Refusal.LOCK_PREFIX,
        Fact.BARRIER: Refusal.BARRIER,
        Fact.RESTART: Refusal.RESTARTED,
        Fact.BUG: Refusal.BUG_TABLE,
        Fact.UNKNOWN: Refusal.MODULE_TABLES,
        Fact.KPROBE: Refusal.FOREIGN_KPROBE,
        Fact.KPROBE_BREAKPOINT: Refusal.FOREIGN_BREAKPOINT,
        Fact.KPROBE_JUMP: Refusal.FOREIGN_JUMP,
    }
    return codes[fact].because(address=Spelled(text.spell, mark.address))


def traced(insn: Insn, sites: Sequence[FtraceSite], text: Text) -> Reason | None:
    """Return why an ftrace site may not be covered: the guest checks its bytes. Whole, alone and idle it may."""
    for site in sites:
        if site.address != insn.address:
            return Refusal.FTRACE_SITE.because(site=Spelled(text.spell, site.address))
        if site.in_use:
            return Refusal.FTRACE_IN_USE.because(site=Spelled(text.spell, site.address))
        if insn.data != site.idle:
            return Refusal.FTRACE_CHANGED.because(site=Spelled(text.spell, site.address))
    return None


_HAZARDS = {
    Hazard.TRAP: Refusal.TRAP_INSTRUCTION,
    Hazard.SYSTEM: Refusal.SYSTEM_INSTRUCTION,
    Hazard.MASKS_INTERRUPTS: Refusal.INTERRUPT_SHADOW,
    Hazard.OUT_OF_REACH: Refusal.OUT_OF_REACH,
}


def stuck(insns: Sequence[Insn], isa: Isa, text: Text) -> tuple[Insn, Reason] | None:
    """Return the instruction that cannot be moved together with the others, and why; None if all can."""
    try:
        isa.relocate(insns, somewhere(insns[0].address, isa))
    except Unrelocatable as found:
        reason = _HAZARDS.get(found.hazard, Refusal.NOT_RELOCATABLE).because(
            insn=found.insn.text, address=Spelled(text.spell, found.insn.address), hazard=found.hazard.value
        )
        return found.insn, reason
    except OutOfReach:
        address = Spelled(text.spell, insns[0].address)
        return insns[0], Refusal.OUT_OF_REACH.because(insn=insns[0].text, address=address)
    return None


def is_free(insn: Insn, isa: Isa) -> bool:
    """Return whether `insn` can be moved anywhere near, with any others: it refers to no memory by its own address."""
    return isa.moves_as_it_is(insn) or (insn.target is not None and isa.hazard(insn) is None)


def somewhere(address: int, isa: Isa) -> int:
    """Return where a detour of a branch at `address` could be. The size of a copy depends little on where exactly."""
    return (address & ~0xFFFF) + (isa.branch_reach // 4 & ~0xFF)
