"""Decide how an address will be probed: the best tier that is safe, and why not a better one.

    Site ──plan──► Plan ──layout.build──► Detour ──patch──► the guest
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from gdb_optprobe.detours import spare
from gdb_optprobe.detours.ground import Grounds
from gdb_optprobe.detours.place import Limits, Neighbour, Place, Site
from gdb_optprobe.detours.refusal import Reason, Refusal, Refused
from gdb_optprobe.detours.regions import Region, region
from gdb_optprobe.detours.tier import BEST_FIRST, Tier
from gdb_optprobe.guest.text import Area, FtraceSite
from gdb_optprobe.isa.base import Dead, Insn

__all__ = ["Limits", "Neighbour", "Plan", "Site", "joins", "plan", "plans"]

NEAR_INSTRUCTIONS = 24
"""How far from a refused address a better one is looked for, in instructions each way."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one address will be probed.

    displaced:  the instructions that run elsewhere, in order: those of the branch, the one that is boosted.
    original:   the bytes of text that the branch or the trap overwrites; none where the guest stops.
    dead:       what the program may overwrite freely.
    base:       what the register holds that counters are named by; None where that is not known.
    waits:      the branch displaces more than one instruction: nobody may be inside when it is written.
    ftrace:     the tracer's site whose record must be switched off first; None elsewhere.
    reason:     why no better tier was possible; None for the best.
    refused:    every better tier with its reason, best first.
    near:       the nearest address that would be optimized; None where this one is, or none is near.
    moved:      why the probe stands behind the address that was asked for; None where it stands there.
    """

    address: int
    tier: Tier
    displaced: tuple[Insn, ...]
    original: bytes = b""
    dead: Dead = field(default_factory=Dead)
    base: int | None = None
    waits: bool = False
    ftrace: FtraceSite | None = None
    reason: Reason | None = None
    refused: tuple[tuple[Tier, Reason], ...] = ()
    near: int | None = None
    moved: Reason | None = None

    @property
    def head(self) -> int:
        """Where the branch stands: at the probed instruction or before it."""
        return self.displaced[0].address

    @property
    def end(self) -> int:
        """Behind the last displaced instruction."""
        return self.displaced[-1].end

    @property
    def patch_size(self) -> int:
        return len(self.original)

    @property
    def patch_end(self) -> int:
        return self.head + self.patch_size

    @property
    def insn(self) -> Insn:
        """The probed instruction."""
        return next(insn for insn in self.displaced if insn.address == self.address)

    def why_not(self, tier: Tier) -> Reason | None:
        """Why `tier`, a better one, was refused."""
        return next((reason for refused, reason in self.refused if refused is tier), None)


def plan(site: Site, grounds: Grounds, limits: Limits | None = None) -> Plan:
    """The best tier that is safe at `site`, and why not a better one. Raises Refused where none is."""
    limits = limits or Limits()
    place = _place(site, grounds, limits)
    tried: list[tuple[Tier, Reason]] = []
    for tier in BEST_FIRST:
        found = _TIERS[tier](place)
        if isinstance(found, Plan):
            reason = tried[0][1] if tried else None
            return replace(found, reason=reason, refused=tuple(tried), near=_nearest(place) if reason else None)
        tried.append((tier, found))
    raise AssertionError("a breakpoint is possible wherever there is an instruction")


def joins(limits: Limits) -> bool:
    """Whether probes with these limits may be compiled into the detour of a branch elsewhere."""
    return _wish(limits, Tier.OPTIMIZED) is None


def plans(sites: Iterable[Site], grounds: Grounds, limits: Limits | None = None) -> Iterator[Plan | Refused]:
    """`plan` for each of `sites`; an address that gets no tier yields its refusal in place of a plan."""
    for site in sites:
        try:
            yield plan(site, grounds, limits)
        except Refused as refused:
            yield refused


_AREAS = {
    Area.NOT_TEXT: Refusal.NOT_TEXT,
    Area.ENTRY: Refusal.ENTRY_TEXT,
    Area.EARLY: Refusal.EARLY_TEXT,
    Area.COPIED: Refusal.COPIED_TEXT,
    Area.RESERVATION: Refusal.RESERVATION,
    Area.TRAP: Refusal.KERNEL_TRAP,
    Area.SYSTEM: Refusal.MACHINE_STATE,
    Area.MODULE: Refusal.MODULE_TEXT,
    Area.INIT: Refusal.INIT_TEXT,
}


def _place(site: Site, grounds: Grounds, limits: Limits) -> Place:
    """What stands at `site`. Raises Refused where no tier at all is possible."""
    address, text = site.address, grounds.text
    area = text.area(address)
    if area not in (Area.TEXT, Area.LOADED):
        raise Refused(_AREAS[area].because(address=text.spell(address)))
    ground = grounds.at(address)
    if ground is None:
        raise Refused(Refusal.UNKNOWN_FUNCTION.because(address=text.spell(address)))
    insn = ground.function.own.get(address)
    if insn is None:
        foreign = ground.function.foreign
        if foreign is not None and foreign.address < address:
            why = f": {foreign.why}" if foreign.why else ""
            raise Refused(Refusal.FOREIGN_PATCH.because(address=text.spell(foreign.address), why=why))
        around = next((i for i in ground.function.hot if i.address < address < i.end), None)
        if around is None:
            raise Refused(Refusal.UNDECODABLE.because(address=text.spell(address)))
        start = text.spell(around.address)
        raise Refused(Refusal.NOT_INSTRUCTION_BOUNDARY.because(address=text.spell(address), start=start))
    is_padding = ground.site(insn) is None and ground.is_padding(insn)
    # Compilers put breakpoint instructions behind returns, where nothing leads: they are padding, and no probe's.
    if insn.data == grounds.isa.breakpoint and not is_padding:
        raise Refused(Refusal.FOREIGN_BREAKPOINT.because(address=text.spell(address)))
    if unreached := ground.unreached(insn):
        raise Refused(unreached)
    if is_padding:
        raise Refused(Refusal.PADDING.because(address=text.spell(address)))
    return Place(site, insn, ground, limits)


# --- the tiers ---------------------------------------------------------------------------------------------------


def _optimized(place: Place) -> Plan | Reason:
    if wish := _wish(place.limits, Tier.OPTIMIZED):
        return wish
    found = region(place)
    if isinstance(found, Reason):
        return found
    return Plan(
        place.address,
        Tier.OPTIMIZED,
        found.displaced,
        original=found.original,
        dead=spare.at(place.ground, place.insn),
        base=place.ground.bases.get(place.address),
        waits=found.waits,
        ftrace=found.ftrace,
    )


def _trapped(place: Place) -> Plan | Reason:
    if wish := _wish(place.limits, Tier.TRAPPED):
        return wish
    if place.limits.trap_missing:
        return Refusal.TRAP_TIER_MISSING.because(missing=place.limits.trap_missing)
    ground, insn = place.ground, place.insn
    if ground.text.area(place.address) is Area.LOADED:
        return Refusal.MODULE_TRAP.because(address=ground.text.spell(place.address))
    if any(start <= place.address < end for start, end in place.limits.ways_to_trap):
        return Refusal.TRAP_PATH.because(address=ground.text.spell(place.address))
    if stop := next((at for at in range(insn.address, insn.end) if at in place.site.breakpoints), None):
        return Refusal.USER_BREAKPOINT.because(breakpoint=ground.text.spell(stop))
    if shadowed := _shadowed(place):
        return shadowed
    if obstacle := ground.obstacle(insn):
        return obstacle
    return Plan(
        place.address,
        Tier.TRAPPED,
        (insn,),
        original=insn.data[: len(ground.isa.trap)],
        dead=spare.at(ground, insn),
        base=ground.bases.get(place.address),
        ftrace=ground.site(insn),
    )


def _emulated(place: Place) -> Plan | Reason:
    if wish := _wish(place.limits, Tier.EMULATED):
        return wish
    isa, insn = place.ground.isa, place.insn
    if rewritten := place.ground.rewritten_by_guest(insn):
        return rewritten
    some = dict.fromkeys(isa.registers, 0x1000)
    if isa.emulate(insn, some, lambda _, size: bytes(size)) is None:
        return Refusal.NOT_EMULATED.because(insn=insn.text)
    return Plan(place.address, Tier.EMULATED, (insn,))


def _boosted(place: Place) -> Plan | Reason:
    if wish := _wish(place.limits, Tier.BOOSTED):
        return wish
    why = _shadowed(place) or place.ground.why_not_alone(place.insn)
    return why or Plan(place.address, Tier.BOOSTED, (place.insn,))


def _breakpoint(place: Place) -> Plan | Reason:
    return Plan(place.address, Tier.BREAKPOINT, (place.insn,))


def _shadowed(place: Place) -> Reason | None:
    """Whether interrupts are held off before the instruction, or by it, which a way elsewhere would end."""
    ground, insn = place.ground, place.insn
    shadows = ground.isa.shadows(insn)
    if not shadows and not ground.is_shadowed(insn):
        return None
    before = insn if shadows else ground.before(insn)
    assert before is not None
    return Refusal.INTERRUPT_SHADOW.because(insn=before.text, address=ground.text.spell(before.address))


_TIERS: dict[Tier, Callable[[Place], Plan | Reason]] = {
    Tier.OPTIMIZED: _optimized,
    Tier.TRAPPED: _trapped,
    Tier.EMULATED: _emulated,
    Tier.BOOSTED: _boosted,
    Tier.BREAKPOINT: _breakpoint,
}


def _wish(limits: Limits, tier: Tier) -> Reason | None:
    """What the user or the handlers say against `tier`, whatever the address."""
    if limits.forced is not None and tier > limits.forced:
        return Refusal.TIER_FORCED.because(tier=limits.forced.value)
    if limits.python_handler and tier.stops == 0:
        return Refusal.PYTHON_HANDLER.because()
    if limits.post_handler and tier not in (Tier.BREAKPOINT, Tier.EMULATED):
        return Refusal.POST_HANDLER.because()
    match tier:
        case Tier.OPTIMIZED if not limits.optimization:
            return Refusal.OPTIMIZATION_OFF.because()
        case Tier.TRAPPED if not limits.trap:
            return Refusal.TRAP_OFF.because()
        case Tier.BOOSTED if not limits.boost:
            return Refusal.BOOST_OFF.because()
        case Tier.EMULATED if not limits.emulation:
            return Refusal.EMULATION_OFF.because()
    return None


# --- where else ---------------------------------------------------------------------------------------------------


def _nearest(place: Place) -> int | None:
    """The instruction nearest to a refused one that would be optimized."""
    if _wish(place.limits, Tier.OPTIMIZED) is not None:
        return None
    around = sorted(place.ground.function.hot, key=lambda insn: abs(insn.address - place.address))
    for insn in around[1 : 2 * NEAR_INSTRUCTIONS]:
        there = replace(place, site=replace(place.site, address=insn.address), insn=insn)
        if insn.data == place.ground.isa.breakpoint or place.ground.unreached(insn) is not None:
            continue
        if isinstance(region(there), Region):
            return insn.address
    return None
