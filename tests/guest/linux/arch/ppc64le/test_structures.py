"""Where members are, read off code as a compiler makes it of functions of the kernel's; and memory of its records."""

from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest.linux.arch.ppc64le.constants import DerivedSymbols
from gdb_optprobe.guest.linux.arch.ppc64le.find import LINEAR_MAP
from gdb_optprobe.guest.linux.arch.ppc64le.memory import RadixMemory
from gdb_optprobe.guest.linux.arch.ppc64le.mmu import RECORDS
from gdb_optprobe.guest.linux.arch.ppc64le.structures import CodeStructures
from tests.guest.linux.arch.ppc64le.small_guest import addi, ld, std
from tests.guest.linux.arch.ppc64le.test_arch import USER, power_kernel, toc_setup, words
from tests.guest.linux.fake_kernel import Pages

CURRENT = 0x908
MFLR, TRACED, BLR, CALL = words(0x7C0802A6), words(0x48001001), words(0x4E800020), words(0x48002001)


def mr(to: int, source: int) -> bytes:
    return words(31 << 26 | source << 21 | to << 16 | source << 11 | 444 << 1)


def lwz(to: int, base: int, offset: int) -> bytes:
    return words(32 << 26 | to << 21 | base << 16 | offset)


def structures(**functions: bytes) -> CodeStructures:
    """By name, what they are made of behind what makes their TOC and calls a tracer."""
    memory, names = Pages(), {"_stext": USER, "_einittext": USER + 0x10000}
    for number, (name, code) in enumerate(functions.items()):
        at = USER + 0x400 * number
        memory.put(at, toc_setup(at) + MFLR + TRACED + code + BLR)
        names |= {name: at, f"{name}_end": at + 0x10 + len(code) + 4}
    kernel = power_kernel(memory, names)
    assert isinstance(kernel.symbols, DerivedSymbols)
    return CodeStructures(kernel.symbols, CURRENT, {"task_struct.tasks": 0x110})


def test_what_an_argument_leads_to() -> None:
    """Through other registers, and over the call of a tracer, which keeps arguments."""
    code = mr(31, 3) + CALL + ld(30, 31, 0x758) + lwz(9, 31, 0x114) + addi(9, 30, 0x44)
    found = structures(get_task_mm=code)
    assert found.offset("task_struct", "mm") == 0x758
    assert found.offset("task_struct", "flags") == 0x114
    assert found.offset("mm_struct", "mm_users") == 0x44


def test_what_the_running_thread_leads_to_and_what_is_beside() -> None:
    code = ld(9, 13, CURRENT) + ld(27, 9, 0x758) + std(9, 27, 0x120) + addi(24, 27, 0x60)
    unlink = ld(9, 3, 0x70) + ld(9, 3, 0x20)
    found = structures(get_task_mm=ld(3, 3, 0x758), setup_arg_pages=code, unlink_file_vma=unlink)
    assert found.offset("mm_struct", "start_code") == 0x120 - 56
    assert found.offset("mm_struct", "mmap_lock.count") == 0x60
    assert found.offset("vm_area_struct", "vm_file") == 0x70
    assert found.offset("vm_area_struct", "vm_flags") == 0x20
    assert found.offset("vm_area_struct", "vm_pgoff") == 0x68
    assert found.offset("vm_area_struct", "vm_mm") == 0x10


def test_what_is_known_without() -> None:
    found = structures()
    assert found.offset("task_struct", "tasks") == 0x110
    assert found.offset("vm_area_struct", "vm_end") == 8


BAD = {
    "get_task_mm": CALL + ld(30, 3, 0x758),  # a call has changed the argument
    "exit_fs": ld(3, 4, 0x20),
    "get_mm_exe_file": std(3, 3, 0x458),
}


@pytest.mark.parametrize(("struct", "member"), [
    ("task_struct", "mm"), ("task_struct", "fs"), ("mm_struct", "exe_file"), ("mm_struct", "mm_users"),
    ("inode", "i_count"), ("task_struct", "nothing"),
])  # fmt: skip
def test_what_is_not_told_is_not_guessed(struct: str, member: str) -> None:
    with pytest.raises(OptprobeError, match="no types"):
        structures(**BAD).offset(struct, member)


def test_what_is_beyond_the_linear_map_is_read_where_that_has_it() -> None:
    """A vCPU that runs a program sees none of it."""
    memory, records, root = Pages(), RECORDS, 0x40_0000
    indexes = [records >> shift & mask for shift, mask in ((39, 0x1FFF), (30, 0x1FF), (21, 0x1FF))]
    for number, index in enumerate(indexes):
        last = number == len(indexes) - 1
        entry = 1 << 63 | (1 << 62 | 0x80_0000 if last else root + 0x1_0000 * (number + 1) | 9)
        memory.put(LINEAR_MAP[0] + root + 0x1_0000 * number + 8 * index, entry.to_bytes(8, "big"))
    memory.put_words(LINEAR_MAP[0] + 0x80_0000 + 0x18, 0x1234)
    seen = RadixMemory(memory, root)
    assert seen.read(records + 0x18, 8) == seen.read(LINEAR_MAP[0] + 0x80_0018, 8) == (0x1234).to_bytes(8, "little")
    seen.write(records + 0x18, b"\x77")
    assert memory.read(LINEAR_MAP[0] + 0x80_0018, 1) == b"\x77"
    for address in (records + (1 << 21), records + (1 << 21) - 4):
        with pytest.raises(Unreadable):
            seen.read(address, 8)
