"""Calls in user programs that have not returned yet: one table for all of them, in guest memory; lock-free.

    ┌──────────────┬────┬────────────────┬──────┬───────┬────────────┬─────────────┐
    │ key, 0: free │ mm │ return address │ code │ point │ trampoline │ saved words │  slot 0
    ├──────────────┼────┼────────────────┼──────┼───────┼────────────┼─────────────┤
    │ …            │    │                │      │       │            │             │  slot `slots` - 1
    ├──────────────┴────┴────────────────┴──────┴───────┴────────────┴─────────────┘
    │ 1 │  where it ends is seen by a session that finds it left by an earlier one
    └───┘
A call's key is twice its stack address + 1: bit 0 claims a slot, and a slot that is 1 is being filled. With the address
space it names one call, or several by tail calls: they stand in the order of the search, the newest first. A search
begins at `home` and walks on to the end. code is what its return comes to; trampoline is what stands in place of its
return address, which may be that too, another call's; point is where its function is counted:

    │ returns │ missed │ dropped │ active │ bytes of a word │ 1 │
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gdb_optprobe.maps.aggregate import decode, encode
from gdb_optprobe.maps.call_table import FACTOR, MASK, SHIFT

WORD = 8
KEY, SPACE, RETURN, CODE, POINT, TRAMPOLINE, SAVED = 0, 8, 16, 24, 32, 40, 48
"""Offsets in a slot."""
SLOT = 128
MOST_SAVED = (SLOT - SAVED) // WORD
RETURNS, MISSED, DROPPED, ACTIVE, SIZE = 0, 8, 16, 24, 32
"""Offsets in a point."""
BEING_FILLED = 1


@dataclass(frozen=True, slots=True)
class UserCallSlot:
    """at: the address on the user's stack; None while that is not known yet. mm: whose stack."""

    at: int | None
    mm: int
    back: int
    code: int
    point: int
    trampoline: int


@dataclass(frozen=True, slots=True)
class CallCounters:
    """The counts of one function's calls."""

    returns: int = 0
    missed: int = 0
    dropped: int = 0
    active: int = 0

    @classmethod
    def decode(cls, data: bytes) -> CallCounters:
        return cls(*decode(data[: 4 * WORD]))


COUNTERS_SIZE = 6 * WORD


def initial_counters(size: int) -> bytes:
    """Before the first call. size: of the program's words."""
    return bytes(4 * WORD) + encode((size, 1))


@dataclass(frozen=True, slots=True)
class UserCallTableLayout:
    """slots: how many calls there is room for, a power of two, at least 2."""

    slots: int

    @property
    def homes(self) -> int:
        """Where searches may begin: the first half, so that each has the other half to walk on in."""
        return self.slots // 2

    @property
    def end(self) -> int:
        """Offset behind the last slot."""
        return self.slots * SLOT

    @property
    def size(self) -> int:
        return self.end + WORD

    def initial(self) -> bytes:
        return bytes(self.end) + encode((1,))

    def home(self, key: int, mm: int) -> int:
        """The slot where the search for a key begins."""
        return ((key + mm) * FACTOR & MASK) >> SHIFT & self.homes - 1

    def calls(self, data: bytes) -> Iterator[UserCallSlot]:
        """Those under way, in the order of their slots."""
        return (call for _, call in self.places(data))

    def places(self, data: bytes) -> Iterator[tuple[int, UserCallSlot]]:
        """The same with the offsets of their slots."""
        for at in range(0, self.end, SLOT):
            key, mm, back, code, point, trampoline = decode(data[at : at + SAVED])
            if key:
                yield at, UserCallSlot(key >> 1 if key != BEING_FILLED else None, mm, back, code, point, trampoline)
