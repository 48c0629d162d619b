"""The threads that make active calls of probed functions, and which of these calls will never return.

    the call's stack address is …                                       the call is …
    in a thread's stack, at its stack pointer or above                  active
    in a thread's stack, below its stack pointer                        over: the frame is gone
    in a CPU's own stack that is in use                                 active
    in memory that is not mapped any more                               over: the thread's stack is gone too
    in a stack of no known thread                                       over, if all stacks in use are known
    active by that, its return address no address of code               over: the stack is another call's by now

A tracer of the guest may hide a return address: its code is near ours. While a thread is inside a trampoline the word
is the thread's own. A call that is over but held to be active costs a slot; the opposite mistake would have a call
return to a trampoline without a slot. So a call in doubt is active.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.saved_pcs import SavedWords
from gdb_optprobe.isa.base import ReadMemory
from gdb_optprobe.maps.call_table import WORD

UNKNOWN_STACK = "a stack of no known thread"
INTERRUPTED = 8
"""Words below an interrupted stack pointer within which the interrupted PC is pushed, and that pointer itself."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The maker of a call, in words, "" if not known. pid, name: of a thread; None and "" for anything else."""

    thread: str = ""
    pid: int | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class ArenaCode:
    """Our code: its ranges, and where trampolines start. reach: how far from it other code can be."""

    ranges: Sequence[tuple[int, int]]
    starts: Collection[int]
    reach: int

    def contains(self, address: int) -> bool:
        return any(start <= address < end for start, end in self.ranges)

    def is_near(self, address: int) -> bool:
        """Return whether `address` may be one of the guest's code."""
        return any(start - self.reach <= address < end + self.reach for start, end in self.ranges)

    def is_entered(self, saved: Sequence[SavedWords]) -> bool:
        """Return whether a thread may be inside, beyond the start of a trampoline."""
        return any(self.contains(word) and word not in self.starts for one in saved for word in one.words)


@dataclass(frozen=True, slots=True)
class CallStacks:
    """saved: all words that may be a saved PC. may_miss_stacks: whether there may be stacks beside these.

    code: None where the word at a call's stack address need not be its return address.
    """

    saved: Sequence[SavedWords]
    read: ReadMemory
    may_miss_stacks: bool = True
    code: ArenaCode | None = None

    def caller(self, at: int) -> Caller:
        """Return the thread that makes the call with the stack address `at`."""
        found = self._around(at)
        if found is None or found.stack is None:
            return Caller(UNKNOWN_STACK)
        return Caller(found.owner, found.stack.pid, found.stack.name)

    def is_over(self, at: int) -> bool:
        """Return whether the call with the stack address `at` never returns."""
        found = self._around(at)
        if found is None:
            return not self.may_miss_stacks or self._word(at) is None
        assert found.stack is not None
        # Where a call has returned to its trampoline, its own word is the one below the stack pointer.
        if at < found.address - WORD:
            return found.stack.pid is not None
        return found.address <= at and self._is_overwritten(at)

    def at_rest(self, calls: Iterable[int], trampoline: int) -> list[int]:
        """Return those of `calls`, by their stack addresses, that are of threads, none of which has just come to its
        trampoline: then the word at the stack address is still the trampoline's, and is not read any more.
        """
        came = set[int]()
        for one in self.saved:
            if trampoline in one.words:
                if not one.address:
                    return []  # a CPU may be there
                came.update(self._returned(one, trampoline))
        by_stack: dict[int, tuple[SavedWords, list[int]]] = {}
        for at in calls:
            found = self._around(at)
            if found is not None and found.stack is not None and found.stack.pid is not None and at >= found.address:
                by_stack.setdefault(found.stack.start, (found, []))[1].append(at)
        return [at for _, some in by_stack.values() if came.isdisjoint(some) for at in some]

    def _returned(self, saved: SavedWords, trampoline: int) -> Iterator[int]:
        """Yield where calls may be: their interrupted thread is at the first instruction of its trampoline.

        There its PC is saved, and above it the stack pointer, which is behind the call's stack address.
        """
        assert saved.stack is not None
        # `words` has only what may be in the text, and a stack pointer is not.
        data = self.read(saved.address, saved.stack.end - saved.address)
        words = array("Q", data)
        for place, word in enumerate(words):
            if word == trampoline:
                yield from (above - WORD for above in words[place + 1 : place + INTERRUPTED] if above >= WORD)

    def _is_overwritten(self, at: int) -> bool:
        """Return whether the word at `at` cannot be a return address any more."""
        if self.code is None:
            return False
        word = self._word(at)
        if word is None or self.code.is_near(word):
            return False
        # A thread that is interrupted at the start of a trampoline has its own words there.
        return not any(self._word(at - WORD * step) in self.code.starts for step in range(1, INTERRUPTED + 1))

    def _around(self, at: int) -> SavedWords | None:
        """Return the stack that `at` is on."""
        return next((one for one in self.saved if one.stack and one.stack.start <= at < one.stack.end), None)

    def _word(self, at: int) -> int | None:
        """Read a word; None where memory is not mapped."""
        try:
            return int.from_bytes(self.read(at, WORD), "little")
        except OptprobeError:
            return None


def call_stacks(saved: Sequence[SavedWords], read: ReadMemory, hides: bool, code: ArenaCode) -> CallStacks:
    """Return the stacks of a guest where a call's return address is at its stack address from its entry to its return.
    """
    return CallStacks(saved, read, hides, None if code.is_entered(saved) else code)
