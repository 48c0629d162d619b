"""Each layout of kallsyms is recovered as it was written; what is damaged is refused, never believed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import kallsyms
from gdb_optprobe.guest.symbols import Symbols
from tests.guest import blobs
from tests.steps import calls_in

SLIDE = 0x1280_0000


def expected(symbols: list[blobs.NmSymbol]) -> list[blobs.NmSymbol]:
    return sorted(symbols, key=lambda symbol: symbol[0])


def recovered(data: bytes) -> Symbols:
    return kallsyms.recover(data, blobs.RODATA)


def rows(symbols: Symbols) -> list[blobs.NmSymbol]:
    return list(zip(symbols.addresses, symbols.types, symbols.names, strict=True))


@pytest.fixture(params=blobs.LAYOUTS.values(), ids=list(blobs.LAYOUTS))
def layout(request: pytest.FixtureRequest) -> blobs.Layout:
    found: blobs.Layout = request.param
    return found


def written(count: int, layout: blobs.Layout, text: int = blobs.TEXT) -> list[blobs.NmSymbol]:
    return expected(blobs.kernel_symbols(count, text, percpu=20 if layout.percpu else 0))


# Numbers of symbols at which a table ends on a marker, just before or after one, and at which padding differs.
@pytest.mark.parametrize("count", [1536, 1537, 2047, 2050, 5003])
def test_every_layout(layout: blobs.Layout, count: int) -> None:
    symbols = written(count, layout)
    assert rows(recovered(blobs.kallsyms(symbols, layout))) == symbols


def test_kaslr(layout: blobs.Layout) -> None:
    symbols = written(2000, layout, blobs.TEXT + SLIDE)
    assert rows(recovered(blobs.kallsyms(symbols, layout))) == symbols


def test_noise_around_the_tables(layout: blobs.Layout) -> None:
    noise = random.Random(1)
    symbols = written(2000, layout)
    data = blobs.kallsyms(symbols, layout, before=noise.randbytes(1 << 16), after=noise.randbytes(1 << 16))
    assert rows(recovered(data)) == symbols


def test_digits_in_a_row_that_are_no_token_table(layout: blobs.Layout) -> None:
    symbols = written(2000, layout)
    bait = b"\0" + b"".join(b"%d\0" % digit for digit in range(10))
    table = b"".join(bytes([code, 0]) for code in range(256)) * 2
    assert rows(recovered(blobs.kallsyms(symbols, layout, before=(bait + table).ljust(4096, b"\0")))) == symbols


def test_names_of_128_tokens_and_more(layout: blobs.Layout) -> None:
    symbols = written(2000, layout)
    symbols[700] = (*symbols[700][:2], "Q" * 127)
    symbols[701] = (*symbols[701][:2], "Q" * 128)
    symbols[-1] = (*symbols[-1][:2], "Z" * 511)
    assert rows(recovered(blobs.kallsyms(symbols, layout))) == symbols


def test_no_more_is_read_than_it_takes(layout: blobs.Layout) -> None:
    symbols = written(2000, layout)
    data = blobs.kallsyms(symbols, layout, before=bytes(1 << 20), after=bytes(6 << 20))
    memory = blobs.FakeMemory()
    memory.place(blobs.RODATA, data)
    assert rows(kallsyms.read(memory.read, blobs.RODATA, len(data))) == symbols
    assert sum(size for _, size in memory.accesses) <= 2 << 20


@pytest.mark.thorough
def test_constants_of_100_mib() -> None:
    """Read in few pieces: what was read is copied with each."""
    layout, start = blobs.LAYOUTS["6.12 ppc64le"], 90 << 20
    symbols = written(2000, layout)
    data = bytes(start) + blobs.kallsyms(symbols, layout, after=bytes(10 << 20))
    sizes: list[int] = []

    def read(address: int, size: int) -> bytes:
        sizes.append(size)
        return data[address - blobs.RODATA :][:size]

    assert rows(kallsyms.read(read, blobs.RODATA, len(data))) == symbols
    assert len(sizes) < 40 and start < sum(sizes) < start * 9 // 8 + (2 << 20)


@pytest.mark.parametrize("piece", [1 << 12, 1 << 16, 1 << 18])
def test_wherever_a_piece_ends(layout: blobs.Layout, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kallsyms, "PIECE", piece)
    symbols = written(2000, layout)
    data = blobs.kallsyms(symbols, layout, after=bytes(1 << 19))
    memory = blobs.FakeMemory()
    memory.place(blobs.RODATA, data)
    assert rows(kallsyms.read(memory.read, blobs.RODATA, len(data))) == symbols


def test_without_kallsyms() -> None:
    with pytest.raises(OptprobeError, match="no symbol table"):
        kallsyms.recover(bytes(1 << 16))
    with pytest.raises(OptprobeError, match="no symbol table"):
        kallsyms.read(lambda _, size: bytes(size), blobs.TEXT, 1 << 16)


def test_a_cut_table_is_refused(layout: blobs.Layout) -> None:
    data = blobs.kallsyms(written(2000, layout), layout)
    for size in range(0, len(data) - 8200, 997):
        with pytest.raises(OptprobeError):
            recovered(data[:size])


def test_damage_gives_an_error_or_other_names_but_no_exception_of_another_kind(layout: blobs.Layout) -> None:
    data = blobs.kallsyms(written(1600, layout), layout, before=bytes(64))
    noise = random.Random(2)
    for _ in range(30):
        damaged = bytearray(data)
        for _ in range(3):
            damaged[noise.randrange(len(damaged))] = noise.randrange(256)
        try:
            found = recovered(bytes(damaged))
        except OptprobeError:
            continue
        assert len(found.addresses) == len(found.names) == len(found.types)


@pytest.mark.parametrize("itself", [False, True])
def test_one_layout_is_not_taken_for_another(itself: bool) -> None:
    """Offsets from a base ascend from their own addresses too, and say that the kernel is where its table is."""
    layout = replace(blobs.LINUX_6_12_PPC, itself=itself)
    symbols = written(2000, layout)
    assert rows(recovered(blobs.kallsyms(symbols, layout))) == symbols


@pytest.mark.parametrize(
    ("first", "last"), [("_text", "_etext"), ("_stext", "_etext"), ("__start_rodata", "__end_rodata")]
)
def test_boundaries_that_are_not_in_order_are_not_believed(first: str, last: str, layout: blobs.Layout) -> None:
    symbols = written(2000, layout)
    symbols = [(address, kind, name.replace("_text", "start")) for address, kind, name in symbols]
    symbols[21] = (symbols[21][0], "T", last)
    symbols[-1] = (blobs.RODATA - 1, "R", first)
    with pytest.raises(kallsyms.NoSymbolTable, match="of an unknown layout"):
        recovered(blobs.kallsyms(symbols, layout))


def test_constants_that_do_not_hold_the_table_are_not_believed(layout: blobs.Layout) -> None:
    symbols = written(2000, layout)
    symbols[-2:] = [(blobs.RODATA - 64, "R", "__start_rodata"), (blobs.RODATA, "R", "__end_rodata")]
    with pytest.raises(kallsyms.NoSymbolTable, match="of an unknown layout"):
        recovered(blobs.kallsyms(symbols, layout))
    symbols[-1] = (blobs.RODATA + (1 << 20), "R", "__end_rodata")
    assert rows(recovered(blobs.kallsyms(symbols, layout))) == symbols


@pytest.mark.thorough
def test_150_000_symbols_take_few_steps_each() -> None:
    layout = blobs.LINUX_6_4
    symbols = written(150_000, layout)
    data = blobs.kallsyms(symbols, layout)
    found, calls = calls_in(lambda: recovered(data))
    assert len(found) == len(symbols)
    assert calls < 4 * len(symbols)


HOSTILE = ("vfs_read\nshell touch x\n#", "\x1b]0;owned\x07", "a b", "back\\slash", "\x7f")
SHOWN = (r"vfs_read\nshell touch x\n#", r"\033]0;owned\007", "a b", r"back\\slash", r"\177")


def test_names_with_line_ends_and_terminal_escapes_are_printable_and_can_be_looked_up(layout: blobs.Layout) -> None:
    symbols = written(2000, layout)
    for number, name in enumerate(HOSTILE, 700):
        symbols[number] = (*symbols[number][:2], name)
    found = recovered(blobs.kallsyms(symbols, layout))
    assert tuple(found.names[700:705]) == SHOWN
    assert all(name.isprintable() for name in found.names)
    assert [found.address(name) for name in SHOWN] == [symbols[number][0] for number in range(700, 705)]
