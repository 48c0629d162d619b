"""The arena that an earlier GDB left in the guest, by its journal.

    LinuxArch.places ──► a journal there? ──► RecordedArena ──► empty: what was begun to be given back is given back
                                            └──────► a Room, as it was
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

from gdb_optprobe.detours import lent_block
from gdb_optprobe.detours.arena_contents import ArenaContents, Bounds, decode, restoring_patches
from gdb_optprobe.detours.journal import Item, Journal
from gdb_optprobe.detours.lent_block import LentBlock
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import physical_patch
from gdb_optprobe.guest.linux.arch.base import LinuxArch, Loan, Room, Window
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.kernel_discovery import DiscoveredKernel
from gdb_optprobe.guest.linux.physical_patch import PhysicalPatch
from gdb_optprobe.guest.machine import Machine, Memory
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.maps import journal_format as form
from gdb_optprobe.maps import validate
from gdb_optprobe.maps.journal_format import MAGIC, Damaged, Found, State
from gdb_optprobe.probes import lent_pages

NOTHING = ArenaContents()
Range = tuple[int, int]
MOST = 1 << 12
"""Pieces of code memory, and changes of page tables, at most."""
LARGEST = 1 << 16
"""Bytes of one such change, at most."""
PHYSICAL = 1 << 56
"""No machine has memory there."""


@dataclass(frozen=True)
class RecordedArena:
    """place: where it is, with the ranges that were found then. mapping: what was changed for it. loan: see Room.

    moved: where the journal is now, its size, and what it holds; None where it is in `place`.
    """

    room: Room
    found: Found
    left: ArenaContents
    mapping: tuple[PhysicalPatch, ...]
    loan: Loan | None = None
    moved: tuple[int, int, Found] | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether no thread can be in any of it, and no text leads there."""
        left = self.left
        return not (left.detours or left.pads or left.data or left.probes or left.points or left.users or left.blocks)

    def clear(self, machine: Machine, memory: Memory) -> None:
        """Give it back."""
        _give_back(self.room, self.mapping, machine, memory)
        _open_journal(self.room, memory, self.found).clear()

    def adopt_room(self, machine: Machine, memory: Memory) -> Room:
        """Raises OptprobeError where the guest does not map it any more as it was."""
        if not physical_patch.are_in_place(self.mapping, machine):
            raise Damaged("the memory for detours is not mapped as it tells")

        def give_back() -> None:
            if self.loan is not None and self.room.repay is not None:
                self.room.repay(self.loan, self.mapping)
            else:
                _give_back(self.room, self.mapping, machine, memory)

        return replace(
            self.room,
            take=lambda: None,
            give_back=give_back,
            is_in_place=lambda: physical_patch.are_in_place(self.mapping, machine),
            mapping=self.mapping,
            loan=self.loan,
        )

    def open_journal(self, memory: Memory) -> Journal:
        journal = _open_journal(self.room, memory, self.found)
        if self.moved is not None:
            journal.adopt_moved(*self.moved)
        return journal


