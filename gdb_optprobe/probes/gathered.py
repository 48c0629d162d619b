"""What a handler has gathered: of hits that we saw while the guest was stopped, or read from its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gdb_optprobe.handlers.interpret import Done, Outcome
from gdb_optprobe.handlers.program import Cell, Update
from gdb_optprobe.objects import aggregate
from gdb_optprobe.objects.aggregate import Aggregate
from gdb_optprobe.objects.table import merged
from gdb_optprobe.probes.handler import HITS, Handler

Rows = Mapping[bytes, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Gathered:
    """head: hits, faults and the cells' words. tables: words by key. lost: values that found no room in a table."""

    head: tuple[int, ...]
    tables: tuple[Rows, ...] = ()
    lost: tuple[int, ...] = ()

    @classmethod
    def nothing(cls, handler: Handler) -> Gathered:
        """Before the first hit."""
        return cls(handler.head(), ({},) * len(handler.tables), (0,) * len(handler.tables))

    @classmethod
    def read(cls, handler: Handler, data: bytes) -> Gathered:
        """From guest memory: all of it, or the head alone."""
        head = aggregate.decode(data[: handler.head_size])
        if len(data) <= handler.head_size:
            return cls(head, ({},) * len(handler.tables), (0,) * len(handler.tables))
        at, contents = handler.head_size, []
        for _, layout in handler.tables:
            contents.append(layout.decode(data[at : at + layout.size]))
            at += layout.size
        return cls(head, tuple(each.by_key for each in contents), tuple(each.overflow for each in contents))

    def after(self, handler: Handler, outcome: Outcome) -> Gathered:
        """After one more hit."""
        if handler.is_plain:
            return Gathered((self.head[0] + 1,))
        head = [*self.head]
        head[1] += outcome.faults
        places = {id(cell): place for cell, place in handler.places()}
        tables = [dict(rows) for rows in self.tables]
        numbers = {id(table): number for number, (table, _) in enumerate(handler.tables)}
        for done in outcome.done:
            assert isinstance(done.action, Update)
            target = done.action.target
            if target is HITS:
                head[0] += 1
            elif isinstance(target, Cell):
                place = places[id(target)]
                head[place] = aggregate.update(target.aggregate, head[place], done.value)
            else:
                _add(tables[numbers[id(target)]], target.aggregate, done)
        return Gathered(tuple(head), tuple(tables), self.lost)

    def merged(self, handler: Handler, other: Gathered) -> Gathered:
        """Both together."""
        head = [left + right & aggregate.MASK for left, right in zip(self.head, other.head, strict=True)]
        for cell, place in handler.places():
            head[place] = merged(cell.aggregate, self.head[place], other.head[place])
        tables = tuple(
            _together(table.aggregate, ours, theirs)
            for (table, _), ours, theirs in zip(handler.tables, self.tables, other.tables, strict=True)
        )
        lost = tuple(ours + theirs for ours, theirs in zip(self.lost, other.lost, strict=True))
        return Gathered(tuple(head), tables, lost)


def _add(rows: dict[bytes, tuple[int, ...]], kind: Aggregate, done: Done) -> None:
    rows[done.data] = aggregate.update(kind, rows.get(done.data, aggregate.initial(kind)), done.value)


def _together(kind: Aggregate, ours: Rows, theirs: Rows) -> Rows:
    found = dict(ours)
    for key, words in theirs.items():
        found[key] = merged(kind, found[key], words) if key in found else words
    return found
