"""Traps in user programs on ppc64le, `tdi 31,r0,0`, and what branches and moves under one do to `struct pt_regs`.

Our code runs on the path of program checks of user mode alone: where the kernel's code takes its stack, before it saves
registers there (user_kernel.py). It saves them as the kernel would, and restores all before the kernel continues.

    r1      the user's   ─►  the frame on the thread's kernel stack, at 112 of which struct pt_regs is
    r9      CR               r10   the user's r1        r11, r12   SRR0, SRR1, which stay: EE and RI are off
    paca    r9 to r13, CTR   r13 points to it
Our trap is not that of the kernel's uprobes (`trap`), but one that they recognise as a trap: `is_trap` (asm/probes.h).
The way back to the program is a plain rfid: caches that the kernel's exit flushes (asm/exception-64s.h, RFI_TO_USER)
hold no kernel data but what is in registers that the program has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gdb_optprobe.guest.linux.arch.ppc64le import leaf_entry
from gdb_optprobe.guest.linux.arch.ppc64le.leaf_entry import LeafWalk
from gdb_optprobe.guest.linux.arch.ppc64le.user_stops import STOPPING
from gdb_optprobe.isa.base import Code, Dead, Hazard, Insn, Unrelocatable
from gdb_optprobe.isa.codegen import Address, Comparison, EntryState, Label, MemoryValue
from gdb_optprobe.isa.ppc64le import codegen, reservations
from gdb_optprobe.isa.ppc64le.abi import CR_FIELDS, CTR, FLAGS, FRAMES, GENERAL, LR, PC, XER
from gdb_optprobe.isa.ppc64le.codegen import BACKEND
from gdb_optprobe.isa.ppc64le.decoder import decode
from gdb_optprobe.isa.ppc64le.encodings import (
    NONE,
    FarBranch,
    Item,
    compare,
    encode_items,
    logical,
    number,
    plain,
    rotate,
)
from gdb_optprobe.isa.ppc64le.fields import (
    BC,
    BCCTR,
    BCLR,
    BO_CR_TRUE,
    BO_CTR_ZERO,
    BO_NO_CR,
    BO_NO_CTR,
    CR_OPS,
    SC,
    X31,
    B,
    displacement,
    is_absolute,
    links,
    opcode,
    ra,
    rb,
    rt,
    signed,
    simm,
    to_bytes,
    word_of,
    xo,
)
from gdb_optprobe.isa.ppc64le.register_effects import SPR_CTR, SPR_LR
from gdb_optprobe.isa.ppc64le.relocator import PROBE, is_nop, relocate
from gdb_optprobe.isa.ppc64le.value_codegen import branch_if
from gdb_optprobe.isa.ppc64le.writer import branch
from gdb_optprobe.isa.user import Emulation, UserEmitter, UserStopping, UserTrapping, branch_each, load_each

MSR = "msr"
_NIP = 256
OFFSETS = {name: 8 * place for place, name in enumerate(GENERAL)} | {
    PC: _NIP, MSR: 264, CTR: 280, LR: 288, XER: 296, FLAGS: 304,
}  # fmt: skip
"""struct pt_regs (uapi/asm/ptrace.h)."""
_PACA, _SP = "r13", "r1"
PACA = "paca"
"""The name of the kernel's r13 in programs of probes: the user's is another."""
_PR = 1 << 14
_IN_PACA = (CTR, "r9", "r10", "r11", "r12", "r13")
_WHILE_HANDLED = tuple(f"r{number}" for number in (0, *range(3, 13)))
_SPECIAL = {CTR: ("mfctr", "mtctr"), LR: ("mflr", "mtlr"), XER: ("mfxer", "mtxer"), FLAGS: ("mfcr", "mtcr")}
_WORK = "r9"
FAR = 1 << 28
ADDI, ADDIS, ORI_NOP, OR, MFSPR, MTSPR = 14, 15, 24, 444, 339, 467


@dataclass(frozen=True, slots=True)
class Place:
    """Where our code runs. stack: the instruction there, which loads r1; the kernel continues behind it.
    frame: from r1 to struct pt_regs. saved: offsets in the paca at which vectors have put registers. priority: the
    offset of PPR, if they have saved it: then they raise the priority.
    """

    stack: Insn
    frame: int
    saved: Mapping[str, int]
    priority: int | None = None


class _UserTrapEmitter(codegen.PowerEmitter):
    """See isa.user.UserEmitter."""

    def __init__(self, before: EntryState, user: PowerUser) -> None:
        super().__init__(before)
        self._user = user

    def begin(self) -> None:
        self._items += self._user.saving()

    def find_page(self, absent: Label, other: Label) -> None:
        assert self._user.walk is not None, "of a kernel"
        self._uses(CR_FIELDS[0])
        self._items += self._user.walk(absent, other)

    def load_two(self, first: str, second: str, base: str, at: tuple[int, int]) -> None:
        load_each(self, (first, second), base, at)

    def join(self, to: str, upper: str, low: int) -> None:
        self._code(rotate("rldimi", to, upper, low, 0))

    def branch_unless(self, words: Sequence[tuple[MemoryValue, str]], label: Label) -> None:
        branch_each(self, words, label)

    def kernels(self, address: int) -> None:
        """Emit the way to the kernel's code. address: of `stack`, which has been run."""
        self._items += self._user.unsaving()
        self._items.append(FarBranch(address + self._user.place.stack.size))

    def back(self) -> None:
        self._items += self._user.returning()

    def continue_at(self, register: str) -> None:
        self._code(plain("mtctr", register), plain("bctr"))


