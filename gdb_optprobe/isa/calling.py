"""What a native call of a guest's function needs of an instruction set: see guest/native_call.py for all of it."""

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
    """pc, result: registers. size: bytes that a thunk takes at most. arguments: how many it can pass.

    begins: what every thunk begins with.
    """

    pc: str
    result: str
    size: int
    arguments: int
    begins: bytes

    def thunk(self, address: int, function: int, arguments: Sequence[int], back: int) -> Thunk:
        """At `address`: calls function(arguments…) and goes on at `back`, every register as it was. Raises OutOfReach.
        """
