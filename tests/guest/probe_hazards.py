"""Sourced into GDB by tests: `probe-hazards [TIER]` puts a probe on every hazard of the micro guest, as JSON lines."""

from __future__ import annotations

import json

import gdb

from gdb_optprobe.debugger.attach import current_session
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.spec import Spec

ENTRY = 64


def word(address: int) -> int:
    return int.from_bytes(bytes(gdb.selected_inferior().read_memory(address, 8)), "little")


def symbol(name: str) -> int:
    return int(gdb.parse_and_eval(f"(unsigned long)&{name}"))


class ProbeHazards(gdb.Command):
    """Probe every hazard: its tier, or why it was refused."""

    def __init__(self) -> None:
        super().__init__("probe-hazards", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        session = current_session()
        outcome: dict[str, list[object]] = {}
        for entry in range(symbol("hazards"), symbol("hazards_end"), ENTRY):
            name = gdb.Value(word(entry)).cast(gdb.lookup_type("char").pointer()).string()
            try:
                (view,) = session.add(Spec(f"*{word(entry + 16):#x}", tier=argument))
                outcome[name] = [view.number, view.tier]
            except OptprobeError as error:
                outcome[name] = [0, str(error)]
        gdb.write(json.dumps(outcome) + "\n")


ProbeHazards()
