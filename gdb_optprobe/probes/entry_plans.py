"""Plans of functions' entries, kept as long as they hold: to plan one takes a hundred times as long as to write it.

A plan depends on the function's text, on what leads into it and on the guest's tables, which stay as they are in one
boot, and on what else is probed there: a batch leaves such functions out. So a plan holds while the displaced bytes are
the same, the settings too, and the guest has no other kprobes of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.detour import count_around, count_code, moved_anywhere
from gdb_optprobe.detours.plan_request import TierLimits
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.guest import runs
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.interrupts import checkpoint
from gdb_optprobe.isa.base import Dead, OutOfReach, Unrelocatable
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.probes.count_block import LaidOut
from gdb_optprobe.probes.site_views import COUNTER_DISTANCE

LayOut = Callable[[Plan, Isa, int, int], bytes]
"""The code of a plan's detour at an address, with what it counts in, or calls, at another one."""
MANY = 64
"""Functions for which the whole text is read at once."""
MOST_LAID_OUT = 1 << 16
"""Detours that are remembered: a kernel has 10,000 functions without a tracer's site."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the detours of a block have in common: bytes, instructions, and how many of these are displaced."""

    size: int
    instructions: int
    displaced: int


@dataclass
class EntryPlans:
    """The plans of counts, by address; None where an address cannot be probed.

    laid_out: their detours, as they were in blocks before: those that come back find the same memory.
    _others: how many instructions of a detour are not displaced ones, by what that depends on.
    _counts: bytes of a count with its copy, and instructions without, by what they depend on.
    """

    laid_out: LaidOut = field(default_factory=dict)
    _plans: dict[int, Plan | None] = field(default_factory=dict)
    _shapes: dict[tuple[LayOut, int], Shape | None] = field(default_factory=dict)
    _others: dict[tuple[LayOut, Dead, bool, int], int] = field(default_factory=dict)
    _counts: dict[tuple[int, Dead, int | None, int], tuple[int, int]] = field(default_factory=dict)
    _moved: dict[int, bytes | None] = field(default_factory=dict)
    _made_for: object = None

    def unknown(self, addresses: Sequence[int], guest: Guest, limits: TierLimits) -> list[int]:
        """Return those of `addresses` of which no plan is known that holds now."""
        made_for = limits, guest.own_kprobes()
        if self._made_for != made_for:
            self._plans.clear()
            self._shapes.clear()
            self._others.clear()
            self._counts.clear()
            self._moved.clear()
            self.laid_out.clear()
            self._made_for = made_for
        if len(self.laid_out) > MOST_LAID_OUT:
            self.laid_out.clear()
        return [address for address in addresses if address not in self._plans]

    def of(
        self,
        addresses: Sequence[int],
        guest: Guest,
        limits: TierLimits,
        plan: Callable[[int], Plan],
        expected: int = 0,
        anywhere: bool = False,
        known: Iterable[Plan] = (),
    ) -> list[Plan]:
        """Return the plans of those of `addresses`, ascending, that get a branch of their own. plan: raises Refused.

        expected: of how many `plan` knows the answer. anywhere: the branch may begin before the probed instruction.
        known: what `plan` would return for some.
        """
        unknown = self.unknown(addresses, guest, limits)
        if known:
            self._plans |= {one.address: one for one in known}
            unknown = self.unknown(addresses, guest, limits)
        if len(unknown) - expected >= MANY:
            guest.read_ahead(len(unknown) - expected)
        for place, address in enumerate(unknown):
            if not place % MANY:
                checkpoint()
            try:
                found: Plan | None = plan(address)
            except Refused:
                found = None
            self._plans[address] = found
        all_plans = (self._plans[address] for address in addresses)
        plans = [found for found in all_plans if found is not None and _is_alone(found, anywhere)]
        places = [(one.head, one.end) for one in plans]
        texts = runs.held(places, guest.machine)
        wanted = (b"".join([insn.data for insn in one.displaced]) for one in plans)
        return [one for one, text, data in zip(plans, texts, wanted, strict=True) if text == data]

    def trapped(self, addresses: Iterable[int]) -> Iterator[Plan]:
        """Yield the plans of traps for those of `addresses`, which `of` was asked for, where nothing better is."""
        for address in addresses:
            if (found := self._plans[address]) is not None and found.tier is Tier.TRAPPED:
                yield found

    def has(self, address: int) -> bool:
        """Return whether `of` was asked for `address`."""
        return address in self._plans

    def known(self, addresses: Iterable[int]) -> Iterator[Plan]:
        """Yield the plans of those of `addresses` that `of` was asked for."""
        return filter(None, map(self._plans.get, addresses))

    def stops(self, address: int) -> bool:
        """Return whether a probe at `address`, which `of` was asked for, stops the guest at each hit, or cannot be."""
        found = self._plans[address]
        return found is None or bool(found.tier.stops)

    def has_shape(self, plan: Plan, lay_out: LayOut) -> bool:
        """Return whether `shape` was asked for `plan`."""
        return (lay_out, plan.head) in self._shapes

    def shape(
        self, plan: Plan, isa: Isa, arena: Arena, lay_out: LayOut = count_code, at: int | None = None
    ) -> Shape | None:
        """Return what the detour of `plan` is like; None where it cannot be laid out. Raises Refused.

        at: the start of free memory for it, where that is known.
        """
        key = lay_out, plan.head
        if key not in self._shapes:
            moved = self.moved(plan, isa) if at is not None and lay_out is count_code else None
            if at is not None and moved is not None:  # of thousands: the copy is known, its count is laid out once
                self._shapes[key] = self._around(plan, isa, at, moved)
            else:
                self._shapes[key] = self._laid_out(plan, isa, arena, lay_out)
        return self._shapes[key]

    def moved(self, plan: Plan, isa: Isa) -> bytes | None:
        """Return what `moved_anywhere` does."""
        if plan.address not in self._moved:
            self._moved[plan.address] = moved_anywhere(plan, isa)
        return self._moved[plan.address]

    def _laid_out(self, plan: Plan, isa: Isa, arena: Arena, lay_out: LayOut) -> Shape | None:
        at = arena.free_code(plan.head, isa.branch_reach)
        try:
            code = lay_out(plan, isa, at, at + COUNTER_DISTANCE)
        except (OutOfReach, Unrelocatable):
            return None
        return Shape(len(code), self._counted(plan, isa, lay_out, code, at), len(plan.displaced))

    def _around(self, plan: Plan, isa: Isa, at: int, moved: bytes) -> Shape | None:
        """Return the shape of a count of which the copy is `moved`, between code that depends on little else."""
        key, displaced = (at, plan.dead, plan.base, len(moved)), len(plan.displaced)
        if key not in self._counts:
            try:
                whole, count = (count_around(plan, isa, at, at + COUNTER_DISTANCE, copy, at) for copy in (moved, b""))
            except OutOfReach:
                return None
            self._counts[key] = len(whole), len(isa.decode(count, at))
        size, instructions = self._counts[key]
        return Shape(size, instructions + displaced, displaced)

    def _counted(self, plan: Plan, isa: Isa, lay_out: LayOut, code: bytes, at: int) -> int:
        """Return the instructions of a detour: decoded, unless it is like another one but for what it has displaced."""
        if (moved := self.moved(plan, isa)) is None:
            return len(isa.decode(code, at))
        key, displaced = (lay_out, plan.dead, plan.base is None, len(code) - len(moved)), len(plan.displaced)
        if key not in self._others:
            self._others[key] = len(isa.decode(code, at)) - displaced
        return self._others[key] + displaced


def _is_alone(plan: Plan, anywhere: bool) -> bool:
    """Return whether the branch is at the probed instruction, and is the best that there is, at no tracer's site."""
    is_there = anywhere or plan.head == plan.address
    return plan.tier is Tier.OPTIMIZED and is_there and plan.ftrace is None and not plan.refused
