"""What a user waits for, in packets between GDB and QEMU: the first probe, further ones, many, and a listing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qemu.debugger import Debugger
from qemu.guest import Guest
from qemu.rsp_proxy import RspProxy

FIRST, COLD, EACH, A_PROBE, LISTED = 3_600, 3_800, 120, 20, 1
"""Packets, both ways: of connecting and the first probe where the kernel is in the cache, and where it is not, of
another probe, of each of many, of a line of a listing. They were 3,139, 3,227, 84 to 100, 6 and 0.3. So that no guest
is believed about another one, a kernel is found in the cache by the tables of its symbols, and its types are read
anew: both through QEMU's monitor, in a packet each.
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def packets(linux: Guest, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], tuple[int, str]]]:
    """Gives GDB a line: how many packets that took, and what was printed."""
    monkeypatch.setenv("OPTPROBE_CACHE", str(cache))
    with RspProxy(linux.gdb_socket) as proxy, Debugger(proxy.path) as gdb:

        counted = 0  # the first line has what connecting took

        def given(line: str) -> tuple[int, str]:
            nonlocal counted
            said = gdb(line)
            before, counted = counted, proxy.count().packets
            return counted - before, said

        yield given


Packets = Callable[[str], tuple[int, str]]


def test_a_kernel_is_read_once(packets: Packets, cache: Path) -> None:
    """The first session of all reads the symbols; the cache has them for the next one."""
    cold, _ = packets("optprobe add vfs_read")
    assert any(cache.rglob("symbols"))
    print(f"a kernel seen for the first time: {cold} packets")
    assert cold <= COLD


def test_the_first_probe_of_a_session(packets: Packets) -> None:
    first, _ = packets("optprobe add vfs_read")
    print(f"the first probe: {first} packets")
    assert first <= FIRST


def test_further_probes_many_and_a_listing(packets: Packets) -> None:
    packets("optprobe add vfs_read")
    several = [packets(f"optprobe add {name}")[0] for name in ("vfs_write", "ksys_read", "ksys_write", "vfs_open")]
    many, _ = packets("optprobe add __x64_sys_[a-m]*")
    listing, told = packets("optprobe list -json")
    probes = len(json.loads(told))
    print(f"each: {several}; {probes - 5} at once: {many}; the listing: {listing}")
    assert probes > 100
    assert max(several) <= EACH
    assert many <= A_PROBE * probes
    assert listing <= LISTED * probes
