"""Traps in user programs on aarch64, `hlt`, and what branches under one do to `struct pt_regs`.

    el0t_64_sync   saves all registers; mov x0, sp; bl el0t_64_sync_handler ◄── the call is to our code
The handler is a C function with one argument, the address of struct pt_regs. It has all synchronous exceptions of
64-bit programs, system calls too: ESR_EL1 says which. AArch32's have an entry of their own. Interrupts are off. The
frame's address stays in x0; x1 to x17 are free (AAPCS64, 6.1.1), and x30 returns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gdb_optprobe.guest.linux.arch.aarch64 import leaf_entry
from gdb_optprobe.guest.linux.arch.aarch64.leaf_entry import LeafWalk
from gdb_optprobe.isa.aarch64 import AARCH64, user_code
from gdb_optprobe.isa.aarch64.abi import CALLEE_SAVED, FLAGS, GENERAL, LR, PC, SP
from gdb_optprobe.isa.aarch64.codegen import BACKEND, A64Emitter
from gdb_optprobe.isa.aarch64.encodings import (
    PAGE,
    FarBranch,
    Item,
    bits,
    branch_if,
    branch_on_zero,
    constant,
    encode_items,
    number,
    pair,
    plain,
    scaled,
)
from gdb_optprobe.isa.aarch64.fields import NOP, is_b, signed, word_of
from gdb_optprobe.isa.aarch64.value_codegen import ZERO
from gdb_optprobe.isa.abi import UserFrames
from gdb_optprobe.isa.base import Code, Dead, Insn
from gdb_optprobe.isa.codegen import Comparison, EntryState, Label, MemoryValue
from gdb_optprobe.isa.user import Emulation, UserEmitter, UserStopping, UserTrapping, load_each

_FRAME, _WORK = "x0", "x17"
THREAD = "SP_EL0"
"""The running thread: the kernel has set it before its handler runs, and saved the program's with the registers."""
_PC, _STATE = 0x100, 0x108
REGISTERS = {name: 8 * number for number, name in enumerate(GENERAL)} | {SP: 0xF8, PC: _PC, FLAGS: _STATE}
"""struct pt_regs (asm/ptrace.h)."""
CLASS_SHIFT = 26
"""Of ESR_EL1: the class of the exception; 0 for an instruction that is undefined."""
WORD = 8
FOR_PAIRS = range(-64 * WORD, 64 * WORD)
"""Offsets in loads of two registers."""
SCRATCH = tuple(f"x{number}" for number in range(1, 18))
COST = 170
NUMBERS = {number: name for number, name in enumerate(GENERAL) if name in (*CALLEE_SAVED, LR)}
FRAMES = {64: UserFrames(8, COST, SP, PC, NUMBERS, [name for name in CALLEE_SAVED if name != SP], LR)}


class _UserTrapEmitter(A64Emitter):
    """See isa.user.UserEmitter."""

    def __init__(self, before: EntryState, handler: int, walk: LeafWalk | None) -> None:
        super().__init__(before)
        self._handler, self._walk = handler, walk
        self._apart: list[Item] = []  # behind all else

    def begin(self) -> None:
        """Emit the way to the kernel's handler for all other exceptions."""
        ours = Label()
        self._uses(_WORK)
        self._code(plain("get_esr_el1", _WORK), bits("ubfm", _WORK, _WORK, CLASS_SHIFT, CLASS_SHIFT + 5))
        self._items.append(branch_on_zero("cbz", _WORK, ours))
        self.kernels(self._handler)
        self.bind(ours)

    def kernels(self, address: int) -> None:
        self._items.append(FarBranch(address))

    def find_page(self, absent: Label, other: Label) -> None:
        assert self._walk is not None, "of a kernel"
        code, apart = self._walk(absent, other)
        self._items += code
        self._apart += apart

    def load_two(self, first: str, second: str, base: str, at: tuple[int, int]) -> None:
        if at[0] % WORD == 0 and at[1] == at[0] + WORD and at[0] in FOR_PAIRS:
            self._code(pair("ldr_pair", first, second, at[0], base))
            return
        load_each(self, (first, second), base, at)

    def join(self, to: str, upper: str, low: int) -> None:
        self._code(bits("bfm", to, upper, -low & 63, 63 - low))

    def branch_unless(self, words: Sequence[tuple[MemoryValue, str]], label: Label) -> None:
        """Do as UserEmitter.branch_unless, by one branch: a comparison is made if the one before it has found no
        difference, and is else one that finds a difference.
        """
        at = [value.memory for value, _ in words]
        first = self._scratch()
        with self.pool.scratch() as second:
            is_pair = len(at) == 2 and at[0].base is not None and at[0].base == at[1].base
            if is_pair:
                self.load_two(first, second, at[0].base or "", (at[0].offset, at[1].offset))
            for number, (value, register) in enumerate(words):
                found = second if is_pair and number else first
                if not is_pair:
                    self.load(found, value)
                compared = plain("ccmp", "x0", found, register) if number else plain("subs", ZERO, found, register)
                self._code(compared)
        self._uses(FLAGS)
        self._items.append(branch_if(Comparison.NE, label))

    def back(self) -> None:
        self._code(plain("ret", n=LR))

    def continue_at(self, register: str) -> None:
        """Emit `ret`: an indirect jump would have to find a landing pad."""
        self._code(plain("ret", n=register))

    def finish(self, at: int, pool: int | None = None) -> bytes:
        if not self._apart:
            return super().finish(at, pool)
        # It ends with constants, of two words each.
        is_odd = sum(not isinstance(item, Label) for item in (*self._items, *self._apart)) % 2
        return encode_items([*self._items, *((NOP,) if is_odd else ()), *self._apart], at)


