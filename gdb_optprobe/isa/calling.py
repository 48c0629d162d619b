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

    def thunk(
        self,
        address: int,
        function: int,
        arguments: Sequence[int],
        back: int,
        takes: int | None = None,
        gives: int | None = None,
    ) -> Thunk:
        """Return code at `address` that calls function(arguments…) and jumps to `back`, all registers as before.

        takes: the address of a word that is an argument more before the others. It is exchanged for 0 before the call,
               so that of several such calls one has it.
        gives: that of a word into which the result is written.

        Raises OutOfReach.
        """
