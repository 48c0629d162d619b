"""The dispatcher of traps in programs on aarch64, in Unicorn: the walk's end, the way to the file, the search."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from typing import Any

import pytest
import unicorn

from gdb_optprobe.guest.linux.arch.aarch64.user_stops import Stopping
from gdb_optprobe.guest.linux.arch.aarch64.user_traps import REGISTERS, ArmUser
from gdb_optprobe.handlers.lower_mapped_file import FilePageOffsets
from gdb_optprobe.handlers.lower_traps import PlacedTrapTable
from gdb_optprobe.handlers.lower_user_traps import lower_user_trap_handler
from gdb_optprobe.isa.aarch64.abi import CALLEE_SAVED, GENERAL, LR, PC, SP
from gdb_optprobe.isa.aarch64.encodings import Item, branch_on_zero, constant, jump, plain, scaled
from gdb_optprobe.isa.codegen import Label
from gdb_optprobe.maps.trap_table import USER_KEY, Key, TrapTableLayout
from tests.guest.linux.arch.aarch64.kernel_calls import REGISTERS as NUMBERS

CODE, KERNELS, BACK, TABLE, FRAME, STACK, KERNEL, OURS = range(0x10_0000, 0x90_0000, 0x10_0000)
RECORD, OWNER, NODE, AREA, FILE, ENTRY, OTHER_NODE, OTHER_AREA, OTHER_FILE = range(KERNEL, KERNEL + 0x9000, 0x1000)
INODE = KERNEL + 0x9000
PAGE_ENTRY = 0x60_0000_1234_5F43
LAYOUT = TrapTableLayout(64, USER_KEY)
PAIR = FilePageOffsets(bits=12, head=8, mapping=24, index=32, root=72, area=-32, file=144, inode=32)
APART = FilePageOffsets(bits=12, head=8, mapping=24, index=40, root=72, area=-32, file=144, inode=32)
PC_AT, PAGE_IN_FILE = 0xAAAA_1234_5678, 3
OFFSET = PAGE_IN_FILE << 12 | PC_AT & 0xFFF
HERE: Mapping[Key, int] = {(OFFSET, INODE): OURS + 0x200}
FOUND, FOREIGN, AGAIN = OURS + 0x200, KERNELS, BACK


def walk(absent: Label, other: Label) -> tuple[list[Item], list[Item]]:
    """To the record; to none where the entry is 0, and to another page where it is 1."""
    code: list[Item] = [*constant("x15", RECORD), *constant("x14", ENTRY), scaled("ldr", "x13", "x14", 0, 8)]
    code += [branch_on_zero("cbz", "x13", absent), *constant("x11", 1), plain("sub", "x11", "x13", "x11")]
    apart = Label()
    return [*code, branch_on_zero("cbz", "x11", apart)], [apart, jump(other)]


def words(mapped: FilePageOffsets, **other: int) -> dict[int, int]:
    """The kernel's memory, from a page's record to its file's inode; other: parts of it that are not as they are."""
    parts = {"head": 0, "mapping": OWNER + 1, "root": NODE, "area": AREA, "file": FILE, "inode": INODE} | other
    return {
        RECORD + mapped.head: parts["head"],
        RECORD + mapped.mapping: parts["mapping"],
        RECORD + mapped.index: PAGE_IN_FILE,
        OWNER + mapped.root: parts["root"],
        NODE + mapped.area: parts["area"],
        AREA + mapped.file: parts["file"],
        FILE + mapped.inode: parts["inode"],
        ENTRY: parts.get("entry", PAGE_ENTRY),
        OTHER_NODE + mapped.area: OTHER_AREA,
        OTHER_AREA + mapped.file: OTHER_FILE,
        OTHER_FILE + mapped.inode: INODE + 8,
    }


