"""A trap's code stops in a routine that it calls: the frame has LR and all other registers of the user.

DWARF's numbers are those of GDB's .debug_frame (rs6000-tdep.c, rs6000_dwarf2_reg_to_regnum), where the MSR has none:
so its number (SysV ABI, PowerPC supplement) is used for the PC of a frame.
"""

from __future__ import annotations

from collections.abc import Mapping

from gdb_optprobe.guest.trap_frames import GATES
from gdb_optprobe.isa.base import Code
from gdb_optprobe.isa.ppc64le.abi import CTR, FLAGS, GENERAL, LR, MACHINE, PC, XER
from gdb_optprobe.isa.ppc64le.encodings import NONE, FarBranch, encode_items, logical, number
from gdb_optprobe.isa.ppc64le.fields import to_bytes
from gdb_optprobe.isa.user import UserStopping

_BLR = 0x4E80_0020


class _Stopping:
    machine = MACHINE
    number, ticket = "r3", "r4"
    place = to_bytes(_BLR)
    columns: Mapping[str, int] = {
        **{name: column for column, name in enumerate(GENERAL)},
        FLAGS: 64, PC: 66, XER: 101, LR: 108, CTR: 109,
    }  # fmt: skip
    swapped: Mapping[str, str] = {"msr": ""}
    gates = GATES

    def call(self, number_of: int, place: int) -> Code:
        high, low = number_of >> 16, number_of & 0xFFFF
        loads = (number("addis", self.number, NONE, high), logical("ori", self.number, self.number, low))
        return lambda at: encode_items([*loads, FarBranch(place, link=True)], at)


STOPPING = _Stopping()
_: UserStopping = STOPPING
