"""From a probe of any kind to what the commands print; what differs by kind is a SiteView."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.refusal import Reason
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest_text import printable
from gdb_optprobe.handlers.format import render
from gdb_optprobe.handlers.ir import WORD, Column, Form, Records
from gdb_optprobe.isa.base import Code, Flow, Insn, Notes, PooledCode, notes_of
from gdb_optprobe.isa.paths import shortest
from gdb_optprobe.maps.aggregate import initial
from gdb_optprobe.maps.call_table import CallCounts
from gdb_optprobe.probes import save
from gdb_optprobe.probes.active_calls import Caller
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.results import Results, Row
from gdb_optprobe.probes.session_scripts import SessionScripts
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.probes.views import (
    NANOSECONDS,
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

Symbol = Callable[[int], str]
Frames = Callable[[Mapping[str, int], bytes], Iterable[FrameView]]
"""Registers and words of a stack to its frames."""
_OF_TIME = re.compile(r"latency\b|\w+\(\s*\$elapsed\s*[,)]")
_NO_NOTES: Notes = {}
READ = 50
"""Instructions of what a program calls to read memory that may not be there, most often."""


def calls_view(counts: CallCounts, active: int, callers: Iterable[Caller]) -> CallsView:
    """Return the account of a function's calls. callers: of the active ones, as far as they are known."""
    views = (ActiveCallView(one.thread, one.pid, one.name) for one in callers)
    ordered = tuple(sorted(views, key=lambda one: (one.pid is None, one.pid, one.thread)))
    entries = counts.returns + counts.missed + counts.dropped + active
    return CallsView(entries, counts.returns, active, counts.missed, counts.dropped, ordered)


