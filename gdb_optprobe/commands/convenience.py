"""$optprobe, $optprobe_hits(N) and $optprobe_missed(N), for GDB's expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gdb

from gdb_optprobe.commands.base import spoken
from gdb_optprobe.debugger import attach
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.views import ProbeView


def remember(probes: Sequence[ProbeView]) -> None:
    """Set $optprobe to the number of the last probe."""
    if probes:
        gdb.set_convenience_variable("optprobe", probes[-1].number)


class Hits(gdb.Function):
    """How often probe N was hit: $optprobe_hits(N)."""

    def __init__(self) -> None:
        super().__init__("optprobe_hits")

    def invoke(self, *numbers: gdb.Value) -> int:
        return _of_one("hits", numbers, lambda number: attach.current_session().hits(number))


class Missed(gdb.Function):
    """How many hits of probe N were not counted: $optprobe_missed(N)."""

    def __init__(self) -> None:
        super().__init__("optprobe_missed")

    def invoke(self, *numbers: gdb.Value) -> int:
        return _of_one("missed", numbers, lambda number: attach.current_session().missed(number))


def _of_one(name: str, numbers: Sequence[gdb.Value], get: Callable[[int], int]) -> int:
    """Call `value` with the probe's number. Any failure ends as a gdb.GdbError of one clear line."""
    try:
        if len(numbers) != 1:
            raise OptprobeError(f"$optprobe_{name} takes the number of one probe", f"$optprobe_{name}(1)")
        return get(int(numbers[0]))
    except (OptprobeError, gdb.error) as error:
        raise gdb.GdbError(spoken(error)) from None
