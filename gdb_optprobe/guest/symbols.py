"""Names for addresses and addresses for names, from any source of symbols (kallsyms, a vmlinux, the cache)."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest_text import is_plain

__all__ = ["KERNEL_HALF", "Located", "Symbol", "SymbolTable", "Symbols"]

# Values below are not addresses but per-CPU offsets (CONFIG_KALLSYMS_ABSOLUTE_PERCPU), which KASLR does not move.
KERNEL_HALF = 1 << 63

# Types of symbols of code, as in nm(1).
FUNCTION_TYPES = frozenset("tTwW")
MOST_TOLD = 64
"""How many symbols of one name a message lists."""


@dataclass(frozen=True, slots=True)
class Symbols:
    """Symbols as columns, ascending by address; aliases of one address keep their source's order.

    addresses: array("Q").
    types:     one character for each, as nm(1) has them: T and t are code, D d B b data, R r constants, A absolute.
    """

    addresses: array[int]
    names: Sequence[str]
    types: str

    def __len__(self) -> int:
        return len(self.addresses)

    def moved(self, slide: int) -> Symbols:
        """Return the symbols of a kernel loaded `slide` bytes higher; absolute ones do not change."""
        if not slide:
            return self
        first = bisect_left(self.addresses, KERNEL_HALF)
        moved = self.addresses[:first]
        moved.extend([address + slide for address in self.addresses[first:]])
        return Symbols(moved, self.names, self.types)

    def address(self, name: str) -> int | None:
        """Return the first symbol called `name`, by a linear scan: for the few names needed before there is a table."""
        try:
            return self.addresses[self.names.index(name)]
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Symbol:
    """One symbol; `size` reaches to the next symbol of a different address (0 for the last)."""

    name: str
    address: int
    size: int
    type: str

    @property
    def is_function(self) -> bool:
        return self.type in FUNCTION_TYPES


@dataclass(frozen=True, slots=True)
class Located:
    """Where an address lies: `offset` bytes into the symbol `name`, which is `size` bytes long."""

    name: str
    offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.name}+{self.offset:#x}" if self.offset else self.name


class SymbolTable:
    """Look-ups over `Symbols`. Building one costs nothing; the index by name is made by the first look-up.

    text: ranges (start, end) of kernel code; a function is a symbol of a code type within one (of any where empty).
    """

    def __init__(self, symbols: Symbols, text: Sequence[tuple[int, int]] = ()) -> None:
        self.symbols = symbols
        self.text = tuple(text)
        self._by_name: dict[str, int] | None = None
        self._aliases: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self.symbols)

    def lookup(self, name: str) -> list[int]:
        """Return every address called `name`, ascending: static functions of one name are common in a kernel."""
        indices = self._aliases.get(name) if self._index() else None
        if indices is None:
            only = self._index().get(name)
            indices = [] if only is None else [only]
        addresses = self.symbols.addresses
        return sorted({addresses[index] for index in indices})

    def address(self, name: str) -> int | None:
        """Return the first address called `name`; None where there is none."""
        index = self._index().get(name)
        return None if index is None else self.symbols.addresses[index]

    def require(self, name: str) -> int:
        """Return the one address called `name`. Raises OptprobeError where there is none or more than one."""
        found = self.lookup(name)
        if not found:
            raise OptprobeError(f"no symbol named '{name}' in this kernel")
        if len(found) > 1:
            places = ", ".join(f"*{address:#x}" for address in found[:MOST_TOLD])
            more = ", …" if len(found) > MOST_TOLD else ""
            hint = f"give one of them by address: {places}{more}"
            raise OptprobeError(f"{len(found)} symbols are named '{name}'", hint)
        return found[0]

    def at(self, address: int) -> Located | None:
        """Return the symbol that covers `address`; of several at one address, the first that is a function, or the
        first.
        """
        if (place := self._place(address)) is None:
            return None
        index, size = place
        return Located(self.symbols.names[index], address - self.symbols.addresses[index], size)

    def symbol_at(self, address: int) -> Symbol | None:
        """Return the whole symbol that `at` finds; None for user space and behind the last symbol (modules among it).
        """
        if (place := self._place(address)) is None:
            return None
        index, size = place
        return Symbol(self.symbols.names[index], self.symbols.addresses[index], size, self.symbols.types[index])

    def _place(self, address: int) -> tuple[int, int] | None:
        """Return the index and the size of the symbol that `at` finds. Asked of every function: nothing is created."""
        addresses = self.symbols.addresses
        end = bisect_right(addresses, address)
        if not end or address < KERNEL_HALF or (start := addresses[end - 1]) < KERNEL_HALF:
            return None
        if end == len(addresses):
            size = 0
            if address != start:
                return None
        else:
            size = addresses[end] - start
        if end == 1 or addresses[end - 2] != start:
            return end - 1, size
        first, types = bisect_left(addresses, start, 0, end), self.symbols.types
        return next((at for at in range(first, end) if types[at] in FUNCTION_TYPES), first), size

    def spelled(self, addresses: Iterable[int]) -> list[str]:
        """Return the symbol that `at` finds for each of these ascending addresses, as text; "" where none is."""
        starts, found = self.symbols.addresses, list[str]()
        names, behind = self.symbols.names, 0
        for address in addresses:
            behind = bisect_right(starts, address, behind)
            index = behind - 1
            # Of one symbol alone at an address of the kernel's, with another behind it, there is nothing to ask.
            if 0 < index < len(starts) - 1 and starts[index - 1] != (start := starts[index]) >= KERNEL_HALF:
                found.append(f"{names[index]}+{address - start:#x}" if address != start else names[index])
            else:
                found.append(str(self.at(address) or ""))
        return found

    def names_at(self, addresses: Iterable[int]) -> list[str]:
        """Return the name of the symbol that `at` finds for each of these ascending addresses; "" where none is."""
        starts, found = self.symbols.addresses, list[str]()
        names, behind = self.symbols.names, 0
        for address in addresses:
            behind = bisect_right(starts, address, behind)
            index = behind - 1
            # See `spelled`.
            if 0 < index < len(starts) - 1 and starts[index - 1] != starts[index] >= KERNEL_HALF:
                found.append(names[index])
            else:
                located = self.at(address)
                found.append(located.name if located is not None else "")
        return found

    def function_bounds(self, address: int) -> tuple[int, int] | None:
        """Start and end of the function that covers `address`; None where no code does."""
        if (place := self._place(address)) is None:
            return None
        index, size = place
        start = self.symbols.addresses[index]
        if self.symbols.types[index] not in FUNCTION_TYPES or not self._in_text(start):
            return None
        return start, start + size

    def functions_matching(self, glob: str) -> set[int]:
        """Return the addresses of the functions with names that match `glob` (as fnmatch(3))."""
        matches = re.compile(translate(glob)).match if glob.strip("*") or not glob else lambda _: True
        names, types, addresses = self.symbols.names, self.symbols.types, self.symbols.addresses
        found = {addresses[at] for at, kind in enumerate(types) if kind in FUNCTION_TYPES and matches(names[at])}
        if not self.text:
            return found
        ordered = sorted(found)
        return {
            address
            for start, end in self.text
            for address in ordered[bisect_left(ordered, start) : bisect_left(ordered, end)]
        }

    def functions(self) -> Iterator[Symbol]:
        """Yield every function, ascending; one symbol of each address (see `at`)."""
        last = None
        for index, kind in enumerate(self.symbols.types):
            if kind in FUNCTION_TYPES and self.symbols.addresses[index] != last:
                last = self.symbols.addresses[index]
                if self._in_text(last):
                    yield self._symbol(index)

    def completions(self, prefix: str) -> list[str]:
        """Names of functions that begin with `prefix`, sorted, each once; none that cannot be typed."""
        types = self.symbols.types
        found = {
            name
            for index, name in enumerate(self.symbols.names)
            if name.startswith(prefix) and types[index] in FUNCTION_TYPES and is_plain(name)
        }
        return sorted(found)

    def _symbol(self, index: int) -> Symbol:
        addresses = self.symbols.addresses
        start = addresses[index]
        following = bisect_right(addresses, start, index)
        size = addresses[following] - start if following < len(addresses) else 0
        return Symbol(self.symbols.names[index], start, size, self.symbols.types[index])

    def _in_text(self, address: int) -> bool:
        for start, end in self.text:  # asked of every function
            if start <= address < end:
                return True
        return not self.text

    def _index(self) -> dict[str, int]:
        """Name → its first index. Names that occur more than once are also in `_aliases`."""
        if self._by_name is None:
            names = self.symbols.names
            # Built backwards, so that the first of several of one name stays.
            first = dict(zip(reversed(names), range(len(names) - 1, -1, -1), strict=True))
            self._by_name = first
            if len(first) != len(names):
                for index, name in enumerate(names):
                    if first[name] != index:
                        self._aliases.setdefault(name, [first[name]]).append(index)
        return self._by_name
