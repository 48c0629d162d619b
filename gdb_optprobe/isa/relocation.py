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
What one instruction becomes is all that an ISA says (`Relocation.copy`). A nop becomes nothing, except where the
instruction before it holds off interrupts until it has run; one that is left out has the offset of its successor in
`origins`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gdb_optprobe.isa.base import Before, Dead, Flow, Hazard, Insn, OutOfReach, Relocated, Unrelocatable

MASK = 0xFFFF_FFFF_FFFF_FFFF


@dataclass(slots=True)
class DisplacedRegion:
    """The displaced instructions, where their copies stand as far as that is known, and what is dead in all of them."""

    start: int
    end: int
    to: int
    copies: dict[int, int]
    dead: Dead

    def resolve(self, insn: Insn, target: int) -> int:
        """Where the copy of `insn` must branch to reach what `target` is."""
        if target in self.copies:
            return self.copies[target]
        if self.start < target < self.end:
            raise Unrelocatable(Hazard.BRANCH_INSIDE, insn)
        return target

    def check_operand(self, insn: Insn, address: int, size: int) -> None:
        """Refuse a memory operand that shares a byte with the displaced instructions: the branch is there now."""
        if (address - self.start) & MASK < self.end - self.start or (self.start - address) & MASK < size:
            raise Unrelocatable(Hazard.READS_ITS_ADDRESS, insn)

    def check_address(self, insn: Insn, address: int) -> None:
        """Refuse an address that `insn` computes in the middle of the displaced instructions, to go to perhaps."""
        if self.start < address < self.end:
            raise Unrelocatable(Hazard.READS_ITS_ADDRESS, insn)

    def return_address(self, insn: Insn) -> int:
        """The address behind `insn`, for its copy to leave. Whoever is called returns there: only the end will do."""
        if insn.end != self.end and insn.flow is not Flow.NEXT:
            raise Unrelocatable(Hazard.RETURNS_INSIDE, insn)
        return insn.end


@dataclass(frozen=True, slots=True)
class Relocation:
    """What an ISA knows of its instructions.

    copy:    one that is no nop, to run at an address. Of one size wherever it stands. Raises Unrelocatable, OutOfReach.
    branch:  from an address to another. Raises OutOfReach.
    is_nop:  whether an instruction does nothing.
    shadows: whether one holds off interrupts until the instruction behind it has run.
    goes_on: whether execution may leave the copy of one at its end.
    """

    copy: Callable[[Insn, int, DisplacedRegion], bytes]
    branch: Callable[[int, int], bytes]
    is_nop: Callable[[bytes], bool]
    shadows: Callable[[Insn], bool]
    goes_on: Callable[[Insn], bool]

    def relocate(
        self, insns: Sequence[Insn], to: int, before: Before | None = None, dead: Dead | None = None
    ) -> Relocated:
        """`insns` (contiguous) rewritten to run at `to`, with the branch back. Raises Unrelocatable.

        before: for the address of an instruction, code to run each time just before it: called with where the code
                will stand, always returns the same number of bytes. Another probe on a displaced instruction.
        dead:   what is dead before the first of them: the copy of one alone may be shorter for it.
        """
        if not insns:
            raise ValueError("nothing to relocate")
        if any(here.end != there.address for here, there in pairwise(insns)):
            raise ValueError("the instructions to relocate are not contiguous")
        before = before or {}
        self._check_shadows(insns, before)
        alone = dead if dead is not None and len(insns) == 1 else Dead()
        region = DisplacedRegion(insns[0].address, insns[-1].end, to, {insn.address: to for insn in insns[1:]}, alone)
        copy = self._lay_out(insns, region, before)
        inside = any(insn.target in region.copies for insn in insns)
        return self._lay_out(insns, region, before) if inside else copy

    def _check_shadows(self, insns: Sequence[Insn], before: Before) -> None:
        for insn, follower in pairwise((*insns, None)):
            if insn is not None and self.shadows(insn) and (follower is None or follower.address in before):
                raise Unrelocatable(Hazard.MASKS_INTERRUPTS, insn)

    def _lay_out(self, insns: Sequence[Insn], region: DisplacedRegion, before: Before) -> Relocated:
        """One pass. No size depends on where a copy stands, so the second pass knows where the first has put them."""
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
        if self.goes_on(insns[-1]):
            origins.append((len(out), region.end))
            try:
                out += self.branch(region.to + len(out), region.end)
            except OutOfReach:
                raise Unrelocatable(Hazard.OUT_OF_REACH, insns[-1]) from None
        return Relocated(region.to, bytes(out), tuple(origins))
