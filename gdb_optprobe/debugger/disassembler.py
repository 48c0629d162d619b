"""`x/i` and `disassemble` show the original code, with a mark where a branch of a probe is in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gdb
import gdb.disassembler

from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.isa.base import LONGEST
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.unpatched_text import unpatched

MASK = (1 << 64) - 1


class OriginalDisassembler(gdb.disassembler.Disassembler):
    """Disassembles original code, on every architecture. It does nothing where `session()` has no probe."""

    def __init__(self, session: Callable[[], Session | None]) -> None:
        super().__init__("optprobe")
        self._session = session

    def __call__(self, info: gdb.disassembler.DisassembleInfo) -> gdb.disassembler.DisassemblerResult | None:
        session = self._session()
        address = info.address & MASK
        if session is None:
            return None
        near = session.uprobes.traps_near(address, address + LONGEST)
        traps = {trap: serves for trap, serves in near.items() if _is_in_memory(info, trap)}
        patches = [*session.registry.patches(address, address + LONGEST), *traps]
        if not patches:
            return None
        result = gdb.disassembler.builtin_disassemble(_Original(info, patches))
        numbers = [
            *(str(number) for number in session.registry.numbers_at(address)),
            *(str(number) for trap, serves in traps.items() if trap.address == address for number in serves),
        ]
        if not numbers:
            return None
        return gdb.disassembler.DisassemblerResult(result.length, f"{result.string}\t# optprobe {', '.join(numbers)}")


def _is_in_memory(info: gdb.disassembler.DisassembleInfo, trap: Patch) -> bool:
    """Return whether a trap is in memory. Another process may have something else there."""
    try:
        return bytes(info.read_memory(len(trap.new), trap.address - (info.address & MASK))) == trap.new
    except gdb.MemoryError:
        return False


class _Original(gdb.disassembler.DisassembleInfo):
    """The same request, which reads original bytes."""

    def __init__(self, info: gdb.disassembler.DisassembleInfo, patches: Sequence[Patch]) -> None:
        super().__init__(info)
        self._patches = patches

    def read_memory(self, length: int, offset: int = 0) -> bytes:
        data = bytes(super().read_memory(length, offset))
        return unpatched(data, (self.address & MASK) + offset, self._patches)


def install(session: Callable[[], Session | None]) -> None:
    """Register the disassembler with GDB."""
    gdb.disassembler.register_disassembler(OriginalDisassembler(session), None)
