"""Which kernels have probes on programs, by code like that of Linux's entry.S."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import trap_calls
from gdb_optprobe.guest.linux.arch.aarch64.user_kernel import CALLER, HANDLER, check_page_tables, user_kernel
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.aarch64.fields import BL, NOP, to_bytes
from tests.guest.linux.fake_kernel import Pages, kernel

TEXT = 0xFFFF_8000_0800_0000
SYNC, HIDE, BACK, TO = (TEXT + at for at in (0x1000, 0x2000, 0x2100, 0x3000))
NAMES = {
    "_stext": TEXT,
    CALLER: SYNC,
    "after": SYNC + 0x100,
    "__swpan_entry_el1": HIDE,
    "__swpan_entry_el0": HIDE + 0x14,
    "__swpan_exit_el0": BACK,
    HANDLER: TO,
    "d__etext": TEXT + 0x4000,
    "_einittext": TEXT + 0x4000,
}
SAVES, RET = 0xA900_07E0, 0xD65F_03C0  # stp x0, x1, [sp]
READ_TTBR0, READ_TTBR1, MASKED, ISB = 0xD538_2015, 0xD538_2035, 0x9240_BEB5, 0xD503_3FDF  # mrs x21, …; and x21, x21, …
WRITE_TTBR0, WRITE_TTBR1 = 0xD518_2015, 0xD518_2035


def made(*before: int, behind: int = NOP) -> Kernel:
    """A kernel with instructions before the call of the handler, and one behind it."""
    memory = Pages()
    memory.put(TEXT, bytes(0x4000))
    call = SYNC + 4 + 4 * len(before)
    memory.put(SYNC, to_bytes(SAVES, *before, BL | (TO - call) >> 2, behind, NOP))
    hides = (READ_TTBR1, MASKED, WRITE_TTBR0, ISB, WRITE_TTBR1, ISB, RET)
    memory.put(HIDE, to_bytes(READ_TTBR0, NOP, NOP, NOP, NOP, *hides))
    memory.put(BACK, to_bytes(WRITE_TTBR0, RET))
    return kernel(memory, NAMES)


@pytest.mark.parametrize("before", [(BL | (HIDE + 0x14 - SYNC - 4) >> 2,), (READ_TTBR1, WRITE_TTBR0 + 3)])
def test_programs_are_not_probed_where_traps_hide_their_page_tables(before: tuple[int, ...]) -> None:
    """In a function, as since 5.11, or in place: an older one, or with another register."""
    with pytest.raises(OptprobeError, match=r"software PAN.*not probed"):
        user_kernel(made(*before), cast(Any, None), cast(Any, None), {})


@pytest.mark.parametrize("behind", [NOP, BL | (BACK - SYNC - 12) >> 2])
def test_with_pan_in_every_cpu_the_kernel_has_nops_there(behind: int) -> None:
    """That it may write the register on the way back changes nothing."""
    found = made(READ_TTBR0, behind=behind)
    calls = trap_calls.find(found, AARCH64, {}, HANDLER, (CALLER,))
    check_page_tables(found, {}, calls.ways_in)
