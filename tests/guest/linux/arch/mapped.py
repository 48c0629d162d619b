"""A Unicorn processor that sees only the pages it was given, and what a routine that reads must find there."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import unicorn

PAGE = 4096
MASK = (1 << 64) - 1


class Mapped(Protocol):
    """Page tables of a guest's."""

    def place(self, address: int) -> int | None:
        """The physical address; None where nothing may be read."""
        ...

    def read_physical(self, address: int, size: int) -> bytes: ...


@lru_cache
def contents(frame: int) -> bytes:
    """Of a page: zeros are frequent, for text."""
    return random.Random(frame).randbytes(PAGE).translate(bytes(0 if byte % 5 == 0 else byte for byte in range(256)))


def expected(made: Mapped, address: int, size: int, text: bool = False) -> tuple[int, int]:
    """The word's lowest `size` bytes, and how many could be read; a place above the last address is none."""
    data = b""
    while len(data) < size and address + len(data) <= MASK:
        at = made.place(address + len(data))
        if at is None:
            break
        data += made.read_physical(at, 1)
        if text and data.endswith(b"\0"):
            data = data.ljust(size, b"\0")
    return int.from_bytes(data.ljust(size, b"\xff"), "little"), len(data)


class Pages:
    """The memory of a processor. Touching what is not mapped raises UcError.

    executed: instructions. each: called at every one of them.
    """

    def __init__(self, arch: int, mode: int) -> None:
        self.uc: Any = unicorn.Uc(arch, mode)
        self.uc.ctl_set_tlb_mode(unicorn.UC_TLB_VIRTUAL)
        self.uc.hook_add(unicorn.UC_HOOK_TLB_FILL, self._fill)
        self.uc.hook_add(unicorn.UC_HOOK_CODE, self._count)
        self.executed = 0
        self.each: Callable[[int], None] = lambda address: None
        self._frames: dict[int, int] = {}
        self._written: dict[int, bytes] = {}

    def map(self, address: int, physical: int, content: bytes) -> None:
        self._frames[address] = physical
        self._written[physical] = content
        self.uc.mem_map(physical, PAGE)
        self.uc.mem_write(physical, content)

    def map_readable(self, made: Mapped, address: int, direct: int) -> None:
        """What is in RAM of the word at `address`, where the direct map shows it that begins at `direct`."""
        places = (made.place(address + number & MASK) for number in range(8))
        for at in {at & -PAGE for at in places if at is not None}:
            if direct + at not in self._frames:
                self.map(direct + at, at, contents(at))

    def changed(self, scratch: frozenset[int]) -> list[int]:
        """Physical pages, but for `scratch`."""
        before = {at: content for at, content in self._written.items() if at not in scratch}
        return [at for at, content in before.items() if self.uc.mem_read(at, PAGE) != content]

    def _fill(self, _: object, address: int, access: int, entry: Any, __: object) -> bool:
        if address & -PAGE not in self._frames:
            return False
        entry.paddr, entry.perms = self._frames[address & -PAGE], unicorn.UC_PROT_ALL
        return True

    def _count(self, _: object, address: int, *__: object) -> None:
        self.executed += 1
        self.each(address)
