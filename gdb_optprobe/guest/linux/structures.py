"""Offsets of structure members: from the kernel's own BTF, else from its vmlinux in GDB.

Each session reads them anew: a guest that lies about its types must not affect another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Protocol

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.btf import Btf


class Layouts(Protocol):
    """Debug information of the running kernel: debugger/objfiles.py."""

    def offset(self, struct: str, member: str) -> int | None:
        """Return a member's offset; None where there is no such member."""

    def bits(self, struct: str) -> Mapping[str, tuple[int, int]]: ...


def no_layouts() -> Layouts | None:
    """Return None: GDB has no debug information of this kernel."""
    return None


class KernelStructures:
    """`guest.linux.kernel.Structures` over BTF and debug information.

    blob: reads the BTF; it raises where there is none. layouts: asked then.
    """

    def __init__(self, blob: Callable[[], bytes], layouts: Callable[[], Layouts | None] = no_layouts) -> None:
        self._blob = blob
        self._layouts = layouts
        self._known: dict[str, int] = {}
        self._facts: dict[str, object] = {}

    @cached_property
    def btf(self) -> Btf:
        """The kernel's BTF, whole."""
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
        """Return a member's offset. Raises OptprobeError where there is none, which is cached as -1."""
        name = f"{struct}.{member}"
        if name not in self._known:
            found = self._look_up(struct, member)
            self._known[name] = found if found is not None else -1
        if self._known[name] < 0:
            raise OptprobeError(f"struct {struct} has no member {member} in this kernel")
        return self._known[name]

    def fact(self, name: str) -> object:
        """Return what `learn` was given in this session; None where nothing was."""
        return self._facts.get(name)

    def learn(self, name: str, value: object) -> None:
        """Keep a value until the session ends."""
        self._facts[name] = value

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
        """Return every bitfield of `struct`: (first bit, counted from the struct's start, and number of bits)."""
        return dict(self._bits(struct))

    def _bits(self, struct: str) -> Mapping[str, tuple[int, int]]:
        try:
            members = self.btf.struct(struct).members
        except OptprobeError:
            layouts = self._layouts()
            if layouts is None:
                raise
            return layouts.bits(struct)
        return {m.name: (m.offset * 8 + m.bit_offset, m.bit_size) for m in members if m.bit_size}
