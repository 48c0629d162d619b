"""Names of a kernel's data: what is exported, per-CPU variables, types; and tables that lie."""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from gdb_optprobe.guest.linux.arch.aarch64 import names as finding
from gdb_optprobe.guest.linux.arch.aarch64.names import EXPORT_ROW, KernelNames
from gdb_optprobe.guest.linux.linux import LinuxGuest
from gdb_optprobe.isa.aarch64.fields import to_bytes
from tests.guest.linux.fake_kernel import Pages, symbols

TEXT, DATA, TABLE, STRINGS = 0xFFFF_8000_0800_0000, 0xFFFF_8000_0900_0000, 0xFFFF_8000_0901_0000, 0xFFFF_8000_0902_0000
FIND_SYMBOL = TEXT + 0x1000
EXPORTED = {b"__per_cpu_offset": DATA + 0x100, b"init_task": DATA + 0x200, b"nr_cpu_ids": DATA + 0x300}


def adrp(register: int, at: int, target: int) -> int:
    pages = (target >> 12) - (at >> 12)
    return 0x9000_0000 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5 | register


def kernel(exported: dict[bytes, int]) -> KernelNames:
    memory = Pages()
    code = (adrp(19, FIND_SYMBOL, DATA), 0x9100_0000 | 0x40 << 10 | 19 << 5 | 19, 0xD65F_03C0)
    memory.put(FIND_SYMBOL, to_bytes(*code))
    at = STRINGS
    for number, (name, value) in enumerate(exported.items()):
        row = TABLE + EXPORT_ROW.size * number
        memory.put(row, EXPORT_ROW.pack(value - row, at - row - 4, 0))
        memory.put(at, name + b"\0")
        at += len(name) + 1
    memory.put_words(DATA + 0x40, TABLE, TABLE + EXPORT_ROW.size * len(exported))
    memory.put(at, bytes(64))
    named = {"_stext": TEXT, "find_symbol": FIND_SYMBOL, "behind": FIND_SYMBOL + 12, "_einittext": TEXT + 0x10000}
    return KernelNames(symbols(**named), memory)


def test_exported_ones_are_found_by_bisection() -> None:
    found = kernel(EXPORTED)
    assert {name: found.address(name.decode()) for name in EXPORTED} == EXPORTED
    assert found.address("runqueues") is None


def test_a_search_that_was_interrupted_has_not_shown_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found = kernel(EXPORTED)

    def interrupted(name: str) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(found, "_exported", interrupted)
        found.address("init_task")
    assert found.address("init_task") == EXPORTED[b"init_task"]


def test_what_is_not_there_while_the_kernel_boots_is_looked_for_once_it_has() -> None:
    found, memory = kernel(EXPORTED), Pages()
    whole, found.memory = found.memory, memory
    assert found.address("init_task") is None
    found.memory = whole
    assert found.address("init_task") is None, "it is looked for once"
    guest: Any = SimpleNamespace(kernel=SimpleNamespace(symbols=found), forget=lambda: None)
    guest._forget_missing_names = partial(LinuxGuest._forget_missing_names, guest)
    LinuxGuest.note_boot(guest, ended=True)
    assert found.address("init_task") == EXPORTED[b"init_task"]


def test_a_kernel_that_names_its_data_is_not_searched() -> None:
    found = kernel(EXPORTED)
    found.symbols = symbols(init_task=DATA)
    assert found.address("init_task") == DATA and found.address("nr_cpu_ids") is None


@pytest.mark.parametrize("seed", range(20))
def test_tables_that_lie(seed: int) -> None:
    source = random.Random(seed)
    found = kernel(EXPORTED)
    memory = found.memory
    assert isinstance(memory, Pages)
    memory.put(TABLE, source.randbytes(64))
    memory.put(DATA + 0x40, source.randbytes(16) if seed % 2 else memory.read(DATA + 0x40, 16))
    for name in ("init_task", "modules", "__start_BTF", "kprobe_table", "arch_timer_rate"):
        value = found.address(name)
        assert value is None or 0 <= value < 1 << 64


def test_every_source_of_a_kernel_without_code_finds_nothing() -> None:
    found = KernelNames(symbols(_stext=TEXT), Pages())
    assert all(found.address(name) is None for name in finding._SOURCES)
