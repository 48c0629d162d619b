"""Call functions of the guest, natively: the guest itself saves, calls, restores and runs on.

    safe point (a function's first instruction)        thunk, in padding of the text
    ┌──────────────┐   we set one vCPU's PC            ┌─────────────────────────┐
    │ …            │ ────────────────────────────────► │ save; load arguments    │
    │              │                                   │ call function           │
    │              │                                   │ returned: restore       │  the result is read here
    │              │ ◄─────────────────────────────────┤ done: jmp safe point    │
    └──────────────┘                                   └─────────────────────────┘
Even if the debugger is killed in the middle, the guest finishes the call and runs the safe point's own code. The
function may sleep and come back on another vCPU: only the calling thread reaches `returned` and `done`, and the PC
of the vCPU that is seen there is set back. Segment bases and control registers are never touched.

The thunk is there only during a call. Once it is over, the padding holds what it held before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.machine import Machine, Memory, Vcpu
from gdb_optprobe.isa.calling import Calling, Thunk

TRIES = 64
RESTORES = 5.0
"""Seconds after which a few instructions of the guest count as not executed."""
LATER = "let the guest do something, then try again"


class CallFailed(OptprobeError):
    """The guest could not call a function. unfinished: the call still runs, and the thunk is still in use."""

    def __init__(self, message: str, hint: str = "", unfinished: bool = False) -> None:
        super().__init__(message, hint)
        self.unfinished = unfinished


class SafePoints(Protocol):
    """Addresses at which a thread holds no lock and may sleep."""

    def points(self) -> Sequence[int]: ...

    def may_call(self, vcpu: Vcpu) -> bool:
        """Return whether the thread on `vcpu`, which is at one of them, may sleep and holds no lock."""


class Runner:
    """Runs thunks, which are in code memory, in a thread of the guest that may call functions. See Caller."""

    def __init__(self, machine: Machine, isa: Calling, points: SafePoints) -> None:
        self._machine = machine
        self._isa = isa
        self._points = points
        self._vcpu: Vcpu | None = None

    def reach(self, timeout: float) -> None:
        """Run the guest until a thread is where it may call a function. Raises CallFailed, nothing changed."""
        points = self._points.points()
        deadline = time.monotonic() + timeout
        for _ in range(TRIES):
            vcpu = self._run_until(points, deadline) if points else None
            if vcpu is None:
                break
            if self._points.may_call(vcpu):
                self._vcpu = vcpu
                return
        raise CallFailed("no thread of the guest came to where it can call a function of the kernel", LATER)

    def back(self) -> int:
        """Return where the thread that was reached is, and is again behind a call. Raises CallFailed."""
        if self._vcpu is None:
            raise CallFailed("no thread of the guest is where it can call a function", LATER)
        return self._machine.registers(self._vcpu, (self._isa.pc,))[self._isa.pc]

    def run(self, thunk: Thunk, timeout: float) -> int:
        """Have the thread that was reached run `thunk`, which leads back; return the call's result. Raises CallFailed.

        The thread is where it was again afterwards, and no thread is in the thunk.
        """
        assert self._vcpu is not None
        pc, result = self._isa.pc, self._isa.result
        self._machine.write_registers(self._vcpu, {pc: thunk.address})
        vcpu, self._vcpu = self._vcpu, None
        vcpu = self._run(thunk, thunk.returned, timeout)
        value = self._machine.registers(vcpu, (result,))[result]
        vcpu = self._run(thunk, thunk.done, RESTORES)
        # All is restored at `done`; with the PC at the safe point no thread is in the thunk.
        self._machine.write_registers(vcpu, {pc: thunk.back})
        self._vcpu = vcpu
        return value

    def _run(self, thunk: Thunk, to: int, timeout: float) -> Vcpu:
        vcpu = self._run_until([to], time.monotonic() + timeout)
        if vcpu is None:
            raise CallFailed(
                f"the guest has not come back from a call within {timeout:g} s; it will run on by itself when it does",
                unfinished=True,
            )
        return vcpu

    def _run_until(self, addresses: Sequence[int], deadline: float) -> Vcpu | None:
        """Run the guest until a vCPU is at one of `addresses`; None when the time is up."""
        while (left := deadline - time.monotonic()) > 0:
            # None before the time is up: something else has stopped the guest, as a probe does.
            if (vcpu := self._machine.run_until(addresses, left)) is not None:
                return vcpu
        return None


class Caller(Runner):
    """Calls functions of the kernel.

    place: padding (start, end) that no code uses, as large as any thunk. memory: kernel memory.
    """

    def __init__(
        self, machine: Machine, memory: Memory, isa: Calling, points: SafePoints, place: tuple[int, int]
    ) -> None:
        super().__init__(machine, isa, points)
        self._memory = memory
        self._place = place
        self._before = memory.read(place[0], place[1] - place[0])

    def call(self, function: int, arguments: Sequence[int], timeout: float) -> int:
        """Call a function in the thread that was reached and return its result. Raises CallFailed.

        The thread is at the safe point again afterwards.
        """
        if len(arguments) > self._isa.arguments:
            raise CallFailed(f"{len(arguments)} arguments do not fit into registers")
        thunk = self._isa.thunk(self._place[0], function, arguments, self.back())
        self._write(self._before, thunk.data)
        value = self.run(thunk, timeout)
        self._write(thunk.data, self._before[: len(thunk.data)])
        return value

    def _write(self, old: bytes, new: bytes) -> None:
        """Compare the old bytes, then write and read back."""
        start = self._place[0]
        if self._memory.read(start, len(old)) != old:
            raise CallFailed(f"padding of the kernel's text at {start:#x} is not what it was a moment ago")
        self._memory.write(start, new)
        if self._memory.read(start, len(new)) != new:
            raise CallFailed(f"padding of the kernel's text at {start:#x} cannot be written")
