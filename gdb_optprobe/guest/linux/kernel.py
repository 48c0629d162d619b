"""A running kernel as its readers use it: memory, symbols, and the layout of structures."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import add
from struct import Struct, iter_unpack
from typing import Protocol

from gdb_optprobe.budget import OverBudget
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import runs
from gdb_optprobe.guest.little_endian import little_endian
from gdb_optprobe.guest.machine import Memory

CHUNK = 1 << 16
WIDTH = 4
"""Bytes of a number in a table that is relative to its own address."""
MASK = (1 << 64) - 1
# Limits (budget.py), and what Debian's kernels have at the most.
LARGEST_RANGE = 1 << 28
"""Bytes between two symbols: all of an image has 40 MB."""
LARGEST_READ = LARGEST_RANGE
"""Bytes of one range of symbols: 21 MB of text, 17 MB of constants."""
MOST_ROWS = 1 << 18
"""Of a table: 14,341 (jump labels)."""
EVERYWHERE = "init_task"
"""A variable that every kernel has."""
VMLINUX = "before the first optprobe command, load its vmlinux: symbol-file FILE"


class Located(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def offset(self) -> int: ...

    @property
    def size(self) -> int: ...


class Symbols(Protocol):
    """Names and addresses: guest/symbols.py."""

    def address(self, name: str) -> int | None: ...

    def lookup(self, name: str) -> Sequence[int]: ...

    def at(self, address: int) -> Located | None: ...

    def names_at(self, addresses: Iterable[int]) -> Sequence[str]:
        """Return the name of what `at` finds for each of these ascending addresses; "" where it finds nothing."""

    def function_bounds(self, address: int) -> tuple[int, int] | None: ...


class Structures(Protocol):
    """Offsets of structure members: guest/btf.py. Raises OptprobeError for members that do not exist."""

    def offset(self, struct: str, member: str) -> int: ...


LARGEST_BODY = 1 << 12


class NoSuchKernel(OptprobeError):
    """The running kernel lacks something that is needed to read it."""


@dataclass(frozen=True, slots=True)
class Kernel:
    memory: Memory
    symbols: Symbols
    structures: Structures | None = None

    def address(self, symbol: str) -> int:
        found = self.symbols.address(symbol)
        if found is None:
            raise self._without(symbol)
        return found

    def one_of(self, symbols: Sequence[str]) -> int:
        """Return the address of the first of these symbols that exists, as kernels renamed it."""
        found = (at for symbol in symbols if (at := self.symbols.address(symbol)) is not None)
        return next(found, None) or self.address(symbols[0])

    def _without(self, symbol: str) -> NoSuchKernel:
        if self.symbols.address(EVERYWHERE) is not None:
            return NoSuchKernel(f"this kernel has no symbol {symbol}")
        return NoSuchKernel(f"this kernel has no symbol {symbol}, nor any of its data (CONFIG_KALLSYMS_ALL)", VMLINUX)

    def range(self, start: str, stop: str) -> tuple[int, int]:
        """Return [start, end) between two symbols; (0, 0) where the kernel has neither. Raises OverBudget."""
        first, last = self.symbols.address(start), self.symbols.address(stop)
        if first is None or last is None or first > last:
            return 0, 0
        if last - first > LARGEST_RANGE:
            raise OverBudget(f"what lies between {start} and {stop}", LARGEST_RANGE, "bytes")
        return first, last

    def offset(self, struct: str, *members: str) -> int:
        """Return a member's offset; of several names that of the first that exists, as kernels renamed it."""
        if self.structures is None:
            raise NoSuchKernel("the layout of this kernel's structures is not known (no BTF)")
        missing: OptprobeError | None = None
        for member in members:
            try:
                return self.structures.offset(struct, member)
            except OptprobeError as error:
                missing = error
        raise missing or NoSuchKernel(f"struct {struct}: no member asked for")

    def word(self, address: int) -> int:
        return int.from_bytes(self.memory.read(address, 8), "little")

    def body(self, function: str) -> tuple[int, bytes]:
        """Return where the function of that name is and its code, at most LARGEST_BODY bytes; no code without one."""
        bounds = self.symbols.function_bounds(self.symbols.address(function) or 0)
        if bounds is None:
            return 0, b""
        return bounds[0], self.read(bounds[0], min(bounds[1], bounds[0] + LARGEST_BODY))

    def read(self, start: int, end: int) -> bytes:
        """Read a range, a long one in pieces that every stub accepts."""
        if end - start > LARGEST_READ:
            raise OverBudget(f"what lies at {start:#x}", LARGEST_READ, "bytes")
        spans = [(at, min(at + CHUNK, end)) for at in range(start, end, CHUNK)]
        return b"".join(runs.read_spans(spans, self.memory))

    def references(self, start: int, end: int, size: int, columns: int) -> list[list[int]]:
        """Return the first columns of a table with rows of `size` bytes: 32-bit numbers that are relative to their own
        addresses. Faster than `rows`, for tens of thousands.
        """
        if end - start > MOST_ROWS * size:
            raise OverBudget(f"the table at {start:#x}", MOST_ROWS, "rows")
        numbers = little_endian(array("i", self.read(start, end - (end - start) % size)))
        found = []
        for column in range(columns):
            places = range(start + column * WIDTH, end, size)
            column_of = list(map(add, places, numbers[column :: size // WIDTH]))
            beyond = column_of and (min(column_of) < 0 or max(column_of) > MASK)
            found.append([address & MASK for address in column_of] if beyond else column_of)
        return found

    def rows(self, start: int, end: int, layout: Struct) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the rows of a table with their addresses."""
        if end - start > MOST_ROWS * layout.size:
            raise OverBudget(f"the table at {start:#x}", MOST_ROWS, "rows")
        data = self.read(start, end - (end - start) % layout.size)
        return zip(range(start, end, layout.size), iter_unpack(layout.format, data), strict=False)
