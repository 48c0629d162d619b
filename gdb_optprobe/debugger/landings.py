"""Who has come to a pad is stopped at the probed address, as if a breakpoint of the user's stood there.

    bell: rung ──► the pads have breakpoints
    pad: stop() ──► PC := the branch to the address; False: GDB steps off, this vCPU alone
    gate: at the address, enabled meanwhile ──► True: a stop like any other, `finish` and `next` ended by it as by any

GDB takes PCs that were set by hand for new ones and runs into a breakpoint there; to one that it has stopped at it pays
heed: so it is made to come there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gdb

from gdb_optprobe.debugger.machine import GdbMachine, write_selected_registers
from gdb_optprobe.debugger.parameters import machine_interface
from gdb_optprobe.interrupts import held, unbroken
from gdb_optprobe.isa.base import Isa
from gdb_optprobe.probes.stops import Landing

# Where GDB takes a watchpoint for hit before the access (ppc64le), it makes a step then, and stops of two vCPUs at once
# can get lost: there the pads always have breakpoints.
_WITH_BELL = ("x86_64",)


class Landings:
    """The pads of one connection and their bell.

    arrive: called when who has come to a pad stands at the probed address.
    """

    def __init__(self, machine: GdbMachine, isa: Isa, arrive: Callable[[Landing], None]) -> None:
        self.machine = machine
        self.pc = isa.pc
        self._with_bell = isa.name in _WITH_BELL
        self.arrive = arrive
        self._pads: list[Pad] = []
        self._dropped: list[gdb.Breakpoint] = []
        self._bell: Bell | None = None
        self._rung = self._came = 0

    def add(self, landing: Landing) -> Pad:
        pad = Pad(landing, self)
        if self._bell is None and self._with_bell:
            self._rung = landing.rung
            self._bell = Bell(landing.bell, self.look)
        if not self._pads:
            self._came = self._count() if self._bell is not None else 0
        self._pads.append(pad)
        self.look()
        return pad

    def drop(self, pad: Pad) -> None:
        """Nobody is stopped there any more."""
        self._pads.remove(pad)
        pad.enabled = pad.gate.enabled = pad.via.enabled = False
        self._dropped += [pad.gate, pad.via, pad]
        if not self._pads and self._bell is not None:
            self._bell.enabled = False
            self._dropped.append(self._bell)
            self._bell = None

    def came(self) -> None:
        """Somebody is at a pad."""
        self._came += 1

    def is_coming(self, address: int) -> bool:
        """Whether the selected thread is on its way from a pad to `address`."""
        return any(pad.is_awaited(address) for pad in self._pads)

    def look(self) -> None:
        """Whether anybody has rung who has not come yet: the pads have breakpoints only then."""
        if not self._pads:
            return
        wanted = self._bell is None or not self._bell.is_watched or self._count() > self._came
        for pad in self._pads:
            if pad.enabled != wanted:
                pad.enabled = wanted

    def bury(self) -> None:
        """Delete what was dropped: GDB crashes when one goes while it tells that another one has gone."""
        dropped, self._dropped = self._dropped, []
        for each in dropped:
            if each.is_valid():
                each.delete()

    def _count(self) -> int:
        return int.from_bytes(self.machine.read(self._rung, 8), "little")


class Bell(gdb.Breakpoint):
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


class Pad(gdb.Breakpoint):
    """The breakpoint at a pad."""

    def __init__(self, landing: Landing, landings: Landings) -> None:
        super().__init__(f"*{landing.pad:#x}", internal=True)
        self.enabled = False
        self.silent = True
        self.stepped = 0
        self.moved = 0
        self.gate = Gate(landing.address, self)
        self.via = Via(landing.via)
        self._landing = landing
        self._landings = landings
        self._coming: set[int] = set()

    def stop(self) -> bool:
        return unbroken(self._come)()

    @held()
    def _come(self) -> bool:
        number = _thread().num
        if number in self._coming:
            return False
        self._landings.came()
        if self._landing.comes():
            self._coming.add(number)
            self.gate.enabled = self.via.enabled = True
            write_selected_registers({self._landings.pc: self._landing.via})
        return False

    @held()
    def arrived(self) -> bool:
        """Whether the selected thread came by this pad: it stands at the gate."""
        number = _thread().num
        if number not in self._coming:
            return False
        self._coming.discard(number)
        self.gate.enabled = self.via.enabled = bool(self._coming)
        self.stepped += 1
        self._landings.arrive(self._landing)
        return True

    def is_awaited(self, address: int) -> bool:
        """Whether the selected thread is to come to the gate there."""
        return self._landing.address == address and _thread().num in self._coming

    def remove(self) -> None:
        self._landings.drop(self)


class Via(gdb.Breakpoint):
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

    def __init__(self, address: int, pad: Pad) -> None:
        super().__init__(f"*{address:#x}", internal=True)
        self.enabled = False
        self.silent = not machine_interface()
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
