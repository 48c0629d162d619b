"""One probe: what was asked for and what it has counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from gdb_optprobe.detours.refusal import Reason
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.detours.stop_pad import StopPad
from gdb_optprobe.handlers.interpreter import Outcome
from gdb_optprobe.isa.codegen import ProbeReadRoutines
from gdb_optprobe.maps.ring import START, RingPosition
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.results import Results
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.stops import StopPoint


class Presence(Enum):
    """Whether the text that a probe is on is in the guest: pending until a module brings it, gone with the module."""

    HERE = "here"
    PENDING = "pending"
    GONE = "gone"


@dataclass(slots=True)
class Probe:
    """A probe that a user added, of any kind: its spec says which.

    handler: what a hit does. sizes: the settings that it was made with.
    seen:    what hits left that we saw while the guest was stopped; what others did is in `counter`.
    counter: its memory in the guest, once it has been optimized. since: records in it before that were cleared away.
    readers: what its program calls, as `counter`.
    home:    where it is in a module, as one types it; "" elsewhere. It comes back there when the module does.
    moved:   why it is not at the address that was asked for, but at one that runs exactly as often; None if it is.
    presence, absence: whether its text is in the guest, and why not; the registry sets both.
    pad, pad_breakpoint: where its program leaves to when it stops, once it has been optimized; the breakpoint there.
    return_breakpoints: of a return probe with a Python handler, the stop points in trampolines, by address.
    """

    number: int
    spec: Spec
    address: int
    handler: Handler = field(default_factory=Handler)
    sizes: Mapping[str, int] = field(default_factory=dict)
    enabled: bool = True
    counter: Slot | None = None
    readers: ProbeReadRoutines | None = None
    since: RingPosition = START
    home: str = ""
    moved: Reason | None = None
    presence: Presence = Presence.HERE
    absence: Reason | None = None
    pad: StopPad | None = None
    pad_breakpoint: StopPoint | None = None
    return_breakpoints: dict[int, StopPoint] = field(default_factory=dict)
    seen: Results = field(init=False)
    _before: Results = field(init=False)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """No hit was seen."""
        self.seen = self._before = Results.empty(self.handler)

    def forget_records(self, dropped: int) -> None:
        """Keep no record of hits that were seen. dropped: those of the ring that is emptied."""
        self.seen, self._before = (
            replace(each, records=(), dropped=each.dropped + dropped) for each in (self.seen, self._before)
        )

    def add_hit(self, outcome: Outcome, vcpu: int) -> None:
        """Count a hit that was seen."""
        self._before, self.seen = self.seen, self.seen.after_hit(self.handler, outcome, vcpu)

    def undo_hit(self) -> None:
        """Take back the last hit, which will be counted once more."""
        self.seen = self._before

    def remove_breakpoints(self) -> None:
        """Remove its pad and the stops of its handler in a trampoline."""
        for point in self.breakpoints:
            point.remove()
        self.pad_breakpoint = None
        self.return_breakpoints.clear()

    @property
    def breakpoints(self) -> Iterator[StopPoint]:
        """All of its own."""
        yield from (self.pad_breakpoint,) if self.pad_breakpoint is not None else ()
        yield from self.return_breakpoints.values()

    def remove_return_breakpoints(self, start: int, end: int) -> None:
        """Retire the trampoline there."""
        for at in [at for at in self.return_breakpoints if start <= at < end]:
            self.return_breakpoints.pop(at).remove()

    @property
    def read_registers(self) -> frozenset[str] | None:
        """Return the registers that a hit reads at the probe, by GDB's names; None for all.

        A Python handler, a stop shows them.
        """
        if self.is_return:  # the program itself reads those of another moment
            return self.handler.entry.registers if self.spec.pre_handler is None else None
        return None if self.may_stop else self.handler.reads

    @property
    def is_return(self) -> bool:
        """Whether it is a return probe."""
        return self.spec.is_return

    @property
    def is_in_kernel(self) -> bool:
        """Whether it is at a site in the kernel's text now."""
        return self.presence is Presence.HERE and not self.spec.in_program

    @property
    def may_stop(self) -> bool:
        """Whether a hit that GDB does not see is not whole: the guest stops for a handler of Python's, or the user."""
        return self.handler.stops or self.spec.has_python_handler
