"""What `set optprobe …` says, as one value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.maps import validate

ON_EXIT = ("keep", "remove", "ask")
AUTO, PROCESS, QMP, SLICES = LIVE = ("auto", "process", "qmp", "slices")
DEFAULT_MAX_PROBES = 4096
DEFAULT_MAX_MEMORY = 16
DEFAULT_TABLE_KEYS = 512

_ARENA = re.compile(r"code=(\w+)-(\w+)\s+data=(\w+)-(\w+)")
_ARENA_HINT = "set optprobe arena auto, or set optprobe arena code=START-END data=START-END"


@dataclass(frozen=True, slots=True)
class ArenaRanges:
    """Memory that the user gives for detours: [start, end) of executable and of writable addresses."""

    code: tuple[int, int]
    data: tuple[int, int]

    def __str__(self) -> str:
        return f"code={self.code[0]:#x}-{self.code[1]:#x} data={self.data[0]:#x}-{self.data[1]:#x}"


@dataclass(frozen=True, slots=True)
class Settings:
    """arena: None for memory that is found or made in the guest.

    on_exit:       whether probes stay when GDB leaves: "keep", "remove" or "ask".
    exit_on_error: whether the first failure ends GDB with status 1.
    max_probes:    how many addresses one glob may match.
    max_memory:    MiB that the guest's kernel may lend when the data memory is full; 0 for none.
    guardian:      whether a process of its own frees the guest should the debugger die.
    load_symbols:  whether GDB gets the kernel's symbols as soon as a guest is connected.
    live:          how the running guest's memory is read, one of LIVE. qmp_socket: of its QEMU; "" for none.
    table_keys, ring_records, string_length, stack_size: of new probes, see SIZES.
    """

    optimization: bool = True
    boost: bool = True
    emulation: bool = True
    trap: bool = True
    arena: ArenaRanges | None = None
    on_exit: str = "ask"
    exit_on_error: bool = False
    max_probes: int = DEFAULT_MAX_PROBES
    max_memory: int = DEFAULT_MAX_MEMORY
    guardian: bool = True
    load_symbols: bool = True
    live: str = AUTO
    qmp_socket: str = ""
    table_keys: int = DEFAULT_TABLE_KEYS
    ring_records: int = 512
    string_length: int = 64
    stack_size: int = 512


@dataclass(frozen=True, slots=True)
class Size:
    """A setting that is a number from least to most, rounded up. step: its multiples; 0 for powers of two."""

    what: str
    default: int
    least: int
    most: int
    step: int = 0

    def rounded(self, name: str, number: int) -> int:
        """Raises OptprobeError."""
        if not self.least <= number <= self.most:
            raise OptprobeError(f"{name} cannot be {number}", f"from {self.least} to {self.most}")
        return -(-number // self.step) * self.step if self.step else 1 << (number - 1).bit_length()


SIZES = {
    "table-keys": Size("how many keys a table of a new probe has room for", DEFAULT_TABLE_KEYS, 2, 1 << 16),
    "ring-records": Size("how many records a new probe keeps", 512, 2, 1 << 16),
    "string-length": Size("how many bytes of a string a new probe keeps", 64, 8, 512, step=8),
    "stack-size": Size("how many bytes of the stack a new probe's record has", 512, 64, 8192, step=8),
}


def sizes_of(settings: Settings) -> Mapping[str, int]:
    """Return the sizes of new probes, by the names of their fields."""
    return {field: getattr(settings, field) for field in (name.replace("-", "_") for name in SIZES)}


def with_sizes(settings: Settings, sizes: Mapping[str, int]) -> Settings:
    """Return the settings with the sizes that a probe was made with."""
    return replace(settings, **sizes)  # type: ignore[arg-type]


def size_of(name: str, value: Any) -> int:
    """Return what another GDB noted of a probe's size, by the name of its field. Raises ValueError."""
    size = SIZES.get(name.replace("_", "-"))
    if size is None or "-" in name:
        raise ValueError(f"{ascii(name)[:40]} is no size")
    number = validate.number(value, size.most + 1, size.least)
    if size.rounded(name, number) != number:
        raise ValueError(f"{name} cannot be {number}")
    return number


def parse_arena(text: str) -> ArenaRanges | None:
    """Parse `auto` (None), or `code=START-END data=START-END`. Raises OptprobeError."""
    if text.strip() in ("", "auto"):
        return None
    found = _ARENA.fullmatch(text.strip())
    if found is None:
        raise OptprobeError(f"not a place for detours: {text.strip()}", _ARENA_HINT)
    code_start, code_end, data_start, data_end = (_address(word) for word in found.groups())
    ranges = ArenaRanges((code_start, code_end), (data_start, data_end))
    for what, (start, end) in (("code", ranges.code), ("data", ranges.data)):
        if start >= end:
            raise OptprobeError(f"the {what} range {start:#x}-{end:#x} is empty", _ARENA_HINT)
    if ranges.code[0] < ranges.data[1] and ranges.data[0] < ranges.code[1]:
        raise OptprobeError("the code and data ranges overlap", "detours are never writable and executable at once")
    return ranges


def _address(word: str) -> int:
    try:
        value = int(word, 0)
    except ValueError:
        raise OptprobeError(f"not an address: {word}", _ARENA_HINT) from None
    if value >= 1 << 64:
        raise OptprobeError(f"{word} has more than 64 bits", _ARENA_HINT)
    return value
