"""Where a branch can stand: every way to place one is a function in `WAYS`, best first.

    one_instruction                      several_instructions
    ┌─────────────────────┐              ┌────────┬────────┬───────┐
    │ insn, 5 bytes or more│              │ insn   │ insn   │ insn  │
    └─────────────────────┘              └────────┴────────┴───────┘
     jmp ─────────────┘                   jmp ──────────────┘
     nobody can be parked inside:         somebody can: the patch waits until nobody is,
     needs no wait and no proof           and no jump may land inside

A last instruction that never falls through may be followed by padding, which counts as free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gdb_optprobe.detours import obstacles
from gdb_optprobe.detours.place import Place
from gdb_optprobe.detours.refusal import Reason, Refusal
from gdb_optprobe.guest.text import FtraceSite
from gdb_optprobe.isa.base import Insn


@dataclass(frozen=True, slots=True)
class Attempt:
    """A way to place the branch that is safe."""

    displaced: tuple[Insn, ...]
    patch_size: int
    waits: bool
    ftrace: FtraceSite | None = None


def one_instruction(place: Place) -> Attempt | Reason:
    """The branch fits into the probed instruction (and padding nobody runs): no wait, no proof."""
    needed = place.isa.branch_size
    insn = place.insn
    room = insn.size + (0 if insn.falls_through else _padding(place, insn.end))
    if room < needed:
        return Refusal.TOO_SHORT.because(size=insn.size, needed=needed, near=place.text.spell(insn.end))
    return checked(place, (insn,), waits=False)


def several_instructions(place: Place) -> Attempt | Reason:
    """The branch covers the probed instruction and those behind it."""
    needed = place.isa.branch_size
    displaced = place.function.run(place.address, needed)
    if not displaced:
        return Refusal.UNDECODABLE.because(address=place.text.spell(place.address))
    room = displaced[-1].end - place.address
    if room < needed:
        room += 0 if displaced[-1].falls_through else _padding(place, displaced[-1].end)
    if room < needed:
        return Refusal.FUNCTION_END.because(function=place.function.name)
    for index, insn in enumerate(displaced):
        if not insn.falls_through and _is_padding(place, insn.end, place.address + needed):
            displaced = displaced[: index + 1]
            break
    if place.limits.stacks_missing:
        return Refusal.STACKS_UNKNOWN.because(missing=place.limits.stacks_missing, needed=needed)
    return checked(place, displaced, waits=True)


# Instruction punning goes here: a third way, tried where the window is too short or a jump lands inside it.
WAYS: tuple[Callable[[Place], Attempt | Reason], ...] = (one_instruction, several_instructions)


def attempt(place: Place) -> Attempt | Reason:
    """The first way that works; else the reason of the last, which covers most, unless an earlier one says more."""
    reason: Reason | None = None
    for way in WAYS:
        found = way(place)
        if isinstance(found, Attempt):
            return found
        if reason is None or reason.code == Refusal.TOO_SHORT.code:
            reason = found
    assert reason is not None
    return reason


def checked(place: Place, displaced: tuple[Insn, ...], waits: bool) -> Attempt | Reason:
    """All that can be wrong with a branch over `displaced`, in the order a reader wants to hear it."""
    end = place.address + place.isa.branch_size
    covered = max(end, displaced[-1].end)
    sites = place.text.ftrace_sites(place.address, covered)
    own = next((s for s in sites if s.address == place.address), None)
    reason = (
        obstacles.taken(place, covered)
        or obstacles.ftrace(place, sites)
        or obstacles.rewritten_by_guest(place, place.address, covered)
        or (obstacles.jumped_into(place, displaced, end) if len(displaced) > 1 or end > displaced[-1].end else None)
        or obstacles.shadowed(place)
        or obstacles.unmovable(place, displaced)
        or obstacles.exception(place, displaced)
        or obstacles.relocation(place, displaced)
    )
    return reason or Attempt(displaced, place.isa.branch_size, waits and len(displaced) > 1, own)


def _padding(place: Place, start: int) -> int:
    """Bytes of padding from `start` to the next code that anybody can reach, as far as a branch needs them."""
    end = start
    while end < place.function.end and _is_padding(place, start, end + 1):
        end += 1
    return end - start


def _is_padding(place: Place, start: int, end: int) -> bool:
    """Whether [start, end) is filler behind the last instruction of a path: traps that no table knows, never run."""
    if end <= start or end > place.function.end:
        return False
    code = place.function.own
    at = start
    while at < end:
        insn = code.get(at)
        if insn is None or insn.data != place.isa.breakpoint or not place.function.compiled:
            return False
        at = insn.end
    if any(start <= jump.target < end for jump in place.function.whole.jumps):
        return False
    return not place.text.marks(start, end)
