"""From probes and guest memory to what the commands print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gdb_optprobe.detours import layout
from gdb_optprobe.detours.layout import Detour
from gdb_optprobe.detours.obstacles import somewhere
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.refusal import Reason, Refusal
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.isa.base import Insn
from gdb_optprobe.objects.counter import SIZE, Counter
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.views import (
    CodeLine,
    DetourView,
    ExplainView,
    ProbeView,
    ReasonView,
    RefusedView,
    ShowView,
)

# Counters nearer to each other than this are read in one piece: a packet costs as much as some hundred bytes.
GAP = 256
# Where a counter may be, to tell what a count would cost: anywhere near.
COUNTER_AWAY = 0x10000


def counters(probes: Sequence[Probe], target: Target) -> dict[int, int]:
    """Hits by probe number: those seen by us and those counted in the guest, read in few packets."""
    slots = sorted(probe.counter for probe in probes if probe.counter is not None)
    memory: dict[int, int] = {}
    for start, end in _runs(slots):
        data = target.machine.read(start, end - start)
        memory.update({start + SIZE * place: count for place, count in enumerate(Counter.decode_all(data))})
    return {
        probe.number: probe.seen + (memory[probe.counter.address] if probe.counter is not None else 0)
        for probe in probes
    }


def clear(probes: Iterable[Probe], target: Target) -> None:
    """Zero these probes' counts."""
    for probe in probes:
        probe.seen = 0
        if probe.counter is not None:
            target.machine.write(probe.counter.address, bytes(SIZE))


def _runs(slots: Sequence[Slot]) -> list[tuple[int, int]]:
    """Ranges that hold all of `slots`, which are ascending."""
    runs: list[tuple[int, int]] = []
    for slot in slots:
        if runs and slot.address - runs[-1][1] < GAP:
            runs[-1] = (runs[-1][0], slot.address + SIZE)
        else:
            runs.append((slot.address, slot.address + SIZE))
    return runs


def probe(probe: Probe, site: Site, hits: int, target: Target) -> ProbeView:
    """One row of the listing."""
    tier = site.tier if probe.enabled and site.tier is not None else site.plan.tier
    state = _state(probe, site)
    change = site.patch
    return ProbeView(
        number=probe.number,
        name=probe.spec.name,
        kind=probe.spec.kind.value,
        location=probe.spec.location,
        address=probe.address,
        symbol=target.symbol(probe.address),
        tier=tier.value,
        state=state,
        tags=_tags(site, tier, state),
        enabled=probe.enabled,
        needs_gdb=state != "disabled" and tier.stops > 0 and not site.gone,
        reason=_why(site, state),
        patch_size=len(change.new) if change is not None else 0,
        original_bytes=change.old if change is not None else site.plan.insn.data,
        patched_bytes=change.new if change is not None else b"",
        detour=_detour(site, target),
        condition=probe.spec.condition,
        actions=probe.spec.actions,
        hits=hits,
        missed=0,
        active=0,
        dropped=0,
        faults=0,
        stops=site.stops,
    )


def _state(probe: Probe, site: Site) -> str:
    if site.gone:
        return "gone"
    if not probe.enabled:
        return "disabled"
    return "optimizing" if site.waits else "armed"


def _tags(site: Site, tier: Tier, state: str) -> tuple[str, ...]:
    """The kernel's own, as in debugfs kprobes/list."""
    tags = {"gone": ("GONE",), "disabled": ("DISABLED",), "optimizing": ("OPTIMIZING",)}.get(state, ())
    if state == "armed" and tier is Tier.OPTIMIZED:
        tags = ("OPTIMIZED",)
    return (*tags, "FTRACE") if site.plan.ftrace is not None else tags


def _why(site: Site, state: str) -> ReasonView | None:
    if state == "optimizing":
        return ReasonView("NOT_QUIESCENT", site.waits, Refusal.NOT_QUIESCENT.value[1])
    return reason(site.plan.reason)


