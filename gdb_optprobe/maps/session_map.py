"""A map of the session in guest memory: what scripts keep by key; lock-free, of fixed size.

    ┌──────┬──────┬─────────┬──────┐
    │ used │ keys │ dropped │ free │  used: entries given out; keys: in the index; free: a list, its version above
    ├──────┴───┬──┴────┬────┴──────┴──┐
    │ key word…│ state │ value word … │  entry 0       a stored value of one word has no state: see ABSENT
    ├──────────┼───────┼──────────────┤
    │ …        │       │              │  `most` entries, and SPARE more for hits that are adding a key
    ├──────────┴───────┴──────────────┤
    │ tag ^ number of an entry, or 0  │  the index: 2**bits places that a hash can lead to,
    │ …                               │  and TAIL more, so that a search need not turn round
    └─────────────────────────────────┘
A scalar is the header and one entry without a key, there from the beginning.

**Finding a key.** Its hash gives a tag, with the low ENTRY_BITS all set, and the place where the search begins. A word
of the index that differs from the tag in these bits alone names an entry; its key is then compared. A word that is 0
ends the search. Once it is not 0, a word of the index never changes, so a key is always found in the same place, and
nothing that a hit holds while it is interrupted can become another key's.

**Adding one.** A hit takes an entry that no other hit can reach, writes the key, and then puts its number into the free
word of the index by compare-and-swap. If another hit was faster, it gives the entry back, by compare-and-swap too, to
the list of free ones, and the search continues at this word. The head of that list counts its changes, so that a hit
which was interrupted notices. So a key is in the index once, whole from its first instant on; no hit waits for an
interrupted one, and no entry is lost. Entries have their initial value from the beginning. A key that finds `most`
others in the index is dropped and counted; of several that are added at the same instant, all may get in.

**Removing one** removes the value and leaves the key: a key that comes back finds its entry again, and a hit that is in
the middle of a change of that entry does no harm. Keys without a value are freed by the host, which writes the whole
map anew while no thread is inside a program that uses it.

**Values.** A stored word is there unless it is ABSENT; so storing it, reading it and removing it are one instruction
each, whatever other hits do. (The one word that cannot be stored is dropped and counted.) Other stored values have a
state, 1 where they are there, written after them. An aggregate is there if its words are not the initial ones, or if
its state is 1, which a sum sets (it may be 0) and the host, when it sets values to 0 but keeps the keys. That something
was seen by `Least` and `Greatest` is stored only where the value is the initial one: else a hit that is interrupted
before it stores that would bring back a key that was removed meanwhile, without its value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from gdb_optprobe.maps.aggregate import MASK, Aggregate, Greatest, Least, decode, encode, initial

WORD = 8
USED, KEYS, DROPPED, FREE, HEADER = 0, 8, 16, 24, 32
"""Offsets."""
ABSENT = 0xA5EB_3C0F_96D2_784B
"""Odd, and neither a pointer, a small number, a time nor text."""
ENTRY_BITS = 20
ENTRY_MASK = (1 << ENTRY_BITS) - 1
SPARE, TAIL = 64, 64
MOST = 1 << ENTRY_BITS - 1
FACTOR = 0x9E37_79B9_7F4A_7C15  # as of hash_map.py


class Memory(Protocol):
    """Bytes that can be read piece by piece: `bytes`, or the guest's."""

    def __getitem__(self, part: slice, /) -> bytes | bytearray: ...


class ChangedMemory(Memory, Protocol):
    """Those that can be written too."""

    def __setitem__(self, part: slice, data: bytes, /) -> None: ...


@dataclass(frozen=True, slots=True)
class SessionMapContents:
    """by_key: the words of each key that has a value. dropped: insertions that found no room. entries: given out."""

    by_key: Mapping[bytes, tuple[int, ...]]
    dropped: int
    entries: int


