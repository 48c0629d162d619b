"""Who has come to a pad is stopped at the probed address, as if a breakpoint of the user's stood there.

    bell: rung ──► the pads have breakpoints
    pad: stop() ──► PC := the branch to the address; False: GDB steps off, this vCPU alone
    gate: at the address, enabled meanwhile ──► True: a stop like any other, `finish` and `next` ended by it as by any

GDB takes PCs that were set by hand for new ones and runs into a breakpoint there; to one that it has stopped at it pays
heed: so it is made to come there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import gdb

from gdb_optprobe.debugger.machine import GdbMachine, read_register, write_selected_registers
from gdb_optprobe.debugger.parameters import machine_interface
from gdb_optprobe.guest_text import one_line
from gdb_optprobe.interrupts import held, unbroken
from gdb_optprobe.isa.base import Isa
from gdb_optprobe.probes.stops import Arrival, Landing, ProgramLanding, ReturnLanding

# Of ISAs, by name. Where GDB takes a watchpoint for hit before the access (ppc64le), it makes a step then, and stops of
# two vCPUs at once can get lost. On x86-64 it would save a slowdown of 2 %, and is not proven on several vCPUs.
_WITH_BELL: tuple[str, ...] = ()


class StopPad(gdb.Breakpoint):
    """A breakpoint at a pad."""

    def is_awaited(self, address: int) -> bool:
        """Whether the selected thread is to come to a gate there, where a probe may have a breakpoint."""
        return False

    def is_shown(self) -> bool:
        """Whether somebody stands there for the user, whom QEMU may report again: GDB is to step him off."""
        return False


class StopBreakpoints:
    """The pads of one connection and their bell.

    arrive: called when who has come to a pad stands at the probed address.
    tell:   called when who has come to one of returns stands behind the call.
    """

    def __init__(
        self, machine: GdbMachine, isa: Isa, arrive: Callable[[Landing], None], tell: Callable[[Arrival], None]
    ) -> None:
        self.machine = machine
        self.pc, self.sp = isa.pc, isa.sp
        self._with_bell = isa.name in _WITH_BELL
        self.arrive = arrive
        self.tell = tell
        self._pads: list[StopPad] = []
        self._returned: tuple[int, int] | None = None
        self._dropped: list[gdb.Breakpoint] = []
        self._bell: Doorbell | None = None
        self._rung = self._arrived = 0

    def add(self, landing: Landing) -> ProbePad:
        pad = ProbePad(landing, self)
        self.register(pad, landing)
        return pad

    def add_return(self, landing: ReturnLanding) -> ReturnPad:
        pad = ReturnPad(landing, self)
        self.register(pad, landing)
        return pad

    def register(self, pad: StopPad, landing: Landing | ReturnLanding | ProgramLanding) -> None:
        """Have those that come to the pad stop."""
        if self._bell is None and self._with_bell:
            self._rung = landing.rung
            self._bell = Doorbell(landing.bell, self.update)
        if not self._pads:
            self._arrived = self._count() if self._bell is not None else 0
        self._pads.append(pad)
        self.update()

    def drop(self, pad: StopPad, others: Sequence[gdb.Breakpoint]) -> None:
        """Nobody is stopped there any more, nor at the others, which are its own."""
        self._pads.remove(pad)
        self.discard([*others, pad])
        if not self._pads and self._bell is not None:
            self._bell.enabled = False
            self._dropped.append(self._bell)
            self._bell = None

    def discard(self, breakpoints: Sequence[gdb.Breakpoint]) -> None:
        """They are deleted when that can be."""
        for each in breakpoints:
            each.enabled = False
        self._dropped += breakpoints

    def count_arrival(self) -> None:
        """Somebody is at a pad."""
        self._arrived += 1

    def is_coming(self, address: int) -> bool:
        """Whether the selected thread is on its way from a pad to `address`."""
        return any(pad.is_awaited(address) for pad in self._pads)

    def returned(self, address: int) -> None:
        """The selected thread stops at `address`, where a call has returned to."""
        self._returned = _thread().num, address

    def has_returned(self, address: int) -> bool:
        """Whether the stop that GDB is about to make, or has made, is one of the selected thread's there."""
        coming = any(isinstance(pad, ReturnPad) and pad.is_arriving(address) for pad in self._pads)
        return coming or self._returned == (_thread().num, address)

    def mark_running(self) -> None:
        """The guest is about to run."""
        self._returned = None

    def update(self) -> None:
        """Whether anybody has rung who has not come yet: the pads have breakpoints only then."""
        if not self._pads:
            return
        wanted = self._bell is None or not self._bell.is_watched or self._count() > self._arrived
        for pad in self._pads:
            if pad.enabled != (wanted or pad.is_shown()):
                pad.enabled = not pad.enabled

    def delete_dropped(self) -> None:
        """Delete what was dropped: GDB crashes when one goes while it tells that another one has gone."""
        dropped, self._dropped = self._dropped, []
        for each in dropped:
            if each.is_valid():
                each.delete()

    def _count(self) -> int:
        return int.from_bytes(self.machine.read(self._rung, 8), "little")


