"""The code in the guest that writes into its programs, in an arena: put there for the first probe on one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.journal import TableKind
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux.user import writer
from gdb_optprobe.guest.linux.user.programs import Programs
from gdb_optprobe.guest.linux.user.writer import Writer
from gdb_optprobe.probes.installed_detour import InstalledDetour


@dataclass
class TextWriter:
    """writer: what uses the code in the guest, once that is installed."""

    guest: Guest
    writer: Writer | None = None
    _installed: InstalledDetour | None = None
    _tables: Slot | None = None

    def check_memory(self, near: int, arena: Arena) -> None:
        """Raises Refused where `begin` would have no memory."""
        if arena.earlier_table(TableKind.USER_WRITES) is None:
            arena.check_data(writer.SIZE, near, self.guest.isa.data_reach)

    def install(self, programs: Programs, arena: Arena, avoid: Callable[[int], bool]) -> Writer:
        """Install the writer. avoid: see Writer. Raises Refused, OptprobeError."""
        if self.writer is not None:
            return self.writer
        calls = writer.calls(programs.kernel)
        tables = arena.adopt_table(TableKind.USER_WRITES, lambda size: size == writer.SIZE)
        if tables is None:
            tables = arena.allocate_table(TableKind.USER_WRITES, writer.SIZE, calls.write, self.guest.isa.data_reach)
        try:
            code = programs.vcpus.writing.code
            placed = InstalledDetour.install_or_reuse(
                calls.write, lambda at: Detour(at, code(at, calls.write, calls.put), at, ()), self.guest, arena
            )
        except OptprobeError:
            arena.release_table(TableKind.USER_WRITES, tables)
            raise
        self._installed, self._tables = placed, tables
        self.writer = Writer(programs, placed.detour.address, tables.address, avoid)
        self.writer.clear()
        return self.writer

    def remove(self, arena: Arena) -> None:
        """Stop writing: code and tables are freed once no thread is inside."""
        if self._installed is None or self._tables is None:
            return
        self._installed.release(self.guest, arena, reached=True)
        arena.release_table(TableKind.USER_WRITES, self._tables)
        self.abandon()

    def abandon(self) -> None:
        """Forget the writer: the guest that held it is gone."""
        self.writer = self._installed = self._tables = None
