"""Offsets of structure members, from the kernel's own BTF, remembered by build-id so that BTF is parsed once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.btf import Btf
from gdb_optprobe.guest.cache import Cache

FACTS = "offsets"


class CachedStructures:
    """`guest.linux.kernel.Structures` over BTF and the cache. `blob` reads the BTF; it raises where there is none."""

    def __init__(self, blob: Callable[[], bytes], cache: Cache, build: str) -> None:
        self._blob = blob
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

    def offset(self, struct: str, member: str) -> int:
        """Bytes from the start of `struct` to `member`. Raises OptprobeError where there is none; -1 remembers that."""
        name = f"{struct}.{member}"
        if name not in self._known:
            self._learn(name, struct, member)
        if self._known[name] < 0:
            raise OptprobeError(f"struct {struct} has no member {member} in this kernel")
        return self._known[name]

    def _learn(self, name: str, struct: str, member: str) -> None:
        btf = self.btf
        self._known[name] = btf.offset(struct, member) if btf.has_struct(struct) and btf.has(struct, member) else -1
        self._cache.remember(self._build, {FACTS: self._known})

    def fact(self, name: str) -> object:
        """What `learn` was given of this build; None where nothing was."""
        return self._cache.facts(self._build).get(name)

    def learn(self, name: str, value: object) -> None:
        """Keep what JSON can hold."""
        self._cache.remember(self._build, {name: value})

    def bits(self, struct: str) -> dict[str, tuple[int, int]]:
        """Every bitfield of `struct`: its first bit, counted from the struct's start, and how many it has."""
        fact = f"bits of {struct}"
        known = self._cache.facts(self._build).get(fact)
        if not isinstance(known, dict):
            members = self.btf.struct(struct).members
            known = {m.name: [m.offset * 8 + m.bit_offset, m.bit_size] for m in members if m.bit_size}
            self._cache.remember(self._build, {fact: known})
        return {name: (first, count) for name, (first, count) in known.items()}
