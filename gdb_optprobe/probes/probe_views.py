"""From probes and guest memory to what the commands print."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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
from gdb_optprobe.maps.call_table import CallTable
from gdb_optprobe.probes import call_views, save
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.kernel_rethooks import ActiveCall
from gdb_optprobe.probes.probe import Presence, Probe
from gdb_optprobe.probes.results import Results, Row
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.views import (
    Address,
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
Unwound = Callable[[Mapping[str, int], bytes], Iterable[FrameView]]
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


def clear_results(probes: Iterable[Probe], guest: Guest, is_inside: Callable[[Probe], bool]) -> None:
    """As if there had been no hit. is_inside: whether somebody may be in the probe's program; tables keep keys then."""
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


def probe_view(
    probe: Probe, site: Site, found: Results, target: Target, out: Callable[[Site], Sequence[ActiveCall]]
) -> ProbeView:
    """One row of the listing, or of the report where tables were read too. out: calls of a site that are under way."""
    tier = site.tier if probe.enabled and site.tier is not None else site.plan.tier
    state = _state(probe, site)
    change = site.patch
    callers = out(site) if probe.is_return else ()  # what never returns is dropped now
    under_way = read_calls(site, probe, target.guest)
    return ProbeView(
        number=probe.number,
        name=probe.spec.name,
        kind=probe.spec.kind.value,
        location=probe.spec.location,
        address=probe.address,
        symbol=target.guest.symbol(probe.address),
        tier=tier.value,
        state=state,
        tags=_tags(site, tier, state),
        enabled=probe.enabled,
        needs_gdb=state != "disabled" and (tier.stops > 0 or probe.may_stop) and not site.is_lost,
        reason=_reason_view(site, state),
        patch_size=len(change.new) if change is not None else 0,
        original_bytes=change.old if change is not None else site.plan.insn.data,
        patched_bytes=change.new if change is not None else b"",
        detour=_detour_view(site, target.guest),
        condition=probe.spec.condition,
        actions=probe.spec.actions,
        entry=save.entry_clause(probe.spec),
        hits=found.head[0],
        missed=under_way.missed if under_way else 0,
        active=len(under_way.active) if under_way else 0,
        dropped=found.dropped,
        faults=found.head[1] if len(found.head) > 1 else 0,
        stops=site.stops,
        calls=call_views.calls_view(under_way, callers) if under_way is not None else None,
        objects=tuple(object_views(probe.handler, found, target.guest)),
        records=tuple(record_view(probe, row, target) for row in found.records),
    )


def absent_view(probe: Probe, found: Results, target: Target) -> ProbeView:
    """The same of a probe that is nowhere in the guest."""
    state = probe.presence.value
    return ProbeView(
        number=probe.number,
        name=probe.spec.name,
        kind=probe.spec.kind.value,
        location=probe.spec.location,
        address=probe.address if probe.presence is Presence.GONE else 0,
        symbol=probe.home,
        tier="",
        state=state,
        tags=(state.upper(), *(() if probe.enabled else ("DISABLED",))),
        enabled=probe.enabled,
        needs_gdb=False,
        reason=reason_view(probe.absence),
        patch_size=0,
        original_bytes=b"",
        patched_bytes=b"",
        detour=None,
        condition=probe.spec.condition,
        actions=probe.spec.actions,
        entry=save.entry_clause(probe.spec),
        hits=found.head[0],
        missed=0,
        active=0,
        dropped=found.dropped,
        faults=found.head[1] if len(found.head) > 1 else 0,
        stops=0,
        objects=tuple(object_views(probe.handler, found, target.guest)),
        records=tuple(record_view(probe, row, target) for row in found.records),
    )


def object_views(handler: Handler, found: Results, guest: Guest) -> Iterator[ObjectView]:
    """What each action gathered."""
    for cell, place in handler.cell_words():
        yield ObjectView(cell.name, cell.aggregate, (RowView((), found.head[place]),))
    for (table, _), rows, lost in zip(handler.tables, found.tables, found.lost, strict=True):
        keyed = tuple(_row(table.columns, key, words, guest) for key, words in rows.items())
        yield ObjectView(table.name, table.aggregate, keyed, lost)


