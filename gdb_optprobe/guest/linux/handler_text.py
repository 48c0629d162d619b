"""Functions of the arena that the kernel calls, as text that can be probed: guest.text.Text of them."""

from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.guest.text import Area, FtraceSite, Function, Mark, Whole
from gdb_optprobe.isa.record import Isa


class HandlerText:
    """They change only where they are added and removed: nothing else writes there."""

    def __init__(self, isa: Isa) -> None:
        self._isa = isa
        self._known: dict[int, Function] = {}
        self._probed: dict[int, int] = {}
        self._frames: dict[int, int] = {}

    def add(self, name: str, start: int, data: bytes, probed: int, frame: int = 0) -> None:
        """Know `data` at `start` as a function, whether or not it is written there yet.

        probed: where it is probed. frame: bytes on the stack there that it has made room for.
        """
        self._probed[start], self._frames[start] = probed, frame
        code = {insn.address: insn for insn in self._isa.decode(data, start)}
        self._known[start] = Function(
            name, start, start + len(data), code, lambda: Whole(code, complete=True), by_abi=True
        )

    def remove(self, start: int) -> None:
        self._known.pop(start, None)

    def function(self, address: int) -> Function | None:
        return next((one for one in self._known.values() if one.start <= address < one.end), None)

    def called(self, name: str) -> tuple[int, ...]:
        """Return where functions of that name are probed, ascending."""
        found = (self._probed[start] for start, one in self._known.items() if one.name == name)
        return tuple(sorted(found))

    def frame(self, address: int) -> int | None:
        """Return the bytes that the function around `address` has on the stack; None where there is none."""
        found = self.function(address)
        return self._frames[found.start] if found is not None else None

    def symbol(self, address: int) -> str:
        found = self.function(address)
        return found.name if found is not None else ""

    def area(self, address: int) -> Area:
        return Area.TEXT if self.function(address) is not None else Area.NOT_TEXT

    def marks(self, start: int, end: int) -> Sequence[Mark]:
        return ()

    def ftrace_sites(self, start: int, end: int) -> Sequence[FtraceSite]:
        return ()

    def spell(self, address: int) -> str:
        return f"{address:#x} <{self.symbol(address)}>"
