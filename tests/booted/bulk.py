"""Read much of a guest's memory inside GDB: QEMU writes it to a file at once, where GDB would ask for it by 2 KiB."""

from __future__ import annotations

import tempfile
from pathlib import Path

import gdb

from gdb_optprobe.debugger.attach import attachments


def read(start: int, size: int) -> bytes:
    """Return the kernel's memory there, by its own page tables."""
    assert attachments.current is not None and attachments.current.linux is not None
    pieces = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory"
        for physical, length in attachments.current.linux.memory.extents(start, size):
            said = gdb.execute(f'monitor pmemsave {physical:#x} {length} "{path}"', to_string=True)
            assert not said, said
            pieces.append(path.read_bytes())
    data = b"".join(pieces)
    assert len(data) == size
    return data
