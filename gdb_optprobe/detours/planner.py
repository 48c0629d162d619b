"""Decide how an address will be probed: the best tier that is safe, and why not a better one.

    PlanRequest ──plan──► Plan ──build_detour──► Detour ──patch──► the guest
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gdb_optprobe.detours.cfg import Cfg, CfgCache
from gdb_optprobe.detours.plan_request import Neighbour, PlanContext, PlanRequest, TierLimits
from gdb_optprobe.detours.refusal import Reason, Refusal, Refused
from gdb_optprobe.detours.regions import Region, region
from gdb_optprobe.detours.tier import BEST_FIRST, Tier
from gdb_optprobe.guest.text import JUMP_LABEL, PROBED, Area, Fact, FtraceSite
from gdb_optprobe.isa.base import Dead, Flow, Insn

__all__ = ["Neighbour", "Plan", "PlanRequest", "TierLimits", "may_share_detour", "plan", "plans"]

NEAR_INSTRUCTIONS = 24
"""How far from a refused address a better one is looked for, in instructions each way."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one address will be probed.

    displaced: the instructions that run elsewhere, in order: those of the branch, or the boosted one.
    stays:     the probed instruction, if it must stay where one of those leads to, and why; None if it is one of them.
    original:  the bytes of text that the branch or the trap overwrites; none where the guest stops.
    dead:      the registers and flags that the program may overwrite freely.
    base:      the value of the register that counters are addressed by; None if unknown.
    needs_quiescence: the branch displaces more than one instruction: no saved PC may be inside when it is written.
    ftrace:    the ftrace site, if its record must be switched off first.
    reason:    why no better tier was possible; None for the best.
    refused:   every better tier with its reason, best first.
    near:      the nearest address that would be optimized; None if this one is, or none is near.
    moved:     why the probe is not at the requested address, but at one that runs exactly as often; None if it is.
    """

    address: int
    tier: Tier
    displaced: tuple[Insn, ...]
    original: bytes = b""
    dead: Dead = field(default_factory=Dead)
    base: int | None = None
    needs_quiescence: bool = False
    ftrace: FtraceSite | None = None
    reason: Reason | None = None
    refused: tuple[tuple[Tier, Reason], ...] = ()
    near: int | None = None
    moved: Reason | None = None
    stays: tuple[Insn, Reason] | None = None

    @property
    def head(self) -> int:
        """Return the address of the branch: at the probed instruction or before it."""
        return self.displaced[0].address

    @property
    def end(self) -> int:
        """Return the address behind the last displaced instruction."""
        return self.displaced[-1].end

    @property
    def patch_size(self) -> int:
        return len(self.original)

    @property
    def patch_end(self) -> int:
        return self.head + self.patch_size

    @property
    def insn(self) -> Insn:
        """Return the probed instruction."""
        if self.stays is not None:
            return self.stays[0]
        return next(insn for insn in self.displaced if insn.address == self.address)

    def why_not(self, tier: Tier) -> Reason | None:
        """Return why `tier`, a better one, was refused; None if it was not."""
        return next((reason for refused, reason in self.refused if refused is tier), None)


def plan(request: PlanRequest, cfgs: CfgCache, limits: TierLimits | None = None) -> Plan:
    """Plan the best tier that is safe for `request`, and why not a better one. Raises Refused if none is."""
    limits = limits or TierLimits()
    context = _context(request, cfgs, limits)
    tried: list[tuple[Tier, Reason]] = []
    for tier in BEST_FIRST:
        found = _TIERS[tier](context)
        if isinstance(found, Plan):
            reason = tried[0][1] if tried else None
            return replace(found, reason=reason, refused=tuple(tried), near=_nearest(context) if reason else None)
        tried.append((tier, found))
    raise Refused(tried[-1][1].behind(tried[0][1]))


def load_before(address: int, cfgs: CfgCache) -> int | None:
    """Return the load that the instruction at `address` is behind, before its store, if it runs exactly as often.

    None if there is none, or that is not known. A probe of the one counts for the other, where nothing may run.
    """
    if cfgs.text.area(address) is not Area.RESERVATION or (cfg := cfgs.at(address)) is None:
        return None
    insn = cfg.function.own.get(address)
    load = cfg.load_before(insn) if insn is not None else None
    return load.address if load is not None else None


def misses_hits(address: int, cfgs: CfgCache) -> Reason | None:
    """Return why a breakpoint at `address`, which GDB steps over, may miss hits.

    None if it counts all, or no instruction is known there.
    """
    cfg = cfgs.at(address)
    insn = cfg.function.own.get(address) if cfg is not None else None
    return _misses_hits(cfg, insn) if cfg is not None and insn is not None else None


def may_share_detour(limits: TierLimits) -> bool:
    """Return whether probes with these limits may be compiled into the detour of a branch elsewhere."""
    return _forbidden(limits, Tier.OPTIMIZED) is None


def plans(
    requests: Iterable[PlanRequest], cfgs: CfgCache, limits: TierLimits | None = None
) -> Iterator[Plan | Refused]:
    """Plan each of `requests`; an address that gets no tier yields its refusal in place of a plan."""
    for request in requests:
        try:
            yield plan(request, cfgs, limits)
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


def _context(request: PlanRequest, cfgs: CfgCache, limits: TierLimits) -> PlanContext:
    """Look up all that is known of the address. Raises Refused if no tier at all is possible."""
    address, text = request.address, cfgs.text
    area = text.area(address)
    if area not in PROBED:
        raise Refused(_AREAS[area].because(address=text.spell(address)))
    cfg = cfgs.at(address)
    if cfg is None:
        raise Refused(Refusal.UNKNOWN_FUNCTION.because(address=text.spell(address)))
    insn = cfg.function.own.get(address)
    if insn is None:
        foreign = cfg.function.foreign
        if foreign is not None and foreign.address < address:
            why = f": {foreign.why}" if foreign.why else ""
            raise Refused(Refusal.FOREIGN_PATCH.because(address=text.spell(foreign.address), why=why))
        around = next((i for i in cfg.function.hot if i.address < address < i.end), None)
        if around is None:
            raise Refused(Refusal.UNDECODABLE.because(address=text.spell(address)))
        start = text.spell(around.address)
        raise Refused(Refusal.NOT_INSTRUCTION_BOUNDARY.because(address=text.spell(address), start=start))
    is_padding = insn.address not in cfg.ftrace_sites and cfg.is_padding(insn.address)
    # Compilers put breakpoint instructions behind returns, where nothing leads: they are padding, not a breakpoint.
    if insn.data == cfgs.isa.breakpoint and not is_padding:
        raise Refused(Refusal.FOREIGN_BREAKPOINT.because(address=text.spell(address)))
    if unreached := cfg.unreached(insn):
        raise Refused(unreached)
    if is_padding:
        raise Refused(Refusal.PADDING.because(address=text.spell(address)))
    return PlanContext(request, insn, cfg, limits)


# --- the tiers ---------------------------------------------------------------------------------------------------


def _optimized(context: PlanContext) -> Plan | Reason:
    if why := _forbidden(context.limits, Tier.OPTIMIZED):
        return why
    found = region(context)
    if isinstance(found, Reason):
        return found
    return Plan(
        context.insn.address,
        Tier.OPTIMIZED,
        found.displaced,
        original=found.original,
        dead=_dead_before(context.cfg, context.insn),
        base=context.cfg.base_values.get(context.insn.address),
        needs_quiescence=len(found.displaced) > 1,
        ftrace=found.ftrace,
        stays=(context.insn, found.stays) if found.stays is not None else None,
    )


def _trapped(context: PlanContext) -> Plan | Reason:
    if why := _forbidden(context.limits, Tier.TRAPPED):
        return why
    if context.limits.trap_missing:
        return Refusal.TRAP_TIER_MISSING.because(missing=context.limits.trap_missing)
    cfg, insn = context.cfg, context.insn
    if cfg.text.area(context.insn.address) is Area.LOADED:
        return Refusal.MODULE_TRAP.because(address=cfg.text.spell(context.insn.address))
    if any(start <= context.insn.address < end for start, end in context.limits.trap_paths):
        return Refusal.TRAP_PATH.because(address=cfg.text.spell(context.insn.address))
    if stop := next((at for at in range(insn.address, insn.end) if at in context.request.breakpoints), None):
        return Refusal.USER_BREAKPOINT.because(breakpoint=cfg.text.spell(stop))
    if shadowed := _shadowed(context):
        return shadowed
    if obstacle := cfg.obstacle(insn):
        return obstacle
    return Plan(
        context.insn.address,
        Tier.TRAPPED,
        (insn,),
        original=insn.data[: len(cfg.isa.trap)],
        dead=_dead_before(cfg, insn),
        base=cfg.base_values.get(context.insn.address),
        ftrace=cfg.ftrace_sites.get(insn.address),
    )


def _emulated(context: PlanContext) -> Plan | Reason:
    if why := _forbidden(context.limits, Tier.EMULATED):
        return why
    isa, insn = context.cfg.isa, context.insn
    if rewritten := context.cfg.why_not_emulated(insn):
        return rewritten
    some = dict.fromkeys(isa.registers, 0x1000)
    if isa.emulate(insn, some, lambda _, size: bytes(size)) is None:
        return Refusal.NOT_EMULATED.because(insn=insn.text)
    return Plan(context.insn.address, Tier.EMULATED, (insn,))


def _boosted(context: PlanContext) -> Plan | Reason:
    if why := _forbidden(context.limits, Tier.BOOSTED):
        return why
    # GDB may have to step at a hit of this tier, too: debugger/stops.py.
    missing = _misses_hits(context.cfg, context.insn)
    refused = missing or _shadowed(context) or context.cfg.why_not_copied(context.insn)
    return refused or Plan(context.insn.address, Tier.BOOSTED, (context.insn,))


def _breakpoint(context: PlanContext) -> Plan | Reason:
    missing = _misses_hits(context.cfg, context.insn)
    return missing or Plan(context.insn.address, Tier.BREAKPOINT, (context.insn,))


def _misses_hits(cfg: Cfg, insn: Insn) -> Reason | None:
    if not cfg.isa.step_runs_on(insn, cfg.following(insn)):
        return None
    return Refusal.STEP_RUNS_ON.because(insn=insn.text, address=cfg.text.spell(insn.address))


def _shadowed(context: PlanContext) -> Reason | None:
    """Return a refusal if interrupts are held off before or by the instruction: a branch would end that."""
    cfg, insn = context.cfg, context.insn
    shadows = cfg.isa.shadows(insn)
    if not shadows and not cfg.is_shadowed(insn):
        return None
    before = insn if shadows else cfg.before(insn)
    assert before is not None
    return Refusal.INTERRUPT_SHADOW.because(insn=before.text, address=cfg.text.spell(before.address))


_TIERS: dict[Tier, Callable[[PlanContext], Plan | Reason]] = {
    Tier.OPTIMIZED: _optimized,
    Tier.TRAPPED: _trapped,
    Tier.EMULATED: _emulated,
    Tier.BOOSTED: _boosted,
    Tier.BREAKPOINT: _breakpoint,
}


def _forbidden(limits: TierLimits, tier: Tier) -> Reason | None:
    """Return why the user or the handlers rule out `tier` at any address; None if they do not."""
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


# --- what a program may overwrite ----------------------------------------------------------------------------------


def _dead_before(cfg: Cfg, insn: Insn) -> Dead:
    """Return the registers and flags that are dead before `insn`."""
    if insn.address in cfg.ftrace_sites:
        return cfg.isa.dead_at_entry()
    code = cfg.function.whole.code
    found = cfg.isa.dead_at(insn.address, code, _other_successors(cfg), partial(_dead_at_exit, cfg))
    after = cfg.function.own.get(insn.end)
    if after is None or after.address not in cfg.ftrace_sites:
        return found
    # There may be an instruction before the site: what a tracer may clobber is dead before that too, if it is not read.
    way_out = {insn.address: insn, after.address: after._replace(flow=Flow.RETURN)}
    clobbered = cfg.isa.dead_at(insn.address, way_out, None, lambda _: cfg.isa.dead_at_entry())
    return Dead(found.flags or clobbered.flags, found.registers | clobbered.registers)


def _dead_at_exit(cfg: Cfg, insn: Insn) -> Dead:
    """Return what is dead where `insn` leaves the function."""
    if insn.flow is Flow.RETURN:
        return cfg.isa.dead_at_return() if cfg.is_traced(cfg.function.start) else Dead()
    if insn.target is None or insn.target in cfg.function.whole.code:
        return Dead()
    return cfg.isa.dead_at_entry() if cfg.is_traced(insn.target) else Dead()


def _other_successors(cfg: Cfg) -> Mapping[int, Sequence[int]]:
    """Return where else execution may continue, now or once the guest has rewritten an instruction.

    Each counts as another path. A jump label is a nop or a jump, whichever it is now; a fault goes to its fixup; a
    static call that is a nop now may call anything (an address outside of the function makes everything live).
    """
    whole = cfg.function.whole
    also: dict[int, list[int]] = {}
    for jump in whole.jumps:
        insn = whole.code.get(jump.source)
        if insn is not None and (jump.target != insn.target or jump.kind == JUMP_LABEL):
            also.setdefault(jump.source, []).extend([jump.target, insn.end])
    for mark in cfg.marks.values():
        if mark.fact is Fact.STATIC_CALL:
            also.setdefault(mark.address, []).append(0)
    return also


# --- where else ---------------------------------------------------------------------------------------------------


def _nearest(context: PlanContext) -> int | None:
    """Return the address of the nearest instruction that would be optimized; None if none is near."""
    if _forbidden(context.limits, Tier.OPTIMIZED) is not None:
        return None
    around = sorted(context.cfg.function.hot, key=lambda insn: abs(insn.address - context.insn.address))
    for insn in around[1 : 2 * NEAR_INSTRUCTIONS]:
        there = replace(context, request=replace(context.request, address=insn.address), insn=insn)
        if insn.data == context.cfg.isa.breakpoint or context.cfg.unreached(insn) is not None:
            continue
        if isinstance(region(there), Region):
            return insn.address
    return None
