"""A trap's code stops in a routine that it calls: x30 is kept meanwhile, for it leads back to the kernel's entry code.

DWARF's numbers are those of the ABI's supplement (AADWARF64, 4.1). PSTATE has none: GDB shows the kernel's.
The first of GDB's unwinders takes an address that cannot be read for code without a frame, so that gates are in memory,
and outside the image, which has frames of its own: where the linear map has the start of the kernel's text.
QEMU's stub reads what the vCPU could: so the kernel's reads of programs (PAN) are allowed while it stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.isa.aarch64.abi import FLAGS, GENERAL, LR, MACHINE, PC, SP
from gdb_optprobe.isa.aarch64.encodings import FarBranch, constant, encode_items, plain
from gdb_optprobe.isa.aarch64.fields import to_bytes
from gdb_optprobe.isa.abi import ElfMachine
from gdb_optprobe.isa.base import Code
from gdb_optprobe.isa.user import UserStopping

_KEPT, _PAN = "x17", 16
_RET = 0xD65F_03C0
_GET_PAN, _CLEAR_PAN, _SET_PAN = 0xD538_4260 | _PAN, 0xD500_409F, 0xD518_4260 | _PAN
"""mrs x16, pan; msr pan, #0; msr pan, x16."""
_FEATURES, _HAS_PAN = "ID_AA64MMFR1_EL1", 15 << 20
COLUMNS = {**{name: column for column, name in enumerate(GENERAL)}, SP: 31, PC: 32}
SWAPPED = {FLAGS: ""}


@dataclass
class Stopping:
    """See isa.user.UserStopping. has_pan: whether all CPUs have PAN."""

    gates: int
    has_pan: bool
    machine: ElfMachine = MACHINE
    number: str = "x1"
    ticket: str = "x2"
    place: bytes = to_bytes(_RET)
    columns: Mapping[str, int] = field(default_factory=lambda: COLUMNS)
    swapped: Mapping[str, str] = field(default_factory=lambda: SWAPPED)

    def call(self, number: int, place: int) -> Code:
        loads = (*constant(self.number, number), plain("orr", _KEPT, "xzr", LR))
        back = plain("orr", LR, "xzr", _KEPT)
        before, behind = ((_GET_PAN, _CLEAR_PAN), (_SET_PAN,)) if self.has_pan else ((), ())
        return lambda at: encode_items([*loads, *before, FarBranch(place, link=True), *behind, back], at)


def have_pan(machine: Machine) -> bool:
    """Return whether all CPUs have PAN."""
    return all(machine.registers(vcpu, (_FEATURES,))[_FEATURES] & _HAS_PAN for vcpu in machine.vcpus())


def _(stopping: Stopping) -> UserStopping:
    return stopping