def find_arena(
    machine: Machine, memory: Memory, kernel: Kernel, arch: LinuxArch, recovered: DiscoveredKernel, isa: Isa
) -> RecordedArena | None:
    """Return None where no journal is. Raises OptprobeError where it is not valid."""
    try:
        places = list(arch.places(machine, kernel))
    except OptprobeError:
        return None
    for place in places:
        start, end = place.journal
        if MAGIC not in (memory.read(start, len(MAGIC)), memory.read((start + end) // 2, len(MAGIC))):
            continue
        found = form.decode(memory.read(start, end - start), place.fill)
        if found is not None and not found.generation:
            # Nothing is in it, nor does it tell how large the code was.
            code = place.as_found() if place.as_found is not None else place.code
            return RecordedArena(replace(place, code=code), found, NOTHING, ())
        if found is not None:
            place, mapping, loan = _decode_room(found.state, place, recovered)
            lent = _Lent(place, arch, machine, kernel, memory)
            moved = lent.journal(found.state)
            state = moved[2].state if moved is not None else found.state
            more, code = lent.ranges(state)
            ranges = (*place.code, *code)
            bounds = Bounds(recovered.text, ranges, place.data, place.fill, arch.loaded, more, lent_code=code)
            left = decode(state, bounds, memory, isa)
            restoring_patches(left, memory, isa)
            return RecordedArena(place, found, left, mapping, loan, moved)
    return None


@dataclass(frozen=True, slots=True)
class _Lent:
    """What the kernel has lent besides."""

    place: Room
    arch: LinuxArch
    machine: Machine
    kernel: Kernel
    memory: Memory

    def blocks(self, state: State, is_code: bool) -> Sequence[LentBlock]:
        """Raises Damaged."""
        try:
            found = lent_block.decode_all(state, self.place.data)
        except ValueError as wrong:
            raise Damaged(f"{wrong}") from None
        return [block for block in found if block.is_code == is_code]

    def window(self, is_code: bool) -> Window:
        find = self.arch.code_window if is_code else self.arch.window
        return find(self.machine, self.kernel)

    def ranges(self, state: State) -> tuple[tuple[Range, ...], tuple[Range, ...]]:
        """Return the data and the code. Raises Damaged, OptprobeError."""
        data, code = (self._mapped(self.blocks(state, is_code), is_code) for is_code in (False, True))
        return data, code

    def _mapped(self, blocks: Sequence[LentBlock], is_code: bool) -> tuple[Range, ...]:
        return lent_pages.mapped(blocks, self.window(is_code), self.memory) if blocks else ()

    def journal(self, state: State) -> tuple[int, int, Found] | None:
        """Return what the journal was moved to: where, its size and what it holds; None where it stays. Raises Damaged.
        """
        if (value := state.get(f"{Item.MOVED} 0")) is None:
            return None
        try:
            start, size = validate.numbers(validate.row(value, 2), 2)
        except ValueError as wrong:
            raise Damaged(f"{wrong}") from None
        self.ranges(state)
        blocks, window = self.blocks(state, True), self.window(True)
        if (start, start + size) not in [window.journal(one.place, one.order) for one in blocks if one.place]:
            raise Damaged("it is to be where no block of code ends")
        found = form.decode(self.memory.read(start, size), self.place.fill)
        if found is None or not found.generation:
            raise Damaged("it is not where it was moved to")
        return start, size, found


def encode_room(room: Room, recovered: DiscoveredKernel) -> list[Any]:
    """Return what the journal keeps of the room itself."""
    mapping = [[one.address, _encode_bytes(one.old), _encode_bytes(one.new), one.changes] for one in room.mapping]
    loan = [] if room.loan is None else [[room.loan.area, room.loan.size]]
    return [recovered.build, recovered.text[0], [*chain(*room.code)], [*room.data], mapping, *loan]


def _decode_room(
    state: State, place: Room, recovered: DiscoveredKernel
) -> tuple[Room, tuple[PhysicalPatch, ...], Loan | None]:
    """Return the room as it was found, the mapping, and what was lent. Raises Damaged where the rest is of another
    guest.
    """
    try:
        build, text, ends, data, mapping, *lent = validate.row(state[f"{Item.ROOM} 0"], 5, 6)
        text, ends = validate.number(text), validate.numbers(ends, MOST)
        code = tuple(zip(ends[::2], ends[1::2], strict=True))
        data = [*validate.numbers(data, 2)]
        patches = tuple(map(_decode_patch, validate.items(mapping, MOST)))
        loan = Loan(*validate.numbers(validate.row(lent[0], 2), 2)) if lent else None
    except (ValueError, KeyError) as wrong:
        raise Damaged(f"{wrong}") from None
    if (build, text) != (recovered.build, recovered.text[0]):
        raise Damaged("it is of another kernel, or of this one at another address")
    if data != [*place.data] or not code or not all(_is_within(piece, place.code) for piece in code):
        raise Damaged("it describes other memory than it is in")
    if any(one[1] > other[0] for one, other in pairwise(sorted(code))):
        raise Damaged("it tells of the same memory twice")
    if any(len(one.old) != len(one.new) for one in patches):
        raise Damaged("what it tells of page tables")
    if (loan is not None) != (place.repay is not None):
        raise Damaged("what it tells of a loan")
    return replace(place, code=code), patches, loan


def _is_within(piece: tuple[int, int], ranges: Sequence[tuple[int, int]]) -> bool:
    return any(start <= piece[0] < piece[1] <= end for start, end in ranges)


def _encode_bytes(data: bytes) -> str | list[int]:
    return [data[0], len(data)] if data.count(data[:1]) == len(data) else data.hex()


def _decode_patch(value: Any) -> PhysicalPatch:
    at, old, new, changes = validate.row(value, 4)
    return PhysicalPatch(validate.number(at, PHYSICAL), _decode_bytes(old), _decode_bytes(new), validate.flag(changes))


def _decode_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return validate.data(value, LARGEST)
    byte, count = validate.row(value, 2)
    return bytes([validate.number(byte, 256)]) * validate.number(count, LARGEST + 1, 1)


def _open_journal(place: Room, memory: Memory, found: Found) -> Journal:
    start, end = place.journal
    return Journal(memory, start, end - start, place.fill, found)


def _give_back(place: Room, mapping: Sequence[PhysicalPatch], machine: Machine, memory: Memory) -> None:
    # Before anything was mapped there is nothing to be wiped; memory that was lent is another's by now.
    if physical_patch.are_in_place(mapping, machine) if mapping else place.repay is None:
        start, end = place.data
        used = memory.read(start, end - start).rstrip(bytes([place.fill]))
        memory.write(start, bytes([place.fill]) * len(used))
    physical_patch.undo(mapping, machine)
