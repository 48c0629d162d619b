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


@dataclass(frozen=True, slots=True)
class Exchange:
    """What runs of memory, at (start, end) each, held before they were written, and what was read back since."""

    spans: Sequence[tuple[int, int]] = ()
    before: Sequence[bytes] = ()
    after: Sequence[bytes] = ()

    @property
    def reverse(self) -> Exchange:
        """Return the exchange that restores what was before."""
        return Exchange(self.spans, self.after, self.before)


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


def undone(patches: Sequence[Patch], error: BaseException, memory: Memory) -> list[int]:
    """Return where none of `patches` is, ascending, after writing them has raised `error`. Raises what reading does."""
    ordered = sorted(patches, key=lambda change: change.address)
    wanted = {one.address: one.old for one in ordered}
    if isinstance(error, TextChanged) and wanted.get(error.address) == error.expected:
        return [one.address for one in ordered]  # before the first write: the guest's own kprobe may be there
    texts = runs.held([(one.address, one.end) for one in ordered], memory)
    return [one.address for one, text in zip(ordered, texts, strict=True) if text == one.old]


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
    except BaseException:  # of GDB's own errors too
        for patch in reversed(written):
            with suppress(Exception):  # the first error tells
                if memory.read(patch.address, len(patch.new)) == patch.new:
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
) -> Exchange:
    """Write `new` in place of `old` at `places`, ascending, or change nothing. Raises TextChanged, Unreadable.

    old, new: of each place, or the same for all. A Ctrl-C waits. Where the guest cannot be reached any more, what was
    written stays.
    """
    if not places:
        return Exchange()
    olds, news = (repeat(each, len(places)) if isinstance(each, bytes) else each for each in (old, new))
    with held():
        spans = list(runs.bounds(places))
        before = runs.read_spans(spans, memory)
        done = Exchange(spans, before, list(_patched(spans, before, zip(places, olds, news, strict=True))))
        _carry_out(done, memory)
    return done


def take_back(done: Exchange, memory: Memory) -> Exchange | None:
    """Write what was before an exchange, and return that as one; None where any of its runs holds other bytes by now:
    then nothing is written. Raises TextChanged, Unreadable, as `exchange_in_runs` does.

    All bytes of the runs are compared, so no place in them has to be looked at.
    """
    with held():
        if runs.read_spans(done.spans, memory) != done.after:
            return None
        _carry_out(done.reverse, memory)
    return done.reverse


def _carry_out(wanted: Exchange, memory: Memory) -> None:
    """Write the runs of an exchange, which hold what was before, and read them back. What was written is restored where
    that fails.
    """
    written = list[tuple[int, bytes]]()
    try:
        for (start, _), before, after in zip(wanted.spans, wanted.before, wanted.after, strict=True):
            written.append((start, before))
            memory.write(start, after)
        for (start, _), after, found in zip(
            wanted.spans, wanted.after, runs.read_spans(wanted.spans, memory), strict=True
        ):
            if found != after:
                raise TextChanged(start, after, found)
    except BaseException:  # of GDB's own errors too: the connection broke
        for start, before in reversed(written):
            with suppress(Exception):  # the first error tells; the caller looks at the text where it matters
                memory.write(start, before)
        raise


def revert(patches: Sequence[Patch], memory: Memory) -> None:
    """Restore the old bytes, last patch first, if memory still holds the bytes of all patches. Raises TextChanged."""
    apply([patch.reverse for patch in reversed(patches)], memory)


def _differences(patches: Iterable[Patch], memory: Memory) -> Iterable[TextChanged]:
    for patch in patches:
        found = memory.read(patch.address, len(patch.old))
        if found != patch.old:
            yield TextChanged(patch.address, patch.old, found)


def _patched(
    spans: Iterable[tuple[int, int]], before: Iterable[bytes], changes: Iterable[tuple[tuple[int, int], bytes, bytes]]
) -> Iterator[bytes]:
    """Yield what the runs at `spans` hold after `changes`, ascending (place, old bytes, new bytes): one in each run at
    least. Raises TextChanged.
    """
    following = zip(spans, before, strict=True)
    (address, behind), data = next(following)
    changed = bytearray(data)
    for (start, end), old, new in changes:
        if start >= behind:
            yield bytes(changed)
            (address, behind), data = next(following)
            changed = bytearray(data)
        first, last = start - address, end - address
        if data[first:last] != old:
            raise TextChanged(start, old, data[first:last])
        changed[first:last] = new
    yield bytes(changed)
