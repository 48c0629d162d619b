"""Where a ppc64le kernel keeps whether interrupts are masked, which reads that may fault need to know."""

from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.ppc64le import reads
from gdb_optprobe.isa.ppc64le.encodings import number
from gdb_optprobe.isa.ppc64le.fields import to_bytes
from tests.guest.linux.fake_kernel import Pages, kernel

TEXT = 0xC000_0000_0000_8000


def test_the_soft_mask_is_what_is_both_read_and_written() -> None:
    code = [number("lbz", "r31", "r13", 0x932), number("stb", "r9", "r13", 0x932), number("lbz", "r4", "r13", 0x940)]
    memory = Pages()
    memory.put(TEXT + 0x100, to_bytes(*code, *code[:1]))
    names = {"_stext": TEXT, "_raw_spin_lock_irqsave": TEXT + 0x100, "next": TEXT + 0x110, "_etext": TEXT + 0x800}
    assert reads.soft_mask(kernel(memory, names)) == 0x932
    memory.put(TEXT + 0x104, to_bytes(number("stb", "r9", "r13", 0x933)))
    with pytest.raises(OptprobeError, match="interrupts"):
        reads.soft_mask(kernel(memory, names))
