"""`x/i` and `disassemble` show the code that the guest's authors wrote, with a mark where a branch of ours stands."""

from __future__ import annotations

from collections.abc import Callable

import gdb
import gdb.disassembler

from gdb_optprobe.isa.base import LONGEST
from gdb_optprobe.probes.original import overlaid
from gdb_optprobe.probes.session import Session

MASK = (1 << 64) - 1


class OriginalDisassembler(gdb.disassembler.Disassembler):
    """Installed for every architecture; does nothing where no probe of `session()` stands."""

    def __init__(self, session: Callable[[], Session | None]) -> None:
        super().__init__("optprobe")
        self._session = session

    def __call__(self, info: gdb.disassembler.DisassembleInfo) -> gdb.disassembler.DisassemblerResult | None:
        session = self._session()
        address = info.address & MASK
        if session is None or next(session.registry.patches(address, address + LONGEST), None) is None:
            return None
        result = gdb.disassembler.builtin_disassemble(_Original(info, session))
        numbers = [
            str(number)
            for branch in session.registry.branches()
            if branch.patch.address <= address < branch.patch.end
            for number in branch.serves
        ]
        if not numbers:
            return None
        return gdb.disassembler.DisassemblerResult(result.length, f"{result.string}\t# optprobe {', '.join(numbers)}")


class _Original(gdb.disassembler.DisassembleInfo):
    """The same request, with the original bytes to read."""

    def __init__(self, info: gdb.disassembler.DisassembleInfo, session: Session) -> None:
        super().__init__(info)
        self._session = session

    def read_memory(self, length: int, offset: int = 0) -> bytes:
        data = bytes(super().read_memory(length, offset))
        return overlaid(data, (self.address & MASK) + offset, self._session.registry)


def install(session: Callable[[], Session | None]) -> None:
    gdb.disassembler.register_disassembler(OriginalDisassembler(session), None)