@dataclass(frozen=True, slots=True)
class SiteView:
    """What a row shows of the place that a probe is on, as each kind of place gives it; see ProbeView.

    tags: besides the state. calls: of a return probe, where all is known of them. missed: events, or calls, that had no
    room. active: calls that have not returned. frames: of the stacks that hits there kept.
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
    missed: int = 0
    active: int = 0
    frames: Frames = lambda registers, stack: ()


@dataclass(frozen=True, slots=True)
class DetourCode:
    """Code in the arena that `show` lists.

    notes: on it, by address. programs: what the probes of the site should have there, by address.
    """

    detour: Detour
    notes: Mapping[int, str]
    programs: Mapping[int, Code] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SiteCode:
    """What `show` lists of a site, as each kind of site gives it. trampoline: of return probes."""

    original: tuple[CodeLine, ...]
    patched: tuple[CodeLine, ...]
    detour: DetourCode | None = None
    trampoline: DetourCode | None = None


def probe_view(
    probe: Probe, site: SiteView, found: Results, guest: Guest, scripts: SessionScripts | None = None
) -> ProbeView:
    """Return one row of the listing, or of the report where tables were read too; of a probe of any kind.

    scripts: know what a script's records say.
    """
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
        missed=site.calls.missed if site.calls is not None else site.missed,
        active=site.calls.active if site.calls is not None else site.active,
        dropped=found.dropped,
        faults=found.faults,
        stops=site.stops,
        calls=site.calls,
        objects=object_views(probe.handler, found, guest.symbol),
        records=tuple(_record_views(probe.handler, found.records, guest, site.frames, scripts)),
    )


def show_view(view: ProbeView, code: SiteCode, guest: Guest) -> ShowView:
    """Return the probed place as it was, as it is in the guest now, and the code that it leads to; of any kind."""
    return ShowView(view, code.original, code.patched, _listing(code.detour, guest), _listing(code.trampoline, guest))


def _listing(code: DetourCode | None, guest: Guest) -> tuple[CodeLine, ...]:
    """Return the code as it is in the guest."""
    if code is None:
        return ()
    parts: dict[int, tuple[str, ...]] = {}
    data = guest.machine.read(code.detour.address, code.detour.size)
    insns = guest.isa.decode(data, code.detour.address)
    for at, program in sorted(code.programs.items()):
        program = _as_it_is(program, insns, data, guest)
        made = program(at)
        if data.startswith(made, at - code.detour.address):  # else the notes are of other code
            parts |= {**notes_of(program, at), at + len(made): ()}
    return code_lines(insns, code.notes, parts)


def _as_it_is(program: Code, insns: Sequence[Insn], data: bytes, guest: Guest) -> Code:
    """Return a program of a detour with these instructions and this data, with the pool where it has its words."""
    if not isinstance(program, PooledCode) or guest.isa.pools is None or not insns:
        return program
    words = b"".join(word.to_bytes(WORD, "little") for word in program.words)
    start = guest.isa.pools.at(insns[-1].end) - insns[0].address
    found = next((at for at in range(start, len(data), WORD) if data.startswith(words, at)), None)
    return program if found is None else program.with_pool(insns[0].address + found)


def explain_view(
    plan: Plan, symbol: Callable[[int], str], spec: Spec, cost: tuple[int, int], note: str = ""
) -> ExplainView:
    """Return what a plan for a probe of any kind would do. symbol: names an address. cost: of a hit, most and least."""
    return ExplainView(
        address=plan.address,
        symbol=symbol(plan.address),
        tier=plan.tier.value,
        reason=reason_view(plan.reason),
        displaced=code_lines(plan.displaced, {}),
        refused=refused_views(plan.refused),
        patch_size=plan.patch_size,
        waits=plan.needs_quiescence,
        instructions=cost[0],
        least=cost[1],
        condition=spec.condition,
        actions=spec.actions,
        nearest=plan.near,
        nearest_symbol=symbol(plan.near) if plan.near is not None else "",
        note=note,
        kind=spec.kind.value,
    )


def refused_views(refused: Iterable[tuple[Tier, Reason]]) -> tuple[RefusedView, ...]:
    return tuple(RefusedView(tier.value, why.code, why.text, why.hint) for tier, why in refused)


def deleted_view(kind: Kind, address: int, location: str, symbol: str, calls: CallsView, guest: Guest) -> ProbeView:
    """Return a row for a function with active calls that only deleted return probes saw entered."""
    probe = Probe(0, Spec(location, kind, actions=()), address, enabled=False)
    site = SiteView(address, symbol, "deleted", calls=calls)
    return probe_view(probe, site, Results((calls.returns,)), guest)


def object_views(handler: Handler, found: Results, symbol: Symbol) -> tuple[ObjectView, ...]:
    """Return what each action gathered. symbol: names an address; "" where it cannot."""
    return tuple(_object_views(handler, found, symbol))


def _object_views(handler: Handler, found: Results, symbol: Symbol) -> Iterator[ObjectView]:
    for cell, place in handler.cell_words():
        yield ObjectView(cell.name, cell.aggregate, (RowView((), found.head[place]),), unit=_unit(cell.name))
    for (table, _), rows, lost in zip(handler.tables, found.tables, found.lost_of(handler), strict=True):
        columns = handler.columns(table)
        if columns:
            keyed = tuple(_row(columns, key, words, symbol) for key, words in rows.items())
        else:  # the function is the only one
            keyed = (RowView((), rows.get(b"", initial(table.aggregate))),)
        shared, unit, labels = handler.shared is not None, _unit(table.name), tuple(one.label for one in columns)
        if shared and not handler.counts_lost and lost:
            yield ObjectView(table.name, table.aggregate, keyed, None, len(columns), unit, shared, lost, labels)
        else:
            yield ObjectView(table.name, table.aggregate, keyed, lost, len(columns), unit, shared, labels=labels)


def _unit(action: str) -> str:
    """Return the unit of what an action gathers, "" where it is not known."""
    return NANOSECONDS if _OF_TIME.match(action) else ""


def _row(columns: Sequence[Column], data: bytes, words: tuple[int, ...], symbol: Symbol) -> RowView:
    key = _key(columns, data)
    return RowView(key, words, f"[{', '.join(_spell(value, symbol) for value in key)}]")


def _record_views(
    handler: Handler, rows: Sequence[Row], guest: Guest, frames: Frames, scripts: SessionScripts | None
) -> Iterator[RecordView]:
    clock = guest.clock() if rows else None
    of_script = scripts is not None and any(kind.kind is not None for kind in handler.kinds.values())
    read = scripts.reader() if scripts is not None and rows and of_script else None
    for row in rows:
        view = _record_view(handler, row, guest, frames)
        since_boot = None if clock is None or row.time is None else clock(row.time)
        if read is not None:
            view = replace(view, values=(), names=(), text=read(row.kind, row.fields, since_boot))
        yield replace(view, since_boot=since_boot, lost_before=row.lost_before, lost_after=row.lost_after)


def _record_view(handler: Handler, row: Row, guest: Guest, frames: Frames) -> RecordView:
    """Return what an action kept of one hit."""
    kind = handler.kinds[row.kind]
    values, names = _key(kind.columns, row.fields), tuple(one.label for one in kind.columns)
    if kind.stack:
        registers, words = _stack_record(kind, row.fields)
        stack = tuple(frames(registers, words))
        return RecordView(row.cpu, row.time, (), " / ".join(one.text for one in stack), stack)
    return RecordView(row.cpu, row.time, values, _text(kind, row.fields, guest.symbol), names=names)


def record_text(handler: Handler, row: Row, symbol: Symbol) -> str:
    """Return what `record` or `print` kept of one hit; "" of what only a stopped guest tells, a stack or a script's."""
    kind = handler.kinds[row.kind]
    return "" if kind.stack or kind.kind is not None else _text(kind, row.fields, symbol)


