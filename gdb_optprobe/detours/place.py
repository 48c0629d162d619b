"""What a plan is made from: an address somebody wants to probe, and all that is known around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gdb_optprobe.detours.ground import Ground
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.isa.base import Insn


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another probed instruction.

    joins: its program may be compiled into the detour of a branch elsewhere; else the guest must run it in place.
    """

    number: int
    joins: bool = True


Neighbours = Callable[[int], Neighbour | None]
"""The probe on the instruction at an address, if there is one."""


def alone(_: int) -> Neighbour | None:
    """Nothing else is probed."""
    return None


@dataclass(frozen=True, slots=True)
class Site:
    """An address somebody wants to probe.

    neighbours:  the other probed instructions.
    breakpoints: of the user, which must go on to hit.
    """

    address: int
    neighbours: Neighbours = alone
    breakpoints: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Limits:
    """What is switched on, what the handlers need, and what is known of the machine.

    ways_to_trap:   code (start, end) that runs between a trap and its handler.
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
    ways_to_trap: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """A site with all that is known around it."""

    site: Site
    insn: Insn
    ground: Ground
    limits: Limits

    @property
    def address(self) -> int:
        return self.site.address
