"""The kernel's text as it was before any GDB changed it: an overlay over memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from gdb_optprobe.probes.linux_arena import LinuxArena
from gdb_optprobe.probes.original import overlaid
from gdb_optprobe.probes.registry import Registry


@dataclass
class OriginalText:
    """See guest.text.Overlay. registry: of the session's branches. arena: knows those of an earlier GDB."""

    registry: Registry = field(default_factory=Registry)
    arena: LinuxArena | None = None

    def __call__(self, address: int, data: bytes) -> bytes:
        data = self.arena.uncovered(address, data) if self.arena is not None else data
        return overlaid(data, address, self.registry)
