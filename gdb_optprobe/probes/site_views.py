"""What the commands print of probes on the kernel: the place that each is on, its code, and what a plan would do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from gdb_optprobe.detours.detour import Detour, build_count
from gdb_optprobe.detours.obstacles import somewhere
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.refusal import Reason, Refusal
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.paths import shortest
from gdb_optprobe.maps.call_table import CallTable
from gdb_optprobe.probes import branch_patch
from gdb_optprobe.probes.kernel_rethooks import ActiveCall
from gdb_optprobe.probes.probe import Presence, Probe
from gdb_optprobe.probes.probe_views import (
    READ,
    DetourCode,
    SiteCode,
    SiteView,
    calls_view,
    code_lines,
    cost_of,
    reason_view,
    refused_views,
    skippable,
)
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.views import DetourView, ExplainView, FrameView, ReasonView

# Where a counter may be, to tell what a count would cost: anywhere near.
COUNTER_DISTANCE = 0x10000


def read_calls(site: Site, probe: Probe, guest: Guest) -> CallTable | None:
    """Return the calls of the function that a return probe is on; None for others."""
    return site.rethook.all_calls(guest) if site.rethook is not None and probe.is_return else None


def site_view(probe: Probe, site: Site, target: Target, out: Callable[[Site], Sequence[ActiveCall]]) -> SiteView:
    """Return what a row shows of a site in the kernel. out: calls of a site that are active."""
    tier = site.tier if probe.enabled and site.tier is not None else site.plan.tier
    state = _state(probe, site)
    is_optimized = state == "armed" and tier is Tier.OPTIMIZED
    change = site.patch
    # While the guest runs, neither the calls' threads nor the sum of all calls are known.
    is_known = probe.is_return and not target.guest.machine.runs
    callers = [one.caller for one in out(site)] if is_known else ()  # what never returns is dropped now
    calls = read_calls(site, probe, target.guest)
    return SiteView(
        address=probe.address,
        symbol=target.guest.symbol(probe.address),
        state=state,
        tier=tier.value,
        # As the kernel has them, in debugfs kprobes/list.
        tags=(*(("OPTIMIZED",) if is_optimized else ()), *(("FTRACE",) if site.plan.ftrace is not None else ())),
        reason=_reason_view(site, state),
        original_bytes=change.old if change is not None else site.plan.insn.data,
        patched_bytes=change.new if change is not None else b"",
        detour=_detour_view(probe, site, target.guest),
        stops=site.stops,
        calls=calls_view(calls, len(calls.active), callers) if calls is not None and is_known else None,
        missed=calls.missed if calls is not None else 0,
        active=len(calls.active) if calls is not None else 0,
        frames=partial(_frames, probe.address, target),
    )


def absent_site_view(probe: Probe, target: Target) -> SiteView:
    """Return the same for a probe that is pending or gone."""
    return SiteView(
        address=probe.address if probe.presence is Presence.GONE else 0,
        symbol=probe.home,
        state=probe.presence.value,
        tags=() if probe.enabled else ("DISABLED",),
        reason=reason_view(probe.absence),
        frames=partial(_frames, probe.address, target),
    )


def _frames(probed: int, target: Target, registers: Mapping[str, int], stack: bytes) -> Iterator[FrameView]:
    """Return the frames of a record's stack, up to one that returns to a detour: its caller is not on the stack."""
    for address, exact in target.guest.backtrace({**registers, target.guest.isa.pc: probed}, stack):
        ours = address != probed and any(start <= address < end for start, end in target.arena_source.code)
        if not address or ours:
            yield FrameView(0, "…")
            return
        # A call may be the last instruction of its function: the address behind it is another function's.
        symbol = target.guest.symbol(address)
        yield FrameView(address, symbol if exact or "+" in symbol else target.guest.symbol(address - 1))


def _state(probe: Probe, site: Site) -> str:
    if site.is_lost:
        return "gone"
    if not probe.enabled:
        return "disabled"
    return "optimizing" if site.blocked_by else "armed"


def _reason_view(site: Site, state: str) -> ReasonView | None:
    if state == "optimizing":
        return ReasonView("NOT_QUIESCENT", site.blocked_by, Refusal.NOT_QUIESCENT.value[1])
    view = reason_view(site.plan.reason)
    missing = site.plan.why_not(site.plan.tier)
    return replace(view, text=f"{view.text}; {missing.text}") if view is not None and missing is not None else view


