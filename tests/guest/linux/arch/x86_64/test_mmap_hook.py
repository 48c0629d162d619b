"""The code of the mmap hook on Unicorn; what it does on each ISA is in tests/guest/linux/test_mmap_hook.py."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import unicorn
from unicorn import x86_const

from gdb_optprobe.guest.linux.arch.x86_64.mmap_hook import lower_mmap_hook
from gdb_optprobe.guest.linux.user.mmap_hook import PATIENCE, WRITE, MmapKernel
from gdb_optprobe.isa.x86_64 import abi
from gdb_optprobe.maps import mmap_patches
from gdb_optprobe.maps.mmap_patches import FAILED, INSIDE, ROWS, MmapPatch
from tests.guest.linux.mmap_hook import HookRun, Ran

CODE, MAPS, WRITES, WAITS, TABLE, STACK, KERNEL, CALLER = range(0x10_0000, 0x90_0000, 0x10_0000)
FILE, INODE, TASK, MM, CURRENT = KERNEL, KERNEL + 0x1000, KERNEL + 0x2000, KERNEL + 0x3000, KERNEL + 0x4000
FORCE, ROOM = 0x11, 8
START = 0x7F12_3456_0000
NUMBERS = {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in abi.GENERAL}
ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
OLD = 0x55


def ran(
    arguments: Mapping[str, int],
    rows: tuple[MmapPatch, ...],
    result: int = START,
    fails: bool = False,
    rest: int = 0,
    has: int = OLD,
    data: list[bytes] | None = None,
) -> Ran:
    """See HookRun. has: the bytes of the file. data: gets what is written."""
    machine: Any = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    for page in (CODE, MAPS, WRITES, WAITS, TABLE, STACK, KERNEL, CALLER):
        machine.mem_map(page, 0x1_0000)
    pieces = [piece for row in rows for piece in row.split()]
    code = lower_mmap_hook(MmapKernel(MAPS, WRITES, WAITS, 0x4000, 0x8E0, 0x20, 12), TABLE, FORCE)(CODE)
    returns = dict.fromkeys((MAPS, WRITES, WAITS), b"\xc3")
    for at, held in {CODE: code, TABLE + ROWS: mmap_patches.encode(pieces, ROOM), **returns}.items():
        machine.mem_write(at, held)
    for at, word in {FILE + 0x20: INODE, CURRENT: TASK, TASK + 0x8E0: MM, STACK + 0x800: CALLER}.items():
        machine.mem_write(at, word.to_bytes(8, "little"))
    before = {name: random.Random(name).getrandbits(64) for name in abi.GENERAL} | {"rsp": STACK + 0x800, **arguments}
    for name, value in before.items():
        machine.reg_write(NUMBERS[name], value)
    machine.reg_write(x86_const.UC_X86_REG_GS_BASE, KERNEL)
    written: list[tuple[int, int]] = []
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
            written.append((now["rsi"], size))
            if data is not None:
                data.append(bytes(machine.mem_read(now["rdx"], size)))
            clobber(size - fails)
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


HOOK = HookRun(ARGUMENTS, FILE, INODE, 12, START, 1, OLD, ran)


def test_what_is_written_is_what_the_rows_hold() -> None:
    written: list[bytes] = []
    ran(HOOK.arguments(), (HOOK.copy, HOOK.first), data=written)
    assert written == [bytes(range(16)), bytes(range(16, 20)), b"\xcc"]


def test_where_the_file_has_something_else_by_now_nothing_is_written() -> None:
    for has in (0, 0x54, 0xD5):
        assert ran(HOOK.arguments(), (HOOK.copy, HOOK.first), has=has) == ([], (0, 1))


def test_rows_that_were_withdrawn_write_what_the_file_has_or_nothing() -> None:
    (row,) = HOOK.first.split()
    assert len(row.encode()) == len(row.encode_disabled()) == mmap_patches.SIZE
    assert row.encode_disabled()[mmap_patches.DATA :][:1] == row.old
    assert row.encode_disabled()[: mmap_patches.OFFSET] != row.encode()[: mmap_patches.OFFSET]
