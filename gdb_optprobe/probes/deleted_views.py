"""Rows for deleted return probes: of functions with active calls that only those saw entered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.maps.call_table import CallCounts
from gdb_optprobe.probes.kernel_rethooks import ActiveCall
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.probe_views import calls_view, deleted_view
from gdb_optprobe.probes.rethook import all_calls
from gdb_optprobe.probes.shared_rethook import SharedRethook
from gdb_optprobe.probes.spec import Kind
from gdb_optprobe.probes.user.uprobes import Uprobes
from gdb_optprobe.probes.views import ProbeView

GLOB = "functions of a glob"


def deleted_views(optimizer: Optimizer, users: Uprobes) -> Iterator[ProbeView]:
    """Yield a row for each such function, the kernel's first."""
    yield from _deleted_kretprobes(optimizer)
    if not users.rethooks.has_retired:
        return
    users.tidy()
    for function in users.rethooks.retired:
        if (calls := users.calls(function)).active:
            place = function.program.spell(function.address)
            yield deleted_view(Kind.URETPROBE, function.address, place, place, calls, optimizer.target.guest)


def describe(views: Iterable[ProbeView]) -> Iterator[str]:
    """Yield in words what `commit` does not wait for: these calls may take any time. views: of deleted probes."""
    for view in views:
        count = "1 call is" if view.active == 1 else f"{view.active} calls are"
        kept = "their memory stays until they have returned"
        yield f"{view.location}: {count} under way that deleted probes saw entered; {kept}"


def _deleted_kretprobes(optimizer: Optimizer) -> Iterator[ProbeView]:
    target, arena = optimizer.target, optimizer.arena
    kept = {
        id(point)
        for site in optimizer.registry.sites()
        if site.rethook is not None
        for point in site.rethook.tables
    }
    points = [point for point in optimizer.rethooks.known if point.closed and id(point) not in kept]
    out = optimizer.rethooks.active_calls(target.guest, arena, points) if arena is not None else []
    for address in sorted({one.rethook.address for one in out}):
        here = [one for one in out if one.rethook.address == address]
        hits = {one.rethook.hits for one in here} - {None}  # of all tables of a function together
        tables = [each for each in points if each.hits in hits or any(each is one.rethook for one in here)]
        calls = all_calls(tables, target.guest)
        is_shared = any(isinstance(one.rethook, SharedRethook) for one in here)
        yield _deleted_kretprobe(address, GLOB if is_shared else "", calls, here, target.guest)


def _deleted_kretprobe(
    address: int, name: str, counts: CallCounts, out: Sequence[ActiveCall], guest: Guest
) -> ProbeView:
    """name: "" for that of the function."""
    symbol = name or guest.symbol(address)
    calls = calls_view(counts, len(out), (one.caller for one in out))
    return deleted_view(Kind.KRETPROBE, address, symbol or f"*{address:#x}", symbol, calls, guest)