def _detour_view(probe: Probe, site: Site, guest: Guest) -> DetourView | None:
    """Return what a hit costs; decoded once for each detour, except where return probes share in it."""
    if (detour := site.detour) is None:
        return None
    if site.rethook is not None:
        return _measured(probe, site, detour, guest)
    made_of = detour, site.installed_plan or site.plan, site.branch
    known = site.detour_views.get(probe.number)
    if known is None or any(one is not other for one, other in zip(known[0], made_of, strict=True)):
        known = site.detour_views[probe.number] = made_of, _measured(probe, site, detour, guest)
    return known[1]


def _measured(probe: Probe, site: Site, detour: Detour, guest: Guest) -> DetourView:
    count = len(guest.isa.decode(detour.data, detour.address))
    plan = site.installed_plan or site.plan
    most, least = hit_cost(plan, detour, guest)
    if (called := _called(site)) is not None:
        insns = guest.isa.decode(called.data, called.address)
        most, least = most - READ + len(insns), least - READ + len(insns) - skippable([insns[:-1]])  # it returns
    own, own_least = most, least
    if site.rethook is not None and site.return_probes:
        most, least = site.rethook.costs.of_call(most, least)
        if probe.is_return:
            own, own_least = most, least
    for other in _other_programs(probe, site, guest):
        own -= sum(map(cost_of, other))
        own_least -= shortest(other, cost_of)
    return DetourView(detour.address, detour.size, count, most, least, detour.head, own, own_least)


def _called(site: Site) -> Detour | None:
    """Return the routine that does what the probe of `site` is for."""
    parts = site.branch.parts if site.branch is not None else ()
    return next((part.routine for part in parts if part.address == site.address), None)


def _other_programs(probe: Probe, site: Site, guest: Guest) -> Iterator[Sequence[Insn]]:
    """Yield the programs at the address that run for other probes; all return probes there have one entry."""
    here = [part for part in site.branch.parts if part.address == site.address] if site.branch is not None else []
    mine = {one.number for one in site.return_probes} if probe.is_return else {probe.number}
    if not any(part.number in mine for part in here):
        return
    assert site.detour is not None
    for part in here:
        if part.number not in mine:
            first, last = part.start - site.detour.address, part.end - site.detour.address
            yield guest.isa.decode(site.detour.data[first:last], part.start)


def added_instructions(plan: Plan, detour: Detour, guest: Guest) -> int:
    """Return the instructions that a hit of an optimized probe adds: the branch, its program, the way back."""
    code = len(guest.isa.decode(detour.data, detour.address))
    for original, program in _programs(detour, guest):
        code -= len(program)
        code += sum(map(cost_of, program)) if original == plan.address else 0
    # On the way to what is jumped to, the branch back is not passed.
    is_jumped_to = plan.stays is not None and plan.address != plan.end
    return 1 + code - len(plan.displaced) - is_jumped_to


def _programs(detour: Detour, guest: Guest) -> Iterator[tuple[int, Sequence[Insn]]]:
    """Yield each program's original address, and its instructions."""
    for start, end, original in detour.programs:
        yield original, guest.isa.decode(detour.data[start - detour.address : end - detour.address], start)


def site_code(site: Site, guest: Guest) -> SiteCode:
    """Return what `show` lists of a site in the kernel."""
    plan = site.installed_plan or site.plan
    staying = (plan.insn,) if plan.stays is not None else ()
    places = [(plan.head, max(plan.patch_end, plan.end)), *((insn.address, insn.end) for insn in staying)]
    now = [insn for at, end in places for insn in guest.isa.decode(guest.machine.read(at, end - at), at)]
    what = "probed" if site.detour is None else "displaced" if plan.stays is None else "probed, and stays here"
    change = "the branch to the detour" if site.branch is not None else "unchanged"
    return SiteCode(
        original=code_lines((*plan.displaced, *staying), {site.address: what}),
        patched=code_lines(now, {plan.head: change}),
        detour=_detour_code(site, site.detour, guest) if site.detour is not None else None,
        trampoline=_trampoline_code(site) if site.rethook is not None else None,
    )


