"""A user's instructions from real text, in two ways each: as they are, and as a probe has them done; on Unicorn.

    plain     │ the instruction, where it is
    emulated  │ code of the kernel's on saved registers ── cannot be done here ──┐
    moved     │ a copy elsewhere, with a jump back ◄─────────────────────────────┘
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import unicorn
from unicorn import x86_const

from gdb_optprobe.guest.linux.arch.x86_64.mmu import KIND
from gdb_optprobe.guest.linux.arch.x86_64.user_traps import REGISTERS, USER
from gdb_optprobe.guest.linux.user.elf import Elf
from gdb_optprobe.isa.base import Flow, Insn, OutOfReach, Unrelocatable
from gdb_optprobe.isa.x86_64 import abi

PAGE = 4096
MOST = 300
TEXT, COPY, DATA, LOWEST = 0x50_0000, 0x58_0000, 0x60_0000, 0x1_0000
KERNEL = 1 << 46
CODE, WRITABLE, FRAME, KERNELS, CALLER = (KERNEL + number * 0x10_0000 for number in range(5))
FAILS, WORKS = b"\xf9\xc3", b"\xf8\xc3"
MODES = {64: unicorn.UC_MODE_64, 32: unicorn.UC_MODE_32}
NAMES = {
    64: dict(zip((*abi.GENERAL, "rip", "eflags"), (*abi.GENERAL, "rip", "eflags"), strict=True)),
    32: {f"r{name[1:]}": f"e{name[1:]}" for name in (*abi.GENERAL[:8], "rip")} | {"eflags": "eflags"},
}
NUMBERS = {
    name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for names in NAMES.values() for name in names.values()
}
_LEFT = (Flow.SYSTEM, Flow.TRAP)
_UNLIKE = ("rdtsc", "rdrand", "rdseed", "xgetbv", "cpuid", "rdpid", "xsave", "fxsave", "fnsave", "in", "out")
"""Their results are not those of one moment before, or not of this processor."""


@dataclass(frozen=True)
class After:
    """changed: bytes of memory that are not what they were."""

    registers: Mapping[str, int]
    changed: Mapping[int, int]


@dataclass
class Found:
    """How many were compared, in which way; and those that could not be."""

    ways: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)


@lru_cache(512)
def content(page: int) -> bytes:
    return random.Random(page).randbytes(PAGE)


class Cpu:
    """A processor whose memory is there wherever it is touched below the middle, always with the same in it."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.uc: Any = unicorn.Uc(unicorn.UC_ARCH_X86, MODES[bits])
        self._written: set[int] = set()
        self._mapped: set[int] = set()
        self._range = range(0)
        unmapped = unicorn.UC_HOOK_MEM_READ_UNMAPPED | unicorn.UC_HOOK_MEM_WRITE_UNMAPPED
        self.uc.hook_add(unmapped, self._appear)
        self.uc.hook_add(unicorn.UC_HOOK_MEM_WRITE, self._write)
        self.uc.hook_add(unicorn.UC_HOOK_CODE, self._step)
        for at in (TEXT, COPY):
            self._map(at)
        if bits == 64:
            for at in (CODE, WRITABLE, FRAME, KERNELS, CALLER):
                self.uc.mem_map(at, PAGE)
        self._fresh = self.uc.context_save()

    def run(self, at: int, code: bytes, registers: Mapping[str, int]) -> After | None:
        """From `at` until it is left; None where it cannot run."""
        self.uc.context_restore(self._fresh)
        self.uc.mem_write(at, code)
        self.uc.ctl_remove_cache(at, at + PAGE)
        self._written.clear()
        self._range = range(at, at + len(code))
        for name, number in NAMES[self.bits].items():
            if name in registers:
                self.uc.reg_write(NUMBERS[number], registers[name])
        failed = False
        try:
            self.uc.emu_start(at, 0, count=MOST)
        except unicorn.UcError as error:
            failed = error.errno not in (unicorn.UC_ERR_FETCH_UNMAPPED, unicorn.UC_ERR_FETCH_PROT)
        after = {name: self.uc.reg_read(NUMBERS[number]) for name, number in NAMES[self.bits].items()}
        changed = {}
        for byte in self._written:
            was, now = content(byte // PAGE)[byte % PAGE], self.uc.mem_read(byte, 1)[0]
            if now != was:
                changed[byte] = now
                self.uc.mem_write(byte, bytes([was]))
        self._put_back(at, len(code))
        stays = after["rip"] in range(at, at + len(code))
        return None if failed or stays else After(after, changed)

    def _put_back(self, at: int, size: int) -> None:
        if at < DATA:
            self.uc.mem_write(at, content(at // PAGE)[at % PAGE : at % PAGE + size])

    def _map(self, at: int) -> bool:
        page = at // PAGE
        if page not in self._mapped:
            self._mapped.add(page)
            self.uc.mem_map(page * PAGE, PAGE)
            self.uc.mem_write(page * PAGE, content(page))
        return True

    def _appear(self, _: object, access: int, address: int, size: int, *__: object) -> bool:
        if not LOWEST <= address < KERNEL:
            return False
        return self._map(address) and self._map(address + size - 1)

    def _write(self, _: object, access: int, address: int, size: int, *__: object) -> None:
        """Comes before the page does."""
        if self._appear(None, access, address, size):
            self._written.update(range(address, address + size))

    def _step(self, _: object, address: int, *__: object) -> None:
        if address not in self._range and not WRITABLE <= address < WRITABLE + PAGE:
            self.uc.emu_stop()


@dataclass
class Windows:
    """Two processors: one for programs, of `bits`; one for the kernel."""

    bits: int

    def __post_init__(self) -> None:
        self._program, self._kernel = Cpu(self.bits), Cpu(64)
        self.found = Found()

    def compare(self, insn: Insn, chosen: random.Random) -> None:
        """Raises AssertionError where a probe has something else done than the instruction does."""
        returns_far = insn.data[0] == 0xC2 and insn.data[2] >= 0x80  # QEMU takes what is released for signed
        into_itself = insn.target in range(insn.address + 1, insn.end)
        unlike = insn.text.removeprefix("rep ").startswith(_UNLIKE)
        if insn.flow in _LEFT or unlike or returns_far or into_itself:
            self.found.left["no window"] += 1
            return
        before = some_registers(insn, self.bits, chosen)
        plain = self._program.run(insn.address, insn.data, before)
        if plain is None:
            self.found.left["faults"] += 1
            return
        emulation = USER.emulation(insn, self.bits, WRITABLE)
        works = chosen.random() < 0.8
        ended = False
        if emulation is not None:
            after = self._emulated(insn, emulation.code(CODE), before, works)
            ended = after is not None
            assert ended or emulation.may_fail
            if after is not None:
                check(insn, after, plain)
                self.found.ways["emulated"] += 1
        if not ended:
            self._moved(insn, before, plain)

    def _emulated(self, insn: Insn, code: bytes, before: Mapping[str, int], works: bool) -> After | None:
        """None where it goes on behind its end, with nothing changed."""
        uc = self._kernel.uc
        frame = bytearray(168)
        for name, value in (before | {"rip": insn.address + 1}).items():
            frame[REGISTERS[name] : REGISTERS[name] + 8] = value.to_bytes(8, "little")
        uc.mem_write(FRAME, bytes(frame))
        uc.mem_write(WRITABLE, WORKS if works else FAILS)
        uc.ctl_remove_cache(WRITABLE, WRITABLE + PAGE)
        uc.mem_write(KERNELS + 0x800, CALLER.to_bytes(8, "little"))
        done = self._kernel.run(CODE, code, {"rdi": FRAME, "rsp": KERNELS + 0x800})
        assert done is not None, f"{insn.data.hex()} {insn.text}"
        after = bytes(uc.mem_read(FRAME, len(frame)))
        if done.registers["rip"] != CALLER:
            assert done.registers["rip"] == CODE + len(code) and after == bytes(frame) and not done.changed
            return None
        values = {name: int.from_bytes(after[REGISTERS[name] :][:8], "little") for name in NAMES[self.bits]}
        return After(values, done.changed)

    def _moved(self, insn: Insn, before: Mapping[str, int], plain: After) -> None:
        try:
            copy = USER.copy(insn, COPY, self.bits, False)
        except (Unrelocatable, OutOfReach):
            self.found.left["refused"] += 1
            return
        after = self._program.run(COPY, copy, before)
        assert after is not None, f"{insn.data.hex()} {insn.text}"
        check(insn, after, plain)
        self.found.ways["moved"] += 1


def check(insn: Insn, after: After, plain: After) -> None:
    """Bit 1 of the flags is always set, or never shown."""
    one, other = ({**state.registers, "eflags": state.registers["eflags"] & ~2} for state in (after, plain))
    differ = [f"{name}: {one[name]:#x}, plain {other[name]:#x}" for name in other if one[name] != other[name]]
    differ += [f"memory at {at:#x}" for at, _ in sorted(after.changed.items() ^ plain.changed.items())[:8]]
    assert not differ, f"{insn.data.hex()} {insn.text}: {'; '.join(differ)}"


def some_registers(insn: Insn, bits: int, chosen: random.Random) -> dict[str, int]:
    """Addresses for the most part; the stack is on a page, and aligned."""
    names = [name for name in NAMES[bits] if name not in ("rip", "eflags")]
    values = {name: DATA + 0x4000 + 8 * chosen.randrange(0x400) for name in names}
    for name in names:
        if chosen.random() < 0.15:
            values[name] = chosen.choice((chosen.getrandbits(bits), chosen.getrandbits(8), 0))
    values["rsp"] = DATA + 0x8800 + 16 * chosen.randrange(0x40)
    return values | {"rip": insn.address, "eflags": 0x202 | chosen.getrandbits(12) & abi.ARITHMETIC_FLAGS}


def windows(program: bytes, name: str, bits: int, chosen: random.Random) -> Iterator[Insn]:
    """Instructions of its code, at random, put where they can run."""
    elf = Elf.of(name, lambda offset, size: program[offset : offset + size], len(program), KIND)
    while True:
        segment = chosen.choice(elf.code)
        at = chosen.randrange(segment.size - 64)
        code = USER.decode(program[segment.offset + at : segment.offset + at + 64], 0, bits)
        if len(code) > 6:
            (insn,) = USER.decode(code[5].data, TEXT + 0x100, bits)
            yield insn
