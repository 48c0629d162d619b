"""What runs before the kernel's handler of breakpoint traps, in Unicorn: where it goes, by who runs and where."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import unicorn
from unicorn import x86_const

from gdb_optprobe.guest.linux.arch.x86_64.user_traps import REGISTERS, X86User
from gdb_optprobe.handlers.lower_mapped_file import FilePageOffsets
from gdb_optprobe.handlers.lower_traps import PlacedTrapTable
from gdb_optprobe.handlers.lower_user_traps import lower_removed_trap, lower_user_trap_handler
from gdb_optprobe.isa.codegen import Address, Comparison, Label, MemoryValue, ProbeReadRoutines
from gdb_optprobe.isa.x86_64 import abi
from gdb_optprobe.isa.x86_64.codegen import X86Emitter
from gdb_optprobe.maps.trap_table import USER_KEY, Key, TrapTableLayout

CODE, KERNELS, CALLER, TABLE, FRAME, STACK, KERNEL, OURS = range(0x10_0000, 0x90_0000, 0x10_0000)
NUMBERS = {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in abi.GENERAL}
RECORD, OWNER, NODE, AREA, FILE, ENTRY, OTHER_NODE, OTHER_AREA, OTHER_FILE = range(KERNEL, KERNEL + 0x9000, 0x1000)
INODE = KERNEL + 0x9000
MAPPED = FilePageOffsets(bits=12, head=8, mapping=0x18, index=0x20, root=0x40, area=-0x20, file=0x90, inode=0x20)
ABSENT, OTHER = 0, 1
"""What the walk says in place of a record."""
PAGE_ENTRY = 0x8000_0000_1234_5867
LAYOUT = TrapTableLayout(64, USER_KEY)
USERS, KERNELS_CS, USERS_32, SEGMENT = 0x33, 0x10, 0x23, 0x0F
PAGE_IN_FILE, PC = 3, 0x7F12_3456_7001
"""The page of the file that the trap is on, and where that is mapped, wherever in it the trap is."""


@dataclass(frozen=True)
class After:
    """Where it went, and what the saved PC is."""

    to: int
    saved: int


def words(**other: int) -> dict[int, int]:
    """The kernel's memory, from a page's record to its file's inode; other: parts of it that are not as they are."""
    parts = {"head": 0, "mapping": OWNER + 1, "root": NODE, "area": AREA, "file": FILE, "inode": INODE} | other
    return {
        RECORD + 0x08: parts["head"],
        RECORD + 0x18: parts["mapping"],
        RECORD + 0x20: PAGE_IN_FILE,
        OWNER + 0x40: parts["root"],
        NODE - 0x20: parts["area"],
        AREA + 0x90: parts["file"],
        FILE + 0x20: parts["inode"],
        ENTRY: PAGE_ENTRY,
        OTHER_NODE - 0x20: OTHER_AREA,
        OTHER_AREA + 0x90: OTHER_FILE,
        OTHER_FILE + 0x20: INODE + 8,
    }


def ran(
    code: bytes,
    frame: bytes,
    table: bytes = b"",
    there: bytes = b"",
    kernel: Mapping[int, int] | None = None,
    meanwhile: Mapping[int, Mapping[int, int]] | None = None,
) -> After:
    """meanwhile: what another CPU writes as the code is about to make its Nth load of the kernel's memory."""
    machine: Any = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    for page in (CODE, KERNELS, CALLER, TABLE, FRAME, STACK, KERNEL, OURS):
        machine.mem_map(page, 0x1_0000)
    for at, word in ((words() if kernel is None else kernel) | {STACK + 0x800: CALLER}).items():
        machine.mem_write(at, word.to_bytes(8, "little"))
    # mov $there, %eax; mov $8 or $0, %r10d; ret: a reader of what stands at the trap
    reader = b"\xb8" + there.ljust(4, b"\0") + b"\x41\xba" + (8 * bool(there)).to_bytes(4, "little") + b"\xc3"
    for where, data in ((CODE, code), (TABLE, table), (FRAME, frame), (OURS, reader)):
        machine.mem_write(where, data)
    before = {name: random.Random(name).getrandbits(64) for name in abi.GENERAL} | {"rsp": STACK + 0x800, "rdi": FRAME}
    for name, value in before.items():
        machine.reg_write(NUMBERS[name], value)
    ends: list[int] = []
    loads: list[int] = []

    def end(_: object, address: int, *__: object) -> None:
        if address in (KERNELS, CALLER) or OURS + 0x100 <= address < OURS + 0x1000:
            ends.append(address)
            machine.emu_stop()

    def load(_: object, access: int, address: int, *__: object) -> None:
        loads.append(address)
        for at, word in (meanwhile or {}).get(len(loads), {}).items():
            machine.mem_write(at, word.to_bytes(8, "little"))

    machine.hook_add(unicorn.UC_HOOK_CODE, end)
    machine.hook_add(unicorn.UC_HOOK_MEM_READ, load, begin=KERNEL, end=KERNEL + 0xFFFF)
    machine.emu_start(CODE, 0, count=1000)
    kept = (*abi.CALLEE_SAVED, "rdi")
    assert {name: machine.reg_read(NUMBERS[name]) for name in kept} == {name: before[name] for name in kept} | {
        "rsp": STACK + 0x800 + 8 * (ends == [CALLER])
    }
    after = bytes(machine.mem_read(FRAME, len(frame)))
    pc = REGISTERS["rip"]
    assert after[:pc] + after[pc + 8 :] == frame[:pc] + frame[pc + 8 :]
    return After(ends[0], int.from_bytes(after[pc : pc + 8], "little"))