def trapped(
    codes: Mapping[Key, int],
    mapped: FilePageOffsets = PAIR,
    meanwhile: Mapping[int, Mapping[int, int]] | None = None,
    **parts: int,
) -> int:
    """Return where a trap leads. meanwhile: what another CPU writes as the code is about to make its Nth load."""
    machine: Any = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    for page in (CODE, KERNELS, BACK, TABLE, FRAME, STACK, KERNEL, OURS):
        machine.mem_map(page, 0x1_0000)
    user = ArmUser(KERNELS, Stopping(0, has_pan=False), walk)
    code = lower_user_trap_handler(PlacedTrapTable(LAYOUT, TABLE), mapped, KERNELS, user)(CODE)
    rng = random.Random(len(codes))
    saved = [rng.getrandbits(64) for _ in range(34)]
    saved[REGISTERS[PC] // 8] = PC_AT
    frame = struct.pack("<34Q", *saved)
    for where, data in ((CODE, code), (TABLE, bytes(LAYOUT.encode(codes))), (FRAME, frame)):
        machine.mem_write(where, data)
    for place, word in words(mapped, **parts).items():
        machine.mem_write(place, struct.pack("<Q", word))
    before = {name: rng.getrandbits(64) for name in GENERAL} | {"x0": FRAME, LR: BACK, SP: STACK + 0x8000}
    for name, value in before.items():
        machine.reg_write(NUMBERS[name], value)
    ends, loads = list[int](), list[int]()

    def end(_: object, address: int, *__: object) -> None:
        if not CODE <= address < CODE + 0x1_0000:
            ends.append(address)
            machine.emu_stop()

    def load(_: object, access: int, address: int, *__: object) -> None:
        loads.append(address)
        for place, word in (meanwhile or {}).get(len(loads), {}).items():
            machine.mem_write(place, struct.pack("<Q", word))

    machine.hook_add(unicorn.UC_HOOK_CODE, end)
    machine.hook_add(unicorn.UC_HOOK_MEM_READ, load, begin=KERNEL, end=KERNEL + 0xFFFF)
    machine.emu_start(CODE, 0, count=1000)
    kept = {name for name in (*CALLEE_SAVED, "x0", LR) if name in before}
    assert {name: machine.reg_read(NUMBERS[name]) for name in kept} == {name: before[name] for name in kept}
    assert bytes(machine.mem_read(FRAME, len(frame))) == frame
    return ends[0]


@pytest.mark.parametrize("mapped", [PAIR, APART])
def test_a_trap_of_ours_comes_to_its_code_and_others_to_the_kernel(mapped: FilePageOffsets) -> None:
    assert trapped(HERE, mapped) == FOUND
    for key in ((OFFSET + 4, INODE), (OFFSET, INODE + 8), (OFFSET + (1 << 12), INODE)):
        assert trapped({key: OURS + 0x200}, mapped) == FOREIGN
    for parts in ({"mapping": OWNER}, {"mapping": OWNER + 2}, {"root": 0}, {"file": 0}, {"entry": 1}):
        assert trapped(HERE, mapped, **parts) == FOREIGN
    assert trapped(HERE, mapped, entry=0) == AGAIN


def test_among_many_of_the_same_home_and_round_the_end() -> None:
    same: list[Key] = [(OFFSET - number * LAYOUT.size, INODE + 8 * number) for number in range(6)]
    assert len({LAYOUT.home(key) for key in same}) == 1
    last = next(at for at in range(0, LAYOUT.size, 4) if LAYOUT.home((at, 0)) == LAYOUT.size - LAYOUT.slot_size)
    ends: dict[Key, int] = {(last + (1 << 20) * number, 8): OURS + 0x400 for number in range(3)}
    codes: dict[Key, int] = {key: OURS + 0x100 + 8 * number for number, key in enumerate(same[::-1])}
    assert trapped({**ends, **codes}) == codes[OFFSET, INODE]
    del codes[OFFSET, INODE]
    assert trapped({**ends, **codes}) == FOREIGN


def test_a_merged_page_is_known_by_its_place() -> None:
    neighbours: dict[Key, int] = {(OFFSET - LAYOUT.size, INODE + 8): OURS + 0x300, **HERE}
    assert trapped(neighbours, mapping=OWNER + 3, root=1) == FOUND
    assert trapped({(OFFSET + 4, INODE): OURS + 0x200}, mapping=OWNER + 3, root=1) == FOREIGN


@pytest.mark.parametrize("counts", [0x1FD, 0x1FF, 0x200_0000_0001, 0x1FE])
def test_a_tail_of_a_large_page_is_the_kernels(counts: int) -> None:
    assert trapped(HERE, head=RECORD + 0x41, mapping=counts) == FOREIGN


LOADS = 13
"""Of the kernel's memory: one round of the look-up. A pair is two."""


@pytest.mark.parametrize("mapped", [PAIR, APART])
@pytest.mark.parametrize("load", range(1, LOADS + 1))
def test_what_changes_meanwhile_is_read_again(load: int, mapped: FilePageOffsets) -> None:
    freed = {NODE - 32: OTHER_AREA, AREA + 144: OTHER_FILE, FILE + 32: INODE + 8}
    root = {OWNER + 72: OTHER_NODE, OTHER_FILE + 32: INODE}
    assert trapped(HERE, mapped, {load: freed | root}) == FOUND
    exchanged = {ENTRY: PAGE_ENTRY + 0x1000, OWNER + 72: OTHER_NODE}
    assert trapped(HERE, mapped, {load: exchanged}) == FOREIGN


@pytest.mark.parametrize("mapping", [0x1, 0x5, 0xDEAD_0000_0000_0401, OWNER + 3, OWNER + 0x201])
@pytest.mark.parametrize("load", range(1, LOADS + 1))
def test_a_page_that_is_freed_and_used_anew_is_not_followed(load: int, mapping: int) -> None:
    used = {ENTRY: 0, RECORD + 24: mapping, OWNER + 72: 0, NODE - 32: 1, AREA + 144: 1, FILE + 32: 1}
    assert trapped(HERE, meanwhile={load: used}) in (FOUND, AGAIN)
