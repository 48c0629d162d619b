"""Breakpoints that stop the guest for a `stop` action, at the probed address, like a breakpoint of the user.

A detour decides whether its hit stops. If so it runs onto a stop pad.

    pad: stop() ──► PC := the branch to the probed address; False: GDB steps off the pad, this vCPU alone
    gate: at the probed address, enabled meanwhile ──► True: a stop like any other; it ends a `finish` or `next`

Why not set the PC to the probed address and stop: when GDB resumes a vCPU at a PC that it has not stopped at, it runs
into a breakpoint there at once. It steps over a breakpoint only where it has stopped. So the vCPU must arrive there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import gdb

from gdb_optprobe.debugger.machine import GdbMachine, read_register, write_selected_registers
from gdb_optprobe.debugger.parameters import machine_interface
from gdb_optprobe.detours.stop_pad import StopPad
from gdb_optprobe.guest_text import one_line
from gdb_optprobe.interrupts import unbroken
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.probes.stops import ProbeStop, ProgramStop, ReturnStop, StoppedProgram, StoppedReturn


class PadBreakpoint(gdb.Breakpoint):
    """The breakpoint at a stop pad: what all kinds of stops share. A StopPoint of probes/stops.py."""

    def __init__(self, pad: StopPad, breakpoints: PadBreakpoints, silent: bool = True) -> None:
        super().__init__(f"*{pad.address:#x}", internal=True)
        self.silent = silent
        self.stepped = 0
        self.moved = 0
        self.pad = pad
        self._breakpoints = breakpoints

    def stop(self) -> bool:
        return unbroken(self._on_pad)()

    def _on_pad(self) -> bool:
        """Handle the selected thread, which is at the pad. Return whether it stops there for the user."""
        raise NotImplementedError

    def remove(self) -> None:
        self._breakpoints.drop(self, self._others())

    def _others(self) -> Sequence[gdb.Breakpoint]:
        """Return the further breakpoints of the stop."""
        return ()

    def is_arriving(self, address: int) -> bool:
        """Return whether the selected thread is at `address` and stops there, because a call returned."""
        return False

    def is_awaited(self, address: int) -> bool:
        """Return whether the selected thread is on its way to a gate at `address`."""
        return False


class PadBreakpoints:
    """The breakpoints at the stop pads of one connection."""

    def __init__(self, machine: GdbMachine, isa: Isa) -> None:
        self.machine = machine
        self.pc, self.sp = isa.pc, isa.sp
        self._pads: list[PadBreakpoint] = []
        self._returned: tuple[int, int] | None = None
        self._dropped: list[gdb.Breakpoint] = []

    def add(self, breakpoint: PadBreakpoint) -> PadBreakpoint:
        """Stop the vCPUs that come to the pad. Return the breakpoint."""
        self._pads.append(breakpoint)
        return breakpoint

    def drop(self, pad: PadBreakpoint, others: Sequence[gdb.Breakpoint]) -> None:
        """Remove a pad and its other breakpoints."""
        self._pads.remove(pad)
        self.discard([*others, pad])

    def discard(self, breakpoints: Sequence[gdb.Breakpoint]) -> None:
        """Disable breakpoints now; `delete_dropped` deletes them."""
        for each in breakpoints:
            each.enabled = False
        self._dropped += breakpoints

    def is_coming(self, address: int) -> bool:
        """Return whether the selected thread is on its way from a pad to `address`."""
        return any(pad.is_awaited(address) for pad in self._pads)

    def returned(self, address: int) -> None:
        """Record that the selected thread stops at `address`, to which a call has returned."""
        self._returned = _thread().num, address

    def has_returned(self, address: int) -> bool:
        """Return whether the selected thread stops at `address` because a call returned there, now or in a moment."""
        coming = any(pad.is_arriving(address) for pad in self._pads)
        return coming or self._returned == (_thread().num, address)

    def mark_running(self) -> None:
        """Forget the last return: the guest is about to run."""
        self._returned = None

    def delete_dropped(self) -> None:
        """Delete the breakpoints that were dropped."""
        # Not at once: GDB crashes when a breakpoint is deleted while it reports that another one was deleted.
        dropped, self._dropped = self._dropped, []
        for each in dropped:
            if each.is_valid():
                each.delete()


class ProbePadBreakpoint(PadBreakpoint):
    """The breakpoint at the stop pad of a probe at an address.

    arrived: called when a vCPU that has passed the pad is stopped at the probed address.
    """

    def __init__(self, stop: ProbeStop, breakpoints: PadBreakpoints, arrived: Callable[[ProbeStop], None]) -> None:
        super().__init__(stop.pad, breakpoints)
        self.gate = Gate(stop.address, self)
        self.via = StepStart(stop.pad.via)
        self._stop = stop
        self._arrived = arrived
        self._expected: set[int] = set()

    def _on_pad(self) -> bool:
        number = _thread().num
        if number in self._expected:
            return False
        if self._stop.on_pad():
            self._expected.add(number)
            self.gate.enabled = self.via.enabled = True
            write_selected_registers({self._breakpoints.pc: self.pad.via})
        return False

    def arrived(self) -> bool:
        """Report the selected thread, which is at the gate, if it came by this pad. Return whether it did."""
        number = _thread().num
        if number not in self._expected:
            return False
        self._expected.discard(number)
        self.gate.enabled = self.via.enabled = bool(self._expected)
        self.stepped += 1
        self._arrived(self._stop)
        return True

    def is_awaited(self, address: int) -> bool:
        return self._stop.address == address and _thread().num in self._expected

    def _others(self) -> Sequence[gdb.Breakpoint]:
        return self.gate, self.via


class ReturnPadBreakpoint(PadBreakpoint):
    """The breakpoint at the stop pad of a function's returns: GDB steps the return instruction that is there.

    A gate behind the call waits for a thread with the right stack pointer: in between there may be trampolines of tail
    calls, and other threads may pass.

    arrived: called when a vCPU that has passed the pad is stopped behind the call.
    """

    def __init__(self, stop: ReturnStop, breakpoints: PadBreakpoints, arrived: Callable[[StoppedReturn], None]) -> None:
        super().__init__(stop.pad, breakpoints)
        self.sp = breakpoints.sp
        self._stop = stop
        self._arrived = arrived
        self._gates: dict[int, ReturnGate] = {}

    def _on_pad(self) -> bool:
        me = _thread().num, read_register(self.sp)
        again = any(me == thread for gate in self._gates.values() for thread, _ in gate.coming)
        # QEMU may report the stop twice, before the step is made. GDB has removed the breakpoint in the stub by then.
        if again and not self._breakpoints.machine.stops_at(self.pad.address):
            return False
        stopped = self._stop.on_pad()
        if stopped is not None:
            if stopped.address not in self._gates:
                self._gates[stopped.address] = ReturnGate(stopped.address, self)
            self._gates[stopped.address].coming.append((me, stopped))
        return False

    def is_arriving(self, address: int) -> bool:
        return address in self._gates and bool(self._gates[address].awaited())

    def arrived(self, gate: ReturnGate) -> bool:
        """Report the selected thread, which is at `gate`, if it came by this pad. Return whether it did."""
        found = gate.awaited()
        if not found:
            return False
        gate.coming = [(thread, each) for thread, each in gate.coming if each not in found]
        if not gate.coming:
            self._breakpoints.discard([self._gates.pop(gate.address)])
        self._breakpoints.returned(gate.address)
        for stopped in found:
            self.stepped += 1
            self._arrived(stopped)
        return True

    def _others(self) -> Sequence[gdb.Breakpoint]:
        return [*self._gates.values()]


class ProgramPadBreakpoint(PadBreakpoint):
    """The breakpoint at the stop pad of a user program's trap.

    arrived: called when the selected thread is stopped there for the user. No register of the vCPU is changed: whatever
             happens to GDB, the thread continues as after a hit that does not stop.
    """

    def __init__(
        self, stop: ProgramStop, breakpoints: PadBreakpoints, arrived: Callable[[StoppedProgram], None]
    ) -> None:
        super().__init__(stop.pad, breakpoints, silent=not machine_interface())
        self._stop = stop
        self._arrived = arrived
        self._seen: dict[int, int] = {}

    def _on_pad(self) -> bool:
        number = _thread().num
        # QEMU may report the stop twice, before the vCPU has moved.
        ticket = self._stop.ticket()
        if self._seen.get(number) == ticket:
            return False
        self._seen[number] = ticket
        stopped = self._stop.on_pad()
        if stopped is None:
            return False
        self.moved += 1
        self._arrived(stopped)
        return True


class ReturnGate(gdb.Breakpoint):
    """The breakpoint behind a call while a thread is on its way there.

    coming: for each return, the thread and the stack pointer that it had at the pad.
    """

    def __init__(self, address: int, pad: ReturnPadBreakpoint) -> None:
        super().__init__(f"*{address:#x}", internal=True)
        self.silent = not machine_interface()
        self.address = address
        self.coming: list[tuple[tuple[int, int], StoppedReturn]] = []
        self._pad = pad

    def awaited(self) -> list[StoppedReturn]:
        """Return what the selected thread, which is here, has returned from, by its stack pointer."""
        sp = read_register(self._pad.sp) if self.coming else 0
        return [stopped for _, stopped in self.coming if stopped.sp == sp]

    def stop(self) -> bool:
        return unbroken(self._pad.arrived)(self)


class StepStart(gdb.Breakpoint):
    """The breakpoint from which GDB steps to the gate.

    QEMU may end the step before it is made; with a breakpoint here GDB makes it again. During a step the other vCPUs do
    not run and no interrupt is taken, so that no thread passes the probed address while its branch is not there.
    """

    def __init__(self, address: int) -> None:
        super().__init__(f"*{address:#x}", internal=True)
        self.enabled = False
        self.silent = True

    def stop(self) -> bool:
        return False


class Gate(gdb.Breakpoint):
    """The breakpoint at the probed address while a thread is on its way there."""

    def __init__(self, address: int, pad: ProbePadBreakpoint) -> None:
        super().__init__(f"*{address:#x}", internal=True)
        self.enabled = False
        self.silent = not machine_interface()
        self._pad = pad

    def stop(self) -> bool:
        return unbroken(self._pad.arrived)()


def announcement(numbers: Sequence[int], program: tuple[str, str] = ("", "")) -> str:
    """Return which probes stopped the guest, and where, in the form in which GDB reports a breakpoint.

    program: of a user program that was stopped: its process, and the place in it for where GDB has no symbols.
    """
    thread = _thread()
    several = len(gdb.selected_inferior().threads()) > 1
    name = f'"{one_line(thread.name)}" ' if thread.name else ""
    process, place = program
    frame = re.sub(r"^#\d+ *", "", gdb.execute("frame", to_string=True) or "")
    return (
        (f"Thread {thread.num} {name}hit " if several else "")
        + "".join(f"optprobe {number}, " for number in numbers)
        + (f"{process}, " if process else "")
        + (frame.replace(" in ?? ()", f" <{place}>") if place else frame)
    )


def returned(values: Sequence[tuple[str, int]]) -> str:
    """Return lines with the values that functions have returned, and set `$retval` to the last one."""
    for _, value in values:
        gdb.set_convenience_variable("retval", value)
    return "".join(f"{function} has returned {value} ($retval)\n" for function, value in values)


def _thread() -> gdb.InferiorThread:
    """Return the thread that has stopped."""
    thread = gdb.selected_thread()
    assert thread is not None
    return thread
