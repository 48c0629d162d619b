"""The code in place of the kernel's function that maps files, on Unicorn: what it writes, and what it leaves alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
import unicorn
from unicorn import x86_const

from gdb_optprobe.guest.linux.arch.x86_64.mmap_hook import lower_mmap_hook
from gdb_optprobe.guest.linux.user.mmap_hook import EXECUTABLE, PATIENCE, SHARED, WRITABLE, WRITE, MmapKernel
from gdb_optprobe.isa.x86_64 import abi
from gdb_optprobe.maps import mmap_patches
from gdb_optprobe.maps.mmap_patches import FAILED, INSIDE, ROWS, MmapPatch

CODE, MAPS, WRITES, WAITS, TABLE, STACK, KERNEL, CALLER = range(0x10_0000, 0x90_0000, 0x10_0000)
FILE, INODE, TASK, MM, CURRENT = KERNEL, KERNEL + 0x1000, KERNEL + 0x2000, KERNEL + 0x3000, KERNEL + 0x4000
FORCE, ROOM = 0x11, 8
START = 0x7F12_3456_0000
NUMBERS = {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in abi.GENERAL}
ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
PRIVATE = 2
USUAL = {"rdi": FILE, "rsi": 0, "rdx": 0x1801, "rcx": 1 | EXECUTABLE, "r8": PRIVATE, "r9": 3}
"""Two pages of a file from its page 3 on."""
FIRST, LAST, BEYOND, BEFORE = (MmapPatch(INODE, at, b"\xcc", b"\x55") for at in (0x3000, 0x4FFF, 0x5000, 0x2FFF))
COPY = MmapPatch(INODE, 0x4800, bytes(range(20)), b"\x55" * 20)
OTHERS = MmapPatch(INODE + 8, 0x3008, b"\xcc", b"\x55")


def ran(
    arguments: Mapping[str, int],
    rows: tuple[MmapPatch, ...],
    result: int = START,
    fails: int = 0,
    rest: int = 0,
    has: int = 0x55,
) -> tuple[list[tuple[int, bytes]], tuple[int, int]]:
    """What was written, and how many are at it and how often it failed.

    fails: the address that cannot be written. rest: of the time that who could not write would wait.
    has: the bytes of the file.
    """
    machine: Any = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    for page in (CODE, MAPS, WRITES, WAITS, TABLE, STACK, KERNEL, CALLER):
        machine.mem_map(page, 0x1_0000)
    pieces = [piece for row in rows for piece in row.split()]
    code = lower_mmap_hook(MmapKernel(MAPS, WRITES, WAITS, 0x4000, 0x8E0, 0x20, 12), TABLE, FORCE)(CODE)
    returns = dict.fromkeys((MAPS, WRITES, WAITS), b"\xc3")
    for at, data in {CODE: code, TABLE + ROWS: mmap_patches.encode(pieces, ROOM), **returns}.items():
        machine.mem_write(at, data)
    for at, word in {FILE + 0x20: INODE, CURRENT: TASK, TASK + 0x8E0: MM, STACK + 0x800: CALLER}.items():
        machine.mem_write(at, word.to_bytes(8, "little"))
    before = {name: random.Random(name).getrandbits(64) for name in abi.GENERAL} | {"rsp": STACK + 0x800, **arguments}
    for name, value in before.items():
        machine.reg_write(NUMBERS[name], value)
    machine.reg_write(x86_const.UC_X86_REG_GS_BASE, KERNEL)
    written: list[tuple[int, bytes]] = []
    mapped: list[dict[str, int]] = []

    def clobber(keeps: int) -> None:
        for name in set(abi.GENERAL) - {*abi.CALLEE_SAVED, "rsp"}:
            machine.reg_write(NUMBERS[name], 0x5A5A)
        machine.reg_write(NUMBERS["rax"], keeps)

    def step(_: object, address: int, *__: object) -> None:
        now = {name: machine.reg_read(NUMBERS[name]) for name in abi.GENERAL}
        if address == MAPS:
            mapped.append({name: now[name] for name in ARGUMENTS})
            clobber(result)
        elif address == WRITES:
            size = now["rcx"]
            assert now["rdi"] == MM
            if now["r8"] == FORCE & ~WRITE:
                machine.mem_write(now["rdx"], bytes([has]) * size)
                clobber(size)
                return
            assert now["r8"] == FORCE
            assert int.from_bytes(machine.mem_read(TABLE + INSIDE, 8), "little") == 1
            written.append((now["rsi"], bytes(machine.mem_read(now["rdx"], size))))
            clobber(size - (now["rsi"] == fails))
        elif address == WAITS:
            assert now["rdi"] == PATIENCE
            clobber(rest)
        elif address == CALLER:
            machine.emu_stop()

    machine.hook_add(unicorn.UC_HOOK_CODE, step)
    machine.emu_start(CODE, 0, count=2000)
    after = {name: machine.reg_read(NUMBERS[name]) for name in abi.GENERAL}
    assert mapped == [{name: before[name] for name in ARGUMENTS}]
    assert after["rax"] == result & (1 << 64) - 1 and after["rsp"] == STACK + 0x808
    kept = set(abi.CALLEE_SAVED) - {"rsp"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    inside, failed = (int.from_bytes(machine.mem_read(TABLE + at, 8), "little") for at in (INSIDE, FAILED))
    return written, (inside, failed)


def test_what_belongs_into_the_mapping_is_written_in_its_order() -> None:
    written, left = ran(USUAL, (OTHERS, COPY, FIRST, BEYOND, LAST, BEFORE))
    assert written == [
        (START + 0x1800, bytes(range(16))),
        (START + 0x1810, bytes(range(16, 20))),
        (START, b"\xcc"),
        (START + 0x1FFF, b"\xcc"),
    ]
    assert left == (0, 0)


OTHER = {
    "no file": {"rdi": 0},
    "not executable": {"rcx": 3},
    "shared": {"r8": SHARED},
    "shared, validated": {"r8": SHARED | PRIVATE},
    "another part": {"r9": 7},
    "to be written": {"rcx": 1 | EXECUTABLE | WRITABLE},
}


@pytest.mark.parametrize("other", OTHER)
def test_what_does_not_matter_is_only_mapped(other: str) -> None:
    assert ran(USUAL | OTHER[other], (FIRST, LAST)) == ([], (0, 0))


def test_an_error_is_told_and_nothing_is_written() -> None:
    for error in (-12, -1, -4095):
        assert ran(USUAL, (FIRST,), result=error) == ([], (0, 0))


def test_what_cannot_be_written_keeps_the_rest_from_being_written() -> None:
    """A trap leads to the copy that comes before it."""
    written, left = ran(USUAL, (COPY, FIRST), fails=START + 0x1800)
    assert [at for at, _ in written] == [START + 0x1800] and left == (0, 1)


def test_where_the_file_has_something_else_by_now_nothing_is_written() -> None:
    for has in (0, 0x54, 0xD5):
        assert ran(USUAL, (COPY, FIRST), has=has) == ([], (0, 1))


def test_for_who_was_killed_nothing_has_to_be_written() -> None:
    assert ran(USUAL, (COPY, FIRST), fails=START + 0x1800, rest=PATIENCE)[1] == (0, 0)


def test_rows_that_were_withdrawn_write_what_the_file_has_or_nothing() -> None:
    (row,) = FIRST.split()
    assert len(row.encode()) == len(row.encode_disabled()) == mmap_patches.SIZE
    assert row.encode_disabled()[mmap_patches.DATA :][:1] == row.old
    assert row.encode_disabled()[: mmap_patches.OFFSET] != row.encode()[: mmap_patches.OFFSET]
