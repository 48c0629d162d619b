"""What runs before the kernel's handler of breakpoint traps: a trap of ours in a user's program has its code run.

    trap ──► the kernel's entry code ──► here ── the kernel's own, or not in the table ──► the kernel's handler
                                          └──── ours ──► the probe's code ──► back: the trap is over
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.handlers.lowering_search import Slots, following, home
from gdb_optprobe.handlers.lowering_words import Words
from gdb_optprobe.handlers.program import Expr
from gdb_optprobe.isa.code import Code, joined
from gdb_optprobe.isa.emitter import Arithmetic, Before, Emitter, Label, Memory, Pool, Readers, Test, Value
from gdb_optprobe.isa.user import UserTrapping
from gdb_optprobe.objects.traps import FACTOR, SHIFT
from gdb_optprobe.objects.user_traps import CODE, INODE, OFFSET, SLOT, UserTrapsLayout


@dataclass(frozen=True, slots=True)
class Running:
    """How the program that runs is known. mm: an expression of its address space; offsets in that, and in a file.

    file: of the file that is run, which may be 0. start: of the address at which the program's code starts.
    """

    mm: Expr
    file: int
    start: int
    inode: int


@dataclass(frozen=True, slots=True)
class UserTraps:
    """A table of traps in guest memory, at `address`."""

    layout: UserTrapsLayout
    address: int

    @property
    def slots(self) -> Slots:
        end = self.address + self.layout.size
        return Slots(self.address, end, SLOT, self.layout.slots, FACTOR, SHIFT)


def handler(traps: UserTraps, running: Running, kernels: int, isa: UserTrapping) -> Code:
    """kernels: its own handler."""
    emit = _emitter(isa, None)
    again, other, found, foreign, go_on = (Label() for _ in range(5))
    emit.branch_bits(isa.mode, isa.user, False, foreign)
    key, inode, slot, word = (emit.pool.take() for _ in range(4))
    Words(emit, ("", 0)).into(word, running.mm)
    emit.load(key, Value(Memory(isa.frame, isa.pc)))
    emit.load(inode, Value(Memory(word, running.start)))
    emit.binary(Arithmetic.SUB, key, key, inode, 64, False)
    emit.load(inode, Value(Memory(word, running.file)))
    emit.branch(Test.EQ, inode, 0, False, foreign)
    emit.load(inode, Value(Memory(inode, running.inode)))
    home(emit, traps.slots, key, slot, word)
    emit.mark(again)
    emit.load(word, Value(Memory(slot, INODE)))
    emit.branch(Test.EQ, word, inode, False, found)
    emit.branch(Test.EQ, word, 0, False, foreign)
    emit.mark(other)
    following(emit, traps.slots, slot)
    emit.jump(again)
    emit.mark(foreign)
    emit.leave((), kernels)
    emit.mark(found)
    emit.load(word, Value(Memory(slot, OFFSET)))
    emit.branch(Test.EQ, word, key, False, go_on)
    emit.jump(other)
    emit.mark(go_on)
    emit.load(word, Value(Memory(slot, CODE)))
    return joined((emit.finish, lambda at: isa.go_to(word)))


def gone(kernels: int, readers: Readers, isa: UserTrapping) -> Code:
    """The code of a trap that is taken away: what stands there now is run, or is a trap of somebody else's."""
    emit = _emitter(isa, readers)
    foreign, back = Label(), Label()
    pc, word = emit.pool.take(), emit.pool.take()
    emit.load(pc, Value(Memory(isa.frame, isa.pc)))
    emit.binary(Arithmetic.SUB, pc, pc, len(isa.trap), 64, False)
    emit.peek(word, pc, len(isa.trap), foreign)
    emit.extend(word, word, 8 * len(isa.trap), False)
    emit.branch(Test.NE, word, int.from_bytes(isa.trap, "little"), False, back)
    emit.mark(foreign)
    emit.leave((), kernels)
    emit.mark(back)
    emit.store(Memory(isa.frame, isa.pc), pc)
    return joined((emit.finish, lambda at: isa.back))


def _emitter(isa: UserTrapping, readers: Readers | None) -> Emitter:
    before = Before(isa.scratch, frozenset((isa.frame,)), readers=readers)
    emit = isa.emitter(before)
    emit.pool = Pool([name for name in isa.order(before) if name in isa.scratch.registers and name != isa.frame])
    return emit