@dataclass(frozen=True)
class ArmUser:
    """See isa.user.UserTrapping. handler: the kernel's. walk: finds pages; None where no dispatcher is made."""

    handler: int
    stopping: UserStopping
    walk: LeafWalk | None = None
    frame: str = _FRAME
    trap: bytes = AARCH64.trap
    behind: int = 0
    around: int = user_code.AROUND
    mode: MemoryValue | None = None
    user: int = 0
    far: int = 0
    pc: int = _PC
    leaf = leaf_entry.REGISTERS
    scratch = Dead(True, frozenset(SCRATCH))
    registers: ClassVar[Mapping[str, int]] = REGISTERS
    resident: ClassVar[Mapping[str, str]] = {THREAD: THREAD}
    frames: ClassVar[Mapping[int, UserFrames]] = FRAMES
    order = staticmethod(BACKEND.order)
    decode = staticmethod(user_code.decoded)
    is_landing_pad = staticmethod(user_code.is_landing_pad)
    copy = staticmethod(user_code.copied)

    def emitter(self, before: EntryState) -> UserEmitter:
        return _UserTrapEmitter(before, self.handler, self.walk)

    def reserved(self, code: Sequence[Insn]) -> Collection[int]:
        return user_code.reserved_in(code)

    def moved(self, distance: int) -> Code:
        return self._code([*_advance(distance), plain("ret", n=LR)])

    def emulation(self, insn: Insn, bits: int, writable: int) -> Emulation | None:
        done = _done(insn)
        return Emulation(self._code([*done, plain("ret", n=LR)]), may_fail=False) if done is not None else None

    def _code(self, items: Sequence[Item]) -> Code:
        return lambda at: encode_items(items, at)


def _done(insn: Insn) -> list[Item] | None:
    """Return the emulation of an instruction: of those of which a copy would hold the program's addresses."""
    word = word_of(insn.data)
    if word == NOP:
        return [*_advance(4)]
    if is_b(word):
        links = [_load("x1", PC), number("addi", "x1", "x1", 4), _store("x1", LR)] if word >> 31 else []
        return [*links, *_advance(signed(word << 2, 28))]
    return None


def _advance(distance: int) -> Iterator[Item]:
    """Yield: advance the saved PC by `distance`."""
    if abs(distance) < PAGE:
        moved = [number("addi" if distance >= 0 else "subi", "x1", "x1", abs(distance))]
    else:
        moved = [*constant("x2", distance), plain("add", "x1", "x1", "x2")]
    yield from (_load("x1", PC), *moved, _store("x1", PC))


def _load(register: str, name: str) -> int:
    return scaled("ldr", register, _FRAME, REGISTERS[name], 8)


def _store(register: str, name: str) -> int:
    return scaled("str", register, _FRAME, REGISTERS[name], 8)


def _(user: ArmUser) -> UserTrapping:
    return user
