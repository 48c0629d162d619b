"""The active calls of all user programs, which have not returned yet: one table in guest memory; lock-free.

    ┌──────────────┬────┬────────────────┬──────┬──────────┬────────────┬─────────────┐
    │ key, 0: free │ mm │ return address │ code │ counters │ trampoline │ saved words │  slot 0
    ├──────────────┼────┼────────────────┼──────┼──────────┼────────────┼─────────────┤
    │ …            │    │                │      │          │            │             │  slot `slots` - 1
    ├──────────────┴────┴────────────────┴──────┴──────────┴────────────┴─────────────┘
    │ 1 │  marks the end, for a session that adopts the table
    └───┘
A call's key is twice its stack address + 1: bit 0 claims a slot, and a slot with the key 1 is being filled. Key and
address space name one call, or several by tail calls, in the order of the search, the newest first. A search runs from
`home` to the end. code: runs at the return. trampoline: replaces the return address, which may itself be the trampoline
of another call. counters: the address of those of the function:

    │ returns │ missed │ dropped │ active │ bytes of a word │ 1 │
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gdb_optprobe.maps.aggregate import decode, encode
from gdb_optprobe.maps.call_table import CallCounts, CallSlots

WORD = 8
KEY, SPACE, RETURN, CODE, COUNTERS, TRAMPOLINE, SAVED = 0, 8, 16, 24, 32, 40, 48
"""Offsets in a slot."""
SLOT = 128
MOST_SAVED = (SLOT - SAVED) // WORD
RETURNS, MISSED, DROPPED, ACTIVE, SIZE = 0, 8, 16, 24, 32
"""Offsets in the counters of a function."""
BEING_FILLED = 1


@dataclass(frozen=True, slots=True)
class UserCallSlot:
    """A call. at: the address on its stack; None while that is not known yet. mm: the address space of the stack."""

    at: int | None
    mm: int
    back: int
    code: int
    counters: int
    trampoline: int


@dataclass(frozen=True, slots=True)
class CallCounters(CallCounts):
    """The counters of one function's calls. active: how many are active."""

    active: int = 0

    @classmethod
    def decode(cls, data: bytes) -> CallCounters:
        return cls(*decode(data[: 4 * WORD]))


COUNTERS_SIZE = 6 * WORD


def initial_counters(size: int) -> bytes:
    """Encode the counters before the first call. size: of the program's words."""
    return bytes(4 * WORD) + encode((size, 1))


@dataclass(frozen=True, slots=True)
class UserCallTableLayout(CallSlots):
    """slots: how many calls there is room for, a power of two, at least 2."""

    slots: int

    @property
    def first(self) -> int:
        return 0

    @property
    def slot_size(self) -> int:
        return SLOT

    @property
    def homes(self) -> int:
        return self.slots // 2  # so that each search, which ends with the table, has the other half

    @property
    def end(self) -> int:
        return self.slots * SLOT

    def calls(self, data: bytes) -> Iterator[UserCallSlot]:
        """Yield the active calls, in the order of their slots."""
        return (call for _, call in self.places(data))

    def places(self, data: bytes) -> Iterator[tuple[int, UserCallSlot]]:
        """Yield the active calls with the offsets of their slots."""
        for at in range(0, self.end, SLOT):
            key, mm, back, code, counters, trampoline = decode(data[at : at + SAVED])
            if key:
                yield at, UserCallSlot(key >> 1 if key != BEING_FILLED else None, mm, back, code, counters, trampoline)
