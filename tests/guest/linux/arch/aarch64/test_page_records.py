"""Records of pages are found where the text's are reserved and a thread's is not, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.aarch64 import page_records
from gdb_optprobe.guest.linux.arch.aarch64.page_records import PAGE_SHIFT, RECORD_SHIFT, PageRecords
from gdb_optprobe.guest.linux.arch.aarch64.paging import Page, Regime
from gdb_optprobe.guest.linux.kernel import Kernel
from tests.guest.linux.arch.aarch64.tables import regime
from tests.guest.linux.fake_kernel import Pages, kernel

TEXT, END, INIT, THREAD, START = (
    0xFFFF_8000_0800_0000, 0xFFFF_8000_0808_0000, 0xFFFF_8000_0900_0000, 0xFFFF_0000_0123_0000, 0x4000_0000,
)  # fmt: skip
RESERVED, TASKS = 12, 0x100
SLIDE = TEXT - 0x4020_0000


@dataclass
class View:
    """The text and `init_task` in RAM, and the linear map."""

    regime: Regime

    def page(self, address: int) -> Page | None:
        base = SLIDE if address >> 47 == SLIDE >> 47 else -(1 << 48) % 2**64 - START
        return Page(address & -4096, (address & -4096) - base, 4096, True, False, 0, 0)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Kernel]:
    monkeypatch.setattr(page_records, "_reserved", lambda kernel: RESERVED)

    def make(first: int, free: int = THREAD) -> Kernel:
        memory = Pages()
        names = {"_stext": TEXT, "d__etext": END, "d_init_task": INIT, "d_memstart_addr": INIT + 8}
        memory.put_words(INIT + TASKS, free)
        memory.put_words(INIT + 8, START)
        view = View(regime())
        base = first - (START >> PAGE_SHIFT << RECORD_SHIFT)
        for address in (*range(TEXT, END, 4096), THREAD):
            page = view.page(address)
            assert page is not None
            flags = 1 << RESERVED if address != THREAD else 0
            memory.put_words(base + (page.physical >> PAGE_SHIFT << RECORD_SHIFT) & 2**64 - 1, flags)
        return kernel(memory, names, {"task_struct.tasks": TASKS})

    return make


@pytest.mark.parametrize("first", [-(1 << 42), -(1 << 30) - (1 << 41)])
def test_where_kernels_have_them(made: Callable[..., Kernel], first: int) -> None:
    found = PageRecords.of(made(first), View(regime()))  # type: ignore[arg-type]
    assert found.is_reserved(TEXT) and not found.is_reserved(THREAD)


def test_somewhere_else(made: Callable[..., Kernel]) -> None:
    with pytest.raises(OptprobeError, match="not where they are looked for"):
        PageRecords.of(made(-(1 << 41)), View(regime()))  # type: ignore[arg-type]


def test_where_every_page_is_reserved(made: Callable[..., Kernel]) -> None:
    with pytest.raises(OptprobeError, match="not where they are looked for"):
        PageRecords.of(made(-(1 << 42), free=TEXT), View(regime()))  # type: ignore[arg-type]
