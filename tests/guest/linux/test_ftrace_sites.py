"""Sites of the kernel's tracer, by its records."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack

import pytest

from gdb_optprobe.guest import runs
from gdb_optprobe.guest.linux.arch.x86_64 import nops
from gdb_optprobe.guest.linux.ftrace_sites import FtraceSites
from tests.guest.linux.fake_kernel import Pages, kernel

TEXT = 0xFFFFFFFF81000000
TABLE = 0xFFFFFFFF82000000


def ftrace(*flags: int) -> tuple[Pages, FtraceSites]:
    """Sites at TEXT, TEXT + 0x100, …, two to a page of records."""
    memory = Pages()
    pages = [TABLE + 0x100 * n for n in range((len(flags) + 1) // 2)]
    memory.put_words(TABLE + 0x1000, pages[0])
    for number, page in enumerate(pages):
        mine = flags[2 * number : 2 * number + 2]
        memory.put_words(page, pages[number + 1] if number + 1 < len(pages) else 0, page + 0x40)
        memory.put(page + 16, pack("<ii", len(mine), 0))
        for slot, flag in enumerate(mine):
            memory.put_words(page + 0x40 + 16 * slot, TEXT + 0x100 * (2 * number + slot), flag)
    return memory, FtraceSites(kernel(memory, {"ftrace_pages_start": TABLE + 0x1000}), nops.SITE)


def test_ftrace_pages_are_walked() -> None:
    _, sites = ftrace(0, 0, 0, 0, 0)
    assert len(sites) == 5
    assert list(sites.within(TEXT, TEXT + 0x101)) == [TEXT, TEXT + 0x100]
    assert list(sites.within(TEXT + 4, TEXT + 5)) == [TEXT], "the site's last byte"
    assert list(sites.within(TEXT + 5, TEXT + 0x100)) == []


def test_ftrace_states() -> None:
    for flags, in_use in (
        (0, False),
        (1, True),  # one user
        (1 << 31 | 1, True),  # FTRACE_FL_ENABLED
        (1 << 24, True),  # FTRACE_FL_DIRECT
        (1 << 25, False),  # FTRACE_FL_DISABLED: ours, or a module's on its way out
        (1 << 20 | 1 << 19, False),  # FTRACE_FL_TOUCHED, FTRACE_FL_MODIFIED: history
    ):
        _, sites = ftrace(flags)
        record = sites.record(TEXT)
        assert record is not None and record.in_use is in_use, f"{flags:#x}"


@pytest.mark.parametrize("asked", [range(9), [8, 3, 4], [0, 8], [5]])
def test_flags_of_many(asked: Sequence[int]) -> None:
    """Of what is asked alone, wherever the records are; a record that is another site's by now is left out."""
    memory, sites = ftrace(*range(9))
    assert sites.flags([*(TEXT + 0x100 * n for n in asked), TEXT + 1]) == {TEXT + 0x100 * n: n for n in asked}
    assert sites.record_at[TEXT + 0x300] == TABLE + 0x100 + 0x40 + 16
    memory.put_words(TABLE + 0x200 + 0x50, TEXT + 0x5000)
    assert sites.flags([TEXT + 0x100 * n for n in asked]) == {TEXT + 0x100 * n: n for n in asked if n != 5}


def test_many_records_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Many(Pages):
        def read_many(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
            asked.append(len(spans))
            return [self.read(start, end - start) for start, end in spans]

        def read_each(self, places: Sequence[tuple[int, int]]) -> None:
            return None

    monkeypatch.setattr(runs, "MANY", 4)
    first, _ = ftrace(*range(16))
    memory = Many()
    memory.pages = first.pages
    sites = FtraceSites(kernel(memory, {"ftrace_pages_start": TABLE + 0x1000}), nops.SITE)
    assert len(sites.flags([TEXT + 0x100 * n for n in range(0, 16, 4)])) == 4
    assert asked == [4]


def test_an_address_is_a_site_or_none() -> None:
    _, sites = ftrace(0, 0)
    assert sites.is_site(TEXT) and sites.is_site(TEXT + 0x100) and not sites.is_site(TEXT + 1)


def test_flags_are_read_anew() -> None:
    memory, sites = ftrace(0)
    assert not sites.sites(TEXT, TEXT + 5)[0].in_use
    memory.put_words(TABLE + 0x40 + 8, 1)
    assert sites.sites(TEXT, TEXT + 5)[0].in_use


K8, P6 = bytes.fromhex("6666666690"), bytes.fromhex("0f1f440000")


def nop_table(memory: Pages, *nops: bytes) -> None:
    """At TABLE + 0x2000, with nops in one place and in several instructions, as kernels have it."""
    rows = [b"", b"\x90", b"\x66\x90", b"\x66\x66\x90", b"\x66\x66\x66\x90", b"\x66\x66\x90\x66\x90", *nops]
    memory.put(TABLE + 0x3000, b"".join(row.ljust(16, b"\x90") for row in rows))
    memory.put_words(TABLE + 0x2000, 0, *(TABLE + 0x3000 + 16 * n for n in range(1, len(rows))), *[0] * 8)
    memory.put_words(TABLE + 0x1800, TABLE + 0x2000)


@pytest.mark.parametrize("nop", [K8, P6])
def test_what_is_at_an_idle_site_is_asked_of_the_kernel(nop: bytes) -> None:
    for name, at in (("x86_nops", TABLE + 0x2000), ("ideal_nops", TABLE + 0x1800)):
        memory, _ = ftrace(0)
        nop_table(memory, nop)
        there = kernel(memory, {"ftrace_pages_start": TABLE + 0x1000, name: at})
        sites = FtraceSites(there, nops.SITE, nop=lambda there=there: nops.traced_place(there))
        assert sites.sites(TEXT, TEXT + 5)[0].idle == nop
        nop_table(memory, K8, P6)
        assert nops.traced_place(there) is None, "it does not tell which"


def test_what_is_at_an_idle_site_is_what_is_at_most_that_were_never_used() -> None:
    memory, sites = ftrace(0, 1 << 25, 0, 1, 0)
    for number, data in enumerate((K8, P6, K8, P6, b"\xe8\0\0\0\0")):
        memory.put(TEXT + 0x100 * number, data)
    assert sites.idle == K8
    memory, sites = ftrace(0, 0, 0)
    memory.put(TEXT, K8)
    for slot, ip in enumerate((TEXT + 0x10_000, TEXT + 0x20_000)):  # init text, which is freed
        memory.put_words(TABLE + 0x50 + 0xF0 * slot, ip)
    assert sites.idle == K8
    memory, sites = ftrace(1 << 25, 1)
    assert sites.idle == P6, "nothing tells otherwise"


def test_tracing_is_told_by_the_list_of_tracers() -> None:
    memory = Pages()
    names = {"ftrace_ops_list": TABLE, "ftrace_list_end": TABLE + 0x40}
    memory.put_words(TABLE, TABLE + 0x40)
    assert not FtraceSites(kernel(memory, names), nops.SITE).tracing()
    memory.put_words(TABLE, TABLE + 0x80)
    assert FtraceSites(kernel(memory, names), nops.SITE).tracing()
    assert FtraceSites(kernel(memory, {}), nops.SITE).tracing(), "unknown is not assumed to be none"
