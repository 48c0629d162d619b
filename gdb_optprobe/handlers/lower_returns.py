"""Lower what the entries of kretprobes and uretprobes do alike: conditions, saved words, a slot in a table of calls.

    home ─► taken ─► taken ─► … ─► free
             drop dead     calls with the same key, up to the free slot: their frames are gone
             claim         the free slot; calls with the same key, by tail calls, move one place further, so that the
                           newest is the first of its key
CallSearch has what differs: the table of one function (maps/call_table.py) is searched round its end; that of all
programs (maps/user_call_table.py) up to its end, and has a call's address space beside its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gdb_optprobe.handlers.ir import Clock, Constant, Expr, Put, Register, Stop, nodes
from gdb_optprobe.handlers.lower_expressions import ExpressionLowering
from gdb_optprobe.handlers.lower_program import FAULT, LoweringContext, lower_action, refused
from gdb_optprobe.handlers.lower_slot_search import SlotArray
from gdb_optprobe.handlers.return_scope import EntryProgram
from gdb_optprobe.isa.codegen import Address, Comparison, Emitter, Label, MemoryValue, noted
from gdb_optprobe.maps.call_table import FACTOR, KEY, SAVED, SHIFT, WORD, CallSlots

Layout = TypeVar("Layout", bound=CallSlots)


@dataclass(frozen=True, slots=True)
class PlacedSlots(Generic[Layout]):
    """A table of calls in guest memory, at `address`."""

    layout: Layout
    address: int

    @property
    def first(self) -> int:
        """Return the address of the first slot."""
        return self.address + self.layout.first

    @property
    def end(self) -> int:
        """Return the address behind the last slot."""
        return self.address + self.layout.end

    @property
    def slots(self) -> SlotArray:
        return SlotArray(self.first, self.end, self.layout.slot_size, self.layout.homes, FACTOR, SHIFT)


@dataclass(frozen=True, slots=True)
class EntryPart:
    """What one return probe does at the entry.

    faults: the address of its count of faults. around: of its actions.
    area:   the offset in a slot of the words that it saves.
    armed, flag, data, time: offsets of words of its own, 0 for none:
        whether it looks at the call, where another probe may be the one that does;
        set by its program to stop the guest;
        a number that a debugger gives the call, or 0;
        when the call was entered, or 0 where a debugger stopped there.
    """

    entry: EntryProgram
    area: int = SAVED
    faults: int = 0
    armed: int = 0
    flag: int = 0
    data: int = 0
    time: int = 0
    around: LoweringContext | None = None

    @property
    def registers(self) -> frozenset[str]:
        """Return the registers that it reads at the entry."""
        cpu = nodes(self.around.cpu) if self.around is not None and self.around.cpu is not None else ()
        return self.entry.registers | {node.name for node in cpu if isinstance(node, Register)}

    @property
    def kept(self) -> Iterator[tuple[int, Expr]]:
        """Yield offsets in a slot, and what is saved there."""
        if self.armed:
            yield self.armed, self.entry.condition or Constant(1)
        for none in filter(None, (self.flag, self.data)):
            yield none, Constant(0)
        if self.time:
            yield self.time, Clock()
        for index, word in enumerate(self.entry.words):
            yield self.area + WORD * index, word


def lower_entry_conditions(emit: Emitter, pc: tuple[str, int], parts: Sequence[EntryPart], end: Label) -> None:
    """Emit: to `end` where no probe looks at the call."""
    tests = [(part.entry.condition, part.faults) for part in parts]
    if any(test is None for test, _ in tests):
        return
    wanted = Label()
    for number, (test, faults) in enumerate(tests, 1):
        assert test is not None
        words, no, is_last = ExpressionLowering(emit, pc), Label(), number == len(tests)
        with refused(test), noted(emit, "condition at the entry"):
            words.jump(test, not is_last, end if is_last else wanted)
            if words.faulted:
                with noted(emit, FAULT):
                    emit.jump(wanted if is_last else no)
                    emit.bind(words.fault)
                    emit.atomic_add(Address(offset=faults, near=True), 1)
                    if is_last:
                        emit.jump(end)
            emit.bind(no)
    emit.bind(wanted)


def lower_kept_words(emit: Emitter, pc: tuple[str, int], part: EntryPart, slot: str) -> None:
    """Emit: save the words of one probe in the call's slot; 0 for one that cannot be evaluated, which is counted."""
    for offset, node in part.kept:
        at = Address(slot, offset)
        words, done = ExpressionLowering(emit, pc), Label()
        with noted(emit, "kept for the return"):
            with refused(node), words.operand(node) as word:
                emit.store(at, word)
            if words.faulted:
                with noted(emit, FAULT):
                    emit.jump(done)
                    emit.bind(words.fault)
                    emit.atomic_add(Address(offset=part.faults, near=True), 1)
                    emit.store(at, 0)
                    emit.bind(done)


