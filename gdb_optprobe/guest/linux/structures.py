"""Offsets of structure members, remembered by build-id: from the kernel's own BTF, else from its vmlinux in GDB."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Protocol

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.btf import Btf
from gdb_optprobe.guest.cache import Cache

FACTS = "offsets"


class Layouts(Protocol):
    """Debug information of the running kernel: debugger/vmlinux.py."""

    def offset(self, struct: str, member: str) -> int | None:
        """None where there is no such member."""

    def bits(self, struct: str) -> Mapping[str, tuple[int, int]]: ...


def no_layouts() -> Layouts | None:
    """GDB has no debug information of this kernel."""
    return None


class CachedStructures:
    """`guest.linux.kernel.Structures` over BTF, debug information and the cache.

    blob: reads the BTF; it raises where there is none. layouts: asked then.
    """

    def __init__(
        self,
        blob: Callable[[], bytes],
        cache: Cache,
        build: str,
        layouts: Callable[[], Layouts | None] = no_layouts,
    ) -> None:
        self._blob = blob
        self._layouts = layouts
        self._cache = cache
        self._build = build
        known = cache.facts(build).get(FACTS)
        self._known: dict[str, int] = {
            name: offset for name, offset in known.items() if isinstance(name, str) and isinstance(offset, int)
        } if isinstance(known, dict) else {}

    @cached_property
    def btf(self) -> Btf:
        """All of it."""
        return Btf(self._blob())

    def source(self) -> str:
        """Return what the layouts are read from. Raises OptprobeError where there is nothing."""
        try:
            return f"BTF, {len(self.btf):,} types"
        except OptprobeError:
            if self._layouts() is None:
                raise
            return "debug information of the vmlinux that GDB has"

    def offset(self, struct: str, member: str) -> int:
        """Bytes from the start of `struct` to `member`. Raises OptprobeError where there is none; -1 remembers that."""
        name = f"{struct}.{member}"
        if name not in self._known:
            self._learn(name, struct, member)
        if self._known[name] < 0:
            raise OptprobeError(f"struct {struct} has no member {member} in this kernel")
        return self._known[name]

    def _learn(self, name: str, struct: str, member: str) -> None:
        found = self._look_up(struct, member)
        self._known[name] = found if found is not None else -1
        self._cache.remember(self._build, {FACTS: self._known})

    def fact(self, name: str) -> object:
        """What `learn` was given of this build; None where nothing was."""
        return self._cache.facts(self._build).get(name)

    def learn(self, name: str, value: object) -> None:
        """Keep what JSON can hold."""
        self._cache.remember(self._build, {name: value})

    def _look_up(self, struct: str, member: str) -> int | None:
        try:
            btf = self.btf
        except OptprobeError:
            layouts = self._layouts()
            if layouts is None:
                raise
            return layouts.offset(struct, member)
        return btf.offset(struct, member) if btf.has_struct(struct) and btf.has(struct, member) else None

    def bits(self, struct: str) -> dict[str, tuple[int, int]]:
        """Every bitfield of `struct`: its first bit, counted from the struct's start, and how many it has."""
        fact = f"bits of {struct}"
        known = self._cache.facts(self._build).get(fact)
        if not isinstance(known, dict):
            known = {name: [*place] for name, place in self._bits(struct).items()}
            self._cache.remember(self._build, {fact: known})
        return {name: (first, count) for name, (first, count) in known.items()}

    def _bits(self, struct: str) -> Mapping[str, tuple[int, int]]:
        try:
            members = self.btf.struct(struct).members
        except OptprobeError:
            layouts = self._layouts()
            if layouts is None:
                raise
            return layouts.bits(struct)
        return {m.name: (m.offset * 8 + m.bit_offset, m.bit_size) for m in members if m.bit_size}