class Doorbell(gdb.Breakpoint):
    """The watchpoint on the bell; silent, and never a stop of the user's."""

    def __init__(self, address: int, rings: Callable[[], None]) -> None:
        what = f"*(unsigned char *) {address:#x}"
        super().__init__(what, type=gdb.BP_WATCHPOINT, wp_class=gdb.WP_ACCESS, internal=True)
        self.silent = True
        self._rings = rings

    @property
    def is_watched(self) -> bool:
        """By the stub; else GDB would single-step to notice."""
        return self.type == gdb.BP_ACCESS_WATCHPOINT

    def stop(self) -> bool:
        unbroken(held()(self._rings))()
        return False


class ProbePad(StopPad):
    """The breakpoint at a pad."""

    def __init__(self, landing: Landing, breakpoints: StopBreakpoints) -> None:
        super().__init__(f"*{landing.pad:#x}", internal=True)
        self.enabled = False
        self.silent = True
        self.stepped = 0
        self.moved = 0
        self.gate = Gate(landing.address, self)
        self.via = StepStart(landing.via)
        self._landing = landing
        self._breakpoints = breakpoints
        self._expected: set[int] = set()

    def stop(self) -> bool:
        return unbroken(self._arrive)()

    @held()
    def _arrive(self) -> bool:
        number = _thread().num
        if number in self._expected:
            return False
        self._breakpoints.count_arrival()
        if self._landing.comes():
            self._expected.add(number)
            self.gate.enabled = self.via.enabled = True
            write_selected_registers({self._breakpoints.pc: self._landing.via})
        return False

    @held()
    def arrived(self) -> bool:
        """Whether the selected thread came by this pad: it stands at the gate."""
        number = _thread().num
        if number not in self._expected:
            return False
        self._expected.discard(number)
        self.gate.enabled = self.via.enabled = bool(self._expected)
        self.stepped += 1
        self._breakpoints.arrive(self._landing)
        return True

    def is_awaited(self, address: int) -> bool:
        """Whether the selected thread is to come to the gate there."""
        return self._landing.address == address and _thread().num in self._expected

    def remove(self) -> None:
        self._breakpoints.drop(self, [self.gate, self.via])


