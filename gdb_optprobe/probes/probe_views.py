"""From probes and guest memory to what the commands print."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gdb_optprobe.detours.detour import Detour, build_count
from gdb_optprobe.detours.obstacles import somewhere
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.refusal import Reason, Refusal
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest_text import printable
from gdb_optprobe.handlers.format import render
from gdb_optprobe.handlers.ir import WORD, Column, Form, Records
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.paths import shortest
from gdb_optprobe.maps.call_table import CallCounts, CallTable
from gdb_optprobe.probes import save
from gdb_optprobe.probes.active_calls import Caller
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.kernel_rethooks import ActiveCall
from gdb_optprobe.probes.probe import Presence, Probe
from gdb_optprobe.probes.results import Results, Row
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.views import (
    ActiveCallView,
    Address,
    CallsView,
    CodeLine,
    DetourView,
    ExplainView,
    FrameView,
    ObjectView,
    ProbeView,
    ReasonView,
    RecordView,
    RefusedView,
    RowView,
    ShowView,
)

# Counters nearer to each other than this are read in one piece: a packet costs as much as some hundred bytes.
GAP = 256
# Where a counter may be, to tell what a count would cost: anywhere near.
COUNTER_DISTANCE = 0x10000
Frames = Callable[[Mapping[str, int], bytes], Iterable[FrameView]]
"""Registers and words of a stack to its frames."""
READ = 50
"""Instructions of what a program calls to read memory that may not be there, most often."""


def read_results(probes: Sequence[Probe], guest: Guest, whole: bool = False) -> dict[int, Results]:
    """By probe number, of hits seen by us and in the guest together, read in few packets. whole: with tables."""
    slots = sorted(
        Slot(probe.counter.address, probe.handler.size if whole else probe.handler.head_size)
        for probe in probes
        if probe.counter is not None
    )
    memory: dict[int, bytes] = {}
    for run in _adjacent(slots):
        start = run[0].address
        data = guest.machine.read(start, run[-1].end - start)
        memory |= {slot.address: data[slot.address - start : slot.end - start] for slot in run}
    found = {}
    for probe in probes:
        found[probe.number] = probe.seen
        if probe.counter is not None:
            theirs = Results.decode(probe.handler, memory[probe.counter.address], probe.since)
            found[probe.number] = probe.seen.merged(probe.handler, theirs)
    return found


def read_calls(site: Site, probe: Probe, guest: Guest) -> CallTable | None:
    """The calls of the function that a return probe is on; None for others."""
    return site.rethook.all_calls(guest) if site.rethook is not None and probe.is_return else None


def calls_view(counts: CallCounts, active: int, callers: Iterable[Caller]) -> CallsView:
    """Return the account of a function's calls. callers: of the active ones, as far as they are known."""
    views = (ActiveCallView(one.thread, one.pid, one.name) for one in callers)
    ordered = tuple(sorted(views, key=lambda one: (one.pid is None, one.pid, one.thread)))
    entries = counts.returns + counts.missed + counts.dropped + active
    return CallsView(entries, counts.returns, active, counts.missed, counts.dropped, ordered)


def clear_results(probes: Iterable[Probe], guest: Guest, is_inside: Callable[[Probe], bool]) -> None:
    """Set everything that hits left to what it was before the first.

    is_inside: whether a thread may be in a probe's program; tables keep their keys then.
    """
    for probe in probes:
        probe.clear()
        if probe.counter is None:
            continue
        handler, start = probe.handler, probe.counter.address
        ring, at = handler.ring, handler.head_size
        if not handler.tables or not is_inside(probe):
            guest.machine.write(start, handler.initial()[: handler.ring_offset])
        else:
            guest.machine.write(start, handler.initial()[:at])
            for _, layout in handler.tables:
                guest.machine.write(start + at, layout.cleared(guest.machine.read(start + at, layout.size)))
                at += layout.size
        if ring is not None:
            at = start + handler.ring_offset
            found = ring.decode(guest.machine.read(at, ring.size), probe.since)
            guest.machine.write(at, found.header)
            probe.since = found.position


def _adjacent(slots: Sequence[Slot]) -> list[list[Slot]]:
    """All of `slots`, which are ascending, in groups that are read in one piece."""
    runs: list[list[Slot]] = []
    for slot in slots:
        if runs and slot.address - runs[-1][-1].end < GAP:
            runs[-1].append(slot)
        else:
            runs.append([slot])
    return runs


