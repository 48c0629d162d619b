"""Where the kernel has no types, the layouts that GDB knows are asked; one session does not believe another's."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.structures import KernelStructures
from tests.guest.blobs import BtfWriter


class Debug:
    def offset(self, struct: str, member: str) -> int | None:
        return {"task_struct.pid": 72}.get(f"{struct}.{member}")

    def bits(self, struct: str) -> Mapping[str, tuple[int, int]]:
        return {"type": (40, 3)} if struct == "orc_entry" else {}


def no_btf() -> bytes:
    raise OptprobeError("no BTF")


def test_without_either_nothing_is_known() -> None:
    structures = KernelStructures(no_btf)
    with pytest.raises(OptprobeError, match="no BTF"):
        structures.offset("task_struct", "pid")
    with pytest.raises(OptprobeError, match="no BTF"):
        structures.bits("orc_entry")


def test_debug_information_tells_and_is_remembered_while_the_session_lasts() -> None:
    asked: list[None] = []

    def layouts() -> Debug:
        asked.append(None)
        return Debug()

    first = KernelStructures(no_btf, layouts)
    assert first.offset("task_struct", "pid") == first.offset("task_struct", "pid") == 72
    assert len(asked) == 1
    assert first.bits("orc_entry") == {"type": (40, 3)}
    with pytest.raises(OptprobeError, match="no member tgid"):
        first.offset("task_struct", "tgid")


def types(pid: int) -> bytes:
    writer = BtfWriter()
    writer.struct("task_struct", 160, ("pid", writer.integer("int", 4), 8 * pid))
    return writer.blob()


def test_a_guest_that_lies_about_its_types_is_not_believed_about_the_next_one() -> None:
    """What the first of a build-id said was kept for all of them."""
    assert KernelStructures(lambda: types(8)).offset("task_struct", "pid") == 8
    assert KernelStructures(lambda: types(72)).offset("task_struct", "pid") == 72


def test_what_the_layouts_are_read_from_is_told() -> None:
    assert "vmlinux" in KernelStructures(no_btf, Debug).source()
    with pytest.raises(OptprobeError, match="no BTF"):
        KernelStructures(no_btf).source()
