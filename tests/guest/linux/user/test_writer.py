"""The code that writes into programs, run on Unicorn: its calls, its results, and nothing moved; and its tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import unicorn
from unicorn import x86_const

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.x86_64.mmu import FIXED_RECORDS, X86Mmu
from gdb_optprobe.guest.linux.arch.x86_64.program_writer import WRITING
from gdb_optprobe.guest.linux.arch.x86_64.user_kernel import VCPUS
from gdb_optprobe.guest.linux.user import writer
from gdb_optprobe.guest.linux.user.mm import Busy
from gdb_optprobe.guest.linux.user.page_frames import PageFrames
from gdb_optprobe.guest.linux.user.pages import Pages as UserPages
from gdb_optprobe.guest.linux.user.programs import Programs
from gdb_optprobe.guest.linux.user.writer import ROWS, Write, Writer
from gdb_optprobe.guest.machine import Vcpu
from tests.guest.linux.fake_kernel import Machine, kernel

CODE, TABLES, REMOTE, PUT = 0x82000000, 0x82010000, 0x81001000, 0x81002000
STACK, BACK = 0x88200F00, 0x81003000
MMS = (0x88100000, 0x88101000)
OFFSETS = {"mm_struct.mm_users": 0x40, "mm_struct.mmap_lock.count": 0x80}
WRITE, FORCE = 0x01, 0x10
NAMES = ("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", *(f"r{n}" for n in range(8, 16)))
VCPU = Vcpu(0, "1.1")
ENUMERATORS = {"FOLL_WRITE": WRITE, "FOLL_FORCE": FORCE}
FLAGS = 0x246 | 0x400 | 1  # the direction flag too, which C wants clear


def made() -> tuple[Machine, Writer]:
    machine = Machine({"rip": BACK, "eflags": FLAGS, **{name: 0x1111 * n for n, name in enumerate(NAMES, 1)}})
    machine.put(CODE, WRITING.code(CODE, REMOTE, PUT))
    machine.put(TABLES, bytes(writer.SIZE))
    for mm in MMS:
        machine.put(mm, bytes(256))
        machine.put(mm + 0x40, (1).to_bytes(4, "little"))
    known = kernel(machine, {"access_remote_vm": REMOTE, "mmput": PUT, "ksys_read": BACK}, OFFSETS)
    machine.put_words(FIXED_RECORDS, 0)
    mmu = X86Mmu(0xFFFF888000000000, 1 << 40, False)
    frames = PageFrames.of(known, mmu)
    programs = Programs(machine, known, frames, UserPages(known, frames, mmu), VCPUS, ENUMERATORS.get, lambda: None)
    found = Writer(programs, CODE, TABLES)
    found.clear()
    return machine, found


def users(machine: Machine) -> list[int]:
    return [machine.read(mm + 0x40, 1)[0] for mm in MMS]


def run(machine: Machine, registers: dict[str, int], written: Callable[[int], int]) -> list[tuple[int, ...]]:
    """From the thunk's beginning until it is back: the calls it makes. written: what a call returns, by its number."""
    uc: Any = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    for page in {*machine.pages, STACK // 4096, STACK // 4096 - 1, REMOTE // 4096, PUT // 4096, BACK // 4096}:
        uc.mem_map(page * 4096, 4096)
        uc.mem_write(page * 4096, bytes(machine.pages.get(page, b"\xc3" * 4096)))
    register = {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in (*NAMES, "rsp", "eflags", "rip")}
    before = {name: machine.state[0].get(name, 0) for name in NAMES}
    for name, value in {**before, **registers, "rsp": STACK, "eflags": FLAGS}.items():
        uc.reg_write(register[name], value)
    calls: list[tuple[int, ...]] = []

    def called(_: object, address: int, size: int, user: object) -> None:
        value = {name: uc.reg_read(register[name]) for name in (*NAMES, "rsp", "eflags")}
        if address == REMOTE:
            assert value["rsp"] % 16 == 8 and not value["eflags"] & 0x400, "as the ABI has it at an entry"
            data = bytes(uc.mem_read(value["rdx"], value["rcx"]))
            calls.append((value["rdi"], value["rsi"], int.from_bytes(data, "little"), value["r8"]))
            for name in ("rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11"):
                uc.reg_write(register[name], 0xDEAD)
            uc.reg_write(register["rax"], written(len(calls) - 1))
        elif address == PUT:
            calls.append((value["rdi"],))
        elif address == BACK:
            uc.emu_stop()

    uc.hook_add(unicorn.UC_HOOK_CODE, called)
    uc.emu_start(registers["rip"], 0)
    after = {name: uc.reg_read(register[name]) for name in (*NAMES, "rsp", "eflags", "rip")}
    assert after == {**before, "rsp": STACK, "eflags": FLAGS, "rip": BACK}, "nothing is moved"
    for page in machine.pages:
        machine.pages[page][:] = uc.mem_read(page * 4096, 4096)
    return calls


def test_it_calls_for_each_write_and_goes_back_with_nothing_moved() -> None:
    machine, found = made()
    writes = [Write(MMS[0], 0x401000, b"\xcc"), Write(MMS[1], 0x401000, b"\x90\x91"), Write(MMS[0], 0x402000, b"\x01")]
    started = found.start(VCPU, writes)
    assert users(machine) == [3, 2] and found.results(started) is None and not found.is_idle()
    calls = run(machine, {**started.registers}, lambda number: [1, 0, 2, 0, 1][number])
    flags = WRITE | FORCE
    assert calls == [
        (MMS[0], 0x401000, 0xCC, flags),
        (MMS[0],),
        (MMS[1], 0x401000, 0x9190, flags),
        (MMS[1],),
        (MMS[0], 0x402000, 0x01, flags),
        (MMS[0],),
    ]
    assert found.results(started) == (True, True, True) and found.is_idle()


def test_what_was_not_written_whole_and_whose_space_is_gone_is_told() -> None:
    machine, found = made()
    machine.put(MMS[1] + 0x40, bytes(4))
    started = found.start(VCPU, [Write(MMS[0], 0x401000, b"ab"), Write(MMS[1], 0x401000, b"ab")])
    assert users(machine) == [2, 0], "who is gone stays gone"
    assert len(run(machine, {**started.registers}, lambda number: 1)) == 2
    assert found.results(started) == (False, False)


def test_a_stop_that_somebody_else_makes_is_not_the_end_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, found = made()
    started = found.start(VCPU, [Write(MMS[0], 0x401000, b"x")])
    runs: list[float] = []

    def run_until(addresses: Sequence[int], timeout: float) -> Vcpu | None:
        runs.append(timeout)
        if len(runs) == 3:
            run(machine, {**started.registers}, lambda number: 1)
        return None

    monkeypatch.setattr(machine, "run_until", run_until)
    assert found._finish(started, time.monotonic() + 60) == (True,) and len(runs) == 3


def test_more_than_fits_is_left_for_the_next_time() -> None:
    _, found = made()
    started = found.start(VCPU, [Write(MMS[0], 0x401000 + n, b"x") for n in range(ROWS + 5)])
    assert len(started.writes) == ROWS
    assert len(found.start(VCPU, [Write(MMS[0], 0x401000 + n, b"x" * 600) for n in range(5)]).writes) == 2


def test_nothing_is_begun_while_a_space_is_locked_or_no_table_is_free() -> None:
    machine, found = made()
    write = [Write(MMS[0], 0x401000, b"x")]
    machine.put_words(MMS[0] + 0x80, 0x100)
    with pytest.raises(Busy):
        found.start(VCPU, write)
    assert users(machine) == [1, 1] and found.is_idle()
    machine.put_words(MMS[0] + 0x80, 0)
    for _ in range(writer.TABLES):
        found.start(VCPU, write)
    with pytest.raises(Busy):
        found.start(VCPU, write)
    assert users(machine) == [1 + writer.TABLES, 1]


# --- flags -----------------------------------------------------------------------------------------------------------

PEEKS, POKES = 0xFFFFFFFF81004000, 0xFFFFFFFF81005000
CALL = bytes.fromhex("e800000000c3")


def sets(fifth: int, sixth: int | None = None) -> bytes:
    """mov $fifth, %r8d; mov $sixth, %r9d; call; ret: as the function that reads another's memory has them."""
    code = b"\x41\xb8" + fifth.to_bytes(4, "little")
    return code + (b"" if sixth is None else b"\x41\xb9" + sixth.to_bytes(4, "little")) + CALL


def flags_of(peek: bytes, poke: bytes, told: dict[str, int]) -> int:
    machine = Machine()
    machine.put(PEEKS, peek.ljust(0x1000, b"\xcc"))
    machine.put(POKES, poke.ljust(0x1000, b"\xcc"))
    names = {"generic_ptrace_peekdata": PEEKS, "generic_ptrace_pokedata": POKES, "behind": POKES + len(poke)}
    known = kernel(machine, names, OFFSETS)
    machine.put_words(FIXED_RECORDS, 0)
    mmu = X86Mmu(0xFFFF888000000000, 1 << 40, False)
    frames = PageFrames.of(known, mmu)
    programs = Programs(machine, known, frames, UserPages(known, frames, mmu), VCPUS, told.get, lambda: None)
    return writer.flags(programs)


@pytest.mark.parametrize(
    ("peek", "poke", "told", "flags"),
    [
        (sets(0x08), sets(0x09), {}, 0x09),
        (sets(0x10), sets(0x11), {}, 0x11),
        (sets(8, 0x10), sets(8, 0x11), {}, 0x11),  # behind a length
        (sets(0x08), sets(0x09), {"FOLL_WRITE": 1, "FOLL_FORCE": 8}, 0x09),
        (CALL, CALL, {"FOLL_WRITE": 1, "FOLL_FORCE": 8}, 0x09),
    ],
)
def test_the_flags_are_those_of_the_kernel_s_own_ptrace(
    peek: bytes, poke: bytes, told: dict[str, int], flags: int
) -> None:
    """Those of another kernel's have it write nothing, and warn: every count of a program's was 0."""
    assert flags_of(peek, poke, told) == flags


@pytest.mark.parametrize(
    ("peek", "poke", "told"),
    [
        (CALL, CALL, {}),
        (CALL, CALL, {"FOLL_WRITE": 1}),
        (sets(0x08), sets(0x08), {}),
        (sets(0x08), sets(0x0B), {}),
        (sets(0x10), sets(0x11), {"FOLL_WRITE": 1, "FOLL_FORCE": 8}),
    ],
)
def test_flags_that_nothing_tells_or_two_differ_on_refuse(peek: bytes, poke: bytes, told: dict[str, int]) -> None:
    with pytest.raises(OptprobeError, match="writes into the memory of a program is not known"):
        flags_of(peek, poke, told)
