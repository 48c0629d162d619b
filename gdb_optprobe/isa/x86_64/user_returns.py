"""Return addresses of user programs on x86-64: the word that the stack pointer shows at a function's entry.

    writable ─► where the kernel may write that word; a page that is not there, or not written to yet, has none
"""

from __future__ import annotations

from ..emitter import Before, Label, Memory
from ..user_returns import UserReturnEmitter, UserReturning
from .abi import ARGUMENTS, CARRY, FLAGS
from .emitter import Emitter
from .encode import Relative
from .user import REGISTERS, USER

_BELOW = 2  # jb: CF, as `writable` leaves it
_LOST = ("rax", "rsi", "rdx", "r8", "r9", "r10", "r11")


class _Emitter(Emitter):
    """See ..user_returns.UserReturnEmitter."""

    def __init__(self, before: Before, writable: int) -> None:
        super().__init__(before)
        self._writable = writable

    def return_place(self, to: str, size: int, label: Label) -> None:
        with self._fixed((to,), *(name for name in _LOST if name != to)):
            self._extended("rax", Memory(USER.frame, REGISTERS["rsp"]), size, False)
            self.constant("rsi", size)
            self._items.append(Relative(b"\xe8" + bytes(4), 1, self._writable))
            self.pool.used |= {FLAGS, CARRY}
            self._jump(_BELOW, label)
            self.copy(to, "rax")


class _Returning:
    slot = "r9"
    sp = REGISTERS["rsp"]
    arguments = (ARGUMENTS[0], ARGUMENTS[1])
    scratch = USER.scratch

    def emitter(self, before: Before, writable: int) -> UserReturnEmitter:
        return _Emitter(before, writable)

    def popped(self, size: int) -> int:
        return size


RETURNING = _Returning()
_: UserReturning = RETURNING
