"""Guest memory as it was before our branches: what the guest's authors wrote, not what we did."""

from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.probes.registry import Registry


class OriginalMemory:
    """`memory`, read-only, with the bytes that our branches cover in their place."""

    def __init__(self, memory: Memory, registry: Registry) -> None:
        self._memory = memory
        self._registry = registry

    def read(self, address: int, size: int) -> bytes:
        return overlaid(self._memory.read(address, size), address, self._registry)


def overlaid(data: bytes, address: int, registry: Registry) -> bytes:
    """`data`, read at `address`, with the original bytes in place of our branches."""
    return unpatched(data, address, list(registry.patches(address, address + len(data))))


def unpatched(data: bytes, address: int, patches: Sequence[Patch]) -> bytes:
    """The same, where these are."""
    if not patches:
        return data
    original = bytearray(data)
    for patch in patches:
        for offset, byte in enumerate(patch.old):
            if address <= patch.address + offset < address + len(data):
                original[patch.address + offset - address] = byte
    return bytes(original)
