"""Return addresses of user programs on x86-64: the word that the stack pointer shows at a function's entry.

    writable ─► where the kernel may write that word; a page that is not there, or not written to yet, has none
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gdb_optprobe.guest.linux.arch.x86_64.user_traps import REGISTERS, USER
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.codegen import Address, Comparison, EntryState, Label
from gdb_optprobe.isa.user_returns import Leaving, TrampolineEmitter, UserReturning
from gdb_optprobe.isa.x86_64.abi import ARGUMENTS, CARRY, FLAGS
from gdb_optprobe.isa.x86_64.codegen import X86Emitter, moved
from gdb_optprobe.isa.x86_64.encoder import LOCK, Relative

_NOT_BELOW = 3  # jae: CF clear, as `writable` leaves it where it has found the place
_READS = re.compile(r"^pop(?!cnt)|^push\w? +(0x0)?\(%[re]sp\)|^mov\w? +(0x0)?\(%[re]sp\), *%")
_MOVES_STACK = re.compile(r"^(push|enter|leave)|, *%[re]sp$")
_LOST = ("rax", "rsi", "rdx", "r8", "r9", "r10", "r11")


class _UserReturnEmitter(X86Emitter):
    """See isa.user_returns.UserReturnEmitter."""

    def __init__(self, before: EntryState, place: int) -> None:
        super().__init__(before)
        self._place = place

    def return_place(self, to: str, size: int, label: Label) -> None:
        with self._fixed((to,), *(name for name in _LOST if name != to)):
            self._extended("rax", Address(USER.frame, REGISTERS["rsp"]), size, False)
            self._find(to, size)
        self.branch(Comparison.EQ, to, 0, False, label)

    def stack_place(self, to: str, at: str, size: int, label: Label) -> None:
        with self._fixed((to,), *(name for name in _LOST if name != to)) as places:
            self.copy("rax", places.get(at, at))
            self._find(to, size)
        self.branch(Comparison.EQ, to, 0, False, label)

    def _find(self, to: str, size: int) -> None:
        """Put into `to` the address at which the kernel may write the user's memory at rax; 0 where there is none."""
        found = Label()
        self.constant("rsi", size)
        self._items.append(Relative(b"\xe8" + bytes(4), 1, self._place))
        self.pool.used |= {FLAGS, CARRY}
        self.copy(to, "rax")
        self._jump(_NOT_BELOW, found)
        self.constant(to, 0)
        self.bind(found)

    def exchange(self, memory: Address, old: str, new: str, size: int) -> None:
        with self._fixed((), "rax") as places:
            at = moved(memory, places)
            value = places.get(new, new)
            self.copy("rax", places.get(old, old))
            self._alter(b"\x0f\xb1", value, at, size, prefix=LOCK)  # cmpxchg

    def hold_interrupts(self) -> None:
        self._push(FLAGS)
        self._code(b"\xfa")  # cli

    def allow_interrupts(self) -> None:
        self._pop(FLAGS)


class _Returning:
    slot = "r9"
    sp = REGISTERS["rsp"]
    also: tuple[int, ...] = ()
    arguments = (ARGUMENTS[0], ARGUMENTS[1])
    scratch = USER.scratch
    leaving: Leaving | None = None

    def emitter(self, before: EntryState, place: int) -> TrampolineEmitter:
        return _UserReturnEmitter(before, place)

    def reads(self, code: Sequence[Insn]) -> bool:
        """Return whether the code reads its return address before it pushes: setjmp, vfork, PIC code that reads its own
        PC.
        """
        for insn in code:
            if _READS.search(insn.text):
                return True
            if insn.flow is not Flow.NEXT or _MOVES_STACK.search(insn.text):
                return False
        return False

    def popped(self, size: int) -> int:
        return size


RETURNING = _Returning()
_: UserReturning = RETURNING
