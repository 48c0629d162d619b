"""Unwind a stack from a copy of it, taken at a hit: the guest has overwritten the stack since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.linux.arch.base import Unwinder

MOST = 64


@dataclass(slots=True)
class Copy:
    """The stack from `start` on, as it was. missed: an address beyond the copy was read."""

    start: int
    data: bytes
    missed: bool = False

    def read(self, address: int, size: int) -> bytes:
        at = address - self.start
        if at < 0 or at + size > len(self.data):
            self.missed = True
            raise Unreadable(address, size)
        return self.data[at : at + size]


def backtrace(
    unwinder: Unwinder, registers: Mapping[str, int], pc: str, copy: Copy, exact: bool = True
) -> Iterator[tuple[int, bool]]:
    """Yield the PC of each frame, the innermost first, and whether it is the next instruction, no return address.

    (0, True) where the copy ends before the stack does. exact: of the innermost frame.
    """
    over = unwinder.over(copy.read)
    for _ in range(MOST):
        yield registers[pc], exact
        found = over.caller(registers, exact)
        if found is None:
            break
        registers, exact = found
    if copy.missed:
        yield 0, True
