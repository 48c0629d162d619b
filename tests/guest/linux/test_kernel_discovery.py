"""A kernel whose symbols cannot be read is searched once, until another one is there."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gdb_optprobe.guest import kallsyms
from gdb_optprobe.guest.cache import Cache
from gdb_optprobe.guest.kernel_image import Image, Run
from gdb_optprobe.guest.linux.kernel_discovery import DiscoveredKernel, KnownFailures, Read, View, discover
from gdb_optprobe.guest.machine import Machine as AnyMachine
from gdb_optprobe.guest.symbols import SymbolTable
from tests.examples import examples
from tests.guest import blobs, elf_blobs
from tests.guest.linux.fake_kernel import Machine

SIZE = 1 << 21


class Guest(Machine):
    """One that counts what is read of it."""

    def __init__(self, constants: bytes, at: int = blobs.RODATA) -> None:
        super().__init__()
        self.constants = constants
        self.at = at
        self.count = 0

    def read_virtual(self, address: int, size: int) -> bytes:
        self.count += size
        start = address - self.at
        return self.constants[start : start + size]

    def write_virtual(self, address: int, data: bytes) -> None:
        raise AssertionError


@dataclass
class Finder:
    text: int = blobs.TEXT
    rodata: int = blobs.RODATA
    image: Image = field(init=False)

    def __post_init__(self) -> None:
        self.image = Image(
            Run(self.text, 1 << 20, writable=False, executable=True),
            Run(self.rodata, SIZE, writable=False, executable=False),
            Run(self.rodata + SIZE, 1 << 20, writable=True, executable=False),
        )

    def walk(self, address: int) -> None:
        return None

    def now(self, address: int) -> None:
        return None

    def find(self, _: AnyMachine) -> tuple[Image, View]:
        return self.image, self

    def complete(self, where: Image, view: View, _: SymbolTable) -> tuple[Image, View]:
        return where, view

    def notes(self, where: Image, _: SymbolTable, read: Read) -> tuple[int, int]:
        return where.rodata.start, where.rodata.end


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def searched(guest: Guest, finder: Finder, cache: Cache, vain: KnownFailures) -> int:
    """How much was read for nothing."""
    guest.count = 0
    with pytest.raises(kallsyms.NoSymbolTable):
        discover(guest, finder, cache, lambda _: None, vain)
    return guest.count


def test_a_kernel_without_symbols_is_searched_once(cache: Cache) -> None:
    guest, vain = Guest(bytes(SIZE)), KnownFailures()
    assert searched(guest, Finder(), cache, vain) >= SIZE
    assert searched(guest, Finder(), cache, vain) < SIZE // 16


def test_another_kernel_is_searched(cache: Cache) -> None:
    guest, vain = Guest(bytes(SIZE)), KnownFailures()
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
    guest, vain = Guest(WITH_NOTE.ljust(SIZE, b"\0")), KnownFailures()
    searched(guest, Finder(), cache, vain)
    with pytest.raises(kallsyms.NoSymbolTable):
        discover(guest, Finder(), cache, lambda _: None, vain, {bytes(20).hex(): vmlinux})
    found = discover(guest, Finder(), cache, lambda _: None, vain, {BUILD.hex(): vmlinux})
    assert found is not None and found.build == BUILD.hex()
    assert found.symbols.address("init_task") == blobs.TEXT + 0x4000
    assert found.shelf is None and not list(cache.folder.glob("*/*")), "nothing of a file is kept for who has it not"
    with pytest.raises(kallsyms.NoSymbolTable):
        discover(guest, Finder(), cache, lambda _: None, KnownFailures())


def test_a_kernel_without_symbols_of_its_data_has_those_of_the_file(cache: Cache, vmlinux: Path) -> None:
    own = [row for row in blobs.kernel_symbols(2000) if row[1] in "tT"]
    tables = blobs.kallsyms(own, blobs.LINUX_6_4, before=WITH_NOTE.ljust(8192, b"\0"))
    guest = Guest(tables.ljust(SIZE, b"\0"))
    without = discover(guest, Finder(), cache, lambda _: None, KnownFailures())
    assert without is not None and without.symbols.address("init_task") is None
    found = discover(guest, Finder(), cache, lambda _: None, KnownFailures(), {BUILD.hex(): vmlinux})
    assert found is not None and found.symbols.address("init_task") == blobs.TEXT + 0x4000
    assert len(found.symbols) == len(without.symbols) + 1


# --- one guest is not believed about another --------------------------------------------------------------------------

OWN = blobs.kernel_symbols(2000)
MOVED = 0x0140_0000


def tables(rows: list[blobs.NmSymbol], slide: int = 0, layout: blobs.Layout = blobs.LINUX_6_4) -> Guest:
    moved = [(address + slide if address >> 63 else address, kind, name) for address, kind, name in rows]
    data = blobs.kallsyms(moved, layout, before=WITH_NOTE.ljust(8192, b"\0"), at=blobs.RODATA + slide)
    return Guest(data.ljust(SIZE, b"\0"), blobs.RODATA + slide)


def recovered(guest: Guest, cache: Cache, slide: int = 0) -> tuple[DiscoveredKernel, bool]:
    """The kernel, and whether its symbols were sought in its memory."""
    said: list[str] = []
    finder = Finder(blobs.TEXT + slide, blobs.RODATA + slide)
    found = discover(guest, finder, cache, said.append, KnownFailures())
    assert found is not None and found.build == BUILD.hex()
    return found, bool(said)


@pytest.mark.parametrize("layout", blobs.LAYOUTS.values(), ids=blobs.LAYOUTS)
def test_the_same_tables_are_read_once_wherever_the_kernel_lies(cache: Cache, layout: blobs.Layout) -> None:
    first, sought = recovered(tables(OWN, layout=layout), cache)
    assert sought
    for slide in (0, MOVED):
        found, sought = recovered(tables(OWN, slide, layout), cache, slide)
        assert not sought
        assert found.symbols.symbols == first.symbols.symbols.moved(slide)
        assert found.note == first.note + slide and found.shelf == first.shelf


def test_a_guest_with_a_stock_build_id_is_not_believed_about_the_stock_kernel(cache: Cache) -> None:
    """It said where functions of its own are; under the build-id that was kept for all."""
    lies = [(address, kind, name.replace("read", "lead")) for address, kind, name in OWN]
    hostile, honest = tables(lies), tables(OWN)
    assert recovered(hostile, cache)[0].symbols.address("Function_1_lead_lock") is not None
    found, sought = recovered(honest, cache)
    assert sought and found.symbols.address("Function_1_read_lock") is not None
    assert found.symbols.address("Function_1_lead_lock") is None
    for guest in (hostile, honest):
        assert not recovered(guest, cache)[1], "both are kept"


def test_a_guest_that_moves_one_function_is_not_believed_about_the_next_one(cache: Cache) -> None:
    lies = [*OWN[:1500], (OWN[1500][0] + 1, *OWN[1500][1:]), *OWN[1501:]]
    recovered(tables(lies), cache)
    found, sought = recovered(tables(OWN), cache)
    assert sought and found.symbols.symbols.addresses[1500] == OWN[1500][0]


class TwoFaced(Guest):
    """Shows lies when its memory is read for the first time, and the stock kernel's tables from then on."""

    def __init__(self, lies: Guest, stock: Guest) -> None:
        super().__init__(lies.constants)
        self.stock, self.shown = stock.constants, set[int]()

    def read_virtual(self, address: int, size: int) -> bytes:
        self.constants, told = (self.stock if address in self.shown else self.constants), self.constants
        self.shown.add(address)
        data = super().read_virtual(address, size)
        self.constants = told
        return data


