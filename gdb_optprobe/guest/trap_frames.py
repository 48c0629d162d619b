"""Call frame information with which GDB unwinds from a trap's code to the program: an ELF file with nothing else.

    frame 0   in our code   ─►   frame 1   a gate   ─►   frame 2   the program, with its saved registers
GDB takes the PC of an outer frame for a return address and shows the instruction before it, except behind a signal's
frame: at a function's first instruction it would show the function before. An unwinder in Python cannot make a
signal's frame, DWARF can. So our unwinder leads to a gate, an address without code, and this file describes the frame
behind it. On most ISAs no memory is there either; GDB's unwinders for one ISA pass no address that cannot be read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from gdb_optprobe.guest.symbolfile import CIE_ID, frames_file
from gdb_optprobe.isa.abi import ElfMachine

GATES = 0xFFFF_8000_0000_0000
"""No memory on most ISAs: a hole in the kernel's half of the addresses."""
ROOM = 16
MOST_BEHIND = 4
SIZE = ROOM * (MOST_BEHIND + 1)

# DWARF 5, 6.4.2 and 2.5.1.
_DEF_CFA, _OFFSET, _VALUE = 0x0C, 0x05, 0x16
_PLUS, _DEREF, _LITERAL, _MINUS = 0x23, 0x06, 0x30, 0x1C


@dataclass(frozen=True, slots=True)
class SavedRegisters:
    """Where the saved registers are.
    frame: DWARF's number of the register that leads to them. registers: offset of each, by its number. pc: its number.
    """

    machine: ElfMachine
    frame: int
    registers: Mapping[int, int]
    pc: int


@dataclass(frozen=True, slots=True)
class Gate:
    """The gate for a saved PC that is so many bytes behind the instruction to be shown.

    gates: the first one's address, and swapped: see isa/user.py.
    """

    gates: int
    behind: int
    swapped: Mapping[str, str]

    @property
    def address(self) -> int:
        return self.gates + ROOM * self.behind + ROOM // 2


def trap_frames(saved: SavedRegisters) -> bytes:
    """Return the file, with its gates at GATES. It may be loaded elsewhere."""
    found = b""
    for behind in range(MOST_BEHIND + 1):
        cie = struct.pack("<I", CIE_ID) + bytes((1,)) + b"zS\0" + bytes((1, 1, saved.pc, 0)) + _rules(saved, behind)
        fde = struct.pack("<IQQ", len(found), GATES + ROOM * behind, ROOM) + b"\0"
        found += b"".join(struct.pack("<I", len(each)) + each for each in (cie, fde))
    return frames_file(found, GATES, SIZE, saved.machine)


def _rules(saved: SavedRegisters, behind: int) -> bytes:
    code = bytes((_DEF_CFA, *_uleb(saved.frame), 0))
    for column, offset in saved.registers.items():
        if column == saved.pc:
            value = bytes((_PLUS, *_uleb(offset), _DEREF, _LITERAL + behind, _MINUS))
            code += bytes((_VALUE, *_uleb(column), len(value))) + value
        else:
            code += bytes((_OFFSET, *_uleb(column), *_uleb(offset)))
    return code


def _uleb(number: int) -> bytes:
    low = number & 0x7F
    return bytes((low | 0x80,)) + _uleb(number >> 7) if number >> 7 else bytes((low,))
