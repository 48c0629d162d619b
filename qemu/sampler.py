"""Record some registers and the host's clock whenever the guest passes an address. It is sourced in GDB.

python sampler = Sampler(0xc000000000135bf0, ["r0"])
continue, Ctrl-C
python print(sampler.report())
python sampler.delete()
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import gdb

WORD = (1 << 64) - 1


class Sampler(gdb.Breakpoint):
    """A breakpoint at which the guest continues at once, and a record of each pass."""

    def __init__(self, address: int, registers: Sequence[str]) -> None:
        super().__init__(f"*{address:#x}", internal=True)
        self.registers = tuple(registers)
        self.seen: list[dict[str, float]] = []

    def stop(self) -> bool:
        arrived = time.monotonic()
        frame = gdb.newest_frame()
        row: dict[str, float] = {name: int(frame.read_register(name)) & WORD for name in self.registers}
        self.seen.append({**row, "arrived": arrived, "left": time.monotonic()})
        return False

    def report(self) -> str:
        """Return JSON: a row for each pass, the registers by name; `arrived` and `left` are seconds of the host's
        clock.
        """
        return json.dumps(self.seen)
