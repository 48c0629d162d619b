"""Lay out a detour: the code a probed instruction branches to.

    probed function            detour slot (code)                    data
    ┌───────────────┐          ┌────────────────────────────┐        ┌─────────┐
    │ jmp ──────────┼────────► │ program                    ├──────► │ counter │
    │ (5 bytes)     │          │   lock inc (counter)       │        └─────────┘
    │               │          ├────────────────────────────┤
    │ next insn ◄───┼───┐      │ displaced instructions,    │
    └───────────────┘   │      │   rewritten for their new  │
                        │      │   address                  │
                        └──────┼ jmp back                   │
                               └────────────────────────────┘
A boosted copy is the same without a program. At a tracer's site the displaced nop is left out.

Where execution stands, for the unwinder and the stepper: inside the program the probed instruction has not begun;
from a displaced instruction's first byte to its last it is at that instruction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.isa.base import Isa

Program = Callable[[int], bytes]
"""Code that runs at the address it is given and ends by falling through."""


@dataclass(frozen=True, slots=True)
class Detour:
    """Code for one address in guest memory.

    site:         the probed address.
    program_size: bytes of `data` before the displaced instructions.
    origins:      (address in the detour, original address) of each displaced instruction and of the branch back.
    counter:      address of the 8-byte counter; None where the program has none.
    """

    address: int
    data: bytes
    site: int
    program_size: int
    origins: tuple[tuple[int, int], ...]
    counter: int | None = None

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
        return self.origins[place - 1][1] if place else self.site

    def address_of(self, original: int) -> int | None:
        """Where execution that is at `original` stands in the detour (the branch back included); None if nowhere."""
        return next((at for at, origin in self.origins if origin == original), None)


def build(plan: Plan, isa: Isa, at: int, program: Program | None = None, counter: int | None = None) -> Detour:
    """The detour of `plan` at the address `at`. Raises Unrelocatable or OutOfReach where `at` does not do."""
    first = program(at) if program is not None else b""
    start = at + len(first)
    if plan.ftrace is not None and plan.tier is Tier.OPTIMIZED:
        rest = isa.branch(start, plan.ftrace.end)
        origins: tuple[tuple[int, int], ...] = ((0, plan.ftrace.end),)
    else:
        moved = isa.relocate(plan.displaced, start)
        rest, origins = moved.data, moved.origins
    return Detour(
        address=at,
        data=first + rest,
        site=plan.address,
        program_size=len(first),
        origins=tuple((start + offset, original) for offset, original in origins),
        counter=counter,
    )


def count(plan: Plan, isa: Isa, at: int, counter: int) -> Detour:
    """A detour that counts the hits."""
    return build(plan, isa, at, lambda to: isa.count(counter, to, plan.dead), counter)


def boost(plan: Plan, isa: Isa, at: int) -> Detour:
    """A copy of the probed instruction that goes on behind it: where a stopped vCPU is sent in place of a step."""
    return build(plan, isa, at)
