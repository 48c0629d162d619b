"""A kernel whose symbols cannot be read is searched once, until another one is there."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gdb_optprobe.guest import kallsyms
from gdb_optprobe.guest.cache import Cache
from gdb_optprobe.guest.image import Image, Run
from gdb_optprobe.guest.linux.recover import Read, Vain, View, recover
from gdb_optprobe.guest.machine import Machine as AnyMachine
from gdb_optprobe.guest.symbols import SymbolTable
from tests.linux.fakes import Machine
from tests.symbols import blobs, elf_blobs

SIZE = 1 << 21


class Guest(Machine):
    """One that counts what is read of it."""

    def __init__(self, constants: bytes) -> None:
        super().__init__()
        self.constants = constants
        self.count = 0

    def read_virtual(self, address: int, size: int) -> bytes:
        self.count += size
        start = address - blobs.RODATA
        return self.constants[start : start + size]

    def write_virtual(self, address: int, data: bytes) -> None:
        raise AssertionError


@dataclass
class Finder:
    text: int = blobs.TEXT
    image: Image = field(init=False)

    def __post_init__(self) -> None:
        self.image = Image(
            Run(self.text, 1 << 20, writable=False, executable=True),
            Run(blobs.RODATA, SIZE, writable=False, executable=False),
            Run(blobs.RODATA + SIZE, 1 << 20, writable=True, executable=False),
        )

    def walk(self, address: int) -> None:
        return None

    def now(self, address: int) -> None:
        return None

    def find(self, _: AnyMachine) -> tuple[Image, View]:
        return self.image, self

    def settle(self, where: Image, view: View, _: SymbolTable) -> tuple[Image, View]:
        return where, view

    def notes(self, where: Image, _: SymbolTable, read: Read) -> tuple[int, int]:
        return where.rodata.start, where.rodata.end


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def searched(guest: Guest, finder: Finder, cache: Cache, vain: Vain) -> int:
    """How much was read for nothing."""
    guest.count = 0
    with pytest.raises(kallsyms.NoSymbolTable):
        recover(guest, finder, cache, lambda _: None, vain)
    return guest.count


def test_a_kernel_without_symbols_is_searched_once(cache: Cache) -> None:
    guest, vain = Guest(bytes(SIZE)), Vain()
    assert searched(guest, Finder(), cache, vain) >= SIZE
    assert searched(guest, Finder(), cache, vain) < SIZE // 16


def test_another_kernel_is_searched(cache: Cache) -> None:
    guest, vain = Guest(bytes(SIZE)), Vain()
    searched(guest, Finder(), cache, vain)
    assert searched(guest, Finder(blobs.TEXT + (1 << 21)), cache, vain) >= SIZE
    assert searched(Guest(b"\1" * SIZE), Finder(), cache, vain) >= SIZE


BUILD = bytes(range(20))
WITH_NOTE = bytes(4096) + blobs.note(b"GNU\0", 3, BUILD)
LINKED = blobs.TEXT - (1 << 21)
ROWS = [("_text", LINKED, elf_blobs.TEXT, 1, 0), ("init_task", LINKED + 0x4000, elf_blobs.DATA, 1, 1)]


@pytest.fixture
def vmlinux(tmp_path: Path) -> Path:
    file = tmp_path / "vmlinux"
    file.write_bytes(elf_blobs.vmlinux(ROWS))
    return file


def test_a_kernel_without_symbols_has_those_of_the_file_with_its_build_id(cache: Cache, vmlinux: Path) -> None:
    guest, vain = Guest(WITH_NOTE.ljust(SIZE, b"\0")), Vain()
    searched(guest, Finder(), cache, vain)
    with pytest.raises(kallsyms.NoSymbolTable):
        recover(guest, Finder(), cache, lambda _: None, vain, {bytes(20).hex(): vmlinux})
    found = recover(guest, Finder(), cache, lambda _: None, vain, {BUILD.hex(): vmlinux})
    assert found is not None and found.build == BUILD.hex()
    assert found.symbols.address("init_task") == blobs.TEXT + 0x4000
    known = cache.symbols(BUILD.hex(), blobs.TEXT)
    assert known is not None and known.names == ["_text", "init_task"], "the next session does without the file"


def test_a_kernel_without_symbols_of_its_data_has_those_of_the_file(cache: Cache, vmlinux: Path) -> None:
    own = [row for row in blobs.kernel_symbols(2000) if row[1] in "tT"]
    tables = blobs.kallsyms(own, blobs.LINUX_6_4, before=WITH_NOTE.ljust(8192, b"\0"))
    guest = Guest(tables.ljust(SIZE, b"\0"))
    without = recover(guest, Finder(), cache, lambda _: None, Vain())
    assert without is not None and without.symbols.address("init_task") is None
    found = recover(guest, Finder(), cache, lambda _: None, Vain(), {BUILD.hex(): vmlinux})
    assert found is not None and found.symbols.address("init_task") == blobs.TEXT + 0x4000
    assert len(found.symbols) == len(without.symbols) + 1
