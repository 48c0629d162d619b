"""Programs' files: what is where in them; a damaged one is refused in words, never with a traceback."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.aarch64.mmu import KIND as ARM
from gdb_optprobe.guest.linux.arch.x86_64.mmu import KIND
from gdb_optprobe.guest.linux.user import elf as elf_files
from gdb_optprobe.guest.linux.user.elf import Elf
from tests.booted import answer
from tests.booted.assembled import assembled
from tests.examples import examples


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, bytes]:
    folder = tmp_path_factory.mktemp("programs")
    return {bits: answer.build(folder, bits).read_bytes() for bits in (32, 64)}


PAGE = 4096


def elf(data: bytes) -> Elf:
    def read(offset: int, size: int) -> bytes:
        assert offset >= 0 and offset + size <= len(data), "never asked for what the file does not have"
        return data[offset : offset + size]

    return Elf.of("answer", read, len(data), KIND)


@pytest.mark.parametrize("bits", [32, 64])
def test_symbols_offsets_and_addresses_belong_together(programs: dict[int, bytes], bits: int) -> None:
    found = elf(programs[bits])
    start = found.resolve("answer")
    value = start + answer.VALUE[bits]
    assert found.bits == bits and not found.pie and len(found.build_id) == 20
    assert found.text(value, 1) == b"\x07" == programs[bits][found.offset(value) : found.offset(value) + 1]
    assert found.resolve(f"answer+{answer.VALUE[bits]}") == value == found.resolve(hex(found.offset(value)))
    assert found.spell(value) == f"answer+{answer.VALUE[bits]:#x}"
    assert found.function(value) == (start, start + answer.VALUE[bits] + 6)
    assert found.resolve("_start") == found.entry
    assert found.first_code <= found.entry < found.filler[0] < found.filler[1]
    assert found.filler[1] % PAGE == 0 and found.filler[1] - found.filler[0] < PAGE


@pytest.mark.parametrize("location", ["", "answer+", "+4", "answer + x", "nosuch", "answer+0x10000", "0", "99999999"])
def test_what_is_no_place_is_refused(programs: dict[int, bytes], location: str) -> None:
    with pytest.raises(OptprobeError):
        elf(programs[64]).resolve(location)


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    bits=st.sampled_from([32, 64]),
    cut=st.integers(0, 1 << 14),
    damage=st.lists(st.tuples(st.integers(0, 1 << 14), st.integers(0, 255)), max_size=8),
    header=st.lists(st.tuples(st.integers(0, 0x140), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])), max_size=8),
)
def test_a_damaged_file_is_refused_in_words(
    programs: dict[int, bytes], bits: int, cut: int, damage: list[tuple[int, int]], header: list[tuple[int, int]]
) -> None:
    data = bytearray(programs[bits])
    for at, value in (*damage, *header):
        data[at % len(data)] = value
    del data[len(data) - cut % len(data) if cut % 3 == 0 else len(data) :]
    try:
        found = elf(bytes(data))
        start, end = found.filler
        assert end - start < PAGE
        at = found.resolve("answer")
        assert len(found.text(at, 16)) <= 16
        found.spell(at)
        found.function(at)
    except OptprobeError as error:
        assert "\n" not in str(error)


def test_a_large_table_is_refused_as_large(programs: dict[int, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf_files, "LARGEST_TABLE", 16)
    with pytest.raises(OptprobeError) as refused:
        elf(programs[64]).resolve("answer")
    assert "over 0 MiB none is read" in refused.value.message and "damaged" not in refused.value.message


def test_what_follows_code_on_its_page_is_not_taken(programs: dict[int, bytes]) -> None:
    """Neither where another segment is mapped there, nor where the code goes on with zeros."""
    found = elf(programs[64])
    end = found.filler[0]
    code = found.code[-1]
    data = replace(code, address=end + 8, offset=code.offset + code.size + 8, size=4, memory=4, code=False)
    assert replace(found, segments=(*found.segments, data)).filler == (end, end)
    longer = replace(code, memory=code.size + 1)
    others = tuple(segment for segment in found.segments if segment is not code)
    assert replace(found, segments=(*others, longer)).filler == (end, end)


def test_symbols_with_line_ends_and_terminal_escapes_are_printable_and_can_be_named(programs: dict[int, bytes]) -> None:
    hostile = elf(programs[64].replace(b"\0answer\0", b"\0a\x1b\ner\\\0"))
    start = elf(programs[64]).resolve("answer")
    assert hostile.spell(start + 1) == r"a\033\ner\\+0x1"
    assert hostile.resolve(r"a\033\ner\\+1") == start + 1


def test_labels_that_mark_code_and_data_name_no_place(tmp_path: Path) -> None:
    """They are in every program of aarch64, where a function begins, and within one that has data."""
    source = ".global _start\n.type f, @function\n_start: nop\nf: ldr x0, lit\nb 1f\nlit: .quad 1\n1: ret\n"
    data = assembled(tmp_path / "marked", f"{source}.size f, . - f\n", "aarch64").read_bytes()
    elf = Elf.of("marked", lambda offset, size: data[offset : offset + size], len(data), ARM)
    named = {symbol.name for symbol in elf.symbols}
    assert {"f", "_start", "lit"} <= named and not any(name.startswith("$") for name in named)
    start, end = elf.function(elf.resolve("f")) or (0, 0)
    assert (elf.spell(elf.entry), end - start) == ("_start", 20)
