"""Text of a guest that is known from earlier boots: what was found out about it holds again."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from gdb_optprobe.guest.cache import Shelf


@dataclass(frozen=True, slots=True)
class ShelvedText:
    """The kernel's own text at `base` in this boot, `size` bytes. shelf: keeps facts of kernels with these symbols.

    Its bytes may be other ones than those that a fact was found in.
    """

    base: int
    size: int
    shelf: Shelf


@dataclass(frozen=True, slots=True)
class LastingText:
    """The kernel's own text at `base` in this boot, `size` bytes.

    key:    a hash of all that is known of it but for its address: its bytes, its symbols, what the guest's tables say.
    shelf:  keeps facts by that key.
    read:   returns original bytes of it.
    covers: returns those of some addresses in functions of which all that is known follows from what the key is of.
    """

    base: int
    size: int
    key: str
    shelf: Shelf
    read: Callable[[int, int], bytes]
    covers: Callable[[Collection[int]], Collection[int]]
