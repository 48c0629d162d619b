"""What the stopping tiers need of a debugger: a place where the guest stops, runs a callback and goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Move:
    """How the guest goes on after a hit without a single step: registers to set, the PC among them, and memory."""

    registers: Mapping[str, int]
    writes: tuple[tuple[int, bytes], ...] = ()


@dataclass(slots=True)
class Hit:
    """One hit of a probe, as a Python handler sees it, while the guest stands at the probed address.

    regs:    the registers, read when first asked for; changes are not written to the guest.
    vcpu:    the number of the vCPU, from 0.
    address: the probed address.
    """

    address: int
    vcpu: int
    regs: Mapping[str, int]
    read: Callable[[int, int], bytes]
    wants_stop: bool = False

    def stop(self) -> None:
        """Hand the guest to the user once every handler of this hit has run."""
        self.wants_stop = True


# What a stop point calls at a hit. None: the instruction is to be single-stepped in place.
OnHit = Callable[[Hit], Move | None]


class StopPoint(Protocol):
    """A breakpoint that is ours, invisible among the user's."""

    stepped: int
    moved: int

    def remove(self) -> None: ...


class Stops(Protocol):
    """Sets stop points. `stepped` and `moved` count hits that took two stops of the guest and one."""

    def set(self, address: int, on_hit: OnHit, restarts: bool = False) -> StopPoint:
        """restarts: a single step of the instruction there may be one turn of several, which are one hit."""

    def arrived(self, address: int) -> None:
        """Run the hit of the selected vCPU if it stands at a stop point that was set under its feet.

        The debugger takes it for hit and steps over it.
        """

    def take_back(self, address: int) -> int:
        """How many vCPUs stand at `address` with their hit already run; they hit again what comes there instead."""
