"""The text of the slot collector."""

from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.debugger.table import indented
from gdb_optprobe.probes.views import CollectorView


def lines(found: CollectorView) -> list[str]:
    """Return the text, for a report."""
    told = list(quarantine(found))
    left = f"{_size(found.garbage_slots, found.garbage_bytes)} still to be collected"
    if not found.runs and not found.failed and not found.quarantined:
        return [f"Collector: {left}"]
    if found.runs:
        each = ", ".join(f"{count} for {why}" for why, count in found.runs.items())
        runs = _counted(sum(found.runs.values()), "run")
        told.append(f"Collector: {runs} ({each}); {_size(found.slots, found.bytes)} freed")
        held = f"{1000 * found.longest:.1f} ms at most, {1000 * found.total:.1f} ms in all"
        last = f"the last run looked through {_counted(found.stacks, 'stack')}"
        told += indented(f"the guest was held for {held}; {last}")
    if found.failed:
        told += indented(f"{found.failed} of the runs freed nothing: not all stacks were known then")
    if found.garbage_slots and not found.quarantined:
        told += indented(left)
    return told


def quarantine(found: CollectorView) -> Sequence[str]:
    """Return a line for memory that is never used again, and why; none where there is no such memory."""
    if not found.quarantined:
        return ()
    size = _size(found.garbage_slots, found.garbage_bytes)
    return (f"Quarantined: {size}, in which a thread may still be: {found.quarantined}",)



def _size(slots: int, size: int) -> str:
    return f"{_counted(slots, 'slot')} of {size:,} bytes"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s'[: number != 1]}"
