"""The active calls of a function, which have not returned yet: a table in guest memory; lock-free.

    ┌─────────┬────────┬─────────┐
    │ returns │ missed │ dropped │
    ├─────────┴────┬───┴─────────┴──┬─────────────┐
    │ key, 0: free │ return address │ saved words │  slot 0, of a power of two of bytes
    ├──────────────┼────────────────┼─────────────┤
    │ …            │                │             │  slot `slots` - 1
    ├──────────────┴────────────────┴─────────────┘
    │ 1 │  marks the end, for a session that adopts the table
    └───┘
A call's key is its stack address + 1: bit 0 claims a slot, the key at once or before it. The search begins at
`home(key)`, turns round at the end, and looks at every slot, or at the `window` of a large table: a call is missed only
if all those are taken. Calls with one key, by tail calls, are in the order of the search, the newest first; only the
context that owns this stack touches them. So a return takes the first that it finds. Calls that never returned can only
be behind it: they are recognised to free their slots, for no other reason.

`returns` lacks those that a program counts already: see Rethook.hits (probes/rethook.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile

from gdb_optprobe.maps.aggregate import decode, encode

WORD = 8
RETURNS, MISSED, DROPPED, SLOTS = 0, 8, 16, 24
"""Offsets."""
KEY, RETURN, SAVED = 0, 8, 16
"""Offsets in a slot."""
FACTOR, SHIFT = 0x61C8_8647, 26  # 2**32 less that / the golden ratio; bits from 26 on depend on all where stacks differ
FOLDED = 14  # bits of a kernel's stack, at least: those above are the stack's own
MASK = (1 << 64) - 1
PAGE = 4096
_LEAST_HOMES = 64  # that a page has, so that calls of a few threads rarely meet


class Homing(Enum):
    """How a key's home is found: what takes an ISA the fewest instructions.

    PRODUCT: bits of its product by a constant.
    FOLD:    its upper bits laid over the lower ones: with a stack of its own, or a depth of its own on one, each call
             has a home of its own.
    PAGE:    the same, of a table of usual size in a page that has all homes: the lowest bits are their number, and
             take the place of bits of its address.
    """

    PRODUCT = 0
    FOLD = 1
    PAGE = 2


@dataclass(frozen=True, slots=True)
class CallSlot:
    """A call. key: its stack address + 1. back: its return address. saved: the words that its entry saved."""

    key: int
    back: int
    saved: tuple[int, ...] = ()

    @property
    def at(self) -> int | None:
        """Return the stack address; None while it is not known yet."""
        return self.key - 1 or None


@dataclass(frozen=True, slots=True)
class CallCounts:
    """Calls that are not active any more. missed: found no slot. dropped: never return."""

    returns: int = 0
    missed: int = 0
    dropped: int = 0

    def __add__(self, more: CallCounts) -> CallCounts:
        return CallCounts(self.returns + more.returns, self.missed + more.missed, self.dropped + more.dropped)


@dataclass(frozen=True, slots=True)
class CallTable(CallCounts):
    """The contents of a table. active: the active calls, with those that are being entered now (key 1)."""

    active: tuple[CallSlot, ...] = ()


class CallSlots(ABC):
    """The slots of a table of calls, the kernel's or that of user programs, and the hash by which a call is found."""

    @property
    @abstractmethod
    def first(self) -> int:
        """Return the offset of the first slot."""

    @property
    @abstractmethod
    def slot_size(self) -> int:
        """Return the size of a slot: a power of two."""

    @property
    @abstractmethod
    def homes(self) -> int:
        """Return how many slots searches may begin at: a power of two."""

    @property
    @abstractmethod
    def end(self) -> int:
        """Return the offset behind the last slot."""

    @property
    def size(self) -> int:
        return self.end + WORD

    def initial(self) -> bytes:
        """Encode a table without calls."""
        return bytes(self.end) + encode((1,))

    def home(self, key: int) -> int:
        """Return the number of the slot where the search for a key begins."""
        return (key * FACTOR & MASK) >> SHIFT & self.homes - 1