@dataclass(frozen=True, slots=True)
class SessionMapLayout:
    """key_words: 0 for a scalar. value: an aggregate, or how many words are stored. most: keys, at most MOST."""

    key_words: int
    value: Aggregate | int
    most: int = 4096

    @property
    def value_words(self) -> int:
        return self.value if isinstance(self.value, int) else self.value.words

    @property
    def has_state(self) -> bool:
        return self.value != 1

    @property
    def state(self) -> int:
        """Return the offset of the state in an entry."""
        return WORD * self.key_words

    @property
    def value_offset(self) -> int:
        """Return the offset of the value in an entry."""
        return WORD * (self.key_words + self.has_state)

    @property
    def entry_size(self) -> int:
        return self.value_offset + WORD * self.value_words

    @property
    def entries(self) -> int:
        return self.most + SPARE if self.key_words else 1

    @property
    def bits(self) -> int:
        """Return of how many bits a place in the index is: the index is at most half full."""
        return max(2, (2 * self.most - 1).bit_length())

    @property
    def places(self) -> int:
        return (1 << self.bits) + TAIL if self.key_words else 0

    @property
    def index(self) -> int:
        """Return the offset of the index."""
        return HEADER + self.entries * self.entry_size

    @property
    def size(self) -> int:
        return self.index + WORD * self.places

    @property
    def initial_words(self) -> tuple[int, ...]:
        """Return the words of a value that is not there."""
        if not isinstance(self.value, int):
            return initial(self.value)
        return (ABSENT,) if self.value == 1 else (0,) * self.value

    def initial(self) -> bytes:
        return bytes(HEADER) + self._unused() * self.entries + bytes(WORD * self.places)

    def _unused(self) -> bytes:
        return bytes(self.value_offset) + encode(self.initial_words)

    def hash(self, key: bytes) -> tuple[int, int]:
        """Return the tag of a key, and the place where the search for it begins."""
        first, *others = decode(key)
        mixed = first
        for word in others:
            mixed = mixed * FACTOR & MASK ^ word
        mixed = mixed * FACTOR & MASK
        return mixed | ENTRY_MASK, mixed >> 64 - self.bits

    def used(self, data: Memory) -> int:
        """Return how many entries are given out. data: the header at least."""
        return min(int.from_bytes(data[USED : USED + WORD], "little"), self.entries) if self.key_words else 1

    def read_size(self, header: Memory) -> int:
        """Return how much of the memory `decode` needs: the header and the entries that are given out."""
        return HEADER + self.used(header) * self.entry_size

    def decode(self, data: Memory, before: Memory | None = None) -> SessionMapContents:
        """Decode the memory, at least `read_size` bytes of it.

        before: the same a moment earlier, where the guest runs. A key counts that had a value then, so that it was
        whole, and is the same now.
        """
        found = {}
        for at in self._used_entries(data if before is None else before):
            words, key = self._value(data, at), bytes(data[at : at + WORD * self.key_words])
            if words is None:
                continue
            if before is None or (self._value(before, at) is not None and before[at : at + len(key)] == key):
                found[key] = words
        return SessionMapContents(found, int.from_bytes(data[DROPPED : DROPPED + WORD], "little"), self.used(data))

    def _used_entries(self, data: Memory) -> Iterator[int]:
        """Yield the offsets of the entries that are given out."""
        return (HEADER + number * self.entry_size for number in range(self.used(data)))

    def _value(self, data: Memory, at: int) -> tuple[int, ...] | None:
        """Return the words of the entry at an offset; None if it has no value."""
        words = decode(data[at + self.value_offset : at + self.entry_size])
        state = data[at + self.state : at + self.state + 1] != b"\0" if self.has_state else False
        if isinstance(self.value, int):
            return words if (state if self.has_state else words[0] != ABSENT) else None
        if not (state or words != self.initial_words):
            return None
        is_extreme = isinstance(self.value, Least | Greatest) and words[0] != self.initial_words[0]
        return (words[0], 1) if is_extreme else words

    def zeroed(self, data: bytes) -> bytes:
        """Return the start of the memory, as read, with initial values for all keys that have one: `zero`."""
        return self._with_values(data, keep=True)

    def cleared(self, data: bytes) -> bytes:
        """Return the start of the memory, as read, without values: a hit that is changing an entry finds it again."""
        return self._with_values(data, keep=False)

    def _with_values(self, data: bytes, keep: bool) -> bytes:
        changed = bytearray(data)
        for at in self._used_entries(data):
            shown = keep and self._value(data, at) is not None
            zero = (0,) if self.value == 1 and shown else self.initial_words
            state = encode((int(shown),)) if self.has_state else b""
            changed[at + self.state : at + self.entry_size] = state + encode(zero)
        changed[DROPPED : DROPPED + WORD] = bytes(WORD)
        return bytes(changed)

    def find(self, data: Memory, key: bytes) -> int | None:
        """Return the offset of the entry of a key; None if it has none. data: all of the memory."""
        if not self.key_words:
            return HEADER
        place = self._place(data, key)
        return None if place is None else self._named(data, place, self.hash(key)[0])

    def _place(self, data: Memory, key: bytes) -> int | None:
        """Return the offset of the word of the index that is the key's, or the free one that it would get."""
        tag, home = self.hash(key)
        for place in range(home, self.places):
            at = self.index + WORD * place
            entry = self._named(data, at, tag)
            if entry is not None and data[entry : entry + len(key)] == key:
                return at
            if data[at : at + WORD] == bytes(WORD):
                return at
        return None

    def _named(self, data: Memory, at: int, tag: int) -> int | None:
        """Return the offset of the entry that a word of the index names; None if that has another tag, or is 0."""
        number = int.from_bytes(data[at : at + WORD], "little") ^ tag
        return HEADER + number * self.entry_size if number < self.entries else None

    def get(self, data: Memory, key: bytes) -> tuple[int, ...] | None:
        """Return the words of a key; None if it has no value."""
        at = self.find(data, key)
        return None if at is None else self._value(data, at)

    def put(self, data: ChangedMemory, key: bytes, words: tuple[int, ...]) -> bool:
        """Set the words of a key as the guest does it; return whether there was room. What finds none is counted."""
        at = self.find(data, key)
        if at is None:
            at = self._add(data, key)
        if at is None or (self.value == 1 and words[0] == ABSENT):
            self._count(data, DROPPED)
            return False
        state = encode((1,)) if self.has_state else b""
        data[at + self.state : at + self.entry_size] = state + encode(words)
        return True

    def _add(self, data: ChangedMemory, key: bytes) -> int | None:
        """Give a key an entry; return its offset, None where there is no room."""
        place, (used, keys, _, free) = self._place(data, key), decode(data[:HEADER])
        first = free & ENTRY_MASK
        number = first - 1 if first else used
        if place is None or keys >= self.most or number >= self.entries:
            return None
        at = HEADER + number * self.entry_size
        if first:
            following = int.from_bytes(data[at : at + WORD], "little") & ENTRY_MASK
            data[FREE : FREE + WORD] = encode(((free | ENTRY_MASK) + 1 + following & MASK,))
        else:
            self._count(data, USED)
        self._count(data, KEYS)
        data[at : at + len(key)] = key
        data[place : place + WORD] = encode((self.hash(key)[0] ^ number,))
        return at

    @staticmethod
    def _count(data: ChangedMemory, at: int) -> None:
        data[at : at + WORD] = encode((int.from_bytes(data[at : at + WORD], "little") + 1,))

    def delete(self, data: ChangedMemory, key: bytes) -> bool:
        """Remove the value of a key; return whether it had one."""
        at = self.find(data, key)
        if at is None or self._value(data, at) is None:
            return False
        data[at + self.state : at + self.entry_size] = bytes(WORD * self.has_state) + encode(self.initial_words)
        return True


