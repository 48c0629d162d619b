"""What reading memory that may not be there needs to know of a kernel, and what is refused where it is not known."""

from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest.linux.arch.x86_64.probe_read import Direct
from gdb_optprobe.guest.linux.arch.x86_64.reads import Reads, reads
from tests.guest.linux.arch.x86_64.tables import PAGE, Tables
from tests.guest.linux.fake_kernel import Machine, kernel

START, VMALLOC, TEXT, FRAME = 0xFFFF_9A3D_4000_0000, 0xFFFF_A53D_4000_0000, 0xFFFF_FFFF_8100_0000, 0x1E0_0000
NAMES = {"d_page_offset_base": 0x5000, "d_vmalloc_base": 0x5008, "d_sme_me_mask": 0x5010, "_stext": TEXT}
MAPPED = {TEXT: FRAME, START + FRAME: FRAME}
CONTROL = {"cr4": 0x1000}


def found(*words: int, mapped: dict[int, int] | None = None, **without: int) -> Reads:
    memory = Machine(CONTROL)
    memory.put_words(0x5000, *words)
    names = {name: at for name, at in NAMES.items() if name not in without}
    return reads(memory, kernel(memory, names), (MAPPED if mapped is None else mapped).get)


def test_the_direct_map_is_where_the_kernel_says() -> None:
    assert found(START, VMALLOC, 0).direct == Direct(START, VMALLOC - START, la57=True)
    assert found(START, VMALLOC, d_sme_me_mask=1).direct.start == START


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((START, VMALLOC, 1 << 47), "encrypted"),
        ((START + PAGE, VMALLOC, 0), "direct map is not known"),
        ((START, START, 0), "direct map is not known"),
        ((START + (1 << 30), VMALLOC, 0), "direct map is not known"),
    ],
    ids=["encrypted", "unaligned", "empty", "elsewhere"],
)
def test_what_cannot_be_is_refused(words: tuple[int, ...], why: str) -> None:
    with pytest.raises(OptprobeError, match=why):
        found(*words)


NEITHER = {"d_page_offset_base": 1, "d_vmalloc_base": 1}


def test_a_kernel_that_does_not_choose_has_its_direct_map_where_all_such_have_it() -> None:
    start = 0xFF11_0000_0000_0000
    assert found(0, 0, 0, mapped={TEXT: FRAME, start + FRAME: FRAME}, **NEITHER).direct.start == start
    for other in (START, 0xFFFF_8880_0000_0000):
        with pytest.raises(OptprobeError, match="page_offset_base"):
            found(0, 0, 0, mapped={TEXT: FRAME, other + FRAME: FRAME}, **NEITHER)


@pytest.mark.parametrize("missing", ["d_page_offset_base", "d_vmalloc_base"])
def test_a_kernel_that_does_not_say_is_refused(missing: str) -> None:
    with pytest.raises(OptprobeError, match=missing.removeprefix("d_")):
        found(START, VMALLOC, 0, **{missing: 1})


def test_tiers_that_stop_read_by_the_same_rule() -> None:
    """A read of two pages, and of a page of a device, which is not asked."""
    made = Tables(Direct(START, VMALLOC - START), 0x20_0000, lambda at: bytes([at >> 12 & 0xFF]) * PAGE)
    for at in (FRAME, FRAME + 5 * PAGE):
        made.map(START + at, at, 1)
    made.map(0x40_0000, FRAME, 1, user=True)
    made.map(0x40_1000, FRAME + 5 * PAGE, 1, user=True)
    made.map(VMALLOC, 0xFEC0_0000, 1)
    for at in tuple(made.pages):
        made.map(START + at, at, 1)
    asked = []

    def memory(address: int, size: int) -> bytes:
        asked.append(address - START)
        return made.read_physical(address - START, size)

    registers = {"cr3": 0x20_0000}
    of = Reads(made.direct, memory)
    assert of.read(registers, 0x40_0FFE, 4) == b"\0\0\5\5"
    with pytest.raises(Unreadable):
        of.read(registers, VMALLOC + 8, 4)
    assert not any(0xFEC0_0000 <= at < 0xFEC0_1000 for at in asked)
