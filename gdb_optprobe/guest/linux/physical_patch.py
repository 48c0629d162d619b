"""Patches of physical memory, with which page tables are changed while every vCPU is stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.machine import PhysicalMemory


class Changed(OptprobeError):
    """Memory has changed since the patch was planned, or cannot be written."""


@dataclass(frozen=True, slots=True)
class PhysicalPatch:
    """Bytes at a physical address that change from `old` to `new`.

    changes: the guest changes them later, so they are not compared before the old ones are restored.
    """

    address: int
    old: bytes
    new: bytes
    changes: bool = False


def apply(patches: Sequence[PhysicalPatch], memory: PhysicalMemory) -> None:
    """Write all, in order, each read back before the next; nothing where any old bytes differ. Raises Changed."""
    for patch, held in zip(patches, _held(patches, memory), strict=True):
        if held != patch.old:
            raise Changed(f"physical memory at {patch.address:#x} is not what it was a moment ago")
    for done, patch in enumerate(patches):
        if patch.new == patch.old:
            continue
        memory.write_physical(patch.address, patch.new)
        if memory.read_physical(patch.address, len(patch.new)) != patch.new:
            undo(patches[: done + 1], memory)
            raise Changed(f"physical memory at {patch.address:#x} cannot be written")


def _held(patches: Sequence[PhysicalPatch], memory: PhysicalMemory) -> Iterator[bytes]:
    """Yield what is at each; pages that follow one another, of data by the hundred, are read together."""
    runs: list[list[PhysicalPatch]] = []
    for patch in patches:
        if runs and (last := runs[-1][-1]).address + len(last.old) == patch.address:
            runs[-1].append(patch)
        else:
            runs.append([patch])
    for run in runs:
        start, last = run[0].address, run[-1]
        data = memory.read_physical(start, last.address + len(last.old) - start)
        yield from (data[patch.address - start :][: len(patch.old)] for patch in run)


def are_in_place(patches: Sequence[PhysicalPatch], memory: PhysicalMemory) -> bool:
    """Return whether the new bytes are still there: they are gone after a reset of the guest."""
    return all(patch.changes or memory.read_physical(patch.address, len(patch.new)) == patch.new for patch in patches)


def undo(patches: Sequence[PhysicalPatch], memory: PhysicalMemory) -> None:
    """Restore the old bytes, last patch first, where the new ones are still there."""
    for patch in reversed(patches):
        if patch.changes or memory.read_physical(patch.address, len(patch.new)) == patch.new:
            memory.write_physical(patch.address, patch.old)