@dataclass(frozen=True, slots=True)
class SiteView:
    """What a row shows of the place that a probe is on, as each kind of place gives it; see ProbeView.

    tags: besides the state. calls: of a return probe. frames: of the stacks that hits there kept.
    """

    address: int
    symbol: str
    state: str
    tier: str = ""
    tags: tuple[str, ...] = ()
    reason: ReasonView | None = None
    original_bytes: bytes = b""
    patched_bytes: bytes = b""
    detour: DetourView | None = None
    stops: int = 0
    calls: CallsView | None = None
    frames: Frames = lambda registers, stack: ()


def probe_view(probe: Probe, site: SiteView, found: Results, guest: Guest) -> ProbeView:
    """Return one row of the listing, or of the report where tables were read too; of a probe of any kind."""
    is_live = site.state in ("armed", "optimizing")
    return ProbeView(
        number=probe.number,
        name=probe.spec.name,
        kind=probe.spec.kind.value,
        location=probe.spec.location,
        address=site.address,
        symbol=site.symbol,
        tier=site.tier,
        state=site.state,
        tags=(*(() if site.state == "armed" else (site.state.upper(),)), *site.tags),
        enabled=probe.enabled,
        needs_gdb=is_live and (probe.may_stop or Tier(site.tier).stops > 0),
        reason=site.reason,
        patch_size=len(site.patched_bytes),
        original_bytes=site.original_bytes,
        patched_bytes=site.patched_bytes,
        detour=site.detour,
        condition=probe.spec.condition,
        actions=probe.spec.actions,
        entry=save.entry_clause(probe.spec),
        hits=found.hits,
        missed=site.calls.missed if site.calls is not None else 0,
        active=site.calls.active if site.calls is not None else 0,
        dropped=found.dropped,
        faults=found.faults,
        stops=site.stops,
        calls=site.calls,
        objects=tuple(_object_views(probe.handler, found, guest)),
        records=tuple(_record_view(probe.handler, row, guest, site.frames) for row in found.records),
    )


def site_view(probe: Probe, site: Site, target: Target, out: Callable[[Site], Sequence[ActiveCall]]) -> SiteView:
    """Return what a row shows of a site in the kernel. out: calls of a site that are active."""
    tier = site.tier if probe.enabled and site.tier is not None else site.plan.tier
    state = _state(probe, site)
    is_optimized = state == "armed" and tier is Tier.OPTIMIZED
    change = site.patch
    callers = [one.caller for one in out(site)] if probe.is_return else ()  # what never returns is dropped now
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
        detour=_detour_view(site, target.guest),
        stops=site.stops,
        calls=calls_view(calls, len(calls.active), callers) if calls is not None else None,
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


def deleted_view(kind: Kind, address: int, location: str, symbol: str, calls: CallsView, guest: Guest) -> ProbeView:
    """Return a row for a function with active calls that only deleted return probes saw entered."""
    probe = Probe(0, Spec(location, kind, actions=()), address, enabled=False)
    site = SiteView(address, symbol, "deleted", calls=calls)
    return probe_view(probe, site, Results((calls.returns,)), guest)


def _object_views(handler: Handler, found: Results, guest: Guest) -> Iterator[ObjectView]:
    """What each action gathered."""
    for cell, place in handler.cell_words():
        yield ObjectView(cell.name, cell.aggregate, (RowView((), found.head[place]),))
    for (table, _), rows, lost in zip(handler.tables, found.tables, found.lost, strict=True):
        keyed = tuple(_row(table.columns, key, words, guest) for key, words in rows.items())
        yield ObjectView(table.name, table.aggregate, keyed, lost)


def _row(columns: Sequence[Column], data: bytes, words: tuple[int, ...], guest: Guest) -> RowView:
    key = _key(columns, data)
    return RowView(key, words, f"[{', '.join(_spell(value, guest) for value in key)}]")


