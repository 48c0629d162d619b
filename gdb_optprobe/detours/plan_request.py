"""What a plan is made from: an address to probe, and all that is known around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gdb_optprobe.detours.cfg import Cfg
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.isa.base import Insn


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another probed instruction.

    may_share: whether its program may run in the detour of a branch elsewhere; else the guest must run it in place.
    """

    number: int
    may_share: bool = True


Neighbours = Callable[[int], Neighbour | None]
"""Return the probe on the instruction at an address, if there is one."""


def no_neighbours(_: int) -> Neighbour | None:
    """Return no neighbour: nothing else is probed."""
    return None


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """An address to probe.

    neighbours:  the other probed instructions.
    breakpoints: the user's, which must still hit.
    """

    address: int
    neighbours: Neighbours = no_neighbours
    breakpoints: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class TierLimits:
    """What limits the tiers: settings, what the handlers need, and what is known of the machine.

    trap_paths:     code (start, end) that runs between a trap and its handler, or reads what a trap overwrites.
    trap_missing:   why no trap can be handled in the guest, in words; empty where it can.
    forced:         no tier above this one; a plan may still end below it, and says why.
    stacks_missing: why saved PCs cannot all be enumerated, in words; empty when they can.
    """

    optimization: bool = True
    boost: bool = True
    emulation: bool = True
    trap: bool = True
    forced: Tier | None = None
    post_handler: bool = False
    python_handler: bool = False
    stacks_missing: str = ""
    trap_missing: str = "its handler of traps is not known"
    trap_paths: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PlanContext:
    """A request, with all that is known around its address."""

    request: PlanRequest
    insn: Insn
    cfg: Cfg
    limits: TierLimits
