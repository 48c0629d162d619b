"""What GDB knows of names: its convenience variables, and symbols and debug information of the files that it has."""

from __future__ import annotations

from collections.abc import Callable

import gdb

from gdb_optprobe.debugger.dwarf import dwarf
from gdb_optprobe.guest.abi import Abi
from gdb_optprobe.guest.scope import Debug
from gdb_optprobe.handlers.ir import Expr

# The longest function that is looked for. A symbol without a size would include all memory after it.
LARGEST = 1 << 16


class GdbSymbols:
    """Implements guest.scope.DebuggerSymbols."""

    def convenience(self, name: str) -> int | None:
        return convenience(name)

    def debug(self, address: int, abi: Abi, frame: Callable[[], Expr | None]) -> Debug | None:
        return dwarf(address, abi, frame)

    def function(self, address: int) -> tuple[str, int, int] | None:
        text = gdb.execute(f"info symbol {address:#x}", to_string=True).split(" in section ")
        if len(text) < 2 or not text[1].startswith(".text"):
            return None
        name, _, offset = text[0].partition(" + ")
        start = address - int(offset or 0)
        return name, start, _end(name, start)


def _end(name: str, start: int) -> int:
    """Return where the next symbol starts."""
    low, high = start, start + LARGEST
    while high - low > 1:
        middle = (low + high) // 2
        text = gdb.execute(f"info symbol {middle:#x}", to_string=True)
        low, high = (middle, high) if text.partition(" in section ")[0].split(" + ")[0] == name else (low, middle)
    return high


def convenience(name: str) -> int | None:
    """Return the value of GDB's `$name`; None where it is no number."""
    value = gdb.convenience_variable(name)
    try:
        return int(value) if value is not None else None
    except gdb.error:
        return None
