"""Give GDB the kernel's symbols before the first command: `bt`, `break` and completion need them.

    source                   at once, where a stopped guest is connected
    target remote            at the stop that GDB reports then
    a prompt                 where the guest has run since: it may have booted, or be another one after a reset
    symbol-file and others   a file of another build than the guest's kernel is named in a warning
The guest is not changed, and only QEMU is asked. Where there is no kernel yet, a line says so once a connection.
"""

from __future__ import annotations

from pathlib import Path

import gdb

from gdb_optprobe.debugger import kernel_symbols
from gdb_optprobe.debugger.attach import Attachments
from gdb_optprobe.debugger.messages import note, warn
from gdb_optprobe.debugger.parameters import current_settings
from gdb_optprobe.debugger.running import is_stopped
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.symbolfile import ASIDE
from gdb_optprobe.interrupts import held, unbroken

QEMU = (b"0", b"1")
"""What QEMU answers when it is asked for its mode of memory packets; other stubs do not know the question."""


class EarlySymbols:
    """seen: the connection that was last looked at; to_qemu: whether it is one. has_run: whether its guest has since.
    """

    def __init__(self, attachments: Attachments) -> None:
        self._attachments = attachments
        self._seen: gdb.TargetConnection | None = None
        self._to_qemu = self._has_run = False
        gdb.events.stop.connect(unbroken(self.load))
        gdb.events.cont.connect(unbroken(self._resumed))
        gdb.events.before_prompt.connect(unbroken(self._at_prompt))
        gdb.events.new_objfile.connect(unbroken(self._file_loaded))

    @held()
    def load(self, _: object = None) -> None:
        """Load the symbols where a stopped guest is connected and has not been looked at."""
        connection = gdb.selected_inferior().connection
        if connection is self._seen or not isinstance(connection, gdb.RemoteTargetConnection) or not is_stopped():
            return
        self._seen, self._to_qemu, self._has_run = connection, _is_qemu(connection), False
        self._load(is_new=True)

    def _resumed(self, _: object) -> None:
        self._has_run = True

    def _at_prompt(self, _: object = None) -> None:
        self.load()
        if not self._has_run or not is_stopped() or gdb.selected_inferior().connection is not self._seen:
            return
        self._has_run = False
        if self._is_gone():
            self._attachments.forget()
        self._load(is_new=False)

    def _is_gone(self) -> bool:
        """Return whether the guest was reset. Where it had probes, the next command forgets it, and says so."""
        found = self._attachments.current
        if found is None or len(found.session.registry):
            return False
        return not found.is_current()

    def _load(self, is_new: bool) -> None:
        if not self._to_qemu or self._attachments.current is not None or not current_settings().load_symbols:
            return
        if kernel_symbols.of_another_program():
            return
        try:
            found = self._attachments.seen(tell=False)
        except (OptprobeError, gdb.error) as error:
            if is_new:
                note(f"no symbols of the guest's kernel: {error}")
            return
        if found.symbols is not None and found.symbols != ASIDE:
            note("GDB has the symbols of the guest's kernel (set optprobe load-symbols).")

    def _file_loaded(self, event: gdb.NewObjFileEvent) -> None:
        found, file = self._attachments.current, event.new_objfile
        if found is not None and found.build and file.build_id and file.filename:
            kernel_symbols.warn_of_others(found.build, {file.build_id: Path(file.filename)})


def _is_qemu(connection: gdb.RemoteTargetConnection) -> bool:
    try:
        return connection.send_packet("qqemu.PhyMemMode") in QEMU
    except gdb.error as error:
        warn(error)
        return False
