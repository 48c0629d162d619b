"""Copies of displaced instructions in programs, run where they cannot be emulated: in bytes of their text that are
nobody's, with a jump back behind each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.isa.base import Flow, Insn, Isa, OutOfReach, Unrelocatable
from gdb_optprobe.probes.user_texts import UserTexts

STEP = 16


@dataclass
class Copies:
    """By the program's inode and the instruction's address, where its copy is; and what is free from where on."""

    _at: dict[tuple[int, int], int] = field(default_factory=dict)
    _free: dict[int, int] = field(default_factory=dict)

    def take(self, insn: Insn, program: Program, isa: Isa) -> tuple[int, bytes]:
        """Where the copy is or shall be, and its bytes. Raises OptprobeError."""
        key = (program.inode, insn.address)
        at = self._at.get(key)
        if at is None:
            at = self._free.get(program.inode, -(-program.filler[0] // STEP) * STEP)
            data = copy_of(insn, program, at, isa)
            end = at + -(-len(data) // STEP) * STEP
            self._at[key], self._free[program.inode] = at, end
        return at, copy_of(insn, program, at, isa)

    def give_back(self, programs: Mapping[int, Program], texts: UserTexts) -> None:
        """No trap leads to any. Raises OptprobeError."""
        for inode in self._free:
            texts.disarm(programs[inode], [at for (of, _), at in self._at.items() if of == inode])
        self.clear()

    def clear(self) -> None:
        self._at.clear()
        self._free.clear()


def copy_of(insn: Insn, program: Program, at: int, isa: Isa) -> bytes:
    """The instruction's copy, to run at `at`. Raises OptprobeError where there is none."""
    where = program.spell(insn.address)
    if program.bits != 64:
        raise OptprobeError(f"{insn.text} at {where} is not emulated, and 32-bit programs have no copies yet")
    if program.pie and insn.flow in (Flow.CALL, Flow.INDIRECT_CALL):
        raise OptprobeError(f"{insn.text} at {where} pushes an address, which is another in each process")
    try:
        data = isa.relocate([insn], at).data
    except (Unrelocatable, OutOfReach) as stuck:
        raise OptprobeError(f"{insn.text} at {where} cannot run elsewhere: {stuck}") from None
    start, end = program.filler
    if not start <= at or at + len(data) > end:
        raise OptprobeError(f"{insn.text} at {where} has to run elsewhere, and {program.path} has no bytes left for it")
    return data
