"""The archive a kernel unpacks, read back with code of our own."""

from __future__ import annotations

import gzip
import stat
from dataclasses import dataclass

from qemu.initramfs import Entry, archive, initramfs


@dataclass(frozen=True)
class Read:
    mode: int
    links: int
    data: bytes
    device: tuple[int, int]


def read(content: bytes) -> dict[str, Read]:
    """The entries of a newc archive by path, in order."""
    found: dict[str, Read] = {}
    at = 0
    while True:
        assert at % 4 == 0
        assert content[at : at + 6] == b"070701"
        field = [int(content[at + 6 + 8 * i :][:8], 16) for i in range(13)]
        name_end = at + 110 + field[11]
        name = content[at + 110 : name_end - 1].decode()
        assert content[name_end - 1] == 0
        start = -(-name_end // 4) * 4
        if name == "TRAILER!!!":
            return found
        found[name] = Read(field[1], field[4], content[start : start + field[6]], (field[9], field[10]))
        at = -(-(start + field[6]) // 4) * 4


def test_a_file() -> None:
    assert read(archive([Entry("a", stat.S_IFREG | 0o644, b"hello")])) == {
        "a": Read(stat.S_IFREG | 0o644, 1, b"hello", (0, 0))
    }


def test_an_empty_archive() -> None:
    assert read(archive([])) == {}


def test_device_nodes() -> None:
    found = read(gzip.decompress(initramfs(b"program")))
    assert found["dev/console"] == Read(stat.S_IFCHR | 0o600, 1, b"", (5, 1))
    assert found["dev/null"].device == (1, 3)


def test_init_and_busybox_can_be_executed() -> None:
    found = read(gzip.decompress(initramfs(b"program")))
    assert found["bin/busybox"] == Read(stat.S_IFREG | 0o755, 1, b"program", (0, 0))
    assert found["init"].data.startswith(b"#!/bin/busybox sh\n")
    assert found["init"].mode == stat.S_IFREG | 0o755
    assert found["bin/sh"] == Read(stat.S_IFLNK | 0o777, 1, b"busybox", (0, 0))


def test_directories_come_before_what_they_hold() -> None:
    order = list(read(gzip.decompress(initramfs(b"", {"/opt/a/b": b"x", "opt/c": b"y"}))))
    for path in order:
        parent = path.rpartition("/")[0]
        assert not parent or order.index(parent) < order.index(path)
    assert len(order) == len(set(order))


def test_the_same_input_gives_the_same_bytes() -> None:
    assert initramfs(b"program") == initramfs(b"program")
