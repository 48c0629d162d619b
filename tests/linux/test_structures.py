"""Where the kernel has no types, the layouts that GDB knows are asked, and what they said is kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.cache import Cache
from gdb_optprobe.guest.linux.structures import CachedStructures


class Debug:
    def offset(self, struct: str, member: str) -> int | None:
        return {"task_struct.pid": 72}.get(f"{struct}.{member}")

    def bits(self, struct: str) -> Mapping[str, tuple[int, int]]:
        return {"type": (40, 3)} if struct == "orc_entry" else {}


def no_btf() -> bytes:
    raise OptprobeError("no BTF")


def test_without_either_nothing_is_known_and_nothing_is_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    structures = CachedStructures(no_btf, cache, "b")
    with pytest.raises(OptprobeError, match="no BTF"):
        structures.offset("task_struct", "pid")
    with pytest.raises(OptprobeError, match="no BTF"):
        structures.bits("orc_entry")
    assert not cache.facts("b")


def test_debug_information_tells_and_is_remembered(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    first = CachedStructures(no_btf, cache, "b", Debug)
    assert first.offset("task_struct", "pid") == 72
    assert first.bits("orc_entry") == {"type": (40, 3)}
    with pytest.raises(OptprobeError, match="no member tgid"):
        first.offset("task_struct", "tgid")
    later = CachedStructures(no_btf, cache, "b")
    assert later.offset("task_struct", "pid") == 72
    assert later.bits("orc_entry") == {"type": (40, 3)}


def test_what_the_layouts_are_read_from_is_told(tmp_path: Path) -> None:
    assert "vmlinux" in CachedStructures(no_btf, Cache(tmp_path), "b", Debug).source()
    with pytest.raises(OptprobeError, match="no BTF"):
        CachedStructures(no_btf, Cache(tmp_path), "b").source()
