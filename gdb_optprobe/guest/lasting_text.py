"""Text of a guest that is known from earlier boots: what was found out about it holds again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gdb_optprobe.guest.cache import Shelf


@dataclass(frozen=True, slots=True)
class LastingText:
    """The kernel's own text at `base` in this boot, `size` bytes.

    key:    a hash of all that is known of it but for its address: its bytes, its symbols, what the guest's tables say.
    shelf:  keeps facts by that key.
    read:   returns original bytes of it.
    covers: returns whether all that is known of the function around an address follows from what the key is made of.
    departs: returns the functions, ascending (start, end), of which that is not so in this boot, though it may have
            been in an earlier one with the same key.
    """

    base: int
    size: int
    key: str
    shelf: Shelf
    read: Callable[[int, int], bytes]
    covers: Callable[[int], bool]
    departs: Callable[[], Sequence[tuple[int, int]]]
