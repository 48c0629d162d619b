"""What another GDB has to know of traps in programs: where they are, by the file's inode, which is held meanwhile.

    value: [path, inode, i_ino, device, size, i_mapping, address of the trap, bytes of the program's there, calls]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdb_optprobe.detours.journal import Item, Journal
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.user.files import LONGEST, File
from gdb_optprobe.guest_text import one_line
from gdb_optprobe.maps import validate
from gdb_optprobe.maps.journal_format import Damaged

LARGEST = 16
"""Bytes of a trap, at most."""


@dataclass(frozen=True, slots=True)
class TrapRecord:
    """A trap that may be in the processes that run `file`. original: the bytes of the program there.

    calls: of a trampoline, the address of the table of the calls that return there; else 0.
    """

    file: File
    address: int
    original: bytes
    calls: int = 0


def write_trap(number: int, trap: TrapRecord, journal: Journal) -> None:
    """Record that `trap` is about to be written. number: any that no other trap has."""
    file = trap.file
    known = [one_line(file.path)[:LONGEST], file.inode, file.number, file.device, file.size, file.mapping]
    journal.put(Item.USER, number, [*known, trap.address, trap.original.hex(), trap.calls])
    journal.flush()


def read_traps(values: Mapping[int, Any]) -> Sequence[TrapRecord]:
    """Return the records of all traps, by their numbers. Raises Damaged."""
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
    """Return the error that traps of an earlier GDB cannot be removed."""
    return OptprobeError(f"traps of an earlier GDB stay in programs: {error.message}", error.hint)