def reason(why: Reason | None) -> ReasonView | None:
    return ReasonView(why.code, why.text, why.hint) if why is not None else None


def _detour(site: Site, target: Target) -> DetourView | None:
    detour = site.detour
    if detour is None:
        return None
    count = len(target.isa.decode(detour.data, detour.address))
    return DetourView(detour.address, detour.size, count, added(site.placed or site.plan, detour, target), detour.head)


def added(plan: Plan, detour: Detour, target: Target) -> int:
    """Instructions that a hit of an optimized probe adds: the branch, its program, the way back."""
    others = 0
    for start, end, original in detour.programs:
        if original != plan.address:
            program = detour.data[start - detour.address : end - detour.address]
            others += len(target.isa.decode(program, start))
    return 1 + len(target.isa.decode(detour.data, detour.address)) - others - len(plan.displaced)


# show ----------------------------------------------------------------------------------------------------------------


def show(view: ProbeView, site: Site, target: Target) -> ShowView:
    """The probed place as it was, as it is in the guest now, and the detour it leads to."""
    plan = site.placed or site.plan
    end = max(plan.patch_end, plan.displaced[-1].end)
    now = target.machine.read(site.address, end - site.address)
    notes = {site.address: "the branch to the detour" if site.patch is not None else "unchanged"}
    return ShowView(
        probe=view,
        original=_lines(plan.displaced, {site.address: "displaced" if site.detour is not None else "probed"}),
        patched=_lines(target.isa.decode(now, site.address), notes),
        detour=_detour_lines(site, target),
    )


def _detour_lines(site: Site, target: Target) -> tuple[CodeLine, ...]:
    detour = site.detour
    if detour is None:
        return ()
    code = target.machine.read(detour.address, detour.size)
    spell = target.text.spell
    displaced = {insn.address for insn in (site.placed or site.plan).displaced}
    notes = {
        at: f"stands for {spell(original)}" if original in displaced else f"back to {spell(original)}"
        for at, original in detour.origins
    }
    for start, end, original in detour.programs:
        notes |= {start: f"the program of {spell(original)}: count", end: notes[start]}
    return _lines(target.isa.decode(code, detour.address), notes)


def _lines(insns: Iterable[Insn], notes: Mapping[int, str]) -> tuple[CodeLine, ...]:
    return tuple(CodeLine(insn.address, insn.data, insn.text, notes.get(insn.address, "")) for insn in insns)


# explain -------------------------------------------------------------------------------------------------------------


def explanation(plan: Plan, target: Target) -> ExplainView:
    """What a plan would do, in words and numbers."""
    return ExplainView(
        address=plan.address,
        symbol=target.symbol(plan.address),
        tier=plan.tier.value,
        reason=reason(plan.reason),
        displaced=_lines(plan.displaced, {}),
        refused=tuple(RefusedView(tier.value, why.code, why.text, why.hint) for tier, why in plan.refused),
        patch_size=plan.patch_size,
        waits=plan.waits,
        instructions=cost(plan, target) if plan.tier is Tier.OPTIMIZED else 0,
        nearest=plan.near,
        nearest_symbol=target.symbol(plan.near) if plan.near is not None else "",
    )


def unprobeable(address: int, why: Reason, target: Target) -> ExplainView:
    """An address that no tier can probe."""
    return ExplainView(
        address=address,
        symbol=target.symbol(address),
        tier="",
        reason=reason(why),
        displaced=(),
        refused=tuple(RefusedView(tier.value, why.code, why.text, why.hint) for tier in reversed(Tier)),
    )


def cost(plan: Plan, target: Target) -> int:
    """Instructions that a hit of a count would add, if it were alone in its detour."""
    at = somewhere(plan.address, target.isa)
    return added(plan, layout.count(plan, target.isa, at, at + COUNTER_AWAY), target)
