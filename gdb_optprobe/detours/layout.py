"""Lay out a detour: the code a branch leads to.

    probed function            detour slot (code)                    data
    ┌───────────────┐          ┌────────────────────────────┐        ┌─────────┐
    │ jmp ──────────┼────────► │ program of the first insn  ├──────► │ counter │
    │ (5 bytes)     │          │   lock inc (counter)       │        └─────────┘
    │               │          ├────────────────────────────┤
    │               │          │ first insn, rewritten for  │
    │               │          │   its new address          │        ┌─────────┐
    │               │          ├────────────────────────────┤   ┌──► │ counter │
    │               │          │ program of the second      ├───┘    └─────────┘
    │               │          │ second insn                │
    │ next insn ◄───┼───┐      │ …                          │
    └───────────────┘   └──────┼ jmp back                   │
                               └────────────────────────────┘
A boosted copy is the same without a program. Where a trap leads, the landing comes first. At a tracer's site the
displaced nop is left out.

Where execution stands, for the unwinder and the stepper: inside a program its instruction has not begun; from a
displaced instruction's first byte to its last it is at that instruction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.isa.base import Flow, Insn, Isa
from gdb_optprobe.isa.code import Code


@dataclass(frozen=True, slots=True)
class Detour:
    """Code in guest memory that stands for the instructions from `head` on.

    origins:  (address in the detour, original address) of each displaced instruction, its program included, and of the
              branch back.
    programs: (start, end, original address) of each program.
    ways_on:  the branches out of the detour, at their addresses there: back, and those that were displaced.
    """

    address: int
    data: bytes
    head: int
    origins: tuple[tuple[int, int], ...]
    programs: tuple[tuple[int, int, int], ...] = ()
    ways_on: tuple[Insn, ...] = ()

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def end(self) -> int:
        return self.address + len(self.data)

    def original_pc(self, pc: int) -> int | None:
        """The original address that `pc` stands for; None outside the detour."""
        if not self.address <= pc < self.end:
            return None
        place = bisect_right(self.origins, pc, key=lambda origin: origin[0])
        return self.origins[place - 1][1] if place else self.head

    @property
    def stands_for(self) -> frozenset[int]:
        """The original addresses at which somebody who is inside is, or comes to in the text."""
        originals = {original for _, original in self.origins}
        return frozenset(originals | {insn.target for insn in self.ways_on if insn.target is not None})

    def behind(self, original: int) -> int | None:
        """Where the instruction at `original` begins, behind its programs; None where it is not in the detour."""
        behind = next((end for _, end, insn in self.programs if insn == original), None)
        return self.address_of(original) if behind is None else behind

    def address_of(self, original: int) -> int | None:
        """Where execution that is at `original` stands in the detour (the branch back included); None if nowhere."""
        return next((at for at, origin in self.origins if origin == original), None)


def build(plan: Plan, isa: Isa, at: int, programs: Mapping[int, Code] | None = None) -> Detour:
    """The detour of `plan` at the address `at`, with programs by the address of the instruction they run before.

    Raises Unrelocatable or OutOfReach where `at` does not do.
    """
    programs = programs or {}
    sizes = {original: len(program(at)) for original, program in programs.items()}
    landing = isa.landing if plan.tier is Tier.TRAPPED else b""
    start = at + len(landing)
    if plan.ftrace is not None:
        first = programs[plan.head](start) if plan.head in programs else b""
        data = first + isa.branch(start + len(first), plan.ftrace.end)
        origins: tuple[tuple[int, int], ...] = ((start, plan.head), (start + len(first), plan.ftrace.end))
    else:
        alone = plan.dead if plan.displaced == (plan.insn,) else None
        moved = isa.relocate(plan.displaced, start, programs, alone)
        data, origins = moved.data, tuple((start + offset, original) for offset, original in moved.origins)
    data = landing + data
    return Detour(
        address=at,
        data=data,
        head=plan.head,
        origins=origins,
        programs=tuple((start, start + sizes[insn], insn) for start, insn in origins if insn in sizes),
        ways_on=_ways_on(isa.decode(data, at), at, at + len(data)),
    )


def _ways_on(insns: Sequence[Insn], start: int, end: int) -> tuple[Insn, ...]:
    branches = (insn for insn in insns if insn.flow in (Flow.JUMP, Flow.BRANCH))
    return tuple(insn for insn in branches if insn.target is not None and not start <= insn.target < end)


def count(plan: Plan, isa: Isa, at: int, counter: int) -> Detour:
    """A detour that counts the hits of the probed instruction."""
    return build(plan, isa, at, {plan.address: lambda to: isa.count(counter, to, plan.dead, plan.base)})


def boost(plan: Plan, isa: Isa, at: int) -> Detour:
    """A copy of the probed instruction that goes on behind it: where a stopped vCPU is sent in place of a step."""
    return build(plan, isa, at)