class ReturnPad(StopPad):
    """The breakpoint at the pad of a function's returns: GDB steps the return that is there.

    A gate waits behind the call for a stack pointer: in between may be trampolines, of tail calls, while others run.
    """

    def __init__(self, landing: ReturnLanding, breakpoints: StopBreakpoints) -> None:
        super().__init__(f"*{landing.pad:#x}", internal=True)
        self.enabled = False
        self.silent = True
        self.stepped = 0
        self.moved = 0
        self._landing = landing
        self._breakpoints = breakpoints
        self.sp = breakpoints.sp
        self._gates: dict[int, ReturnGate] = {}

    def stop(self) -> bool:
        return unbroken(self._arrive)()

    @held()
    def _arrive(self) -> bool:
        me = _thread().num, read_register(self.sp)
        again = any(me == who for gate in self._gates.values() for who, _ in gate.coming)
        # QEMU may report it again before the step is made; GDB has taken the breakpoint out of the stub for that.
        if again and not self._breakpoints.machine.stops_at(self._landing.pad):
            return False
        self._breakpoints.count_arrival()
        arrival = self._landing.comes()
        if arrival is not None:
            if arrival.address not in self._gates:
                self._gates[arrival.address] = ReturnGate(arrival.address, self)
            self._gates[arrival.address].coming.append((me, arrival))
        return False

    def is_arriving(self, address: int) -> bool:
        """Whether the selected thread is at the gate there, and is waited for."""
        return address in self._gates and bool(self._gates[address].awaited())

    @held()
    def arrived(self, gate: ReturnGate) -> bool:
        """Whether the selected thread, which is at the gate, came by this pad."""
        found = gate.awaited()
        if not found:
            return False
        gate.coming = [(who, each) for who, each in gate.coming if each not in found]
        if not gate.coming:
            self._breakpoints.discard([self._gates.pop(gate.address)])
        self._breakpoints.returned(gate.address)
        for arrival in found:
            self.stepped += 1
            self._breakpoints.tell(arrival)
        return True

    def remove(self) -> None:
        self._breakpoints.drop(self, [*self._gates.values()])


class ReturnGate(gdb.Breakpoint):
    """The breakpoint behind a call while somebody is on his way there.

    coming: with each, the thread and the stack pointer that were at the pad.
    """

    def __init__(self, address: int, pad: ReturnPad) -> None:
        super().__init__(f"*{address:#x}", internal=True)
        self.silent = not machine_interface()
        self.address = address
        self.coming: list[tuple[tuple[int, int], Arrival]] = []
        self._pad = pad

    def awaited(self) -> list[Arrival]:
        """Those that the selected thread is."""
        sp = read_register(self._pad.sp) if self.coming else 0
        return [arrival for _, arrival in self.coming if arrival.sp == sp]

    def stop(self) -> bool:
        return unbroken(self._pad.arrived)(self)


class StepStart(gdb.Breakpoint):
    """Where GDB steps from to the gate. QEMU may stop the step before it is made: so that GDB makes it again.

    A step leaves the other vCPUs and interrupts alone: nobody runs past a branch that is lifted.
    """

    def __init__(self, address: int) -> None:
        super().__init__(f"*{address:#x}", internal=True)
        self.enabled = False
        self.silent = True

    def stop(self) -> bool:
        return False


class Gate(gdb.Breakpoint):
    """The breakpoint at the probed address while somebody is on his way there."""

    def __init__(self, address: int, pad: ProbePad) -> None:
        super().__init__(f"*{address:#x}", internal=True)
        self.enabled = False
        self.silent = not machine_interface()
        self._pad = pad

    def stop(self) -> bool:
        return unbroken(self._pad.arrived)()


def announcement(numbers: Sequence[int], program: tuple[str, str] = ("", "")) -> str:
    """Who has stopped the guest, and where, as GDB tells of a breakpoint.

    program: of one that was stopped, whose it is, and where in it, for where GDB has no symbols of it.
    """
    thread = _thread()
    several = len(gdb.selected_inferior().threads()) > 1
    name = f'"{one_line(thread.name)}" ' if thread.name else ""
    who, place = program
    frame = re.sub(r"^#\d+ *", "", gdb.execute("frame", to_string=True) or "")
    return (
        (f"Thread {thread.num} {name}hit " if several else "")
        + "".join(f"optprobe {number}, " for number in numbers)
        + (f"{who}, " if who else "")
        + (frame.replace(" in ?? ()", f" <{place}>") if place else frame)
    )


def returned(values: Sequence[tuple[str, int]]) -> str:
    """What functions have returned; the last one's is the user's `$retval` too."""
    for _, value in values:
        gdb.set_convenience_variable("retval", value)
    return "".join(f"{function} has returned {value} ($retval)\n" for function, value in values)


def _thread() -> gdb.InferiorThread:
    """The one that has stopped."""
    thread = gdb.selected_thread()
    assert thread is not None
    return thread
