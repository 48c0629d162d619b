"""Execute out of line: copies of displaced instructions that cannot be emulated, each with a jump back behind it.

They are in padding of a program's text, which no code uses.

A thread may be in one, or come back to one from a signal's handler, at any time: so copies stay in the processes that
have them, as Linux's own do, and a place is never used for another instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.guest.linux.user.programs import Programs
from gdb_optprobe.isa.base import Insn, OutOfReach, Unrelocatable
from gdb_optprobe.isa.user import UserTrapping

SLOT_SIZE = 16
TRAMPOLINE = -1
"""A placeholder for the program's trampoline."""


@dataclass
class XolSlots:
    """Where they are, by the program's inode and the instruction's address."""

    _slots: dict[tuple[int, int], range] = field(default_factory=dict)

    def reserve(self, insn: Insn, program: Program, isa: UserTrapping, programs: Programs) -> tuple[int, bytes]:
        """Return where the copy is or shall be, and its bytes. Raises OptprobeError."""
        at = self.find(insn, program)
        if at is None:
            at = self._find_free(program, lambda at: encode_copy(insn, program, at, isa), programs)
            if at is None:
                raise no_slot(insn, program)
        data = encode_copy(insn, program, at, isa)
        self._slots[program.inode, insn.address] = range(at, at + len(data))
        return at, data

    def reserve_trampoline(self, program: Program, trap: bytes, programs: Programs) -> int:
        """Return where calls of the program's functions may return to. Raises OptprobeError."""
        key = (program.inode, TRAMPOLINE)
        if key not in self._slots:
            at = self._find_free(program, lambda at: trap, programs)
            if at is None:
                raise OptprobeError(f"{program.path} has no bytes left for what its functions return to")
            self._slots[key] = range(at, at + len(trap))
        return self._slots[key].start

    def adopt_trampoline(self, program: Program, address: int) -> None:
        """Record that the program's trampoline is there."""
        self._slots[program.inode, TRAMPOLINE] = range(address, address + 1)

    def find(self, insn: Insn, program: Program) -> int | None:
        """Return where the copy is, if it has one."""
        found = self._slots.get((program.inode, insn.address))
        return found.start if found is not None else None

    def forget(self, inode: int) -> None:
        """Forget that file: it is another program now."""
        self._slots = {key: places for key, places in self._slots.items() if key[0] != inode}

    def clear(self) -> None:
        """The guest is gone."""
        self._slots.clear()

    def slots_of(self, program: Program) -> tuple[range, ...]:
        """Return the slots of the program."""
        return tuple(at for (inode, _), at in self._slots.items() if inode == program.inode)

    def _find_free(self, program: Program, made: Callable[[int], bytes], programs: Programs) -> int | None:
        """Return a place that no process uses, or that an earlier GDB has used for the same bytes. Raises
        OptprobeError.
        """
        taken = {
            at
            for copy in self.slots_of(program)
            for at in range(copy.start - copy.start % SLOT_SIZE, copy.stop, SLOT_SIZE)
        }
        start, end = program.filler
        own = program.text(start, end - start)
        there = []
        offset = program.offset(start) if start < end else 0
        for space in filter(lambda space: space.holds(offset), programs.mapping(program.file)):
            held = programs.pages.read(space.mm, space.address(offset), end - start)
            if held is not None and held != own:
                there.append(held)
        for at in range(first_slot(program), end, SLOT_SIZE):
            data = made(at)
            places = range(at, at + len(data), SLOT_SIZE)
            here = slice(at - start, at - start + len(data))
            if taken.isdisjoint(places) and all(held[here] in (data, own[here]) for held in there):
                return at
        return None


def first_slot(program: Program) -> int:
    """Return where the first copy would be."""
    return -(-program.filler[0] // SLOT_SIZE) * SLOT_SIZE


def encode_copy(insn: Insn, program: Program, at: int, isa: UserTrapping) -> bytes:
    """Return the instruction's copy, to run at `at`. Raises OptprobeError where there is none."""
    try:
        data = isa.copy(insn, at, program.bits, program.pie)
    except (Unrelocatable, OutOfReach) as stuck:
        raise OptprobeError(f"{insn.text} at {program.spell(insn.address)} cannot run elsewhere: {stuck}") from None
    if at + len(data) > program.filler[1]:
        raise no_slot(insn, program)
    return data


def no_slot(insn: Insn, program: Program) -> OptprobeError:
    """Return the error of an instruction that has no copy."""
    where = program.spell(insn.address)
    return OptprobeError(f"{insn.text} at {where} has to run elsewhere, and {program.path} has no bytes left for that")