@dataclass(frozen=True, slots=True)
class SessionMap:
    """All of a map's memory, to be read and changed while the guest is stopped: implements interpreter.MapContents.

    runs: whether the guest runs; then it is only read, by `contents`.
    """

    layout: SessionMapLayout
    data: ChangedMemory
    runs: bool = False

    def get(self, key: bytes) -> tuple[int, ...] | None:
        return self.layout.get(self.data, key)

    def put(self, key: bytes, words: tuple[int, ...]) -> bool:
        return self.layout.put(self.data, key, words)

    def delete(self, key: bytes) -> bool:
        return self.layout.delete(self.data, key)

    def all_keys(self) -> list[bytes]:
        return [*self.contents().by_key]

    def contents(self) -> SessionMapContents:
        """Return all that the map has, read in two pieces."""
        before = self.head() if self.runs else None
        return self.layout.decode(self.head(), before)

    def head(self) -> bytes:
        """Return the header and the entries that are given out."""
        return bytes(self.data[: self.layout.read_size(self.data[:HEADER])])

    def clear(self) -> None:
        """Remove all values; the keys keep their entries, for a hit that is changing one."""
        self._write(self.layout.cleared(self.head()))

    def zero(self) -> None:
        """Set the values of all keys to 0, or to what they were before the first hit."""
        self._write(self.layout.zeroed(self.head()))

    @property
    def is_half_full(self) -> bool:
        """Whether half of the entries are given out; a scalar's one entry is no matter."""
        return bool(self.layout.key_words) and 2 * self.layout.used(self.data[:HEADER]) > self.layout.most

    def reclaim(self) -> None:
        """Free the entries of keys without a value. No thread may be inside a program that uses the map."""
        anew = bytearray(self.layout.initial())
        found = self.contents()
        for key, words in found.by_key.items():
            self.layout.put(anew, key, words)
        anew[DROPPED : DROPPED + WORD] = encode((found.dropped,))
        self.data[: len(anew)] = bytes(anew)

    def _write(self, head: bytes) -> None:
        self.data[USED + WORD : len(head)] = head[USED + WORD :]
