"""What runs before the kernel's handler of breakpoint traps, in Unicorn: where it goes, by who runs and where."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import unicorn
from unicorn import x86_const

from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.lowering_user_traps import Running, UserTraps, gone, handler
from gdb_optprobe.handlers.program import Load
from gdb_optprobe.isa.emitter import Readers
from gdb_optprobe.isa.x86_64 import abi
from gdb_optprobe.isa.x86_64.user import REGISTERS, USER
from gdb_optprobe.objects.user_traps import Key, UserTrapsLayout

CODE, KERNELS, CALLER, TABLE, FRAME, STACK, KERNEL, OURS = range(0x10_0000, 0x90_0000, 0x10_0000)
NUMBERS = {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in abi.GENERAL}
TASK, MM, FILE, INODE = (KERNEL + 0x1000 * number for number in range(4))
RUNNING = Running(Load(fold.constant(TASK + 0x40), 8, signed=False, mapped=True), 0x380, 0x110, 0x20)
START = 0x40_1000
LAYOUT = UserTrapsLayout(64)
USERS, KERNELS_CS, USERS_32 = 0x33, 0x10, 0x23


@dataclass(frozen=True)
class After:
    """Where it went, and what the saved PC is."""

    to: int
    saved: int


def ran(code: bytes, frame: bytes, table: bytes = b"", file: int = FILE, there: bytes = b"") -> After:
    machine: Any = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    for page in (CODE, KERNELS, CALLER, TABLE, FRAME, STACK, KERNEL, OURS):
        machine.mem_map(page, 0x1_0000)
    words = {TASK + 0x40: MM, MM + 0x380: file, MM + 0x110: START, FILE + 0x20: INODE, STACK + 0x800: CALLER}
    for at, word in words.items():
        machine.mem_write(at, word.to_bytes(8, "little"))
    # mov $there, %eax; mov $8 or $0, %r10d; ret: a reader of what stands at the trap
    reader = b"\xb8" + there.ljust(4, b"\0") + b"\x41\xba" + (8 * bool(there)).to_bytes(4, "little") + b"\xc3"
    for where, data in ((CODE, code), (TABLE, table), (FRAME, frame), (OURS, reader)):
        machine.mem_write(where, data)
    before = {name: random.Random(name).getrandbits(64) for name in abi.GENERAL} | {"rsp": STACK + 0x800, "rdi": FRAME}
    for name, value in before.items():
        machine.reg_write(NUMBERS[name], value)
    ends: list[int] = []

    def end(_: object, address: int, *__: object) -> None:
        if address in (KERNELS, CALLER) or address >= OURS + 0x100:
            ends.append(address)
            machine.emu_stop()

    machine.hook_add(unicorn.UC_HOOK_CODE, end)
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


def trapped(codes: Mapping[Key, int], offset: int, cs: int = USERS, file: int = FILE) -> After:
    """A trap so far behind where the program's code starts, the byte of the trap included."""
    code = handler(UserTraps(LAYOUT, TABLE), RUNNING, KERNELS, USER)(CODE)
    return ran(code, saved(START + offset, cs), bytes(LAYOUT.encode(codes)), file)


@pytest.mark.parametrize("cs", [USERS, USERS_32])
def test_a_trap_of_ours_comes_to_its_code(cs: int) -> None:
    assert trapped({(0x234, INODE): OURS + 0x200}, 0x234, cs) == After(OURS + 0x200, START + 0x234)


@pytest.mark.parametrize("seed", range(8))
def test_among_many(seed: int) -> None:
    chosen = random.Random(seed)
    keys = {(chosen.randrange(1, 0x1000), inode) for inode in (INODE, INODE + 0x400) for _ in range(16)}
    codes = {key: OURS + 0x100 + 8 * number for number, key in enumerate(sorted(keys))}
    for (offset, inode), code in codes.items():
        if inode == INODE:
            assert trapped(codes, offset).to == code
    other = next(at for at in range(1, 0x1000) if (at, INODE) not in codes)
    assert trapped(codes, other) == After(KERNELS, START + other)


def test_what_is_not_ours_is_the_kernels() -> None:
    codes = {(0x234, INODE): OURS + 0x200}
    assert trapped(codes, 0x235).to == KERNELS
    assert trapped({(0x234, INODE + 8): OURS + 0x200}, 0x234).to == KERNELS
    assert trapped(codes, 0x234, KERNELS_CS).to == KERNELS
    assert trapped(codes, 0x234, file=0).to == KERNELS


GONE = [(b"\x55\x48", CALLER, 1), (b"\xcc\x48", KERNELS, 0), (b"", KERNELS, 0)]


@pytest.mark.parametrize(("there", "to", "back"), GONE)
def test_a_trap_that_has_gone(there: bytes, to: int, back: int) -> None:
    """The instruction that is there again is run; a trap that is there by now is another's."""
    code = gone(KERNELS, Readers(OURS, OURS), USER)(CODE)
    assert ran(code, saved(START + 1), there=there) == After(to, START + 1 - back)