def saved(pc: int, cs: int = USERS) -> bytes:
    frame = bytearray(random.Random(pc).randbytes(168))
    for name, value in (("rip", pc), ("cs", cs)):
        frame[REGISTERS[name] : REGISTERS[name] + 8] = value.to_bytes(8, "little")
    return bytes(frame)


def at(offset: int) -> int:
    """The offset in the file of a trap that is so far in its page."""
    return PAGE_IN_FILE << 12 | offset


def walking(record: int) -> X86User:
    """A walk to this record, or to none; and to none where the entry is 0."""

    def walk(emit: X86Emitter, absent: Label, other: Label) -> None:
        leaf = X86User.leaf
        emit.constant(leaf.record, record)
        emit.constant(leaf.entry, ENTRY)
        emit.load(leaf.value, MemoryValue(Address(leaf.entry)))
        emit.branch(Comparison.EQ, leaf.value, 0, False, absent)
        if record in (ABSENT, OTHER):
            emit.jump(absent if record == ABSENT else other)

    return X86User(walk)


def trapped(
    codes: Mapping[Key, int], offset: int, cs: int = USERS, record: int = RECORD, **more: Any
) -> After:
    """A trap that is so far in its page."""
    user = walking(record)
    code = lower_user_trap_handler(PlacedTrapTable(LAYOUT, TABLE), MAPPED, KERNELS, user)(CODE)
    return ran(code, saved(PC + offset, cs), bytes(LAYOUT.encode(codes)), **more)


HERE: Mapping[Key, int] = {(at(0x234), INODE): OURS + 0x200}
TRAPPED = PC + 0x234
FOUND, FOREIGN, AGAIN = After(OURS + 0x200, TRAPPED), After(KERNELS, TRAPPED), After(CALLER, TRAPPED - 1)


@pytest.mark.parametrize("cs", [USERS, USERS_32])
def test_a_trap_of_ours_comes_to_its_code(cs: int) -> None:
    assert trapped(HERE, 0x234, cs) == FOUND


@pytest.mark.parametrize("seed", range(8))
def test_among_many(seed: int) -> None:
    chosen = random.Random(seed)
    keys = {(at(chosen.randrange(0x1000)), inode) for inode in (INODE, INODE + 0x400) for _ in range(16)}
    codes = {key: OURS + 0x100 + 8 * number for number, key in enumerate(sorted(keys))}
    for (offset, inode), code in codes.items():
        if inode == INODE:
            assert trapped(codes, offset & 0xFFF).to == code
    other = next(each for each in range(0x1000) if (at(each), INODE) not in codes)
    assert trapped(codes, other) == After(KERNELS, PC + other)


def test_what_is_not_ours_is_the_kernels() -> None:
    assert trapped(HERE, 0x235).to == KERNELS
    assert trapped({(at(0x234), INODE + 8): OURS + 0x200}, 0x234) == FOREIGN
    for cs in (KERNELS_CS, SEGMENT):
        assert trapped(HERE, 0x234, cs) == FOREIGN


def test_a_page_that_is_no_file_s_and_the_space_s_own_is_the_kernels() -> None:
    assert trapped(HERE, 0x234, record=OTHER) == FOREIGN
    assert trapped(HERE, 0x234, kernel=words(mapping=OWNER)) == FOREIGN
    assert trapped(HERE, 0x234, kernel=words(file=0)) == FOREIGN
    assert trapped(HERE, 0x234, kernel=words(root=0)) == FOREIGN