def lower_entry_actions(emit: Emitter, pc: tuple[str, int], part: EntryPart, slot: str) -> None:
    """Emit: carry out the actions of a probe at the entry, where it looks at the call."""
    if part.around is None:
        return
    skip = Label()
    if part.armed:
        with noted(emit, "does it look at the call?"):
            emit.branch(Comparison.EQ, MemoryValue(Address(slot, part.armed)), 0, False, skip)
    objects = iter(enumerate(part.around.objects))
    for action in part.entry.actions:
        assert not isinstance(action, Stop), "it was refused"
        index, address = next(objects) if not isinstance(action, Put) else (0, 0)
        with refused(action):
            lower_action(emit, pc, part.around, action, index, address)
    emit.bind(skip)


class CallSearch(Protocol):
    """How code searches a table for a call's key. at: the register with a slot's address."""

    def begin(self, at: str, slot: str) -> None:
        """Emit: search from the address in `slot` on."""

    def next(self, at: str, again: Label) -> None:
        """Emit: on to the next slot, and to `again`; fall through behind the last."""

    def previous(self, at: str) -> None:
        """Emit: back to the slot before."""

    def unless_key(self, at: str, label: Label) -> None:
        """Emit: to `label` where the slot does not have the key."""

    def drop(self, at: str) -> None:
        """Emit: free the slot of a call that never returns, and count the call."""

    def move(self, to: str, at: str) -> None:
        """Emit: copy the call to the claimed slot `to`, the key last."""


def lower_drop_dead(emit: Emitter, calls: CallSearch, slot: str, at: str) -> None:
    """Emit: drop calls with the key, from its home in `slot` to the first free slot; changes `at`.

    A new call has their stack address, so they never return.
    """
    again, on, end = Label(), Label(), Label()
    calls.begin(at, slot)
    emit.bind(again)
    emit.branch(Comparison.EQ, MemoryValue(Address(at, KEY)), 0, False, end)
    calls.unless_key(at, on)
    calls.drop(at)
    emit.bind(on)
    calls.next(at, again)
    emit.bind(end)


def lower_claim(emit: Emitter, calls: CallSearch, slot: str, at: str, hole: str, full: Callable[[], None]) -> None:
    """Emit: claim a slot for a call with the key, from its home in `slot` on; `slot` is then the first of the key.

    Changes `at` and `hole`. full: emits code for a table without a free slot, which does not fall through.
    """
    again, busy, found, back, done = (Label() for _ in range(5))
    calls.begin(at, slot)
    emit.bind(again)
    emit.claim(Address(at, KEY), busy)
    emit.jump(found)
    emit.bind(busy)
    calls.next(at, again)
    full()
    emit.bind(found)
    emit.copy(hole, at)
    emit.bind(back)
    emit.branch(Comparison.EQ, at, slot, False, done)
    calls.previous(at)
    calls.unless_key(at, back)
    calls.move(hole, at)
    emit.copy(hole, at)
    emit.jump(back)
    emit.bind(done)
    emit.copy(slot, hole)
