"""What another GDB has to know of traps in programs: where they stand, by the file's inode, which is held meanwhile.

    value: [path, inode, i_ino, device, size, i_mapping, address of the trap, bytes of the program's there, calls]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from gdb_optprobe.detours.journal import Item, Journal
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.user.files import File
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.objects.journal import Damaged


@dataclass(frozen=True, slots=True)
class NotedTrap:
    """A trap that may stand in the processes that run `file`. original: what the program has there.

    calls: of a trampoline, where the table is of the calls that return there; else 0.
    """

    file: File
    address: int
    original: bytes
    calls: int = 0


def note(
    number: int, program: Program, address: int, original: bytes, journal: Journal, calls: int = 0
) -> None:
    """A trap is about to be written there; numbers are told apart, and that is all."""
    journal.put(Item.USER, number, [*astuple(program.file), address, original.hex(), calls])
    journal.flush()


def noted(values: Mapping[int, Any]) -> Sequence[NotedTrap]:
    """Raises Damaged."""
    return [_noted(value) for _, value in sorted(values.items())]


def _noted(value: Any) -> NotedTrap:
    try:
        path, *numbers, address, original, calls = value
        inode, number, device, size, mapping = map(int, numbers)
        if not isinstance(path, str) or min(inode, mapping) < 1 << 63 or int(address) < 0:
            raise ValueError("no such file")
        file = File(path, inode, number, device, size, mapping)
        return NotedTrap(file, int(address), bytes.fromhex(original), int(calls))
    except (ValueError, TypeError) as wrong:
        raise Damaged(f"a trap in a program: {wrong}") from None


def left_over(error: OptprobeError) -> OptprobeError:
    """Why what an earlier GDB left cannot be taken out."""
    return OptprobeError(f"traps of an earlier GDB stay in programs: {error.message}", error.hint)
