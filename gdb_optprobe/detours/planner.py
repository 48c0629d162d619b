"""Decide how an address will be probed: the best tier that is safe, and why not a better one.

    Site ──plan──► Plan ──layout.build──► Detour ──patch──► the guest

Every way to place a branch is one function in `WAYS`, best first; each answers with an `Attempt` or a `Reason`.

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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from gdb_optprobe.detours.refusal import Reason, Refusal, Refused
from gdb_optprobe.detours.tier import BEST_FIRST, Tier
from gdb_optprobe.guest.text import Area, Fact, FtraceSite, Function, Text
from gdb_optprobe.isa.base import Dead, Flow, Hazard, Insn, Isa, OutOfReach, Unrelocatable

NEAR_INSTRUCTIONS = 24
"""How far from a refused address a better one is looked for, in instructions each way."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another probe's bytes that are, or will be, covered by its branch."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Site:
    """An address somebody wants to probe.

    neighbours:  of other probes; those far away are ignored.
    breakpoints: of the user, which must go on to hit.
    """

    address: int
    neighbours: tuple[Neighbour, ...] = ()
    breakpoints: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Limits:
    """What is switched on, what the handlers need, and what is known of the machine.

    forced:         no tier above this one; a plan may still end below it, and says why.
    detours:        an address where detours are placed; None tries beside the site itself.
    stacks_missing: why saved PCs cannot all be enumerated, in words; empty when they can.
    """

    optimization: bool = True
    boost: bool = True
    emulation: bool = True
    forced: Tier | None = None
    post_handler: bool = False
    python_handler: bool = False
    stacks_missing: str = ""
    detours: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """How one address will be probed.

    displaced:  the instructions that run elsewhere, in order: those the branch covers, the one that is boosted.
    patch_size: bytes of text the branch overwrites; 0 unless optimized.
    dead:       what the program may overwrite freely.
    waits:      the branch covers more than one instruction: nobody may be inside when it is written.
    ftrace:     the tracer's site whose record must be switched off first; None elsewhere.
    reason:     why no better tier was possible; None for the best.
    refused:    every better tier with its reason, best first.
    near:       the nearest address that would be optimized; None where this one is, or none is near.
    """

    address: int
    tier: Tier
    displaced: tuple[Insn, ...]
    patch_size: int = 0
    dead: Dead = field(default_factory=Dead)
    waits: bool = False
    ftrace: FtraceSite | None = None
    reason: Reason | None = None
    refused: tuple[tuple[Tier, Reason], ...] = ()
    near: int | None = None

    @property
    def patch_end(self) -> int:
        return self.address + self.patch_size

    @property
    def insn(self) -> Insn:
        """The probed instruction."""
        return self.displaced[0]

    def why_not(self, tier: Tier) -> Reason | None:
        """Why `tier`, a better one, was refused."""
        return next((reason for refused, reason in self.refused if refused is tier), None)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A way to place the branch that is safe."""

    displaced: tuple[Insn, ...]
    patch_size: int
    waits: bool
    ftrace: FtraceSite | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A site with all that is known around it; what every check below is asked about."""

    site: Site
    insn: Insn
    function: Function
    isa: Isa
    text: Text
    limits: Limits

    @property
    def address(self) -> int:
        return self.site.address

    @property
    def detours(self) -> int:
        """Where a detour may stand, to try what its relocation would be."""
        if self.limits.detours is not None:
            return self.limits.detours
        return (self.address & ~0xFFFF) + (self.isa.branch_reach // 4)


def plan(site: Site, isa: Isa, text: Text, limits: Limits | None = None) -> Plan:
    """The best tier that is safe at `site`, and why not a better one. Raises Refused where none is."""
    limits = limits or Limits()
    place = _place(site, isa, text, limits)
    tried: list[tuple[Tier, Reason]] = []
    for tier in BEST_FIRST:
        found = _TIERS[tier](place)
        if isinstance(found, Plan):
            reason = tried[0][1] if tried else None
            return replace(found, reason=reason, refused=tuple(tried), near=_nearest(place) if reason else None)
        tried.append((tier, found))
    raise AssertionError("a breakpoint is possible wherever there is an instruction")


def plans(sites: Iterable[Site], isa: Isa, text: Text, limits: Limits | None = None) -> Iterator[Plan | Refused]:
    """`plan` for each of `sites`; an address that gets no tier yields its refusal in place of a plan."""
    for site in sites:
        try:
            yield plan(site, isa, text, limits)
        except Refused as refused:
            yield refused


def entry_of(function: int, isa: Isa, text: Text) -> int:
    """Where a probe on the function that starts at `function` stands: behind a landing pad (x86: endbr64).

    An indirect call must find the landing pad as it is, and the tracer's site begins behind it
    (arch/x86/kernel/kprobes/core.c, arch_adjust_kprobe_addr).
    """
    found = text.function(function)
    insn = found.own.get(function) if found is not None else None
    return insn.end if insn is not None and insn.text.split()[0] in _LANDING_PADS else function


_LANDING_PADS = ("endbr64", "endbr32", "bti")


_AREAS = {
    Area.NOT_TEXT: Refusal.NOT_TEXT,
    Area.ENTRY: Refusal.ENTRY_TEXT,
    Area.EARLY: Refusal.EARLY_TEXT,
    Area.COPIED: Refusal.COPIED_TEXT,
    Area.MODULE: Refusal.MODULE_TEXT,
    Area.INIT: Refusal.INIT_TEXT,
}


def _place(site: Site, isa: Isa, text: Text, limits: Limits) -> Place:
    """What stands at `site`. Raises Refused where no tier at all is possible."""
    address = site.address
    spelled = text.spell(address)
    area = text.area(address)
    if area is not Area.TEXT:
        raise Refused(_AREAS[area].because(address=spelled))
    function = text.function(address)
    if function is None:
        raise Refused(Refusal.UNKNOWN_FUNCTION.because(address=spelled))
    insn = function.own.get(address)
    if insn is None:
        around = next((i for i in function.hot if i.address < address < i.end), None)
        if around is not None:
            raise Refused(Refusal.NOT_INSTRUCTION_BOUNDARY.because(address=spelled, start=text.spell(around.address)))
        raise Refused(Refusal.UNDECODABLE.because(address=spelled))
    if insn.data == isa.breakpoint:
        raise Refused(Refusal.FOREIGN_BREAKPOINT.because(address=spelled))
    return Place(site, insn, function, isa, text, limits)


# --- the tiers ---------------------------------------------------------------------------------------------------


def _optimized(place: Place) -> Plan | Reason:
    if wish := _wish(place, Tier.OPTIMIZED):
        return wish
    found = _attempt(place)
    if isinstance(found, Reason):
        return found
    return Plan(
        place.address,
        Tier.OPTIMIZED,
        found.displaced,
        patch_size=found.patch_size,
        dead=_dead(place, found),
        waits=found.waits,
        ftrace=found.ftrace,
    )


def _trapped(place: Place) -> Plan | Reason:
    return _wish(place, Tier.TRAPPED) or Refusal.TRAP_TIER_MISSING.because()


def _emulated(place: Place) -> Plan | Reason:
    if wish := _wish(place, Tier.EMULATED):
        return wish
    if rewritten := _rewritten_by_guest(place, place.address, place.insn.end):
        return rewritten
    some = dict.fromkeys(place.isa.registers, 0x1000)
    if place.isa.emulate(place.insn, some, lambda _, size: bytes(size)) is None:
        return Refusal.NOT_EMULATED.because(insn=place.insn.text)
    return Plan(place.address, Tier.EMULATED, (place.insn,))


def _boosted(place: Place) -> Plan | Reason:
    if wish := _wish(place, Tier.BOOSTED):
        return wish
    displaced = (place.insn,)
    blocked = (
        _unmovable(place, displaced)
        or _exception(place, displaced)
        or _rewritten_by_guest(place, place.address, place.insn.end)
        or _relocation(place, displaced)
    )
    return blocked or Plan(place.address, Tier.BOOSTED, displaced)


def _breakpoint(place: Place) -> Plan | Reason:
    return Plan(place.address, Tier.BREAKPOINT, (place.insn,))


_TIERS: dict[Tier, Callable[[Place], Plan | Reason]] = {
    Tier.OPTIMIZED: _optimized,
    Tier.TRAPPED: _trapped,
    Tier.EMULATED: _emulated,
    Tier.BOOSTED: _boosted,
    Tier.BREAKPOINT: _breakpoint,
}


def _wish(place: Place, tier: Tier) -> Reason | None:
    """What the user or the handlers say against `tier`, whatever the address."""
    limits = place.limits
    if limits.forced is not None and tier > limits.forced:
        return Refusal.TIER_FORCED.because(tier=limits.forced.value)
    if limits.python_handler and tier.stops == 0:
        return Refusal.PYTHON_HANDLER.because()
    if limits.post_handler and tier not in (Tier.BREAKPOINT, Tier.EMULATED):
        return Refusal.POST_HANDLER.because()
    match tier:
        case Tier.OPTIMIZED if not limits.optimization:
            return Refusal.OPTIMIZATION_OFF.because()
        case Tier.BOOSTED if not limits.boost:
            return Refusal.BOOST_OFF.because()
        case Tier.EMULATED if not limits.emulation:
            return Refusal.EMULATION_OFF.because()
    return None


# --- the ways to place a branch ------------------------------------------------------------------------------------


def one_instruction(place: Place) -> Attempt | Reason:
    """The branch fits into the probed instruction (and padding nobody runs): no wait, no proof."""
    needed = place.isa.branch_size
    insn = place.insn
    room = insn.size + (0 if insn.falls_through else _padding(place, insn.end))
    if room < needed:
        return Refusal.TOO_SHORT.because(size=insn.size, needed=needed, near=place.text.spell(insn.end))
    return _checked(place, (insn,), waits=False)


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
    return _checked(place, displaced, waits=True)


# Instruction punning goes here: a third way, tried where the window is too short or a jump lands inside it.
WAYS: tuple[Callable[[Place], Attempt | Reason], ...] = (one_instruction, several_instructions)


def _attempt(place: Place) -> Attempt | Reason:
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


def _checked(place: Place, displaced: tuple[Insn, ...], waits: bool) -> Attempt | Reason:
    """All that can be wrong with a branch over `displaced`, in the order a reader wants to hear it."""
    end = place.address + place.isa.branch_size
    covered = max(end, displaced[-1].end)
    sites = place.text.ftrace_sites(place.address, covered)
    own = next((s for s in sites if s.address == place.address), None)
    reason = (
        _taken(place, covered)
        or _ftrace(place, sites)
        or _rewritten_by_guest(place, place.address, covered)
        or (_jumped_into(place, displaced, end) if len(displaced) > 1 or end > displaced[-1].end else None)
        or _unmovable(place, displaced)
        or _exception(place, displaced)
        or _relocation(place, displaced)
    )
    return reason or Attempt(displaced, place.isa.branch_size, waits and len(displaced) > 1, own)


# --- what can be wrong ---------------------------------------------------------------------------------------------


def _taken(place: Place, end: int) -> Reason | None:
    """Somebody else's breakpoint or probe on these bytes."""
    spell = place.text.spell
    for stop in sorted(place.site.breakpoints):
        if place.address <= stop < end:
            return Refusal.USER_BREAKPOINT.because(breakpoint=spell(stop))
    for other in place.site.neighbours:
        if other.start < end and place.address < other.end and other.start != place.address:
            return Refusal.OVERLAPS_PROBE.because(number=other.number, other=spell(other.start))
    return None


def _ftrace(place: Place, sites: Sequence[FtraceSite]) -> Reason | None:
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


def _rewritten_by_guest(place: Place, start: int, end: int) -> Reason | None:
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


def _unmovable(place: Place, displaced: Sequence[Insn]) -> Reason | None:
    for insn in displaced:
        facts = {"insn": insn.text, "address": place.text.spell(insn.address)}
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


def _exception(place: Place, displaced: Sequence[Insn]) -> Reason | None:
    for mark in place.text.marks(displaced[0].address, displaced[-1].end):
        if mark.fact is Fact.EXCEPTION:
            return Refusal.EXCEPTION_TABLE.because(address=place.text.spell(mark.address))
    return None


def _jumped_into(place: Place, displaced: Sequence[Insn], end: int) -> Reason | None:
    """Execution that may arrive inside the bytes the branch covers, other than from the displaced instructions."""
    function, spell = place.function, place.text.spell
    if not function.whole.complete:
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


_HAZARDS = {
    Hazard.TRAP: Refusal.TRAP_INSTRUCTION,
    Hazard.SYSTEM: Refusal.SYSTEM_INSTRUCTION,
    Hazard.MASKS_INTERRUPTS: Refusal.INTERRUPT_SHADOW,
    Hazard.OUT_OF_REACH: Refusal.OUT_OF_REACH,
}


def _relocation(place: Place, displaced: Sequence[Insn]) -> Reason | None:
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


# --- what may be overwritten, and where else ------------------------------------------------------------------------


def _dead(place: Place, found: Attempt) -> Dead:
    if found.ftrace is not None:
        return place.isa.dead_at_entry()
    return place.isa.dead_at(place.address, place.function.whole.code)


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


def _nearest(place: Place) -> int | None:
    """The instruction nearest to a refused one that would be optimized."""
    if _wish(place, Tier.OPTIMIZED) is not None:
        return None
    around = sorted(place.function.hot, key=lambda insn: abs(insn.address - place.address))
    for insn in around[1 : 2 * NEAR_INSTRUCTIONS]:
        there = replace(place, site=replace(place.site, address=insn.address), insn=insn)
        if insn.data != place.isa.breakpoint and isinstance(_attempt(there), Attempt):
            return insn.address
    return None