def _detour_code(site: Site, detour: Detour, guest: Guest) -> DetourCode:
    return DetourCode(detour, _detour_notes(site, detour, guest), dict(branch_patch.installed_programs(site, guest)))


def _trampoline_code(site: Site) -> DetourCode | None:
    """Return the code that calls return to: what finds the call's slot, a program of each return probe, the way out."""
    rethook = site.rethook
    if rethook is None or rethook.trampoline is None:
        return None
    done = {probe.number: f"the program of probe {probe.number}: {_actions(probe)}" for probe in site.return_probes}
    detour, programs = rethook.trampoline.detour, rethook.programs
    notes = {detour.address: "a call has returned: find its slot"}
    if programs:
        notes[programs[-1].end] = "free the slot; on to the call's own return address"
    notes |= {one.start: done[one.number] for one in programs if one.start < one.end and one.number in done}
    return DetourCode(detour, notes, {one.start: one.code for one in programs})


def _detour_notes(site: Site, detour: Detour, guest: Guest) -> Mapping[int, str]:
    spell = guest.text.spell
    displaced = {insn.address for insn in (site.installed_plan or site.plan).displaced}
    notes = {
        at: f"replaces {spell(original)}" if original in displaced else f"back to {spell(original)}"
        for at, original in detour.origins
    }
    here = {part.start: part.number for part in site.branch.parts} if site.branch is not None else {}
    done = {probe.number: _describe_program(probe) for probe in site.enabled}
    together = "; ".join(dict.fromkeys(done.values()))
    for start, end, original in detour.programs:
        # At a site of the tracer no instruction is behind the program, but the branch back.
        what = f": {together}" if original == site.address else ""
        notes = {end: notes[start], **notes, start: f"the program of {spell(original)}{what}"}
        for at, number in here.items():
            if start <= at < end and number in done:
                notes[at] = f"the program of {spell(original)}: {done[number]}"
    return notes


def _describe_program(probe: Probe) -> str:
    return "the entry of a call with a probed return" if probe.is_return else _actions(probe)


def _actions(probe: Probe) -> str:
    return ", ".join(probe.spec.actions)


def moved_note(why: Reason | None, address: int, guest: Guest) -> str:
    """Return why the probe at `address` is not where it was asked for; "" if it is."""
    if why is None:
        return ""
    is_before = why.code == Refusal.RESERVATION.code
    where = f"at {guest.text.spell(address)}, which runs as often" if is_before else "behind the entry"
    return f"the probe is {where}: {why.text} ({why.code})"


def plan_note(plan: Plan, guest: Guest) -> str:
    """Return why the probe is not at the requested address, and why calls may bypass it."""
    moved = moved_note(plan.moved, plan.address, guest)
    stays = ""
    if plan.stays is not None:
        where, why = guest.text.spell(plan.head), f"{plan.stays[1].text} ({plan.stays[1].code})"
        stays = f"the branch is at {where}, on the only way there, and each pass of it costs: {why}"
    return "; ".join(filter(None, (moved, stays, guest.why_bypassed(plan.address))))


def unprobeable_view(address: int, why: Reason, guest: Guest) -> ExplainView:
    """Return the view of an address that no tier can probe."""
    return ExplainView(
        address=address,
        symbol=guest.symbol(address),
        tier="",
        reason=reason_view(why),
        displaced=(),
        refused=refused_views((tier, why) for tier in reversed(Tier)),
    )


def left_out_view(address: int, error: OptprobeError, guest: Guest) -> ExplainView:
    """Return the view of a function that a glob leaves out for the reason in `error`."""
    why = error.message.partition("\n")[0]  # the other lines show what was typed
    return ExplainView(address, guest.symbol(address), "", None, (), (), note=f"a glob leaves it out: {why}")


def count_cost(plan: Plan, guest: Guest) -> int:
    """Return the instructions that a hit of a count would add, if it were alone in its detour."""
    at = somewhere(plan.address, guest.isa)
    return hit_cost(plan, build_count(plan, guest.isa, at, at + COUNTER_DISTANCE), guest)[0]


def hit_cost(plan: Plan, detour: Detour, guest: Guest) -> tuple[int, int]:
    """Return the instructions that a hit adds in all, and where every jump takes the shortest path."""
    most = added_instructions(plan, detour, guest)
    return most, most - skippable(program for original, program in _programs(detour, guest) if original == plan.address)
