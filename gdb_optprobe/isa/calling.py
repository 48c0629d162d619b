"""Code that calls a function of the guest, for guest/native_call.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Thunk:
    """Code for one call. returned: the address at which the function has returned, its result in `Calling.result`.

    done: the address of the last instruction, a branch to `back`; all registers are there what they were before.
    """

    address: int
    data: bytes
    returned: int
    done: int
    back: int


class Calling(Protocol):
    """Makes thunks.

    pc, result: registers. arguments: how many it can pass.
    """

    pc: str
    result: str
    arguments: int

    def thunk(self, address: int, function: int, arguments: Sequence[int], back: int) -> Thunk:
        """Return code at `address` that calls function(arguments…) and jumps to `back`, all registers as before.

        Raises OutOfReach.
        """

    def giving(self, function: int, arguments: Sequence[int], cell: int, *, address: int, back: int) -> Thunk:
        """Return code as `thunk` does, that also writes the result into the word at `cell`."""

    def taking(self, function: int, arguments: Sequence[int], cell: int, *, address: int, back: int) -> Thunk:
        """Return code as `thunk` does, with one argument more before the others: the word at `cell`.

        It is exchanged for 0 before the call, so that of several such calls one has it.
        """