@dataclass(frozen=True)
class PowerUser:
    """See isa.user.UserTrapping. walk: finds pages; None where no dispatcher is made."""

    place: Place
    walk: LeafWalk | None = None
    frame: str = _SP
    trap: bytes = to_bytes(PROBE)
    behind: int = 0
    around: int = 256
    user: int = _PR
    far: int = 0
    leaf = leaf_entry.REGISTERS
    scratch = Dead(True, frozenset((*_WHILE_HANDLED, *CR_FIELDS, CTR, LR, XER)))
    resident: ClassVar[Mapping[str, str]] = {PACA: _PACA}
    frames = FRAMES
    stopping: ClassVar[UserStopping] = STOPPING
    order = staticmethod(BACKEND.order)

    @property
    def pc(self) -> int:
        return self.registers[PC]

    @property
    def mode(self) -> MemoryValue | None:
        return MemoryValue(Address(_SP, self.registers[MSR]))

    @property
    def registers(self) -> Mapping[str, int]:
        return {name: self.place.frame + offset for name, offset in OFFSETS.items()}

    def emitter(self, before: EntryState) -> UserEmitter:
        return _UserTrapEmitter(before, self)

    def decode(self, code: bytes, address: int, bits: int) -> list[Insn]:
        return decode(code, address)

    def reserved(self, code: Sequence[Insn]) -> Collection[int]:
        return reservations.reserved({insn.address: insn for insn in code})

    def is_landing_pad(self, insn: Insn) -> bool:
        return False

    def copy(self, insn: Insn, at: int, bits: int, pie: bool) -> bytes:
        data = _copied(insn, at)
        moved = insn._replace(address=insn.address + FAR, target=insn.target and insn.target + FAR)
        if pie and _copied(moved, at + FAR) != data:
            raise Unrelocatable(Hazard.READS_ITS_ADDRESS, insn)
        return data

    def moved(self, distance: int) -> Code:
        return self._code([*self._advance(distance), *self.returning()])

    def emulation(self, insn: Insn, bits: int, writable: int) -> Emulation | None:
        done = self._done(insn)
        return Emulation(self._code([*done, *self.returning()]), may_fail=False) if done is not None else None

    # the frame -------------------------------------------------------------------------------------------------------

    def saving(self) -> Iterator[Item]:
        """Yield: save all the user's registers to the frame."""
        yield word_of(self.place.stack.data)
        for name in GENERAL:
            if name not in (_SP, *_IN_PACA):
                yield self._store(name, name)
        for name, register in ((_SP, "r10"), (PC, "r11"), (MSR, "r12"), (FLAGS, "r9")):
            yield self._store(register, name)
        for name in _IN_PACA:
            yield from (number("ld", _WORK, _PACA, self.place.saved[name]), self._store(_WORK, name))
        for name in (LR, XER):
            yield from (plain(_SPECIAL[name][0], _WORK), self._store(_WORK, name))

    def unsaving(self) -> Iterator[Item]:
        """Yield: restore all registers, with the effect of `stack`."""
        for name in (LR, XER):
            yield from (self._load(_WORK, name), plain(_SPECIAL[name][1], _WORK))
        yield from (self._load(name, name) for name in _WHILE_HANDLED if name not in _IN_PACA)
        yield from (self._load("r11", PC), self._load("r12", MSR), logical("andi.", _WORK, "r12", _PR))
        yield from (self._load("r9", FLAGS), self._load("r10", _SP))

    def returning(self) -> Iterator[Item]:
        """Yield the return to the user, with the frame's registers: no interrupt may come once SRR0 is written."""
        yield from (number("addi", _WORK, NONE, 0), plain("mtmsrd", _WORK))
        yield from (self._load(_WORK, PC), plain("mtsrr0", _WORK))
        if self.place.priority is not None:
            yield from (number("ld", _WORK, _PACA, self.place.priority), plain("mtppr", _WORK))
        for name, (_, put) in _SPECIAL.items():
            yield from (self._load(_WORK, name), plain(put, _WORK))
        yield from (self._load(name, name) for name in (*(n for n in GENERAL if n != _SP), _SP))
        yield plain("rfid")

    def _load(self, register: str, name: str) -> int:
        return number("ld", register, _SP, self.registers[name])

    def _store(self, register: str, name: str) -> int:
        return number("std", register, _SP, self.registers[name])

    def _code(self, items: Sequence[Item]) -> Code:
        return lambda at: encode_items(items, at)

    def _advance(self, distance: int) -> Iterator[Item]:
        """Yield: advance the saved PC by `distance`."""
        low = signed(distance, 16)
        yield self._load("r3", PC)
        if distance != low:
            yield number("addis", "r3", "r3", (distance - low) >> 16)
        yield from (number("addi", "r3", "r3", low), self._store("r3", PC))

    # instructions ----------------------------------------------------------------------------------------------------

    def _done(self, insn: Insn) -> list[Item] | None:
        """Return the emulation of an instruction; None where it is not emulated."""
        word = word_of(insn.data)
        if insn.size != 4:
            return None
        if is_nop(insn.data):
            return [*self._advance(4)]
        match opcode(word):
            case op if op in (B, BC) and not is_absolute(word):
                return [*self._branch(word, rt(word) if op == BC else BO_NO_CTR | BO_NO_CR, displacement(word))]
            case op if op == CR_OPS and xo(word) in (BCLR, BCCTR):
                counts = not rt(word) & BO_NO_CTR  # CTR cannot be both
                return [*self._branch(word, rt(word), None)] if xo(word) == BCLR or not counts else None
            case op if op in (ADDI, ADDIS):
                return [*self._added(word), *self._advance(4)]
            case op if op == X31 and xo(word) == OR and not word & 1:
                loads = (self._load("r3", GENERAL[rt(word)]), self._load("r4", GENERAL[rb(word)]))
                result = (logical("or", "r3", "r3", "r4"), self._store("r3", GENERAL[ra(word)]))
                return [*loads, *result, *self._advance(4)]
            case op if op == X31 and xo(word) in (MFSPR, MTSPR):
                special = {SPR_LR: LR, SPR_CTR: CTR}.get(ra(word) | rb(word) << 5)
                names = (special, GENERAL[rt(word)]) if special else ()
                source, to = names[:: 1 if xo(word) == MFSPR else -1] or ("", "")
                return [self._load("r3", source), self._store("r3", to), *self._advance(4)] if source else None
        return None

    def _added(self, word: int) -> Iterator[Item]:
        base = GENERAL[ra(word)]
        form, value = ("addi" if opcode(word) == ADDI else "addis"), simm(word)
        if base == "r0":
            yield number(form, "r3", NONE, value)
        else:
            yield from (self._load("r3", base), number(form, "r3", "r3", value))
        yield self._store("r3", GENERAL[rt(word)])

    def _branch(self, word: int, bo: int, distance: int | None) -> Iterator[Item]:
        """Yield the emulation of a branch. distance: from the branch, or None: the target is in LR or CTR.
        r5: the next PC if the branch is taken, r3: if not.
        """
        past = Label()
        yield from (self._load("r3", PC), number("addi", "r6", "r3", 4))
        if distance is None:
            yield from (self._load("r5", LR if xo(word) == BCLR else CTR), rotate("rldicr", "r5", "r5", 0, 61))
        else:
            low = signed(distance, 16)
            yield number("addi", "r5", "r3", low)
            if distance != low:
                yield number("addis", "r5", "r5", (distance - low) >> 16)
        if links(word):
            yield self._store("r6", LR)
        yield from self._unless(word, bo, past)
        yield from (logical("or", "r6", "r5", "r5"), past, self._store("r6", PC))

    def _unless(self, word: int, bo: int, past: Label) -> Iterator[Item]:
        """Yield a branch to `past` if the branch is not taken (Book I, 2.4)."""
        if not bo & BO_NO_CTR:
            yield from (self._load("r4", CTR), number("addi", "r4", "r4", -1), self._store("r4", CTR))
            yield compare("cmpldi", 0, "r4", 0)
            yield branch_if(Comparison.NE if bo & BO_CTR_ZERO else Comparison.EQ, past)
        if not bo & BO_NO_CR:
            bit = ra(word)
            yield from (self._load("r4", FLAGS), rotate("rldicl", "r4", "r4", 33 + bit & 63, 63))
            yield compare("cmpldi", 0, "r4", 0)
            yield branch_if(Comparison.EQ if bo & BO_CR_TRUE else Comparison.NE, past)


def _copied(insn: Insn, at: int) -> bytes:
    if opcode(word_of(insn.data)) == SC:
        return insn.data + branch(at + insn.size, insn.end)
    return relocate([insn], at).data


def _(user: PowerUser) -> UserTrapping:
    return user
