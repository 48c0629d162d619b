"""The counts of one `add` as blocks, with a condition too: no object for a probe until something asks for that one.

    number     first, first + 1, …        member n:  probe  first + n

A member that is asked for by itself leaves the block as a Probe at a Site with a Branch (block_members.py, `unpack`),
on the same code and with the same counter. All members of a block cost a hit the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

from gdb_optprobe.detours.block import WORD, Block
from gdb_optprobe.detours.detour import Detour, build_detour, count_around, count_code, count_program, lay_out
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.handlers.lower_routine import caller_key
from gdb_optprobe.isa.base import Code, Dead, OutOfReach, padded
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.routines import RoutineCalls
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.routine import Routine, calls_of
from gdb_optprobe.probes.spec import Spec

FEW = 16
"""Symbols that are found one by one."""
LaidOut = dict[tuple[int, int, int, bool], bytes]
"""Code by the site, its own address and that of its counter or routine, and which of both it is."""


class SymbolsOf(Sequence[str]):
    """The symbols of a block's sites, or of a slice of them. All of the block are found once more than a few are asked
    for: `add` prints ten of thousands.
    """

    def __init__(self, sites: Sequence[int], find: Callable[[Sequence[int]], Sequence[str]]) -> None:
        self._sites, self._find = sites, find
        self._found: Sequence[str] = ()
        self._asked = 0
        self._block: SymbolsOf | None = None  # this one: no cycle, which would not be freed where none is collected
        self._places = range(len(sites))

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...

    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        if isinstance(place, slice):
            some = SymbolsOf((), self._find)
            some._block, some._places = self._whole, self._places[place]
            return some
        return self._whole._at(self._places[place])

    def __iter__(self) -> Iterator[str]:
        found = self._whole._all()
        return (found[place] for place in self._places)

    @property
    def _whole(self) -> SymbolsOf:
        return self if self._block is None else self._block

    def _at(self, place: int) -> str:
        self._asked += 1
        if not self._found and self._asked <= FEW:
            return self._find([self._sites[place]])[0]
        return self._all()[place]

    def _all(self) -> Sequence[str]:
        if not self._found:
            self._found = self._find(self._sites)
        return self._found


@dataclass(kw_only=True)
class CountBlock(Block):
    """sizes: the settings that the counts were made with. plans: of the members; of a uniform block one for all, which
    differ by address alone.

    installed_at: the moment when the code was placed; None where it was an earlier session's.
    enabled: whether the branches are in the text. symbols: of the sites, once something asked for them.
    offset: from where a detour begins to its call of the routine. before: where the program reads its index, how many
    of the same spec are in the blocks before this one.
    handler: of each member, but for its key in maps that it shares. routine: that their detours call; None where each
    counts by itself.
    laid_out: detours that were laid out, by site, by where they are and by what they count in or call.
    laid: the code of all members, from when it was laid out until it is written.
    moved: copies of what the members displace where these are the same anywhere (`moved_anywhere`), if that is known.
    """

    isa: Isa
    spec: Spec
    sizes: Mapping[str, int]
    first: int
    plans: Sequence[Plan]
    installed_at: object = None
    enabled: bool = True
    symbols: Sequence[str] = ()
    before: int = 0
    offset: int = 0
    handler: Handler = field(default_factory=Handler)
    routine: Routine | None = None
    laid_out: LaidOut = field(default_factory=dict)
    moved: Sequence[bytes | None] = ()
    laid: bytes = b""

    @property
    def numbers(self) -> range:
        """Return the numbers of the members, those that are out too."""
        return range(self.first, self.first + len(self.sites))

    def with_number(self, number: int) -> int | None:
        """Return the index of the member with this number; None where it is none."""
        index = number - self.first
        return index if self.has(index) else None

    def key(self, index: int) -> int:
        """Return what represents a member in maps that it shares."""
        return caller_key(self.slot(index).address + self.calls.behind)

    def has_key(self, key: int) -> bool:
        """Return whether a number, any, is the key of a member."""
        index = self.slot_at(caller_key(key))
        return index is not None and self.key(index) == key

    def address(self, index: int) -> int:
        """Return the address of a member's probed instruction: where hits are recorded its branch may begin before."""
        return self.plan(index).address if self.spec.is_recorded else self.sites[index]

    def handler_of(self, index: int) -> Handler:
        if self.handler.records is not None:
            return self.handler.at_index(self.before + index)
        return self.handler if self.handler.shared is None else self.handler.for_function(self.key(index))

    def plan(self, index: int) -> Plan:
        if not self.is_uniform:
            return self.plans[index]
        address, model = self.sites[index], self.plans[0]
        moved = tuple(insn._replace(address=address) for insn in model.displaced)
        traced = replace(model.ftrace, address=address) if model.ftrace is not None else None
        return replace(model, address=address, displaced=moved, ftrace=traced)

    @property
    def dead(self) -> Dead:
        """Return what is dead at every member, as far as that is known of all."""
        if self.spec.is_recorded:  # no later GDB adopts it, so its plans are known
            return Dead(
                all(plan.dead.flags for plan in self.plans),
                frozenset.intersection(*(plan.dead.registers for plan in self.plans)),
            )
        return self.plans[0].dead if self.is_uniform else Dead()

    def calls_in_place(self, index: int) -> bool:
        """Return whether the detour of a member calls the routine where it knows the member by."""
        ((start, *_),) = self.detour(index).programs
        return start == self.slot(index).address + self.offset

    @property
    def calls(self) -> RoutineCalls:
        """Return how the members call their routine."""
        return calls_of(self.isa, self.dead)

    def detour(self, index: int) -> Detour:
        """Return the detour of a member. Raises Unrelocatable, OutOfReach."""
        return build_detour(plan := self.plan(index), self.isa, self.slot(index).address, self._program(plan, index))

    def _program(self, plan: Plan, index: int) -> Mapping[int, Code]:
        """Return what a member's detour has beside what it displaces, by the address of the probed instruction."""
        if self.routine is None:
            return count_program(plan, self.isa, self.counter(index).address)
        return call_program(plan, self.isa, self.routine.address)

    def patch(self, index: int) -> Patch:
        """Return the change of the text that leads to the member's detour."""
        address = self.sites[index]
        return Patch(address, self.originals[index], self.isa.branch(address, self.slot(index).address))

    def detours(self, start: int = 0, end: int | None = None) -> bytes:
        """Return what the code of the members from `start` to before `end` is. Raises Unrelocatable, OutOfReach."""
        indexes = range(len(self.sites))[start:end]
        if not self.is_uniform:
            return b"".join(self._padded(indexes))
        sites, originals, model = self.sites[start:end], self.originals[start:end], self.plans[0]
        ends = [site + len(original) for site, original in zip(sites, originals, strict=True)]
        first, start_of = self.counter(indexes.start).address, self.slot(indexes.start).address
        counters = range(first, first + WORD * len(indexes), WORD)
        moved = b"" if model.ftrace is not None else model.insn.data  # the tracer's nop is left out
        if self.routine is not None:
            call, routine = self.calls.call, self.routine.address
            places = range(start_of, start_of + self.step * len(indexes), self.step)
            pieces = [call(routine, at) + moved for at in places]
            return padded(pieces, start_of, self.step, ends, self.isa.branch, self.isa.breakpoint)
        return self.isa.counts(self.slot(indexes.start).address, self.step, counters, ends, model.dead, moved)

    def _padded(self, indexes: range) -> Iterator[bytes]:
        """Yield the code of each of these members, which differ."""
        step, known, padding = self.step, self.laid_out, self.isa.breakpoint
        to, each = (self.data.address, WORD) if self.routine is None else (self.routine.address, 0)
        for index in indexes:
            at, target = self.code.address + index * step, to + index * each
            key = self.sites[index], at, target, self.routine is None
            if (data := known.get(key)) is None:
                data = known[key] = self._code(index, at, target)
            if len(data) > step:
                raise OutOfReach(at, self.sites[index])
            yield data + padding * ((step - len(data)) // len(padding))


    def _code(self, index: int, at: int, target: int) -> bytes:
        """Return the code of a member's detour. target: its counter, or the routine."""
        plan = self.plans[index]
        if self.routine is not None:
            return call_code(plan, self.isa, at, target)
        if not self.moved or (moved := self.moved[index]) is None:
            return count_code(plan, self.isa, at, target)
        return count_around(plan, self.isa, at, target, moved, self.sites[index] + len(moved))


def call_offset(plan: Plan, isa: Isa, at: int, routine: int) -> int:
    """Return from where a detour begins to its call of a routine. Raises Unrelocatable, OutOfReach."""
    ((start, *_),) = build_detour(plan, isa, at, call_program(plan, isa, routine)).programs
    return start - at


def call_code(plan: Plan, isa: Isa, at: int, routine: int) -> bytes:
    """Return the code of a detour that calls a routine for the probed instruction. Raises Unrelocatable, OutOfReach."""
    return lay_out(plan, isa, at, call_program(plan, isa, routine))[0]


def call_program(plan: Plan, isa: Isa, routine: int) -> Mapping[int, Code]:
    """Return the call of a routine, by the address of the probed instruction."""
    return {plan.address: lambda to: calls_of(isa, plan.dead).call(routine, to)}
