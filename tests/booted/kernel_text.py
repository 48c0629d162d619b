"""The real text of a stock kernel: what its guest has in memory, read through QEMU, without a debugger."""

from __future__ import annotations

from pathlib import Path

from gdb_optprobe.guest import kallsyms
from gdb_optprobe.guest.symbols import FUNCTION_TYPES
from qemu.guest import Guest
from tests.booted.addresses import address_of
from tests.isa.x86_64.windows import KernelCode

IMAGE = 32 << 20  # from _stext on, with the symbols


def kernel_text(guest: Guest, folder: Path) -> KernelCode:
    """All text up to _etext as it is in memory now: alternatives applied, ftrace's sites nops or calls."""
    start = address_of(guest, "_stext")
    path = folder / "image"
    with guest.qmp() as control:
        control.execute("memsave", val=start - (1 << 64), size=IMAGE, filename=str(path))
    image = path.read_bytes()
    symbols = kallsyms.read(lambda address, size: image[address - start : address - start + size], start, IMAGE)
    end = symbols.address("_etext")
    assert end is not None and start < end < start + IMAGE
    named = zip(symbols.addresses, symbols.types, strict=True)
    starts = sorted({address for address, kind in named if kind in FUNCTION_TYPES and start <= address < end})
    return KernelCode(start, image[: end - start], starts)
