"""Records in modules that are imported when one is asked for: of the ISAs a session needs one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar, overload

from gdb_optprobe.garbage import kept
from gdb_optprobe.lazy_dataclasses import while_importing

__all__ = ["OnDemand", "of_name"]

_Record = TypeVar("_Record")


class OnDemand(Sequence[_Record]):
    """A table of records. places: of each record's name, "MODULE:ATTRIBUTE"."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = dict(places)

    def named(self, name: str) -> _Record | None:
        """Return the record with this name; None where there is none. No other one is imported."""
        if name not in self._places:
            return None
        module, _, attribute = self._places[name].partition(":")
        if module not in sys.modules:
            with kept(), while_importing():
                import_module(module)
        record: _Record = getattr(sys.modules[module], attribute)
        return record

    @overload
    def __getitem__(self, index: int) -> _Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[_Record]: ...
    def __getitem__(self, index: int | slice) -> Any:
        names = [*self._places][index]
        return self.named(names) if isinstance(names, str) else [*map(self.named, names)]

    def __len__(self) -> int:
        return len(self._places)


def of_name(name: str, records: Sequence[_Record]) -> Sequence[_Record]:
    """Return the record of this name alone where the table tells it without the others; else all records."""
    found = records.named(name) if isinstance(records, OnDemand) else None
    return records if found is None else (found,)