@dataclass(frozen=True, slots=True)
class CallTableLayout(CallSlots):
    """slots: how many calls there is room for, at least 1. saved: words saved of each.

    window: how many slots an entry looks at; 0 for all. homing: of the ISA.
    """

    slots: int = 512
    saved: int = 0
    window: int = 0
    homing: Homing = Homing.PRODUCT

    @property
    def looked_at(self) -> int:
        """Return how many slots an entry looks at before its call is missed."""
        return min(self.window or self.slots, self.slots)

    @property
    def first(self) -> int:
        return SLOTS

    @property
    def slot_size(self) -> int:
        return 1 << (SAVED + WORD * self.saved - 1).bit_length()

    @property
    def homes(self) -> int:
        every = 1 << self.slots.bit_length() - 1
        return min(every, PAGE // self.slot_size) if self.is_paged else every

    @property
    def is_paged(self) -> bool:
        """Return whether the homes are in a page: a large table has more of them."""
        is_usual = not self.window and self.slots <= PAGE // WORD and self.slot_size * _LEAST_HOMES <= PAGE
        return self.homing is Homing.PAGE and is_usual

    @property
    def aligned(self) -> int:
        """Return what the address of the first slot is to be a multiple of."""
        if self.is_paged:
            return self.homes * self.slot_size
        return WORD if self.homing is Homing.PRODUCT else 2 * WORD

    @property
    def end(self) -> int:
        return SLOTS + self.slots * self.slot_size

    @property
    def fold(self) -> int:
        """Return by how many bits `home` moves the upper bits: those of the stack come to the lowest of its number."""
        return FOLDED if self.is_paged else max(FOLDED + 1 - self.slot_size.bit_length(), 1)

    def home(self, key: int) -> int:
        if self.homing is Homing.PRODUCT:
            return CallSlots.home(self, key)
        folded = key ^ key >> self.fold
        return (folded if self.is_paged else folded // self.slot_size) & self.homes - 1

    def search(self, key: int) -> Iterator[int]:
        """Yield the offsets of the slots that a call with the key may have, in the order of the search."""
        first = self.home(key)
        return (SLOTS + (first + step) % self.slots * self.slot_size for step in range(self.looked_at))

    def decode(self, data: bytes) -> CallTable:
        """Decode a table's memory."""
        returns, missed, dropped = decode(data[:SLOTS])
        return CallTable(returns, missed, dropped, tuple(self.slot(data, at) for at in self.taken_slots(data)))

    def taken_slots(self, data: bytes) -> Sequence[int]:
        """Return the offsets of the slots that are not free."""
        keys = memoryview(data[SLOTS : self.end]).cast("Q")[:: self.slot_size // WORD]
        return [SLOTS + self.slot_size * number for number, key in enumerate(keys) if key]

    def find(self, data: bytes, key: int) -> tuple[CallSlot, ...]:
        """Return the calls with this key, the newest first."""
        return tuple(slot for at in self.search(key) if (slot := self.slot(data, at)).key == key)

    def enter(self, data: bytes, new: CallSlot, alive: bool) -> tuple[bytes, bool]:
        """Return the table after a call was entered, and whether there was room; as the guest itself does it.

        alive: earlier calls with the same key are still active: the call returns to one of our trampolines. Otherwise
        they are dead, and are dropped up to the first free slot.
        """
        places = list(self.search(new.key))
        if not alive:
            for at in self._before_free(data, places):
                if self.slot(data, at).key == new.key:
                    data = _added(self._with(data, at, CallSlot(0, 0)), DROPPED, 1)
        taken = self._before_free(data, places)
        if len(taken) == len(places):
            return _added(data, MISSED, 1), False
        hole = places[len(taken)]
        for at in reversed(taken):
            if self.slot(data, at).key == new.key:
                data, hole = self._with(data, hole, self.slot(data, at)), at
        return self._with(data, hole, new), True

    def remove(self, data: bytes, key: int) -> bytes:
        """Return the table without the newest call with this key, as if it had not been entered."""
        for at in self.search(key):
            if self.slot(data, at).key == key:
                return self._with(data, at, CallSlot(0, 0))
        return data

    def drop(self, data: bytes, keys: Collection[int]) -> bytes:
        """Return the table without all calls that have one of these keys: they never return."""
        for at in self.taken_slots(data):
            if self.slot(data, at).key in keys:
                data = _added(self._with(data, at, CallSlot(0, 0)), DROPPED, 1)
        return data

    def miss(self, data: bytes, calls: int = 1) -> bytes:
        """Return the table after `calls` more calls with returns that cannot be seen."""
        return _added(data, MISSED, calls)

    def _before_free(self, data: bytes, places: Sequence[int]) -> Sequence[int]:
        return list(takewhile(lambda at: self.slot(data, at).key, places))

    def slot(self, data: bytes, at: int = 0) -> CallSlot:
        """Decode the slot at that offset."""
        key, back, *saved = decode(data[at : at + SAVED + WORD * self.saved])
        return CallSlot(key, back, tuple(saved))

    def _with(self, data: bytes, at: int, slot: CallSlot) -> bytes:
        saved = (*slot.saved, *(0,) * self.saved)[: self.saved]
        words = encode((slot.key, slot.back, *saved))
        return data[:at] + words + data[at + len(words) :]


def changes(before: bytes, after: bytes) -> Sequence[tuple[int, bytes]]:
    """Return (offset, bytes) of the words that differ."""
    places = range(0, len(after), WORD)
    return [(at, after[at : at + WORD]) for at in places if before[at : at + WORD] != after[at : at + WORD]]


def _added(data: bytes, at: int, count: int) -> bytes:
    (word,) = decode(data[at : at + WORD])
    return data[:at] + encode((word + count,)) + data[at + WORD :]