def _text(kind: Records, fields: bytes, symbol: Symbol) -> str:
    if kind.format:
        return render(kind.format, _parts(kind.columns, fields))
    parts = zip(kind.columns, _key(kind.columns, fields), strict=True)
    return ", ".join(f"{one.label}={_spell(value, symbol)}" for one, value in parts)


def _stack_record(kind: Records, data: bytes) -> tuple[Mapping[str, int], bytes]:
    """Of a record: registers by name, and the stack."""
    *values, room = (int.from_bytes(data[at : at + WORD], "little") for at in range(0, kind.fields, WORD))
    names = (column.label for column in kind.columns)
    return dict(zip(names, values, strict=False)), data[kind.fields :][: min(room & -WORD, WORD * kind.stack)]


def _spell(value: int | str, symbol: Symbol) -> str:
    """Return a pointer with what it points to, where that has a name."""
    if not isinstance(value, Address):
        return str(value)
    name = symbol(value)
    return f"{value:#x} <{name}>" if name else f"{value:#x}"


def _key(columns: Sequence[Column], data: bytes) -> tuple[int | str, ...]:
    """Return a key's parts as values: numbers, and texts."""
    return tuple(printable(part) if isinstance(part, bytes) else part for part in _parts(columns, data))


def _parts(columns: Sequence[Column], data: bytes) -> tuple[int | bytes, ...]:
    """Return the same with texts as the guest has them."""
    values: list[int | bytes] = []
    for column in columns:
        part, data = data[: column.size], data[column.size :]
        if column.form is Form.TEXT:
            values.append(part.partition(b"\0")[0])
        else:
            number = int.from_bytes(part, "little", signed=column.form is Form.SIGNED)
            values.append(Address(number) if column.form is Form.POINTER else number)
    return tuple(values)


def reason_view(why: Reason | None) -> ReasonView | None:
    return ReasonView(why.code, why.text, why.hint) if why is not None else None


def skippable(programs: Iterable[Sequence[Insn]]) -> int:
    """Return how many instructions the shortest ways through these programs leave out."""
    return sum(sum(map(cost_of, program)) - shortest(program, cost_of) for program in programs)


def cost_of(insn: Insn) -> int:
    """Return how many instructions a hit runs for one of a program: a call is that of a read."""
    return 1 + READ * (insn.flow is Flow.CALL)


def code_lines(insns: Iterable[Insn], notes: Mapping[int, str], parts: Notes = _NO_NOTES) -> tuple[CodeLine, ...]:
    """Return a listing. notes: by the address of the instruction that they are on. parts: of programs."""
    part: tuple[str, ...] = ()
    lines = []
    for insn in insns:
        part = parts.get(insn.address, part)
        lines.append(CodeLine(insn.address, insn.data, insn.text, notes.get(insn.address, ""), part))
    return tuple(lines)
