"""The slot collector: released slots are free once a complete scan proves that no thread is inside (rule 3).

    garbage   more than a page of it, at a stop that occurs anyway
    memory    there is none left for a new detour
    branch    no thread in a retired detour may enter a new branch in its middle
    commit    the user asks, or leaves
The guest is stopped already when it runs, and stays stopped as long as the scan takes. Where the stacks cannot be
enumerated nothing is ever proven: released slots are quarantined.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.probes.kernel_rethooks import KernelRethooks
from gdb_optprobe.probes.views import CollectorView

PAGE = 4096
PATIENCE = 1.0
"""Seconds until garbage that a thread was inside of is scanned again, at a stop."""


class Trigger(Enum):
    GARBAGE = "garbage"
    MEMORY = "memory"
    BRANCH = "branch"
    COMMIT = "commit"


@dataclass
class Collector:
    """Frees the slots of one session's arena, and keeps account of it. Times are in seconds.

    check_alive: see Optimizer.
    blocked_by: why the stacks could not be enumerated the last time, in words; "" where they could.
    """

    guest: Guest
    rethooks: KernelRethooks
    check_alive: Callable[[], None]
    blocked_by: str = ""
    _runs: Counter[Trigger] = field(default_factory=Counter)
    _failed: int = 0
    _slots: int = 0
    _bytes: int = 0
    _longest: float = 0.0
    _total: float = 0.0
    _stacks: int = 0
    _remained: int = 0
    _last: float = 0.0

    def collect(self, arena: Arena, why: Trigger) -> int:
        """Free the slots that no thread can be inside. Return how many: 0 where the stacks cannot be enumerated (now).

        Data are not counted.

        Raises OptprobeError where this is not the guest that has them: the memory there may be in use.
        """
        if self.guest.stacks_missing:
            return 0
        self.rethooks.active_calls(self.guest, arena)
        self.rethooks.unhook_ended(self.guest, arena)
        if not arena.dirty():
            arena.reclaim(lambda slots: ())
            # A table's memory is used again by whatever comes next.
            self.rethooks.forget_freed(self.guest, arena)
            arena.journal.flush()
            return 0
        self.check_alive()
        begun = time.monotonic()
        try:
            freed = arena.reclaim(lambda slots: self.rethooks.busy_slots(slots, self.guest))
            self._stacks = sum(1 for saved in self.guest.saved() if saved.address)
            self.blocked_by = ""
        except OptprobeError as error:
            self._failed += 1
            self.blocked_by = error.message
            freed = ()
        arena.wipe(freed, self.guest.machine)
        self.rethooks.forget_freed(self.guest, arena)
        # GDB may be killed: the next one takes what is still noted for memory in use, and for tables.
        arena.journal.flush()
        self._last = time.monotonic()
        took = self._last - begun
        self._runs[why] += 1
        self._slots += len(freed)
        self._bytes += sum(slot.size for slot in freed)
        self._longest = max(self._longest, took)
        self._total += took
        self._remained = _size(self.garbage(arena))
        return len(freed)

    def collect_if_due(self, arena: Arena) -> None:
        """At a stop that occurs anyway: collect, if it is worth while."""
        garbage = _size(self.garbage(arena))
        patient = garbage <= self._remained and time.monotonic() - self._last < PATIENCE
        if garbage > PAGE and not patient:
            self.collect(arena, Trigger.GARBAGE)
        arena.refill_reserve()

    def garbage(self, arena: Arena) -> tuple[Slot, ...]:
        """Return the slots to be collected, without the trampolines to which calls may return at any time."""
        left = self.rethooks.retired_trampolines
        return tuple(slot for slot in arena.dirty() if slot.address not in left)

    def unsettled(self, arena: Arena) -> tuple[Slot, ...]:
        """Return the slots that are free as soon as no thread is inside: no active call returns there."""
        awaited = self.rethooks.awaited(self.guest)
        return tuple(slot for slot in arena.dirty() if slot.address not in awaited)

    def view(self, arena: Arena | None) -> CollectorView | None:
        """Return what it has done and what it waits for; None where there was nothing to do."""
        garbage = self.garbage(arena) if arena is not None else ()
        if not (self._runs or garbage):
            return None
        return CollectorView(
            runs={why.value: self._runs[why] for why in Trigger if self._runs[why]},
            failed=self._failed,
            slots=self._slots,
            bytes=self._bytes,
            longest=self._longest,
            total=self._total,
            stacks=self._stacks,
            garbage_slots=len(garbage),
            garbage_bytes=_size(garbage),
            quarantined=self.guest.stacks_missing if garbage else "",
        )


def _size(slots: tuple[Slot, ...]) -> int:
    return sum(slot.size for slot in slots)
