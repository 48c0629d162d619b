"""What a plan is made from: an address somebody wants to probe, and all that is known around it."""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.guest.text import Function, Text
from gdb_optprobe.isa.base import Insn, Isa


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another probe's bytes that are, or will be, covered by its branch."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Site:
    """An address somebody wants to probe.

    neighbours:  of other probes; those far away are ignored.
    breakpoints: of the user, which must go on to hit.
    """

    address: int
    neighbours: tuple[Neighbour, ...] = ()
    breakpoints: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Limits:
    """What is switched on, what the handlers need, and what is known of the machine.

    forced:         no tier above this one; a plan may still end below it, and says why.
    detours:        an address where detours are placed; None tries beside the site itself.
    stacks_missing: why saved PCs cannot all be enumerated, in words; empty when they can.
    """

    optimization: bool = True
    boost: bool = True
    emulation: bool = True
    forced: Tier | None = None
    post_handler: bool = False
    python_handler: bool = False
    stacks_missing: str = ""
    detours: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A site with all that is known around it; what every check below is asked about."""

    site: Site
    insn: Insn
    function: Function
    isa: Isa
    text: Text
    limits: Limits

    @property
    def address(self) -> int:
        return self.site.address

    @property
    def detours(self) -> int:
        """Where a detour may stand, to try what its relocation would be."""
        if self.limits.detours is not None:
            return self.limits.detours
        return (self.address & ~0xFFFF) + (self.isa.branch_reach // 4)