def test_a_page_that_has_gone_has_the_program_come_again() -> None:
    assert trapped(HERE, 0x234, record=ABSENT) == AGAIN


def test_a_merged_page_is_known_by_its_place() -> None:
    """What its record leads to is no owner of pages."""
    merged = words(mapping=OWNER + 3, root=1)
    assert trapped(HERE, 0x234, kernel=merged) == FOUND
    assert trapped(HERE, 0x235, kernel=merged).to == KERNELS
    # Behind another one of the same home, and in a table that has a free slot there.
    neighbours: Mapping[Key, int] = {(at(0x234) - LAYOUT.size, INODE + 8): OURS + 0x300, **HERE}
    assert LAYOUT.home((at(0x234) - LAYOUT.size, INODE)) == LAYOUT.home((at(0x234), INODE))
    assert trapped(neighbours, 0x234, kernel=merged) == FOUND
    first = words(mapping=OWNER + 3) | {RECORD + 0x20: 0}
    assert trapped({}, 0, kernel=first) == After(KERNELS, PC), "a free slot has no offset, which is 0"


@pytest.mark.parametrize("counts", [0x1FD, 0x1FF, 0x200_0000_0001, 0x1FE])
def test_a_tail_of_a_large_page_is_the_kernels(counts: int) -> None:
    """Its record has counts of the whole page's where others have their owner (struct folio)."""
    assert trapped(HERE, 0x234, kernel=words(head=RECORD + 0x40 | 1, mapping=counts)) == FOREIGN


LOADS = 13
"""Of the kernel's memory, where all stays as it is: one round of the look-up."""


@pytest.mark.parametrize("load", range(1, LOADS + 1))
def test_what_changes_meanwhile_is_read_again(load: int) -> None:
    """The mapping at the root of the tree is freed, and its memory used for another file's; or all has gone."""
    freed = {NODE - 0x20: OTHER_AREA, AREA + 0x90: OTHER_FILE, FILE + 0x20: INODE + 8}
    root = {OWNER + 0x40: OTHER_NODE, OTHER_FILE + 0x20: INODE}
    assert trapped(HERE, 0x234, meanwhile={load: freed | root}) == FOUND
    gone = trapped(HERE, 0x234, meanwhile={load: {OWNER + 0x40: 0, ENTRY: 0, RECORD + 0x18: 0}})
    assert gone in (FOUND, AGAIN)


@pytest.mark.parametrize("kept", [{}, {OWNER + 0x40: OTHER_NODE}])
@pytest.mark.parametrize("mapping", [0x1, 0x5, 0xDEAD_0000_0000_0401, OWNER + 3, OWNER + 0x201])
@pytest.mark.parametrize("load", range(1, LOADS + 1))
def test_a_page_that_is_freed_and_used_anew_is_not_followed(
    load: int, mapping: int, kept: Mapping[int, int]
) -> None:
    """Its record may have anything, and its owner, if it stays one, another file's mappings or none."""
    used = {ENTRY: 0, RECORD + 0x18: mapping, OWNER + 0x40: 0, NODE - 0x20: 1, AREA + 0x90: 1, FILE + 0x20: 1}
    assert trapped(HERE, 0x234, meanwhile={load: used | kept}) in (FOUND, AGAIN)


@pytest.mark.parametrize("load", range(1, LOADS + 1))
def test_a_page_that_is_exchanged_is_not_taken_for_the_one_before(load: int) -> None:
    """The owner of the page before may be another file's by now; the record is the new page's from then on."""
    taken = {ENTRY: PAGE_ENTRY + 0x1000, OTHER_FILE + 0x20: INODE + 8, OWNER + 0x40: OTHER_NODE}
    assert trapped(HERE, 0x234, meanwhile={load: taken}) == FOREIGN


GONE = [(b"\x55\x48", CALLER, 1), (b"\xcc\x48", KERNELS, 0), (b"", KERNELS, 0)]


@pytest.mark.parametrize(("there", "to", "back"), GONE)
def test_a_trap_that_has_gone(there: bytes, to: int, back: int) -> None:
    """The instruction that is there again is run; a trap that is there by now is another's."""
    code = lower_removed_trap(KERNELS, ProbeReadRoutines(OURS, OURS), X86User())(CODE)
    assert ran(code, saved(PC + 1), there=there) == After(to, PC + 1 - back)