def _record_view(handler: Handler, row: Row, guest: Guest, frames: Frames) -> RecordView:
    """What an action kept of one hit."""
    kind = handler.objects[row.kind]
    assert isinstance(kind, Records)
    values = _key(kind.columns, row.fields)
    if kind.stack:
        registers, words = _stack_record(kind, row.fields)
        stack = tuple(frames(registers, words))
        return RecordView(row.cpu, row.time, (), " / ".join(one.text for one in stack), stack)
    if not kind.format:
        parts = zip(kind.columns, values, strict=True)
        text = ", ".join(f"{one.label}={_spell(value, guest)}" for one, value in parts)
        return RecordView(row.cpu, row.time, values, text)
    return RecordView(row.cpu, row.time, values, render(kind.format, _parts(kind.columns, row.fields)))


def _stack_record(kind: Records, data: bytes) -> tuple[Mapping[str, int], bytes]:
    """Of a record: registers by name, and the stack."""
    *values, room = (int.from_bytes(data[at : at + WORD], "little") for at in range(0, kind.fields, WORD))
    names = (column.label for column in kind.columns)
    return dict(zip(names, values, strict=False)), data[kind.fields :][: min(room & -WORD, WORD * kind.stack)]


def _frames(probed: int, target: Target, registers: Mapping[str, int], stack: bytes) -> Iterator[FrameView]:
    """Return the frames of a record's stack, up to one that returns to a detour: its caller is not on the stack."""
    for address, exact in target.guest.backtrace({**registers, target.guest.isa.pc: probed}, stack):
        if not address or any(start <= address < end for start, end in target.arena_source.code):
            yield FrameView(0, "…")
            return
        # A call may be the last instruction of its function: the address behind it is another function's.
        symbol = target.guest.symbol(address)
        yield FrameView(address, symbol if exact or "+" in symbol else target.guest.symbol(address - 1))


def _spell(value: int | str, guest: Guest) -> str:
    """A pointer with what it points to, where that has a name."""
    if not isinstance(value, Address):
        return str(value)
    symbol = guest.symbol(value)
    return f"{value:#x} <{symbol}>" if symbol else f"{value:#x}"


def _key(columns: Sequence[Column], data: bytes) -> tuple[int | str, ...]:
    """A key's parts as values: numbers, and texts."""
    return tuple(printable(part) if isinstance(part, bytes) else part for part in _parts(columns, data))


def _parts(columns: Sequence[Column], data: bytes) -> tuple[int | bytes, ...]:
    """The same with texts as the guest has them."""
    values: list[int | bytes] = []
    for column in columns:
        part, data = data[: column.size], data[column.size :]
        if column.form is Form.TEXT:
            values.append(part.partition(b"\0")[0])
        else:
            number = int.from_bytes(part, "little", signed=column.form is Form.SIGNED)
            values.append(Address(number) if column.form is Form.POINTER else number)
    return tuple(values)


def _state(probe: Probe, site: Site) -> str:
    if site.is_lost:
        return "gone"
    if not probe.enabled:
        return "disabled"
    return "optimizing" if site.blocked_by else "armed"


def _reason_view(site: Site, state: str) -> ReasonView | None:
    if state == "optimizing":
        return ReasonView("NOT_QUIESCENT", site.blocked_by, Refusal.NOT_QUIESCENT.value[1])
    return reason_view(site.plan.reason)


def reason_view(why: Reason | None) -> ReasonView | None:
    return ReasonView(why.code, why.text, why.hint) if why is not None else None


def _detour_view(site: Site, guest: Guest) -> DetourView | None:
    detour = site.detour
    if detour is None:
        return None
    count = len(guest.isa.decode(detour.data, detour.address))
    plan = site.installed_plan or site.plan
    most = added_instructions(plan, detour, guest)
    least = most - skippable(program for original, program in _programs(detour, guest) if original == plan.address)
    if site.rethook is not None and site.return_probes:
        costs = site.rethook.costs
        most, least = most - costs.rare + costs.trampoline, least + costs.least
    return DetourView(detour.address, detour.size, count, most, least, detour.head)


def added_instructions(plan: Plan, detour: Detour, guest: Guest) -> int:
    """Instructions that a hit of an optimized probe adds: the branch, its program, the way back."""
    code = len(guest.isa.decode(detour.data, detour.address))
    for original, program in _programs(detour, guest):
        code -= len(program)
        code += sum(map(cost_of, program)) if original == plan.address else 0
    return 1 + code - len(plan.displaced)


def skippable(programs: Iterable[Sequence[Insn]]) -> int:
    """Return how many instructions the shortest ways through these programs leave out."""
    return sum(sum(map(cost_of, program)) - shortest(program, cost_of) for program in programs)


