"""Some members of a kernel structure, read with few bytes and packets."""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.guest.linux.kernel import Kernel

PACKET = 1984
"""Bytes that one packet of QEMU's stub carries."""
GAP = 768
"""Bytes that take as long as one more packet (QEMU 7.2: 0.04 µs a byte, 34 µs a packet)."""


@dataclass(frozen=True, slots=True)
class Members:
    """(start, size, members) of each read."""

    reads: tuple[tuple[int, int, tuple[tuple[str, int, int], ...]], ...]

    @staticmethod
    def of(**members: tuple[int, int]) -> Members:
        """Plan the reads. members: offset and size of each."""
        reads: list[tuple[int, int, tuple[tuple[str, int, int], ...]]] = []
        for name, (offset, size) in sorted(members.items(), key=lambda item: item[1]):
            if reads and offset - sum(reads[-1][:2]) < GAP and offset + size - reads[-1][0] <= PACKET:
                start, _, others = reads.pop()
            else:
                start, others = offset, ()
            reads.append((start, offset + size - start, (*others, (name, offset - start, size))))
        return Members(tuple(reads))

    def read(self, kernel: Kernel, address: int) -> dict[str, int]:
        """Return the members of the structure at `address`, as unsigned numbers."""
        found = {}
        for start, length, members in self.reads:
            data = kernel.memory.read(address + start, length)
            found.update({name: int.from_bytes(data[at : at + size], "little") for name, at, size in members})
        return found
