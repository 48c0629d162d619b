"""Page tables laid out in a made-up physical memory."""

from __future__ import annotations

from gdb_optprobe.guest.linux.arch.aarch64.paging import NO_EXECUTE, READ_ONLY, TABLE, VALID, Regime

ROOT = 0x4000_0000
TCR = 0x0050_0074_B550_3510
"""Of a stock 6.1 on cortex-a72: 48 bits, pages of 4 KiB."""
WIDE_TCR = TCR & ~0x3F_0000 | 12 << 16 | 1 << 59
"""52 bits, with LPA2."""
CODE, CONSTANT, DATA = READ_ONLY, READ_ONLY | NO_EXECUTE, NO_EXECUTE


class Tables:
    """Physical memory made of tables; what is not in them is 0, and what is behind `end` is none."""

    def __init__(self, regime: Regime, root: int = ROOT) -> None:
        self.regime, self.root = regime, root
        self.words: dict[int, int] = {}
        self.reads = 0
        self._next = root + 0x10_0000

    def read_physical(self, address: int, size: int) -> bytes:
        self.reads += 1
        words = (self.words.get(at, 0).to_bytes(8, "little") for at in range(address, address + size, 8))
        return b"".join(words)[:size]

    def map(self, address: int, physical: int, attributes: int, level: int | None = None) -> None:
        """Map a page, or a block of the level that many below the root's."""
        shifts = self.regime.shifts
        last = len(shifts) - 1 if level is None else level
        table = self.root
        for above in range(last):
            at = self._entry(table, address, above)
            if at not in self.words:
                self.words[at] = self._next | TABLE | VALID
                self._next += 0x1000
            table = self.words[at] & ~0xFFF
        high = (physical >> 50 & 3) << 8 if self.regime.wide else 0
        kind = TABLE if last == len(shifts) - 1 else 0
        self.words[self._entry(table, address, last)] = physical & (1 << 50) - 1 | high | attributes | VALID | kind

    def _entry(self, table: int, address: int, level: int) -> int:
        return table + 8 * (address >> self.regime.shifts[level] & self.regime.entries(level) - 1)


def regime(tcr: int = TCR) -> Regime:
    found = Regime.of(tcr)
    assert found is not None
    return found
