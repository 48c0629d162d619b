"""What a handler has gathered: of hits that we saw while the guest was stopped, or read from its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.handlers.interpreter import Done, Outcome
from gdb_optprobe.handlers.ir import Cell, HashMap, Put, Records, Stop
from gdb_optprobe.maps import aggregate
from gdb_optprobe.maps.aggregate import Aggregate
from gdb_optprobe.maps.ring import RingContents, RingPosition
from gdb_optprobe.probes.handler import HITS, Handler
from gdb_optprobe.probes.shared_maps import MapsContents, Rows

MOST_RECORDS = 4096
"""Of hits that stopped the guest, as many are kept."""


@dataclass(frozen=True, slots=True)
class Row:
    """A record. kind: its number, see Handler.kinds; time: of the guest's clock, None where it was stopped.

    lost_before, lost_after: how many records of the ring were lost there.
    """

    kind: int
    cpu: int
    time: int | None
    fields: bytes
    lost_before: int = 0
    lost_after: int = 0


@dataclass(frozen=True, slots=True)
class Results:
    """head: hits, faults, the cells' words, and what shared tables have lost. tables: words by key, as it was typed.

    lost: values that found no room in a table of the probe's own, or, of one that is bare, of all that share it.

    records: in the order of hits, those that we saw first. dropped: how many found no room in the ring.
    """

    head: tuple[int, ...]
    tables: tuple[Rows, ...] = ()
    lost: tuple[int, ...] = ()
    records: tuple[Row, ...] = ()
    dropped: int = 0

    @property
    def hits(self) -> int:
        return self.head[0]

    @property
    def faults(self) -> int:
        """Return how many hits could not read what they needed; a plain count has none."""
        return self.head[1] if len(self.head) > 1 else 0

    def lost_of(self, handler: Handler) -> Sequence[int]:
        """Return how many values found no room in each table."""
        return [self.head[place] for place in handler.lost_words()] if handler.counts_lost else self.lost

    @classmethod
    def empty(cls, handler: Handler) -> Results:
        """Return the results before the first hit."""
        return cls(handler.head(), ({},) * len(handler.tables), (0,) * len(handler.tables))

    @classmethod
    def decode(
        cls,
        handler: Handler,
        data: bytes,
        since: RingPosition,
        shared: MapsContents | None = None,
        before: bytes | None = None,
    ) -> Results:
        """Decode guest memory: all of it, all but the ring, or the head alone. since: which records were cleared.

        shared: what the maps hold that the probe shares with others. before: the same a moment earlier, where the guest
        runs: see HashMapLayout.decode and RingLayout.decode.
        """
        head = aggregate.decode(data[: handler.head_size])
        if len(data) <= handler.head_size and shared is None:
            return replace(cls.empty(handler), head=head)
        at, contents = handler.head_size, []
        for _, layout in handler.own_tables:
            part = slice(at, at + layout.size)
            contents.append(layout.decode(data[part], before[part] if before is not None else None))
            at += layout.size
        if handler.shared is None:
            found = cls(head, tuple(each.by_key for each in contents), tuple(each.overflow for each in contents))
        else:
            found = replace(cls.empty(handler), head=head)
            if shared is not None:
                found = replace(found, tables=shared.rows.get(handler.function, found.tables))
                found = replace(found, lost=found.lost if handler.counts_lost else shared.lost or found.lost)
        if handler.ring is None or len(data) <= at:
            return found
        ring = handler.ring.decode(data[at:], since, before[at:] if before is not None else None)
        return replace(found, records=rows_of(ring), dropped=ring.dropped)

    def after_hit(self, handler: Handler, outcome: Outcome, vcpu: int) -> Results:
        """After one more hit."""
        if handler.is_plain:
            return Results((self.head[0] + 1,))
        head = [*self.head]
        if not handler.bare:
            head[1] += outcome.faults
        places = {id(cell): place for cell, place in handler.cell_words()}
        tables = [dict(rows) for rows in self.tables]
        numbers = {id(table): number for number, (table, _) in enumerate(handler.tables)}
        records = [*self.records]
        for done in outcome.done:
            if isinstance(done.action, Put | Stop):
                continue
            target = done.action.target
            if isinstance(target, Records):
                records.append(Row(handler.kind_of(target), vcpu, None, done.data))
            elif target is HITS:
                head[0] += 1
            elif isinstance(target, Cell):
                place = places[id(target)]
                head[place] = aggregate.update(target.aggregate, head[place], done.value)
            elif isinstance(target, HashMap):
                typed = done.data[target.key_size - sum(column.size for column in handler.columns(target)) :]
                _add(tables[numbers[id(target)]], target.aggregate, typed, done)
        kept = records[-MOST_RECORDS:]
        dropped = self.dropped + len(records) - len(kept)
        return Results(tuple(head), tuple(tables), self.lost, tuple(kept), dropped)

    def merged(self, handler: Handler, other: Results) -> Results:
        """Both together."""
        head = [left + right & aggregate.MASK for left, right in zip(self.head, other.head, strict=True)]
        for cell, place in handler.cell_words():
            head[place] = aggregate.merged(cell.aggregate, self.head[place], other.head[place])
        tables = tuple(
            _merge_rows(table.aggregate, ours, theirs)
            for (table, _), ours, theirs in zip(handler.tables, self.tables, other.tables, strict=True)
        )
        lost = tuple(ours + theirs for ours, theirs in zip(self.lost, other.lost, strict=True))
        records = self.records + other.records
        return Results(tuple(head), tables, lost, records, self.dropped + other.dropped)


def rows_of(ring: RingContents) -> tuple[Row, ...]:
    """Return the finished records of a ring. What it lost came after its newest one, or before its oldest one."""
    rows = [Row(one.kind, one.cpu, one.time, one.fields) for one in ring.records]
    if ring.overwrites:
        rows[:1] = [replace(first, lost_before=ring.dropped) for first in rows[:1]]
    else:
        rows[-1:] = [replace(last, lost_after=ring.dropped) for last in rows[-1:]]
    return tuple(rows)


def _add(rows: dict[bytes, tuple[int, ...]], kind: Aggregate, key: bytes, done: Done) -> None:
    rows[key] = aggregate.update(kind, rows.get(key, aggregate.initial(kind)), done.value)


def _merge_rows(kind: Aggregate, ours: Rows, theirs: Rows) -> Rows:
    found = dict(ours)
    for key, words in theirs.items():
        found[key] = aggregate.merged(kind, found[key], words) if key in found else words
    return found
