"""Who has come to a pad is stopped at the probed address, as if a breakpoint of the user's stood there.

    pad: stop() ──► PC := the branch to the address; False: GDB steps off, this vCPU alone
    gate: at the address, enabled meanwhile ──► True: a stop like any other, `finish` and `next` ended by it as by any

GDB takes PCs that were set by hand for new ones and runs into a breakpoint there; to one that it has stopped at it pays
heed: so it is made to come there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gdb

from gdb_optprobe.debugger.machine import write_selected_registers
from gdb_optprobe.debugger.parameters import machine_interface
from gdb_optprobe.interrupts import held, unbroken
from gdb_optprobe.probes.stops import Landing


class Alone:
    """For as long as it is `on`, GDB resumes only the thread that it is at: others would run past a lifted branch."""

    def __init__(self) -> None:
        self._before = ""

    def on(self) -> None:
        if not self._before:
            self._before = str(gdb.parameter("scheduler-locking"))
            gdb.execute("set scheduler-locking on", to_string=True)

    def off(self) -> None:
        """As the user has it."""
        before, self._before = self._before, ""
        if before:
            gdb.execute(f"set scheduler-locking {before}", to_string=True)


class Pad(gdb.Breakpoint):
    """The breakpoint at a pad.

    arrive: called when who has come there stands at the probed address. drop: called when it is not needed any more.
    """

    def __init__(
        self, landing: Landing, pc: str, alone: Alone, arrive: Callable[[Landing], None], drop: Callable[[Pad], None]
    ) -> None:
        super().__init__(f"*{landing.pad:#x}", internal=True)
        self.silent = True
        self.landing = landing
        self.stepped = 0
        self.moved = 0
        self._pc = pc
        self._alone = alone
        self._arrive = arrive
        self._drop = drop
        self._gate = Gate(self)
        self._coming: set[int] = set()

    def stop(self) -> bool:
        return unbroken(self._come)()

    @held()
    def _come(self) -> bool:
        if self.landing.comes():
            self._coming.add(_thread().num)
            self._gate.enabled = True
            self._alone.on()
            write_selected_registers({self._pc: self.landing.via})
        return False

    @held()
    def arrived(self) -> bool:
        """Whether the selected thread came by this pad: it stands at the gate."""
        number = _thread().num
        if number not in self._coming:
            return False
        self._coming.discard(number)
        self._gate.enabled = bool(self._coming)
        self._alone.off()
        self.stepped += 1
        self._arrive(self.landing)
        return True

    def remove(self) -> None:
        self.enabled = self._gate.enabled = False
        self._drop(self)

    def bury(self) -> None:
        for each in (self._gate, self):
            if each.is_valid():
                each.delete()


class Gate(gdb.Breakpoint):
    """The breakpoint at the probed address while somebody is on his way there."""

    def __init__(self, pad: Pad) -> None:
        super().__init__(f"*{pad.landing.address:#x}", internal=True)
        self.silent = not machine_interface()
        self.enabled = False
        self._pad = pad

    def stop(self) -> bool:
        return unbroken(self._pad.arrived)()


def announcement(numbers: Sequence[int]) -> str:
    """Who has stopped the guest, and where, as GDB tells of a breakpoint."""
    thread = _thread()
    several = len(gdb.selected_inferior().threads()) > 1
    name = f'"{thread.name}" ' if thread.name else ""
    frame = (gdb.execute("frame", to_string=True) or "").removeprefix("#0").lstrip()
    return (
        (f"Thread {thread.num} {name}hit " if several else "")
        + "".join(f"optprobe {number}, " for number in numbers)
        + frame
    )


def _thread() -> gdb.InferiorThread:
    """The one that has stopped."""
    thread = gdb.selected_thread()
    assert thread is not None
    return thread
