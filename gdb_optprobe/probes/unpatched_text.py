"""The guest's text as it was before any probe changed it: an overlay over memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.probes.registry import Registry


class EarlierText(Protocol):
    """What an earlier GDB has changed in the text: probes/linux_arena.py knows it by the journal."""

    def uncovered(self, address: int, data: bytes) -> bytes:
        """Return `data`, read at `address`, with what the branches that are still there cover."""

    def originals(self) -> Mapping[int, bytes]:
        """Return what the text held before, by address. Raises OptprobeError."""


@dataclass
class UnpatchedText:
    """Implements guest.text.Overlay and guest.linux.linux.Unpatched.

    registry: of the session's branches.
    earlier:  set once the guest is known, which is built with this overlay.
    hooks:    returns the patches that lead traps to us; set once there is a session.
    """

    registry: Registry = field(default_factory=Registry)
    earlier: EarlierText | None = None
    hooks: Callable[[], Sequence[Patch]] = tuple

    def __call__(self, address: int, data: bytes) -> bytes:
        data = self.earlier.uncovered(address, data) if self.earlier is not None else data
        return unpatched(data, address, [*self.registry.patches(address, address + len(data)), *self.hooks()])

    def originals(self) -> Mapping[int, bytes]:
        return self.earlier.originals() if self.earlier is not None else {}


def unpatched(data: bytes, address: int, patches: Sequence[Patch]) -> bytes:
    """Return `data`, read at `address`, with the old bytes of `patches`."""
    if not patches:
        return data
    original = bytearray(data)
    for patch in patches:
        for offset, byte in enumerate(patch.old):
            if address <= patch.address + offset < address + len(data):
                original[patch.address + offset - address] = byte
    return bytes(original)
