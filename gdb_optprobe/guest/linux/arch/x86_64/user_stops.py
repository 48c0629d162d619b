"""A trap's code stops in a routine that it calls; its return address is overwritten afterwards, see mmap_hook.py.

DWARF's numbers are those of the System V ABI, AMD64 supplement, figure 3.36.
"""

from __future__ import annotations

from collections.abc import Mapping

from gdb_optprobe.guest.trap_frames import GATES
from gdb_optprobe.isa.base import Code, joined
from gdb_optprobe.isa.user import UserStopping
from gdb_optprobe.isa.x86_64.abi import MACHINE
from gdb_optprobe.isa.x86_64.encoder import Relative, immediate, instruction

_WIPE = bytes.fromhex("48c74424f800000000")  # movq $0, -8(%rsp)
_NAMES = ("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *(f"r{number}" for number in range(8, 16)), "rip")


class _Stopping:
    machine = MACHINE
    number, ticket = "rax", "rdx"
    place = b"\xc3"
    columns: Mapping[str, int] = {
        **{name: column for column, name in enumerate(_NAMES)}, "eflags": 49, "cs": 51, "ss": 52,
    }  # fmt: skip
    swapped: Mapping[str, str] = {"gs_base": "k_gs_base", "k_gs_base": "gs_base"}
    gates = GATES

    def call(self, number: int, place: int) -> Code:
        load = instruction(b"\xc7", 0, self.number, 4, immediate(number, 4))
        called = Relative(b"\xe8" + bytes(4), 1, place)
        return joined((lambda at: load, called.encode, lambda at: _WIPE))


STOPPING = _Stopping()
_: UserStopping = STOPPING
