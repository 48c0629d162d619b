"""Active calls of return probes: the threads that make them, and the calls that will never return.

    the call's stack address is …                                       the call is …
    in a thread's stack, at its stack pointer or above                  under way
    in a thread's stack, below its stack pointer                        over: the frame is gone
    in a CPU's own stack that is in use                                 under way
    in memory that is not mapped any more                               over: so was the thread's stack
    in a stack of no thread                                             over, where all stacks are known
    active, its return address no address of code                       over: the stack is another call's by now

A return address may be hidden by a tracer of the guest's, which is code as ours is; while a thread is inside a
trampoline the word is its own. A call that is over but taken for active costs a slot; the other way round, the
guest would return to a trampoline without an instance. So whatever is in doubt is under way.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.saved_pcs import SavedWords
from gdb_optprobe.isa.base import ReadMemory
from gdb_optprobe.maps.call_table import WORD

UNKNOWN_STACK = "a stack of no known thread"
INTERRUPTED = 8
"""Words below an interrupted stack pointer within which the interrupted PC is pushed."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The maker of a call, in words; "" where it is not known. pid, name: of a thread; else None and "".""" 

    who: str = ""
    pid: int | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class ArenaCode:
    """Ours: ranges of memory, and where trampolines start. reach: how far from it other code can be."""

    ranges: Sequence[tuple[int, int]]
    starts: Collection[int]
    reach: int

    def contains(self, address: int) -> bool:
        return any(start <= address < end for start, end in self.ranges)

    def is_near(self, address: int) -> bool:
        """Whether it may be an address of the guest's code."""
        return any(start - self.reach <= address < end + self.reach for start, end in self.ranges)

    def is_entered(self, saved: Sequence[SavedWords]) -> bool:
        """Return whether a thread may be inside a trampoline, beyond its start."""
        return any(self.contains(word) and word not in self.starts for one in saved for word in one.words)


@dataclass(frozen=True, slots=True)
class CallStacks:
    """saved: all that may be a saved PC. may_miss_stacks: whether there may be stacks beside these.

    code: None where return addresses need not be at the addresses given to `judge`.
    """

    saved: Sequence[SavedWords]
    read: ReadMemory
    may_miss_stacks: bool = True
    code: ArenaCode | None = None

    def caller(self, at: int) -> Caller:
        """Return the maker of the call with the stack address `at`."""
        found = self._around(at)
        if found is None or found.stack is None:
            return Caller(UNKNOWN_STACK)
        return Caller(found.owner, found.stack.pid, found.stack.name)

    def is_over(self, at: int) -> bool:
        """Whether the call with the stack address `at` never returns."""
        found = self._around(at)
        if found is None:
            return not self.may_miss_stacks or self._word(at) is None
        assert found.stack is not None
        # Where a call has returned to its trampoline, its own word is the one below the stack pointer.
        if at < found.address - WORD:
            return found.stack.pid is not None
        return found.address <= at and self._is_overwritten(at)

    def _is_overwritten(self, at: int) -> bool:
        """Whether the word at `at` can be no return address any more."""
        if self.code is None:
            return False
        word = self._word(at)
        if word is None or self.code.is_near(word):
            return False
        # A thread interrupted at a trampoline's start has its own words there.
        return not any(self._word(at - WORD * step) in self.code.starts for step in range(1, INTERRUPTED + 1))

    def _around(self, at: int) -> SavedWords | None:
        """The stack that `at` is on."""
        return next((one for one in self.saved if one.stack and one.stack.start <= at < one.stack.end), None)

    def _word(self, at: int) -> int | None:
        """None where memory is not mapped."""
        try:
            return int.from_bytes(self.read(at, WORD), "little")
        except OptprobeError:
            return None


def call_stacks(saved: Sequence[SavedWords], read: ReadMemory, hides: bool, code: ArenaCode) -> CallStacks:
    """code: ours, where a call's return address is at its stack address from its entry to its return."""
    return CallStacks(saved, read, hides, None if code.is_entered(saved) else code)
