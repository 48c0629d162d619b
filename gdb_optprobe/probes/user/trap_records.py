"""What another GDB has to know of traps in programs: where they stand, by the file's inode, which is held meanwhile.

    value: [path, inode, i_ino, device, size, i_mapping, address of the trap, bytes of the program's there, calls]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdb_optprobe.detours.journal import Item, Journal
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.user.files import LONGEST, File
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.guest_text import one_line
from gdb_optprobe.maps import validate
from gdb_optprobe.maps.journal_format import Damaged

LARGEST = 16
"""Bytes of a trap, at most."""


@dataclass(frozen=True, slots=True)
class TrapRecord:
    """A trap that may stand in the processes that run `file`. original: what the program has there.

    calls: of a trampoline, where the table is of the calls that return there; else 0.
    """

    file: File
    address: int
    original: bytes
    calls: int = 0


def write_trap(
    number: int, program: Program, address: int, original: bytes, journal: Journal, calls: int = 0
) -> None:
    """A trap is about to be written there; numbers are told apart, and that is all."""
    file = program.file
    known = [one_line(file.path)[:LONGEST], file.inode, file.number, file.device, file.size, file.mapping]
    journal.put(Item.USER, number, [*known, address, original.hex(), calls])
    journal.flush()


def read_traps(values: Mapping[int, Any]) -> Sequence[TrapRecord]:
    """Raises Damaged."""
    found = [_decode(value) for _, value in sorted(values.items())]
    if len({trap.calls for trap in found if trap.calls}) > 1:
        raise Damaged("traps in programs: calls are in two tables")
    return found


def _decode(value: Any) -> TrapRecord:
    try:
        path, inode, number, device, size, mapping, address, original, calls = validate.row(value, 9)
        if not isinstance(path, str) or len(path) > LONGEST or not path.isprintable():
            raise ValueError("no such file")
        for kernel in (inode, mapping):
            validate.number(kernel, least=1 << 63)
        file = File(
            path, inode, validate.number(number), validate.number(device), validate.number(size), mapping
        )
        return TrapRecord(file, validate.number(address), validate.data(original, LARGEST), validate.number(calls))
    except ValueError as wrong:
        raise Damaged(f"a trap in a program: {wrong}") from None


def traps_stay(error: OptprobeError) -> OptprobeError:
    """Why what an earlier GDB left cannot be taken out."""
    return OptprobeError(f"traps of an earlier GDB stay in programs: {error.message}", error.hint)