def _programs(detour: Detour, guest: Guest) -> Iterator[tuple[int, Sequence[Insn]]]:
    """Each program's original address, and its instructions."""
    for start, end, original in detour.programs:
        yield original, guest.isa.decode(detour.data[start - detour.address : end - detour.address], start)


def cost_of(insn: Insn) -> int:
    """Return how many instructions a hit runs for one of a program: a call is that of a read."""
    return 1 + READ * (insn.flow is Flow.CALL)


# show ----------------------------------------------------------------------------------------------------------------


def show_view(view: ProbeView, site: Site, guest: Guest) -> ShowView:
    """The probed place as it was, as it is in the guest now, and the detour it leads to."""
    plan = site.installed_plan or site.plan
    end = max(plan.patch_end, plan.displaced[-1].end)
    now = guest.machine.read(site.address, end - site.address)
    notes = {site.address: "the branch to the detour" if site.patch is not None else "unchanged"}
    return ShowView(
        probe=view,
        original=code_lines(plan.displaced, {site.address: "displaced" if site.detour is not None else "probed"}),
        patched=code_lines(guest.isa.decode(now, site.address), notes),
        detour=_detour_lines(site, guest),
    )


def _detour_lines(site: Site, guest: Guest) -> tuple[CodeLine, ...]:
    detour = site.detour
    if detour is None:
        return ()
    code = guest.machine.read(detour.address, detour.size)
    spell = guest.text.spell
    displaced = {insn.address for insn in (site.installed_plan or site.plan).displaced}
    notes = {
        at: f"replaces {spell(original)}" if original in displaced else f"back to {spell(original)}"
        for at, original in detour.origins
    }
    for start, end, original in detour.programs:
        what = f": {_describe_programs(site)}" if original == site.address else ""
        notes |= {start: f"the program of {spell(original)}{what}", end: notes[start]}
    return code_lines(guest.isa.decode(code, detour.address), notes)


def _describe_programs(site: Site) -> str:
    """What the programs at the address of `site` do, one after the other."""
    done = [", ".join(probe.spec.actions) for probe in site.enabled if not probe.is_return]
    if site.return_probes:
        done.append("the entry of a call with a probed return")
    return "; ".join(done)


def code_lines(insns: Iterable[Insn], notes: Mapping[int, str]) -> tuple[CodeLine, ...]:
    return tuple(CodeLine(insn.address, insn.data, insn.text, notes.get(insn.address, "")) for insn in insns)


# explain -------------------------------------------------------------------------------------------------------------


def explain_view(plan: Plan, guest: Guest, counts: bool = True) -> ExplainView:
    """Return what a plan would do, in words and numbers. counts: of a count the cost is known beforehand."""
    return ExplainView(
        address=plan.address,
        symbol=guest.symbol(plan.address),
        tier=plan.tier.value,
        reason=reason_view(plan.reason),
        displaced=code_lines(plan.displaced, {}),
        refused=tuple(RefusedView(tier.value, why.code, why.text, why.hint) for tier, why in plan.refused),
        patch_size=plan.patch_size,
        waits=plan.needs_quiescence,
        instructions=count_cost(plan, guest) if counts and not plan.tier.stops else 0,
        nearest=plan.near,
        nearest_symbol=guest.symbol(plan.near) if plan.near is not None else "",
        note=_note(plan, guest),
    )


def _note(plan: Plan, guest: Guest) -> str:
    """Return why the probe is behind the address that was asked for, and why calls may not come by there."""
    moved = f"the probe is behind the entry: {plan.moved.text} ({plan.moved.code})" if plan.moved else ""
    return "; ".join(filter(None, (moved, guest.bypassed(plan.address))))


def unprobeable_view(address: int, why: Reason, guest: Guest) -> ExplainView:
    """An address that no tier can probe."""
    return ExplainView(
        address=address,
        symbol=guest.symbol(address),
        tier="",
        reason=reason_view(why),
        displaced=(),
        refused=tuple(RefusedView(tier.value, why.code, why.text, why.hint) for tier in reversed(Tier)),
    )


def count_cost(plan: Plan, guest: Guest) -> int:
    """Instructions that a hit of a count would add, if it were alone in its detour."""
    at = somewhere(plan.address, guest.isa)
    return added_instructions(plan, build_count(plan, guest.isa, at, at + COUNTER_DISTANCE), guest)
