"""$optprobe, $optprobe_hits(N) and $optprobe_missed(N), for GDB's expressions."""

from __future__ import annotations

from collections.abc import Sequence

import gdb

from gdb_optprobe.commands.base import spoken
from gdb_optprobe.debugger import attach
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.views import ProbeView


def remember(probes: Sequence[ProbeView]) -> None:
    """$optprobe is the number of the last probe."""
    if probes:
        gdb.set_convenience_variable("optprobe", probes[-1].number)


class Hits(gdb.Function):
    """How often probe N was hit: $optprobe_hits(N)."""

    def __init__(self) -> None:
        super().__init__("optprobe_hits")

    def invoke(self, number: gdb.Value) -> int:
        try:
            return attach.current_session().hits(int(number))
        except OptprobeError as error:
            raise gdb.GdbError(spoken(error)) from None


class Missed(gdb.Function):
    """How many hits of probe N were not counted: $optprobe_missed(N)."""

    def __init__(self) -> None:
        super().__init__("optprobe_missed")

    def invoke(self, number: gdb.Value) -> int:
        try:
            return attach.current_session().missed(int(number))
        except OptprobeError as error:
            raise gdb.GdbError(spoken(error)) from None
