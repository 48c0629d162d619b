"""Return addresses of user programs on aarch64: x30, until a function puts it somewhere in its frame, maybe signed.

So no return address is replaced: a fork could not be given the real one where the table of calls has no room for its
copy. `ret` is a trap. Those that authenticate by themselves (`retaa`), or that return by another register, are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdb_optprobe.guest.linux.arch.aarch64.user_traps import REGISTERS, ArmUser
from gdb_optprobe.isa.aarch64.abi import ARGUMENTS, LR, SP
from gdb_optprobe.isa.aarch64.codegen import A64Emitter
from gdb_optprobe.isa.aarch64.encodings import number
from gdb_optprobe.isa.aarch64.fields import to_bytes
from gdb_optprobe.isa.base import Dead, Insn
from gdb_optprobe.isa.codegen import EntryState, Label
from gdb_optprobe.isa.user_returns import Leaving, UserReturnEmitter, UserReturning

_SCRATCH = Dead(True, frozenset(f"x{number}" for number in range(18)))
"""What a function may change (AAPCS64, 6.1.1)."""


class _UserReturnEmitter(A64Emitter):
    """See isa.user_returns.UserReturnEmitter."""

    def __init__(self, before: EntryState, frame: str) -> None:
        super().__init__(before)
        self._frame = frame

    def return_place(self, to: str, size: int, label: Label) -> None:
        self._code(number("addi", to, self._frame, REGISTERS[LR]))


@dataclass(frozen=True)
class ArmReturning:
    """See isa.user_returns.UserReturning. traps: of the same kernel."""

    traps: ArmUser
    slot: str = "x9"
    sp: int = REGISTERS[SP]
    also: tuple[int, ...] = ()
    arguments: tuple[str, str] = (ARGUMENTS[0], ARGUMENTS[1])
    scratch: Dead = _SCRATCH
    leaving: Leaving | None = Leaving(to_bytes(0xD65F_03C0), REGISTERS[LR])  # noqa: RUF009 (it is frozen)

    def emitter(self, before: EntryState, place: int) -> UserReturnEmitter:
        return _UserReturnEmitter(before, self.traps.frame)

    def reads(self, code: Sequence[Insn]) -> bool:
        """Return False: a function finds its own return address."""
        return False

    def popped(self, size: int) -> int:
        return 0


def _(returning: ArmReturning) -> UserReturning:
    return returning
