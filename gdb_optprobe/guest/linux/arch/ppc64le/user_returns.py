"""Return addresses of user programs on ppc64le: LR at a function's entry; later the word in its caller's frame.

    entry   pt_regs.link ─► the trampoline         a call is known by r1, which is the same where it returns
    later   16(r1 of the entry), where functions that call others have stored it; LR as it was saved, where r1 is the
            same still
The code that finds the word later runs in a C function of the kernel: MSR[EE] masks external interrupts, MSR[RI] is 1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gdb_optprobe.guest.linux.arch.ppc64le import leaf_entry
from gdb_optprobe.guest.linux.arch.ppc64le.probe_read import LINEAR_BITS, LINEAR_MAP
from gdb_optprobe.guest.linux.arch.ppc64le.user_traps import PowerUser
from gdb_optprobe.isa.base import Dead, Flow, Insn
from gdb_optprobe.isa.codegen import Address, Comparison, EntryState, Label
from gdb_optprobe.isa.ppc64le.abi import ARGUMENTS, CR_FIELDS, CTR, LR, LR_SAVE, SP, XER
from gdb_optprobe.isa.ppc64le.codegen import PowerEmitter
from gdb_optprobe.isa.ppc64le.encodings import FarBranch, compare, logical, number, plain, rotate
from gdb_optprobe.isa.ppc64le.fields import simm, word_of
from gdb_optprobe.isa.ppc64le.templates import load
from gdb_optprobe.isa.user_returns import Leaving, TrampolineEmitter, UserReturning

CHANGED = 0x80
"""Of an entry: it was written to (Power ISA 3.1B, Book III, 6.7.10.2)."""
RECOVERABLE = 2
PACA = "r13"
_PAGE = leaf_entry.REGISTERS
_LOST = (_PAGE.address, _PAGE.record, _PAGE.entry, _PAGE.value, *_PAGE.lost)
_WORK = ("r0", *(f"r{number}" for number in range(3, 13)), CTR, XER, *(CR_FIELDS[number] for number in (0, 1, 5, 6, 7)))
_SCRATCH = Dead(True, frozenset(_WORK))
"""What a C function may change (ELFv2 ABI, 2.2.2); LR is where it returns to."""
_TAKES = re.compile(r"^mflr\s+(r\d+)")
_KEEPS = re.compile(r"^stdu?\s+(r\d+), -?(?:0x)?[\da-f]*\((r\d+)\)")


class _UserReturnEmitter(PowerEmitter):
    """See isa.user_returns.UserReturnEmitter."""

    def __init__(self, before: EntryState, place: int, returning: PowerReturning) -> None:
        super().__init__(before)
        self._place, self._page, self._traps = place, returning.page, returning.traps
        self._msr = ""

    def return_place(self, to: str, size: int, label: Label) -> None:
        self._code(number("addi", to, SP, self._keeping.depth + self._traps.registers[LR]))

    def stack_place(self, to: str, at: str, size: int, label: Label) -> None:
        others = [name for name in _LOST if name != to]
        free = [name for name in others if self.pool.reserve(name)]
        moved = {name: self.pool.allocate() for name in others if name not in free}
        for name, place in moved.items():
            self.copy(place, name)
        self._found(moved.get(at, at))
        self.copy(to, _PAGE.record)
        for name, place in moved.items():
            self.copy(name, place)
            self.pool.free(place)
        for name in free:
            self.pool.free(name)
        self.branch(Comparison.EQ, to, 0, False, label)

    def _found(self, at: str) -> None:
        """Emit: put into the register of the record the linear map's address of the word; 0 where there is none."""
        address, record, entry = _PAGE.address, _PAGE.record, _PAGE.entry
        low, other = self._page.bit_length() - 1, _PAGE.lost[0]
        framed, none, done = Label(), Label(), Label()
        self._uses(CR_FIELDS[0])
        self.copy(address, at)
        self._code(number("ld", record, PACA, simm(word_of(self._traps.place.stack.data))))
        self._code(number("ld", other, record, self._traps.registers[SP]), compare("cmpld", 0, other, address))
        self._jump(Comparison.NE, framed, 0)
        self._code(number("addi", record, record, self._traps.registers[LR]))
        self.jump(done)
        self.bind(framed)
        self._code(number("addi", address, address, LR_SAVE), plain("mflr", self._scratch()))
        self._items.append(FarBranch(self._place, link=True))
        self._code(plain("mtlr", self._scratch()))
        self._code(compare("cmpldi", 0, record, 1))
        self._jump(Comparison.LE, none, 0)
        self._code(plain("ldbrx", record, "r0", entry), logical("andi.", other, record, CHANGED))
        self._jump(Comparison.EQ, none, 0)
        self._code(rotate("rldicl", record, record, 0, 64 - LINEAR_BITS), rotate("rldicr", record, record, 0, 63 - low))
        self._code(rotate("rldicl", other, address, 0, 64 - low), logical("or", record, record, other))
        self._code(*load(int(other[1:]), LINEAR_MAP), logical("or", record, record, other))
        self.jump(done)
        self.bind(none)
        self.constant(record, 0)
        self.bind(done)

    def exchange(self, memory: Address, old: str, new: str, size: int) -> None:
        again, done = Label(), Label()
        with self._pointer(memory) as (base, index), self.pool.scratch() as value:
            self.bind(again)
            self._code(plain("ldarx", value, base, index))
            self._uses(CR_FIELDS[0])
            self._code(compare("cmpld", 0, value, old))
            self._jump(Comparison.NE, done, 0)
            self._stored(new, base, index, again)
            self.bind(done)

    def hold_interrupts(self) -> None:
        self._msr = self.pool.allocate()
        with self.pool.scratch() as off:
            self._code(plain("mfmsr", self._msr))
            self.constant(off, RECOVERABLE)
            self._code(plain("mtmsrd", off))

    def allow_interrupts(self) -> None:
        self._code(plain("mtmsrd", self._msr))
        self.pool.free(self._msr)


@dataclass(frozen=True)
class PowerReturning:
    """See isa.user_returns.UserReturning. traps: of the same kernel. page: the size of its pages."""

    traps: PowerUser
    page: int
    slot: str = "r8"
    arguments: tuple[str, str] = (ARGUMENTS[0], ARGUMENTS[1])
    scratch: Dead = _SCRATCH
    leaving: Leaving | None = None

    @property
    def sp(self) -> int:
        return self.traps.registers[SP]

    @property
    def also(self) -> tuple[int, ...]:
        """LR: a function returns by it."""
        return (self.traps.registers[LR],)

    def emitter(self, before: EntryState, place: int) -> TrampolineEmitter:
        return _UserReturnEmitter(before, place, self)

    def reads(self, code: Sequence[Insn]) -> bool:
        """Return whether the code keeps LR elsewhere than in its caller's frame: setjmp."""
        holds: set[str] = set()
        for insn in code:
            if insn.flow is not Flow.NEXT:
                return False
            if (taken := _TAKES.match(insn.text)) is not None:
                holds.add(taken[1])
            elif (kept := _KEEPS.match(insn.text)) is not None and kept[1] in holds and kept[2] != SP:
                return True
        return False

    def popped(self, size: int) -> int:
        return 0


def _(returning: PowerReturning) -> UserReturning:
    return returning