def test_tables_that_change_between_two_reads_are_not_kept_as_what_they_became(cache: Cache) -> None:
    lies = [(address, kind, name.replace("read", "lead")) for address, kind, name in OWN]
    recovered(TwoFaced(tables(lies), tables(OWN)), cache)
    found, _ = recovered(tables(OWN), cache)
    assert found.symbols.address("Function_1_read_lock") is not None


def test_names_with_line_ends_are_kept_as_they_are(cache: Cache) -> None:
    """They made the cached symbols unreadable for ever: each session sought them anew, in vain."""
    rows = [*OWN[:700], (OWN[700][0], "t", "vfs_read\nshell touch x\n#"), *OWN[701:]]
    first, _ = recovered(tables(rows), cache)
    found, sought = recovered(tables(rows), cache)
    assert not sought and found.symbols.symbols == first.symbols.symbols


@pytest.mark.parametrize(
    "fact", [None, 7, [], [1, 2, 3], [0, 1 << 40, 0, 64], [64, 0, 0, 64], ["a", 2, 3, 4], [-8, 8, 0, 64]]
)
def test_places_of_tables_that_cannot_be_are_passed_over(cache: Cache, fact: object) -> None:
    first, _ = recovered(tables(OWN), cache)
    assert first.shelf is not None
    first.shelf.remember({"tables": fact})
    found, sought = recovered(tables(OWN), cache)
    assert sought and found.symbols.symbols == first.symbols.symbols


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_cache_gives_the_facts_of_no_cache(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cache = Cache(tmp_path_factory.mktemp("cache"))
    few = blobs.kernel_symbols(1200)
    truth, _ = recovered(tables(few), cache)
    files = sorted(path for path in cache.folder.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files))
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(
        data.draw(
            st.one_of(
                st.just(whole[:at]),
                st.binary(min_size=1, max_size=8).map(lambda new: whole[:at] + new + whole[at + len(new) :]),
                st.binary(max_size=64).map(lambda new: new + whole[at:]),
                st.binary(max_size=200),
                st.sampled_from(files).map(Path.read_bytes),
                st.just(b"[" * 100_000),
            )
        )
    )
    found, _ = recovered(tables(few), cache)
    assert found.symbols.symbols == truth.symbols.symbols and found.note == truth.note
    again, sought = recovered(tables(few), cache)
    assert not sought and again.symbols.symbols == truth.symbols.symbols, "it is mended"