def _row(columns: Sequence[Column], data: bytes, words: tuple[int, ...], guest: Guest) -> RowView:
    key = _key(columns, data)
    return RowView(key, words, f"[{', '.join(_spell(value, guest) for value in key)}]")


def record_view(probe: Probe, row: Row, target: Target, unwound: Unwound | None = None) -> RecordView:
    """What an action kept of one hit. unwound: a stack that is not the kernel's."""
    kind = probe.handler.objects[row.kind]
    assert isinstance(kind, Records)
    values = _key(kind.columns, row.fields)
    if kind.stack:
        registers, words = _stack_record(kind, row.fields)
        stack = tuple(unwound(registers, words) if unwound else _frames(probe, registers, words, target))
        return RecordView(row.cpu, row.time, (), " / ".join(one.text for one in stack), stack)
    if not kind.format:
        parts = zip(kind.columns, values, strict=True)
        text = ", ".join(f"{one.label}={_spell(value, target.guest)}" for one, value in parts)
        return RecordView(row.cpu, row.time, values, text)
    return RecordView(row.cpu, row.time, values, render(kind.format, _parts(kind.columns, row.fields)))


def _stack_record(kind: Records, data: bytes) -> tuple[Mapping[str, int], bytes]:
    """Of a record: registers by name, and the stack."""
    *values, room = (int.from_bytes(data[at : at + WORD], "little") for at in range(0, kind.fields, WORD))
    names = (column.label for column in kind.columns)
    return dict(zip(names, values, strict=False)), data[kind.fields :][: min(room & -WORD, WORD * kind.stack)]


def _frames(probe: Probe, registers: Mapping[str, int], stack: bytes, target: Target) -> Iterator[FrameView]:
    """Return the frames of a record's stack, up to one that returns to a detour: its caller is not on the stack."""
    for address, exact in target.guest.backtrace({**registers, target.guest.isa.pc: probe.address}, stack):
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


def _tags(site: Site, tier: Tier, state: str) -> tuple[str, ...]:
    """The kernel's own, as in debugfs kprobes/list."""
    tags = {"gone": ("GONE",), "disabled": ("DISABLED",), "optimizing": ("OPTIMIZING",)}.get(state, ())
    if state == "armed" and tier is Tier.OPTIMIZED:
        tags = ("OPTIMIZED",)
    return (*tags, "FTRACE") if site.plan.ftrace is not None else tags


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
    least = most - _skippable(plan, detour, guest)
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


def _skippable(plan: Plan, detour: Detour, guest: Guest) -> int:
    """How many instructions the shortest way through the probed instruction's program leaves out."""
    here = (program for original, program in _programs(detour, guest) if original == plan.address)
    return sum(sum(map(cost_of, program)) - shortest(program, cost_of) for program in here)


def _programs(detour: Detour, guest: Guest) -> Iterator[tuple[int, Sequence[Insn]]]:
    """Each program's original address, and its instructions."""
    for start, end, original in detour.programs:
        yield original, guest.isa.decode(detour.data[start - detour.address : end - detour.address], start)


def cost_of(insn: Insn) -> int:
    """Instructions that one of a program stands for: a call is that of a read."""
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
        at: f"stands for {spell(original)}" if original in displaced else f"back to {spell(original)}"
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
        done.append("the entry of a call whose return is probed")
    return "; ".join(done)


def code_lines(insns: Iterable[Insn], notes: Mapping[int, str]) -> tuple[CodeLine, ...]:
    return tuple(CodeLine(insn.address, insn.data, insn.text, notes.get(insn.address, "")) for insn in insns)


# explain -------------------------------------------------------------------------------------------------------------


def explain_view(plan: Plan, guest: Guest, counts: bool = True) -> ExplainView:
    """What a plan would do, in words and numbers. counts: a count, whose cost is known beforehand."""
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
    """Why the probe stands behind the address that was asked for, and why calls may not come by there."""
    moved = f"the probe stands behind the entry: {plan.moved.text} ({plan.moved.code})" if plan.moved else ""
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
