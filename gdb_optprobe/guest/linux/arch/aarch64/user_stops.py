"""A trap's code stops in a routine that it calls, with x30 in x17 meanwhile.

DWARF's numbers: DWARF for the Arm 64-bit Architecture, 4.1; the PC of a frame has the one of ELR_mode.
"""

from __future__ import annotations

from collections.abc import Mapping

from gdb_optprobe.isa.aarch64.abi import GENERAL, LR, MACHINE, PC, SP
from gdb_optprobe.isa.aarch64.encodings import FarBranch, Item, constant, encode_items, plain
from gdb_optprobe.isa.aarch64.fields import to_bytes
from gdb_optprobe.isa.base import Code
from gdb_optprobe.isa.user import UserStopping

_RET = 0xD65F_03C0
_KEPT = "x17"


class _Stopping:
    machine = MACHINE
    number, ticket = "x1", "x2"
    place = to_bytes(_RET)
    columns: Mapping[str, int] = {**{name: column for column, name in enumerate(GENERAL)}, SP: 31, PC: 33}
    swapped: Mapping[str, str] = {}

    def call(self, number: int, place: int) -> Code:
        items: list[Item] = [*constant(self.number, number), plain("orr", _KEPT, "xzr", LR)]
        items += (FarBranch(place, link=True), plain("orr", LR, "xzr", _KEPT))
        return lambda at: encode_items(items, at)


STOPPING = _Stopping()
_: UserStopping = STOPPING
