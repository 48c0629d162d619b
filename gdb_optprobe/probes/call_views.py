"""Views of the calls that return probes saw entered, those of deleted probes among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.maps.call_table import CallTable
from gdb_optprobe.probes.kernel_rethooks import ActiveCall
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.spec import Kind
from gdb_optprobe.probes.views import ActiveCallView, CallsView, ProbeView


def calls_view(found: CallTable, out: Sequence[ActiveCall]) -> CallsView:
    """out: those of `found` that are under way, and whose they are."""
    callers = [ActiveCallView(one.caller.who, one.caller.pid, one.caller.name) for one in out]
    callers.sort(key=lambda one: (one.pid is None, one.pid, one.who))
    return CallsView(found.entries, found.returns, len(found.active), found.missed, found.dropped, tuple(callers))


def deleted_kretprobes(optimizer: Optimizer) -> Iterator[ProbeView]:
    """A row for each function with calls under way that only return probes saw entered which are no more."""
    target, arena = optimizer.target, optimizer.arena
    kept = {
        id(point)
        for site in optimizer.registry.sites()
        if site.rethook is not None
        for point in site.rethook.tables
    }
    points = [point for point in optimizer.rethooks.known if id(point) not in kept]
    out = optimizer.rethooks.active_calls(target.guest, arena, points) if arena is not None else []
    for address in sorted({one.rethook.address for one in out}):
        here = [one for one in out if one.rethook.address == address]
        tables = [point.read_calls(target.guest) for point in points if any(point is one.rethook for one in here)]
        yield _deleted_kretprobe(address, tables, here, target.guest)


def describe(views: Iterable[ProbeView]) -> Iterator[str]:
    """What nobody waits for, in words: these calls return when they please. views: of deleted probes."""
    for view in views:
        count = "1 call is" if view.active == 1 else f"{view.active} calls are"
        kept = "their memory stays until they have returned"
        yield f"{view.location}: {count} under way that deleted probes saw entered; {kept}"


def _deleted_kretprobe(
    address: int, tables: Sequence[CallTable], out: Sequence[ActiveCall], guest: Guest
) -> ProbeView:
    symbol = guest.symbol(address)
    counts = [(table.returns, table.missed, table.dropped) for table in tables]
    returns, missed, dropped = (sum(each) for each in zip(*counts, strict=True))
    found = CallTable(returns, missed, dropped, tuple(one.call for one in out))
    return deleted_view(Kind.KRETPROBE, address, symbol or f"*{address:#x}", symbol, calls_view(found, out))


def deleted_view(kind: Kind, address: int, location: str, symbol: str, calls: CallsView) -> ProbeView:
    """Of a function whose probes are no more, with calls under way that they saw entered."""
    return ProbeView(
        number=0,
        name="",
        kind=kind.value,
        location=location,
        address=address,
        symbol=symbol,
        tier="",
        state="deleted",
        tags=("DELETED",),
        enabled=False,
        needs_gdb=False,
        reason=None,
        patch_size=0,
        original_bytes=b"",
        patched_bytes=b"",
        detour=None,
        condition="",
        actions=(),
        hits=calls.returns,
        missed=calls.missed,
        active=calls.active,
        dropped=0,
        faults=0,
        stops=0,
        calls=calls,
    )
