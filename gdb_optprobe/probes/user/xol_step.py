"""Instructions of programs that are not emulated, for comparison: run out of line, with a second trap behind each.

    trap ─► the copy:  instruction │ trap ─► behind the instruction          emulation off
                       instruction │ jump back                               where it cannot be emulated
Both have the same bytes but for the jump's first, so one becomes the other while threads are there. Branches, calls and
returns are emulated all the same, as Linux has it (arch/x86/kernel/uprobes.c, branch_emulate_op).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.journal import Item
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.user import UserTrapping
from gdb_optprobe.maps.trap_table import Key
from gdb_optprobe.probes.user import trap_records
from gdb_optprobe.probes.user.target import UserTarget
from gdb_optprobe.probes.user.trap_records import TrapRecord
from gdb_optprobe.probes.user.uprobe_site import Tail, UprobeSite, XolTrap
from gdb_optprobe.probes.user.uprobe_traps import UprobeTraps
from gdb_optprobe.probes.user.xol import XolSlots


@dataclass(frozen=True)
class XolSteps:
    """Puts copies into programs, and traps at their ends. next_record: a new number for a trap in the journal."""

    guest: Guest
    traps: UprobeTraps
    xol_slots: XolSlots
    next_record: Callable[[], int]

    def install_copy(self, point: UprobeSite, emulation: bool, user: UserTarget) -> tuple[int | None, Tail | None]:
        """Return where the instruction's copy is, in every process that has the program, and the jump at its end.

        None where there is none, or it ends in another way. Raises OptprobeError.
        """
        program, insn, isa = point.program, point.insn, user.kernel.isa
        if not point.needs_copy and (emulation or not _falls_through(insn)):
            return None, None
        copy, data = self.xol_slots.reserve(insn, program, isa, user.programs)
        tail = _end_of(insn, program, copy, data, isa)
        if not user.texts.is_installed(program, copy):
            parts = {copy: data} if tail is None else {copy: data[: -len(tail.jump)], tail.address: tail.jump}
            user.texts.install(program, parts, first=True)
        return copy, tail

    def install_trap(self, point: UprobeSite, tail: Tail, user: UserTarget, arena: Arena) -> None:
        """Have the copy end with a trap. Raises OptprobeError."""
        if point.xol_trap is not None:
            return
        program, isa = point.program, user.kernel.isa
        code = isa.moved(point.insn.end - tail.address - isa.behind)
        placed = self.traps.install_code(code, user.kernel.calls.handler, arena)
        point.xol_trap = XolTrap(tail, placed, self.next_record())
        self.traps.dispatcher.set_code(_key(program, tail), placed.detour.address)
        trap = TrapRecord(program.file, tail.address, tail.jump[: len(isa.trap)])
        trap_records.write_trap(point.xol_trap.record, trap, arena.journal)
        user.texts.exchange(program, tail.address, tail.trapping(isa.trap))

    def remove_trap(self, point: UprobeSite, user: UserTarget, arena: Arena) -> None:
        """Have the copy end with its jump. Raises OptprobeError."""
        step, program = point.xol_trap, point.program
        if step is None:
            return
        user.texts.exchange(program, step.tail.address, step.tail.jump)
        self.traps.dispatcher.clear(_key(program, step.tail))
        step.installed.release(self.guest, arena, reached=True)
        arena.journal.drop(Item.USER, step.record)
        point.xol_trap = None


def _key(program: Program, tail: Tail) -> Key:
    return program.offset(tail.address), program.inode


def _falls_through(insn: Insn) -> bool:
    """Return whether execution continues behind it, so that a trap can be there."""
    return insn.flow is Flow.NEXT


def _end_of(insn: Insn, program: Program, copy: int, data: bytes, isa: UserTrapping) -> Tail | None:
    """Return a step. data: the copy of the instruction, for the address `copy`."""
    last = isa.decode(data, copy, program.bits)[-1]
    if not _falls_through(insn) or last.flow is not Flow.JUMP or last.target != insn.end:
        return None
    return Tail(last.address, last.data)
