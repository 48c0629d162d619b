"""Change guest memory after comparing: the old bytes before writing, its own bytes before restoring.

    compare all ──► write each, in order ──► read each back
        │                                        │
        └─ TextChanged, nothing written          └─ TextChanged, what was written is restored

The caller chooses the order: the target of a branch before the branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import runs
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.interrupts import held


@dataclass(frozen=True, slots=True)
class Patch:
    """Bytes at `address` that change from `old` to `new`."""

    address: int
    old: bytes
    new: bytes

    def __post_init__(self) -> None:
        if len(self.old) != len(self.new):
            raise ValueError(f"a patch at {self.address:#x} of {len(self.new)} bytes over {len(self.old)}")

    @property
    def end(self) -> int:
        return self.address + len(self.new)

    @property
    def reverse(self) -> Patch:
        """Return the patch that restores the old bytes."""
        return Patch(self.address, self.new, self.old)


_END = ((1 << 64, 1 << 64), b"", b"")
"""Behind the last place."""


class TextChanged(OptprobeError):
    """The guest's memory at `address` is not what it must be before it may be written."""

    def __init__(self, address: int, expected: bytes, found: bytes) -> None:
        super().__init__(
            f"guest memory at {address:#x} holds {found.hex(' ')} where {expected.hex(' ')} was expected",
            "nothing was changed there: delete the probe and add it again",
        )
        self.address = address
        self.expected = expected
        self.found = found


def check(patches: Iterable[Patch], memory: Memory) -> tuple[TextChanged, ...]:
    """Return the places where memory does not hold what these patches wrote."""
    return tuple(_differences([patch.reverse for patch in patches], memory))


def apply(patches: Sequence[Patch], memory: Memory) -> None:
    """Write all of `patches` in order, or none. Raises TextChanged."""
    for difference in _differences(patches, memory):
        raise difference
    written: list[Patch] = []
    try:
        for patch in patches:
            written.append(patch)
            memory.write(patch.address, patch.new)
        for difference in _differences([patch.reverse for patch in patches], memory):
            raise difference
    except OptprobeError:
        for patch in reversed(written):
            if _holds(memory, patch.address, patch.new):
                memory.write(patch.address, patch.old)
        raise


def apply_in_runs(patches: Sequence[Patch], memory: Memory) -> None:
    """Write all of `patches`, which are in the order of their addresses, or none. Raises TextChanged, Unreadable.

    A Ctrl-C waits. Not for patches that must be written in an order.
    """
    places = [(patch.address, patch.end) for patch in patches]
    exchange_in_runs(places, [patch.old for patch in patches], [patch.new for patch in patches], memory)


def exchange_in_runs(
    places: Sequence[tuple[int, int]], old: bytes | Sequence[bytes], new: bytes | Sequence[bytes], memory: Memory
) -> None:
    """Write `new` in place of `old` at `places`, ascending, or change nothing. Raises TextChanged, Unreadable.

    old, new: of each place, or the same for all. A Ctrl-C waits. Where the guest cannot be reached any more, what was
    written stays.
    """
    if not places:
        return
    olds, news = (repeat(each, len(places)) if isinstance(each, bytes) else each for each in (old, new))
    with held():
        before = runs.read(places, memory)
        after = [*_patched(before, zip(places, olds, news, strict=True))]
        written: list[tuple[runs.Run, runs.Run]] = []
        try:
            for one, other in zip(before, after, strict=True):
                written.append((one, other))
                memory.write(other.address, other.data)
            held_now = runs.read_spans([(one.address, one.end) for one in after], memory)
            for wanted_run, data in zip(after, held_now, strict=True):
                if data != wanted_run.data:
                    raise TextChanged(wanted_run.address, wanted_run.data, data)
        except BaseException:  # of GDB's own errors too: the connection broke
            for one, _ in reversed(written):
                with suppress(Exception):  # the first error tells; the caller looks at the text where it matters
                    memory.write(one.address, one.data)
            raise


def revert(patches: Sequence[Patch], memory: Memory) -> None:
    """Restore the old bytes, last patch first, if memory still holds the bytes of all patches. Raises TextChanged."""
    apply([patch.reverse for patch in reversed(patches)], memory)


def _differences(patches: Iterable[Patch], memory: Memory) -> Iterable[TextChanged]:
    for patch in patches:
        found = memory.read(patch.address, len(patch.old))
        if found != patch.old:
            yield TextChanged(patch.address, patch.old, found)


def _holds(memory: Memory, address: int, data: bytes) -> bool:
    try:
        return memory.read(address, len(data)) == data
    except OptprobeError:
        return False


def _patched(
    before: Iterable[runs.Run], changes: Iterator[tuple[tuple[int, int], bytes, bytes]]
) -> Iterator[runs.Run]:
    """Yield what runs hold after `changes`, ascending (place, old bytes, new bytes). Raises TextChanged."""
    (start, end), old, new = next(changes)
    for run in before:
        data, address, behind = bytearray(run.data), run.address, run.end
        while start < behind:
            first, last = start - address, end - address
            if data[first:last] != old:
                raise TextChanged(start, old, bytes(data[first:last]))
            data[first:last] = new
            (start, end), old, new = next(changes, _END)
        yield runs.Run(address, bytes(data))
