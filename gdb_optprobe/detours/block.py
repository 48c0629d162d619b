"""Detours of one size that follow one another, with a word of data each: thousands of counts at functions' entries.

    sites      ┌────┬────┬────┬────┐               text       a branch at sites[n]
               │    │    │    │    │               detour     code + n * step ─┐
    code       ├────┴┬───┴─┬──┴──┬─┴──┐            counter    data + n * 8  ◄──┘
               │ step│ step│ step│ …  │
    data       ├──┬──┼──┬──┤     └────┘            out        members that are detours of their own by now
               │ 8│ 8│ 8│ …│
Addresses, slots and counters are arrays: nothing is kept for one member. A member is known by its index.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.maps import aggregate

WORD = 8


@dataclass(kw_only=True)
class Block:
    """sites: ascending. originals: what the text holds at each without a branch. code, data: memory of all members,
    those that are out too. traced: whether the sites are the tracer's, and kept from it.
    is_uniform: whether all displace the same one instruction, and return to behind it.
    out: indexes of the members that are not in the block any more, ascending.
    """

    sites: array[int]
    originals: Sequence[bytes]
    code: Slot
    data: Slot
    step: int
    traced: bool = True
    is_uniform: bool = True
    out: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.sites) - len(self.out)

    @property
    def members(self) -> Sequence[int]:
        """Return the indexes of the members, ascending."""
        if not self.out:
            return range(len(self.sites))
        return [index for start, end in self.runs() for index in range(start, end)]

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield the members as ranges of indexes, from the first to behind the last."""
        start = 0
        for index in [*self.out, len(self.sites)]:
            if start < index:
                yield start, index
            start = index + 1

    def run_of(self, index: int) -> tuple[int, int]:
        """Return the one of `runs` that a member is in."""
        behind = bisect_left(self.out, index)
        start = self.out[behind - 1] + 1 if behind else 0
        return start, self.out[behind] if behind < len(self.out) else len(self.sites)

    def take_out(self, index: int) -> None:
        insort(self.out, index)

    def has(self, index: int) -> bool:
        """Return whether an index, of any number, is that of a member."""
        if not 0 <= index < len(self.sites):
            return False
        behind = bisect_left(self.out, index)
        return behind == len(self.out) or self.out[behind] != index

    def at(self, address: int) -> int | None:
        """Return the index of the member at `address`; None where none is."""
        index = bisect_left(self.sites, address)
        return index if self.has(index) and self.sites[index] == address else None

    def within(self, start: int, end: int) -> list[int]:
        """Return the indexes of the members at addresses from `start` to before `end`."""
        return list(filter(self.has, range(bisect_left(self.sites, start), bisect_left(self.sites, end))))

    def has_within(self, start: int, end: int) -> bool:
        """Return whether there are members at addresses from `start` to before `end`."""
        first, last = bisect_left(self.sites, start), bisect_left(self.sites, end)
        return first < last and (not self.out or any(map(self.has, range(first, last))))

    # memory ----------------------------------------------------------------------------------------------------------

    def slot(self, index: int) -> Slot:
        return Slot(self.code.address + index * self.step, self.step)

    def counter(self, index: int) -> Slot:
        return Slot(self.data.address + index * WORD, WORD)

    def slot_at(self, pc: int) -> int | None:
        """Return the index of the member with the detour that `pc` is in; None for one that is out, or elsewhere."""
        if not self.code.address <= pc < self.code.end:
            return None
        index = (pc - self.code.address) // self.step
        return index if self.has(index) else None

    def pieces(self) -> Iterator[tuple[Slot, Slot]]:
        """Yield the pieces of code and of data that members have, those that follow one another as one."""
        return (self.piece(start, end) for start, end in self.runs())

    def piece(self, start: int, end: int) -> tuple[Slot, Slot]:
        """Return the code and the data of the indexes from `start` to before `end`."""
        code, data = self.slot(start).address, self.counter(start).address
        return Slot(code, (end - start) * self.step), Slot(data, (end - start) * WORD)

    def left_code(self, start: int, end: int, data: bytes, isa: Isa) -> Detour:
        """Return the code of the indexes from `start` to before `end` as one detour that nothing leads to any more.

        data: what it holds.
        """
        code, _ = self.piece(start, end)
        slots = range(code.address, code.end, self.step)
        origins = tuple(zip(slots, self.sites[start:end], strict=True))
        exits: list[Insn] = []
        # Behind the only displaced instruction no branch over several instructions can have its middle.
        for at in () if self.is_uniform else slots:
            insns = isa.decode(data[at - code.address :][: self.step], at)
            exits += (insn for insn in insns if _leaves(insn, at, at + self.step))
        return Detour(code.address, data, self.sites[start], origins, exits=tuple(exits))

    # all members at once ---------------------------------------------------------------------------------------------

    def places(self) -> list[tuple[int, int]]:
        """Return where in the text the members are, as (start, end)."""
        sites, originals = self.sites, self.originals
        return [(sites[index], sites[index] + len(originals[index])) for index in self.members]

    def texts(self) -> list[bytes]:
        """Return what the text holds at the members without their branches."""
        return [self.originals[index] for index in self.members]

    def branches(self, isa: Isa) -> list[bytes]:
        """Return the branch of each member. Raises OutOfReach."""
        members, code, step = self.members, self.code.address, self.step
        return isa.branches([self.sites[index] for index in members], [code + index * step for index in members])

    def hits(self, data: bytes) -> list[int]:
        """Return what each member has counted. data: what `data` holds."""
        words = aggregate.decode(data)
        return list(words) if not self.out else [words[index] for index in self.members]


def _leaves(insn: Insn, start: int, end: int) -> bool:
    """Return whether a branch leads out of [start, end). A call comes back."""
    return insn.target is not None and insn.flow in (Flow.JUMP, Flow.BRANCH) and not start <= insn.target < end
