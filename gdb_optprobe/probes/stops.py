"""What the stopping tiers need of a debugger: places where the guest stops, runs a callback and continues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gdb_optprobe.detours.stop_pad import StopPad
from gdb_optprobe.guest.trap_frames import SavedRegisters


@dataclass(frozen=True, slots=True)
class Move:
    """How the guest continues after a hit without a single step: registers to set, the PC among them, and memory."""

    registers: Mapping[str, int]
    writes: tuple[tuple[int, bytes], ...] = ()


@dataclass(slots=True)
class Hit:
    """One hit of a probe, as a Python handler sees it, while the guest is stopped at the probed address.

    regs:    the registers, read when they are asked for.
    read:    memory, by address and size. write: sets registers.
    vcpu:    the number of the vCPU, from 0.
    address: the probed address.
    probe:   the number of the probe with the handler that runs.
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


@dataclass(frozen=True, slots=True)
class Caller:
    """A frame of a stopped guest's stack.

    exact:  its PC is the next instruction, not a return address: an interrupt, or a trap, came there.
    hidden: the stack has the address of a trampoline in place of `pc`.
    """

    pc: int
    sp: int
    exact: bool
    hidden: bool


# What a stop point calls at a hit. None: the instruction is to be single-stepped in place.
OnHit = Callable[[Hit], Move | None]


@dataclass(frozen=True, slots=True)
class ProbeStop:
    """How a vCPU at the pad of a probe is stopped: it is moved to the probed address by the pad's branch there.

    address: the probed one.
    on_pad:  called at the pad. Returns whether the vCPU is to stop; else it continues from the pad.
    on_stop: called at the probed address; the hit says which probes have stopped the vCPU.
    """

    pad: StopPad
    address: int
    on_pad: Callable[[], bool]
    on_stop: Callable[[Hit], None]


@dataclass(frozen=True, slots=True)
class StoppedReturn:
    """Where a vCPU at the pad of a function's returns is to stop.

    address:  where the call returns to.
    sp:       the stack pointer there, which tells this thread from others that come there.
    probes:   the numbers of the probes that stop it.
    function: the name of the function that has returned.
    value:    what it has returned; None for nothing.
    """

    address: int
    sp: int
    probes: tuple[int, ...]
    function: str
    value: int | None


@dataclass(frozen=True, slots=True)
class ReturnStop:
    """How a vCPU at the pad of a function's returns is stopped where the call returns to. The pad is a return.

    on_pad: called at the pad; returns None where the vCPU is not to stop.
    """

    pad: StopPad
    on_pad: Callable[[], StoppedReturn | None]


@dataclass(frozen=True, slots=True)
class StoppedProgram:
    """A user program that is stopped in the kernel, in the code of a trap; the user is shown the program.

    probes:   the numbers of the probes that stop it.
    process:  in words.
    place:    in the program, in words; or "".
    returned: the name of a function that has returned, and the value; None where none has.
    """

    probes: tuple[int, ...]
    process: str
    place: str
    returned: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class ProgramStop:
    """How a vCPU is stopped at the pad of traps in programs. It stays there: no register is changed.

    on_pad: called at the pad; returns None where the vCPU is not to stop.
    ticket: called at the pad; returns another number for each hit.
    saved:  where the program's registers are.
    gates:  the address of the gates that lead to the program.
    """

    pad: StopPad
    on_pad: Callable[[], StoppedProgram | None]
    ticket: Callable[[], int]
    saved: SavedRegisters
    gates: int


class StopPoint(Protocol):
    """A breakpoint of optprobe, which the user does not see.

    stepped, moved: how many hits took two stops of the guest, and one.
    """

    stepped: int
    moved: int

    def remove(self) -> None: ...


class Stops(Protocol):
    """The debugger's part of stopping the guest: sets stop points."""

    def set(self, address: int, on_hit: OnHit, restarts: bool = False) -> StopPoint:
        """Set a stop point. restarts: one hit may take several single steps, each one turn of the instruction."""

    def stop_at_probe(self, stop: ProbeStop) -> StopPoint:
        """Stop the vCPUs that come to the pad at the probed address; each such stop counts as two."""

    def stop_at_return(self, stop: ReturnStop) -> StopPoint:
        """Stop the vCPUs that come to the pad where the call returns to; a hit of a probe there is still to run."""

    def stop_in_program(self, stop: ProgramStop) -> StopPoint:
        """Stop the vCPUs that come to the pad right there; each such stop counts as one."""

    def selected(self) -> Hit:
        """Return the frame that the user has selected, as a hit of its PC."""

    def shows_program(self) -> bool:
        """Return whether a program is stopped at a pad and shown to the user, and the guest has not run since."""

    def selects_program(self) -> bool:
        """Return whether the selected vCPU is stopped at a pad of traps in programs."""

    def on_resume(self, behind: Callable[[int], int | None], moved: Callable[[], None]) -> None:
        """Move vCPUs that are stopped at a probed address for the user when the guest is about to run.

        behind: returns where a vCPU at an address is to continue; None where it stays. moved: called after all moves.
        """

    def arrived(self, address: int) -> None:
        """Run the hit of the selected vCPU if it is at `address` and a stop point was set there after it came.

        The debugger takes the hit for one that was reported, and steps over it.
        """

    def passed(self, address: int) -> None:
        """Take the hit of the selected vCPU for run if it is at `address`: its program ran in a detour."""

    def take_back(self, address: int) -> int:
        """Have vCPUs at `address` with their hit already run hit what is written there next. Return how many.

        Not vCPUs that are stopped there for the user: see `on_resume`.
        """
