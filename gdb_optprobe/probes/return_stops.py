"""Returns that stop the guest: for a Python handler in the trampoline, for the user after the function has returned.

    trampoline   program ── flag set? ──► handler(hit) ── other programs ── slot freed ── a flag still set? ──► pad
    pad          return ~~~~ GDB ~~~~► behind the call: the user sees this stop, and continues as from any other
A call's flags are words of its slot, one of each probe that may stop. Without a GDB they have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.stop_pad import StopPad
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.handlers import interpreter
from gdb_optprobe.handlers.ctype import Pointer
from gdb_optprobe.handlers.lower_kernel_returns import PadExit
from gdb_optprobe.handlers.lower_returns import EntryPart
from gdb_optprobe.handlers.scope import Rvalue
from gdb_optprobe.maps.aggregate import number
from gdb_optprobe.maps.call_table import WORD, CallTable, CallTableLayout
from gdb_optprobe.probes.installed_detour import install_pad
from gdb_optprobe.probes.kretprobe import return_backend, stacked_at
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.stops import Hit, Move, ReturnStop, StoppedReturn, StopPoint
from gdb_optprobe.probes.target import Target

MOST_FLAGS = 63
NANOSECONDS = 10**9
FIRST = 0x6F70_7470_0000_0000
"""The first number of a call with data: unlike any other word of a slot, at whatever offset."""

FindReturn = Callable[[int, int], int | None]
"""Return the real return address of a call, from the one that it has and its key; None where it is not known."""


@dataclass(slots=True, kw_only=True)
class EntryHit(Hit):
    """A call at the entry of its function, as an entry_handler sees it. A handler that returns true leaves it out.

    data: takes any attributes; the ReturnHit of the same call has them.
    """

    data: SimpleNamespace


@dataclass(slots=True, kw_only=True)
class ReturnHit(Hit):
    """A call that has returned, as a handler sees it.

    address: the function's entry. regs: as they are at the return address.
    retval:  by the function's type; None where it returns nothing.
    saved:   by name, the values that `save` asked for.
    elapsed: nanoseconds since the entry; None where the guest stopped there.
    """

    retval: int | None
    saved: Mapping[str, int]
    data: SimpleNamespace
    elapsed: int | None


class _Registers(Mapping[str, int]):
    """Registers, with other values for some that are known."""

    def __init__(self, now: Mapping[str, int], known: Mapping[str, int]) -> None:
        self._now = now
        self._known = known

    def __getitem__(self, name: str) -> int:
        return self._known[name] if name in self._known else self._now[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now)

    def __len__(self) -> int:
        return len(self._now)


@dataclass
class ReturnStops:
    """How calls of one table stop the guest at their return. address: the function's entry.

    probes: those that may stop the guest, by number.
    has_flag_register: whether a register has the flags at the pad, see PadExit; if not, all such probes stop.
    """

    address: int
    layout: CallTableLayout
    find_return: FindReturn
    probes: dict[int, Probe] = field(default_factory=dict)
    pad: StopPad | None = None
    _breakpoint: StopPoint | None = None
    _flags: dict[int, int] = field(default_factory=dict)
    _data: dict[int, tuple[Probe, SimpleNamespace]] = field(default_factory=dict)
    has_flag_register: bool = True
    _last: int = FIRST

    @property
    def stops(self) -> int:
        """Return how often the guest was stopped for the user."""
        return 2 * self._breakpoint.stepped if self._breakpoint is not None else 0

    def flag(self, probe: Probe) -> int:
        """Return the flag that the program of `probe` sets; if there are more than 63, the last share one."""
        self.probes[probe.number] = probe
        return 1 << self._flags.setdefault(probe.number, min(len(self._flags), MOST_FLAGS - 1))

    def reserve_pad(self, flags: tuple[int, ...], target: Target, arena: Arena) -> PadExit | None:
        """Return how a trampoline leaves to the pad where one of `flags` is set; None without flags. Raises Refused."""
        if not flags:
            return None
        if self.pad is None:
            isa = return_backend(target.guest)
            near = arena.trampolines_near(self.address, target.guest.isa.branch_reach)
            self.pad = install_pad(near, isa.end, target.guest, arena)
            self._breakpoint = target.stops.stop_at_return(ReturnStop(self.pad, partial(self._on_pad, target.guest)))
        return PadExit(flags, self.pad.address)

    def release_pad(self, arena: Arena) -> None:
        """Free the pad once no thread can come to it: no call is entered any more."""
        if self.pad is not None:
            arena.pads.release(self.pad.slot)

    def remove_breakpoint(self) -> None:
        """Remove the breakpoint at the pad, which no thread comes to any more."""
        if self._breakpoint is not None:
            self._breakpoint.remove()
            self._breakpoint = None

    # a Python handler ------------------------------------------------------------------------------------------------

    def set_return_breakpoint(self, probe: Probe, part: EntryPart, at: int, end: int, target: Target) -> None:
        """Call the handler of `probe` where its program has set the flag. at, end: bounds of its program."""
        looks = target.guest.isa.decode(target.guest.machine.read(at, end - at), at)
        on_hit = partial(self._run_return_handler, probe, part, end, target.guest)
        probe.return_breakpoints[looks[-1].address] = target.stops.set(looks[-1].address, on_hit)

    def _run_return_handler(self, probe: Probe, part: EntryPart, end: int, guest: Guest, hit: Hit) -> Move | None:
        isa = return_backend(guest)
        slot = hit.regs[isa.slot]
        wanted = probe.handler.stops and probe.enabled
        try:
            if probe.enabled and probe.spec.return_handler is not None:
                hit.address = self.address  # an error of the handler names the function
                seen = self._return_hit(probe, part, guest.machine.read(slot, self.layout.slot_size), guest, hit)
                probe.spec.return_handler(seen)
                wanted |= bool(seen.stopped_by)
        finally:
            if not wanted:
                guest.machine.write(slot + part.flag, bytes(WORD))
        return Move({guest.isa.pc: end})

    def _return_hit(self, probe: Probe, part: EntryPart, slot: bytes, guest: Guest, hit: Hit) -> ReturnHit:
        call = self.layout.slot(slot)

        def word(at: int) -> int:
            return int.from_bytes(slot[at : at + WORD], "little")

        back = self.find_return(call.back, call.key) or call.back
        _, data = self._data.pop(word(part.data), (probe, SimpleNamespace()))
        known = {guest.isa.pc: back, guest.isa.sp: call.key - key_after(0, guest)}
        return ReturnHit(
            address=self.address,
            vcpu=hit.vcpu,
            regs=_Registers(hit.regs, known),
            read=hit.read,
            write=hit.write,
            probe=probe.number,
            retval=retval(self.address, hit.regs, hit.read, guest),
            saved={
                name: number(word(part.area + WORD * index), signed)
                for name, index, signed in probe.handler.entry.names
            },
            data=data,
            elapsed=_nanoseconds(word(part.time), self.address, guest),
        )

    def keep_data(self, probe: Probe, data: SimpleNamespace) -> int:
        """Keep the data that an entry handler has left, and return the number of the call."""
        self._last += 1
        self._data[self._last] = probe, data
        return self._last

    @property
    def kept_count(self) -> int:
        """Return how many calls have data."""
        return len(self._data)

    def drop_probe(self, probe: Probe) -> None:
        """Forget the data of `probe`, which is deleted."""
        self._data = {each: kept for each, kept in self._data.items() if kept[0] is not probe}

    def keep_only(self, found: CallTable) -> None:
        """Forget the data of calls that are not in the table any more."""
        words = {word for call in found.active for word in call.saved}
        self._data = {each: kept for each, kept in self._data.items() if each in words}

    # the user --------------------------------------------------------------------------------------------------------

    def _on_pad(self, guest: Guest) -> StoppedReturn | None:
        """Return where the selected vCPU, which is at the pad, stops; None where no enabled probe wants that."""
        isa, machine = return_backend(guest), guest.machine
        regs = machine.registers(machine.selected(), guest.isa.registers)
        numbers = tuple(
            each
            for each, probe in self.probes.items()
            if probe.enabled and (not self.has_flag_register or regs[isa.slot] & 1 << self._flags[each])
        )
        if not numbers:
            return None
        key = isa.key_of(regs[guest.isa.sp])
        at = regs[isa.link] if isa.link else int.from_bytes(machine.read(stacked_at(key, guest), WORD), "little")
        value = retval(self.address, regs, machine.read, guest)
        function = guest.text.function(self.address)
        name = function.name if function is not None else guest.symbol(self.address)
        return StoppedReturn(self.find_return(at, key) or at, key - key_after(0, guest), numbers, name, value)


def key_after(sp: int, guest: Guest) -> int:
    """Return the key of a call that has returned with this stack pointer."""
    isa = return_backend(guest)
    return isa.key_after(sp)


def retval(
    address: int, regs: Mapping[str, int], read: Callable[[int, int], bytes], guest: Guest
) -> int | None:
    """Return the return value of the function that is entered at `address`; None where it has none in a register."""
    names = guest.names_at_return(address)
    found = names.names.dollar("retval") if names is not None else None
    if not isinstance(found, Rvalue):
        return None
    word = interpreter.evaluate(found.expr, interpreter.Hit(regs, read))
    return number(word, not isinstance(found.type, Pointer) and found.type.signed)


def _nanoseconds(ticks: int, address: int, guest: Guest) -> int | None:
    names = guest.names_at_return(address)
    hertz = names.hertz if names is not None else None
    return ticks * NANOSECONDS // hertz if ticks and isinstance(hertz, int) else None
