"""What the stopping tiers need of a debugger: a place where the guest stops, runs a callback and goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gdb_optprobe.guest.trap_frames import SavedRegisters


@dataclass(frozen=True, slots=True)
class Move:
    """How the guest goes on after a hit without a single step: registers to set, the PC among them, and memory."""

    registers: Mapping[str, int]
    writes: tuple[tuple[int, bytes], ...] = ()


@dataclass(slots=True)
class Hit:
    """One hit of a probe, as a Python handler sees it, while the guest stands at the probed address.

    regs:    the registers, read when they are asked for.
    read:    memory, by address and size. write: sets registers.
    vcpu:    the number of the vCPU, from 0.
    address: the probed address.
    probe:   the number of the probe whose handler runs.
    stopped_by: the numbers of the probes that want the guest stopped.
    """

    address: int
    vcpu: int
    regs: Mapping[str, int]
    read: Callable[[int, int], bytes]
    write: Callable[[Mapping[str, int]], None]
    probe: int = 0
    stopped_by: list[int] = field(default_factory=list)

    def stop(self) -> None:
        """Hand the guest to the user once every handler of this hit has run."""
        if self.probe not in self.stopped_by:
            self.stopped_by.append(self.probe)


# What a stop point calls at a hit. None: the instruction is to be single-stepped in place.
OnHit = Callable[[Hit], Move | None]


@dataclass(frozen=True, slots=True)
class ProbeStop:
    """How a vCPU that has come to a pad is brought to the probed address, there to stop.

    address: the probed one. pad: the pad's. via: of the pad's branch to it.
    bell:    what is written to just before somebody comes to the pad. rung: where 8 bytes count that.
    comes:   called at the pad; whether the vCPU is to stop. Else it goes on from the pad.
    arrives: called when it stands at the probed address; the hit tells who has stopped it.
    """

    address: int
    pad: int
    via: int
    bell: int
    rung: int
    comes: Callable[[], bool]
    arrives: Callable[[Hit], None]


@dataclass(frozen=True, slots=True)
class StoppedReturn:
    """Where a vCPU is to stop that is at the pad of a function's returns.

    address: where the call returns to. sp: what the stack pointer is there: of nobody else.
    probes:  the numbers of those that stop it. function: what has returned. value: what; None for nothing.
    """

    address: int
    sp: int
    probes: tuple[int, ...]
    function: str
    value: int | None


@dataclass(frozen=True, slots=True)
class ReturnStop:
    """How a vCPU that has come to a pad, which is a return, is stopped where it returns to.

    bell, rung: see ProbeStop. comes: called at the pad; None where the vCPU is not to stop.
    """

    pad: int
    bell: int
    rung: int
    comes: Callable[[], StoppedReturn | None]


@dataclass(frozen=True, slots=True)
class StoppedProgram:
    """A vCPU that code at a trap of a user's program stops there; what the user is shown is the program.

    probes:   the numbers of those that stop it. who: whose program it is; place: where in it, in words; or "".
    returned: what has, and its value, see StoppedReturn.
    """

    probes: tuple[int, ...]
    who: str
    place: str
    returned: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class ProgramStop:
    """How a vCPU is stopped that has come to where code at traps of programs stops, and goes on from there.

    bell, rung: see ProbeStop. comes: called there; None where the vCPU is not to stop.
    ticket:     called there: another number for each hit.
    saved:      where the program's registers are.
    """

    pad: int
    bell: int
    rung: int
    comes: Callable[[], StoppedProgram | None]
    ticket: Callable[[], int]
    saved: SavedRegisters


class StopPoint(Protocol):
    """A breakpoint that is ours, invisible among the user's."""

    stepped: int
    moved: int

    def remove(self) -> None: ...


class Stops(Protocol):
    """Sets stop points. `stepped` and `moved` count hits that took two stops of the guest and one."""

    def set(self, address: int, on_hit: OnHit, restarts: bool = False) -> StopPoint:
        """restarts: a single step of the instruction there may be one turn of several, which are one hit."""

    def stop_at_probe(self, stop: ProbeStop) -> StopPoint:
        """Stop at the pad who comes there; each that arrives counts as two stops."""

    def stop_at_return(self, stop: ReturnStop) -> StopPoint:
        """The same where functions return; who has arrived has no hit there that was run."""

    def stop_in_program(self, stop: ProgramStop) -> StopPoint:
        """The same of programs; who has arrived stands at the pad, and counts as one stop."""

    def shows_program(self) -> bool:
        """Whether the user looks at a program that was stopped so, and the guest has not run since."""

    def selects_program(self) -> bool:
        """Whether the selected vCPU is one of those."""

    def on_resume(self, behind: Callable[[int], int | None], moved: Callable[[], None]) -> None:
        """Who was stopped at an address and stands there, when the guest is about to run, goes on where `behind` says.

        None: right there. moved: called when all have been moved.
        """

    def arrived(self, address: int) -> None:
        """Run the hit of the selected vCPU if it stands at a stop point that was set under its feet.

        The debugger takes it for hit and steps over it.
        """

    def take_back(self, address: int) -> int:
        """How many vCPUs stand at `address` with their hit already run; they hit again what comes there instead.

        Not those that were stopped there for the user: see `on_resume`.
        """
