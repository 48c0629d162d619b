"""Much of physical memory by a file that QEMU writes: in which folder, and when packets serve instead."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.debugger.fake_gdb import Gdb

MEMORY = bytes(range(256)) * 8192
LONG = 1 << 20
PIECES = [(0x100, 0x2000), (0x3000, 4)]


@pytest.fixture
def gdb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gdb]:
    fake = Gdb(1, later=False)
    before = {name for name in sys.modules if name.startswith("gdb_optprobe.debugger.")}
    monkeypatch.setitem(sys.modules, "gdb", fake)
    monkeypatch.setitem(sys.modules, "gdb.events", fake)
    yield fake
    for name in {name for name in sys.modules if name.startswith("gdb_optprobe.debugger.")} - before:
        del sys.modules[name]


@pytest.fixture
def written(gdb: Gdb, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that QEMU wrote: it may write where the folder's name has no `refused`."""
    files = list[Path]()

    def execute(line: str, to_string: bool = False) -> str:
        found = re.fullmatch(r'monitor pmemsave (0x[0-9a-f]+) (0x[0-9a-f]+) "(/\S+)"', line)
        assert found is not None and to_string
        address, size, path = int(found[1], 16), int(found[2], 16), Path(found[3])
        if "refused" in found[3]:
            return "Could not open it\n"
        path.write_bytes(MEMORY[address : address + size])
        files.append(path)
        return ""

    monkeypatch.setattr(gdb, "execute", execute, raising=False)
    return files


def read(address: int, size: int) -> bytes:
    return MEMORY[address : address + size]


def dump(folders: list[Path], by_packets: Callable[[int, int], bytes] = read) -> Any:
    module = importlib.import_module("gdb_optprobe.debugger.memory_dump")
    return module.MemoryDump(by_packets, lambda: None, [str(folder) for folder in folders])


def test_the_first_folder_in_which_both_see_the_file_serves(written: list[Path], tmp_path: Path) -> None:
    refused, missing, good = (tmp_path / name for name in ("refused", "missing", "good"))
    refused.mkdir()
    good.mkdir()
    made = dump([missing, refused, good])
    for _ in range(2):
        assert made(PIECES) == [read(*piece) for piece in PIECES]
    assert {path.parent.parent for path in written} == {good}
    assert not any(good.iterdir()) and not any(refused.iterdir()), "nothing is left"
    assert made([]) == []


def test_a_long_piece_is_held_when_its_file_is_gone(written: list[Path], tmp_path: Path) -> None:
    found = dump([tmp_path])([(0x100, LONG), (0, 8)])
    assert [piece[:] for piece in found] == [read(0x100, LONG), read(0, 8)]
    assert not any(tmp_path.iterdir())


def test_a_folder_that_fails_later_is_left_for_the_next(
    written: list[Path], gdb: Gdb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, execute = tmp_path / "first", tmp_path / "second", gdb.execute
    first.mkdir()
    second.mkdir()
    made = dump([first, second])
    assert made(PIECES) == [read(*piece) for piece in PIECES]

    def full(line: str, to_string: bool = False) -> str:
        return "No space left on device\n" if "first" in line else execute(line, to_string)

    monkeypatch.setattr(gdb, "execute", full)
    written.clear()
    for _ in range(2):
        assert made(PIECES) == [read(*piece) for piece in PIECES]
    assert {path.parent.parent for path in written} == {second}


def test_a_hit_that_ends_the_command_is_no_failure(
    written: list[Path], gdb: Gdb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute, handed_over = gdb.execute, importlib.import_module("gdb_optprobe.debugger.machine").HANDED_OVER

    def at_a_hit(line: str, to_string: bool = False) -> str:
        execute(line, to_string)
        raise gdb.error(handed_over)

    monkeypatch.setattr(gdb, "execute", at_a_hit)
    assert dump([tmp_path])(PIECES) == [read(*piece) for piece in PIECES]

    def another(line: str, to_string: bool = False) -> str:
        raise gdb.error("The program is not being run.")

    monkeypatch.setattr(gdb, "execute", another)
    assert dump([tmp_path])(PIECES) is None and not any(tmp_path.iterdir())


def test_what_a_killed_gdb_left_is_removed_and_nothing_else(written: list[Path], tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    gone, alive, among = ended.pid, os.getppid(), tmp_path / "among"
    kept = tmp_path / "kept"
    left = [f"optprobe-memory-{gone}-abc_1234"]
    others = [
        f"optprobe-memory-{alive}-abc_1234",
        f"optprobe-memory-{gone}-abc_12345",
        f"optprobe-memory-0{gone}-abc_1234",
        f"an-optprobe-memory-{gone}-abc_1234",
        "optprobe-memory-0-abc_1234",
    ]
    for folder in [*(among / name for name in (*left, *others)), kept]:
        folder.mkdir(parents=True)
        (folder / "memory").write_bytes(MEMORY)
    link, file = among / f"optprobe-memory-{gone}-linkabcd", among / f"optprobe-memory-{gone}-fileabcd"
    link.symlink_to(kept)
    file.write_bytes(b"")
    assert dump([among])(PIECES) is not None
    assert sorted(path.name for path in among.iterdir()) == sorted([*others, link.name, file.name])
    assert (kept / "memory").exists() and all((among / name / "memory").exists() for name in others)
    assert all(re.fullmatch(rf"optprobe-memory-{os.getpid()}-.{{8}}", path.parent.name) for path in written)


def test_a_folder_of_another_user_is_left(
    written: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / f"optprobe-memory-{ended.pid}-abc_1234").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert dump([tmp_path])(PIECES) is not None and len(list(tmp_path.iterdir())) == 1


def test_what_differs_from_what_packets_read_is_not_trusted(written: list[Path], tmp_path: Path) -> None:
    made = dump([tmp_path], lambda _, size: bytes(size))
    assert made(PIECES) is None and made(PIECES) is None
    assert len(written) == 1, "it is tried once"


def test_without_a_folder_packets_serve(written: list[Path], tmp_path: Path) -> None:
    assert dump([tmp_path / "missing"])(PIECES) is None and not written
