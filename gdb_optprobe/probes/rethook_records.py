"""The journal's records of rethooks: their tables, and counts that the tables do not have."""

from __future__ import annotations

from typing import Any

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.arena_contents import ArenaContents
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.maps import validate
from gdb_optprobe.maps.call_table import MASK, WORD, CallCounts, CallTableLayout, Homing
from gdb_optprobe.maps.journal_format import Damaged
from gdb_optprobe.probes.rethook import Rethook
from gdb_optprobe.probes.shared_rethook import SharedRethook

_NOTHING = [0, 0, 0, 0]


def read_rethooks(left: ArenaContents, arena: Arena | None, homing: Homing = Homing.PRODUCT) -> list[Rethook]:
    """Return the rethooks that `left` had. Without an arena the records are only validated. Raises Damaged.

    homing: of the ISA.
    """
    found: list[Rethook] = []
    for at, value in sorted((left.points or {}).items()):
        memory = left.data_at(at)
        try:
            # That of one function has no window: it is looked at as a whole.
            address, slots, saved, *window = validate.numbers(validate.row(value, 3, 4), 4)
            validate.number(slots, 1 << 20, 1), validate.number(saved, 1 << 10)
            looked_at = validate.number(window[0], slots, 1) if window else 0
            layout = CallTableLayout(slots, saved, looked_at, homing)
        except ValueError as wrong:
            raise Damaged(f"return probes at {at:#x}: {wrong}") from None
        if memory is None or not left.bounds.has(address):
            raise Damaged(f"return probes at {at:#x}")
        if layout.size > memory.size:
            raise Damaged(f"return probes at {at:#x}: {layout.size} bytes in {memory.size}")
        before, ended = _read_counts(at, (left.calls or {}).get(at, _NOTHING))
        hits = _read_hits(at, left)
        if arena is not None:
            ended = ended or address not in _probed_addresses(left)
            trampolines = _trampolines(left, address, at)
            kind = SharedRethook if window else Rethook
            found.append(kind.adopted(address, layout, memory, trampolines, arena, before, ended, hits))
    return found


def write_hits(rethook: Rethook, arena: Arena) -> None:
    """Write where returns are counted that the table does not count."""
    if rethook.hits is not None:
        arena.journal.put(Item.HITS, rethook.memory.address, rethook.hits.address)
    else:
        arena.journal.drop(Item.HITS, rethook.memory.address)


def write_counts(rethook: Rethook, arena: Arena) -> None:
    """Write what the table in the guest does not have, for a later session."""
    before = rethook.earlier_counts
    value = [int(rethook.ended), before.returns & MASK, before.missed, before.dropped]
    if value != _NOTHING:
        arena.journal.put(Item.CALLS, rethook.memory.address, value)


def _read_counts(at: int, value: Any) -> tuple[CallCounts, bool]:
    """Decode the counts of tables older than that at `at`, and whether its probes are deleted. Raises Damaged."""
    try:
        ended, *before = validate.numbers(validate.row(value, 4), 4)
    except ValueError as wrong:
        raise Damaged(f"calls at {at:#x}: {wrong}") from None
    return CallCounts(*before), bool(ended)


def _read_hits(at: int, left: ArenaContents) -> Slot | None:
    """Return the counter with the hits that are returns of the table at `at`, if it is there. Raises Damaged."""
    if (value := left.hits.get(at)) is None:
        return None
    try:
        hits = left.data_at(validate.number(value))
    except ValueError as wrong:
        raise Damaged(f"returns at {at:#x}: {wrong}") from None
    return hits if hits is not None and hits.size >= WORD else None


def _probed_addresses(left: ArenaContents) -> frozenset[int]:
    """Return the addresses that are probed."""
    found = (value.get("at") for value in (left.probes or {}).values() if isinstance(value, dict))
    return frozenset(at for at in found if isinstance(at, int))


def _trampolines(left: ArenaContents, function: int, table: int) -> dict[int, Detour]:
    """Return the trampolines of the function that is entered there: detours without original instructions."""
    found = (one for one in left.detours.values() if one.head == function != one.address and not one.origins)
    return {one.address: one for one in found if table in left.references.get(one.address, (table,))}
