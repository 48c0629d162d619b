"""Lay out the copy of displaced instructions, which does the same elsewhere.

    probed function                         copy at `to`
    ┌──────────────────────────┐            ┌─────────────────────────────────────┐
    │ P: branch to the detour  │◄───────────┤ a branch back to P: counted again   │
    │    ░░░░░░░░░░░░░░░░░░░░  │            │                                     │
    │ Q: ░ (displaced)         │            │ Q': ◄── a branch to Q goes to Q'    │
    ├──────────────────────────┤            │                                     │
    │ E: next instruction      │◄───────────┤ branch to E, where the last falls   │
    └──────────────────────────┘            │ through                             │
                                            └─────────────────────────────────────┘
An ISA copies single instructions (`Relocation.copy`). A nop is left out, unless the instruction before it holds off
interrupts until it has run; in `origins` it has the offset of its successor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gdb_optprobe.isa.base import Before, Dead, Flow, Hazard, Insn, OutOfReach, Relocated, Unrelocatable

MASK = 0xFFFF_FFFF_FFFF_FFFF


@dataclass(slots=True)
class DisplacedRegion:
    """The displaced instructions, the addresses of their copies as far as known, and what is dead in all of them."""

    start: int
    end: int
    to: int
    copies: dict[int, int]
    dead: Dead

    def resolve(self, insn: Insn, target: int) -> int:
        """Return where the copy of `insn` must branch to in place of `target`."""
        if target in self.copies:
            return self.copies[target]
        if self.start < target < self.end:
            raise Unrelocatable(Hazard.BRANCH_INSIDE, insn)
        return target

    def check_operand(self, insn: Insn, address: int, size: int) -> None:
        """Refuse a memory operand that shares a byte with the displaced instructions: it would be the branch."""
        if (address - self.start) & MASK < self.end - self.start or (self.start - address) & MASK < size:
            raise Unrelocatable(Hazard.READS_ITS_ADDRESS, insn)

    def check_address(self, insn: Insn, address: int) -> None:
        """Refuse an address in the middle of the displaced instructions that `insn` computes: code may jump there."""
        if self.start < address < self.end:
            raise Unrelocatable(Hazard.READS_ITS_ADDRESS, insn)

    def return_address(self, insn: Insn) -> int:
        """Return the return address that the copy of `insn` leaves: the function called returns to the original code.

        Only the end of the displaced instructions is possible.
        """
        if insn.end != self.end and insn.flow is not Flow.NEXT:
            raise Unrelocatable(Hazard.RETURNS_INSIDE, insn)
        return insn.end


@dataclass(frozen=True, slots=True)
class Relocation:
    """Copies the instructions of an ISA.

    copy:    copies one that is no nop, to any address in the same size. Raises Unrelocatable, OutOfReach.
    branch:  encodes a branch from an address to another. Raises OutOfReach.
    is_nop:  whether an instruction does nothing.
    shadows: whether one holds off interrupts until the next one has run.
    copy_falls_through: whether execution may leave the copy of one at its end.
    moves_as_it_is:     whether every copy of one is its own bytes, or nothing.
    """

    copy: Callable[[Insn, int, DisplacedRegion], bytes]
    branch: Callable[[int, int], bytes]
    is_nop: Callable[[bytes], bool]
    shadows: Callable[[Insn], bool]
    copy_falls_through: Callable[[Insn], bool]
    moves_as_it_is: Callable[[Insn], bool]

    def relocate(
        self, insns: Sequence[Insn], to: int, before: Before | None = None, dead: Dead | None = None
    ) -> Relocated:
        """Rewrite `insns` (contiguous) to run at `to`, with the branch back. Raises Unrelocatable.

        before: by the address of an instruction, code to run just before it, of another probe on it. It need not be one
                of `insns`, but what they lead to: then the code runs on the way there.
        dead:   before the first of them: the copy of one alone may be shorter for it.
        """
        if not insns:
            raise ValueError("nothing to relocate")
        if any(here.end != there.address for here, there in pairwise(insns)):
            raise ValueError("the instructions to relocate are not contiguous")
        before = before or {}
        if all(map(self.moves_as_it_is, insns)):  # the entries of most functions do, of which there are thousands
            return self._lay_out_as_they_are(insns, to, before)
        self._check_shadows(insns, before)
        alone = dead if dead is not None and len(insns) == 1 else Dead()
        copies = dict.fromkeys([*(insn.address for insn in insns[1:]), *self._on_the_way(insns, before)], to)
        region = DisplacedRegion(insns[0].address, insns[-1].end, to, copies, alone)
        copy = self._lay_out(insns, region, before)
        inside = any(insn.target in region.copies for insn in insns)
        return self._lay_out(insns, region, before) if inside else copy

    def _check_shadows(self, insns: Sequence[Insn], before: Before) -> None:
        for insn, follower in pairwise((*insns, None)):
            if insn is not None and self.shadows(insn) and (follower is None or follower.address in before):
                raise Unrelocatable(Hazard.MASKS_INTERRUPTS, insn)

    def _on_the_way(self, insns: Sequence[Insn], before: Before) -> Sequence[int]:
        """Return the targets of jumps among `insns` that lead out of them and have code to run before."""
        start, end = insns[0].address, insns[-1].end
        targets = (insn.target for insn in insns if insn.target is not None and insn.target in before)
        return [*dict.fromkeys(target for target in targets if not start <= target <= end)]

    def _lay_out(self, insns: Sequence[Insn], region: DisplacedRegion, before: Before) -> Relocated:
        """Make one pass. No size depends on the address of a copy, so the second pass knows all addresses."""
        out = bytearray()
        origins: list[tuple[int, int]] = []
        shadowed = False
        for insn in insns:
            at = region.to + len(out)
            origins.append((len(out), insn.address))
            if insn.address in region.copies:
                region.copies[insn.address] = at
            try:
                if insn.address in before:
                    out += before[insn.address](at)
                if shadowed or not self.is_nop(insn.data):
                    out += self.copy(insn, region.to + len(out), region)
            except OutOfReach:
                raise Unrelocatable(Hazard.OUT_OF_REACH, insn) from None
            shadowed = self.shadows(insn)
        self._branch_back(insns[-1], region.to, out, origins, before)
        for target in self._on_the_way(insns, before):
            region.copies[target] = region.to + len(out)
            self._run_before(target, insns[-1], region.to, out, origins, before)
        return Relocated(region.to, bytes(out), tuple(origins))

    def _lay_out_as_they_are(self, insns: Sequence[Insn], to: int, before: Before) -> Relocated:
        out = bytearray()
        origins: list[tuple[int, int]] = []
        for insn in insns:
            origins.append((len(out), insn.address))
            if insn.address in before:
                try:
                    out += before[insn.address](to + len(out))
                except OutOfReach:
                    raise Unrelocatable(Hazard.OUT_OF_REACH, insn) from None
            if not self.is_nop(insn.data):
                out += insn.data
        self._branch_back(insns[-1], to, out, origins, before)
        return Relocated(to, bytes(out), tuple(origins))

    def _branch_back(
        self, last: Insn, to: int, out: bytearray, origins: list[tuple[int, int]], before: Before
    ) -> None:
        """Complete the copies `out` at `to`, of instructions of which `last` is the last one."""
        if self.copy_falls_through(last):
            self._run_before(last.end, last, to, out, origins, before)

    def _run_before(
        self, target: int, last: Insn, to: int, out: bytearray, origins: list[tuple[int, int]], before: Before
    ) -> None:
        """Add the way out to `target`, and what is to run before it."""
        origins.append((len(out), target))
        try:
            if target in before:
                out += before[target](to + len(out))
            out += self.branch(to + len(out), target)
        except OutOfReach:
            raise Unrelocatable(Hazard.OUT_OF_REACH, last) from None
