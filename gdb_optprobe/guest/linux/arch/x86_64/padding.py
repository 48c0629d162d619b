"""Padding of the text: it holds a thunk during a native call, and behind it a note of memory that the kernel has lent.

    │ text … │ 16 bytes left alone │ thunk 90 │ note 24 │ thunk │ note │ … │ 16 bytes │     all 0xCC, or 0, before
A note exists from when the kernel has lent an area until the area's own journal records it, and again while it is
given back, so no area is lost when GDB is killed meanwhile. It is removed before the area is freed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.x86_64.image_padding import FILL, PAGE, NoPadding, Range, Tables
from gdb_optprobe.guest.linux.arch.x86_64.paging import translate
from gdb_optprobe.guest.linux.kernel import MASK, Kernel
from gdb_optprobe.guest.machine import Machine, Memory
from gdb_optprobe.isa.x86_64.calling import CALLING

BESIDE = 16
"""Bytes of padding that are left alone before and behind slots."""
SOUGHT = 4
"""Slots that are looked at before an aligned section."""
_NOTE = struct.Struct("<8sQQ")
_MAGIC = b"optlent1"
SIZE = CALLING.size + _NOTE.size


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot at `start`, in padding that holds `fill`. held: its bytes."""

    start: int
    fill: int
    held: bytes

    @property
    def thunk(self) -> Range:
        return self.start, self.start + CALLING.size

    @property
    def note(self) -> int:
        return self.start + CALLING.size

    @property
    def is_free(self) -> bool:
        return not self.held.strip(bytes([self.fill]))

    @property
    def area(self) -> int:
        """The area that its note records; 0 where it has none."""
        magic, area, check = _NOTE.unpack(self.held[CALLING.size :])
        return area if magic == _MAGIC and check == ~area & MASK else 0

    @property
    def is_left(self) -> bool:
        """Return whether an earlier session left a thunk or a note here, and nothing else wrote to the slot."""
        thunk, note = self.held[: CALLING.size], self.held[CALLING.size :]
        has_thunk, has_note = bool(thunk.strip(bytes([self.fill]))), bool(note.strip(bytes([self.fill])))
        known = not has_thunk or thunk.startswith(CALLING.begins)
        return (has_thunk or has_note) and known and (not has_note or bool(self.area))


def slots(machine: Machine, kernel: Kernel, tables: Tables) -> Iterator[Slot]:
    """Yield the slots of all padding that is mapped as text is."""
    for start, stop, fill in _paddings(kernel):
        mapped = translate(machine.read_physical, tables.roots[0], start, la57=tables.la57)
        if mapped is not None and mapped.executable and fill in (0, FILL):
            held = kernel.read(start, stop)
            for at in range(0, len(held) - SIZE + 1, SIZE):
                yield Slot(start + at, fill, held[at : at + SIZE])


def free_slot(machine: Machine, kernel: Kernel, tables: Tables) -> Slot:
    """Return a free slot. Raises NoPadding."""
    found = next((slot for slot in slots(machine, kernel, tables) if slot.is_free), None)
    if found is None:
        raise NoPadding("its text has no padding for the code of a call")
    return found


def write_note(memory: Memory, slot: Slot, area: int) -> None:
    """Note `area` in a slot that has no note. Raises OptprobeError."""
    _change(memory, slot.note, bytes([slot.fill]) * _NOTE.size, _NOTE.pack(_MAGIC, area, ~area & MASK))


def wipe_note(memory: Memory, slot: Slot, area: int) -> None:
    """Remove the note of `area`. Raises OptprobeError where it is not there."""
    _change(memory, slot.note, _NOTE.pack(_MAGIC, area, ~area & MASK), bytes([slot.fill]) * _NOTE.size)


def wipe_thunk(memory: Memory, slot: Slot) -> None:
    """Remove the thunk; the caller knows that no thread is in it or can reach it. Raises OptprobeError."""
    _change(memory, slot.start, slot.held[: CALLING.size], bytes([slot.fill]) * CALLING.size)


def _change(memory: Memory, at: int, old: bytes, new: bytes) -> None:
    """Write `new` over `old`, which is compared first. Raises OptprobeError."""
    if memory.read(at, len(old)) != old:
        raise OptprobeError(f"padding of the kernel's text at {at:#x} is not what it was a moment ago")
    memory.write(at, new)


def _paddings(kernel: Kernel) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, byte) of possible padding: behind the text, in its last page, and what the linker fills before
    an aligned section.
    It depends on symbols alone, not on what slots hold, so that every session finds the same slots.
    """
    begin, end = kernel.address("_stext"), kernel.address("_etext")
    start, stop = -(-end // BESIDE) * BESIDE + BESIDE, -(-end // PAGE) * PAGE - BESIDE
    if stop - start >= SIZE:
        yield start, stop, kernel.read(stop, stop + 1)[0]
    for page in range(-(-begin // PAGE) * PAGE + PAGE, end, PAGE):
        found = kernel.symbols.at(page)
        stop = page - BESIDE
        if found is not None and not found.offset and kernel.read(stop, page) == bytes([FILL]) * BESIDE:
            yield stop - SOUGHT * SIZE, stop, FILL
