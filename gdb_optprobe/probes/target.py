"""What a session works on: one guest, and interfaces that `debugger/` implements; tests have fakes of all."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gdb_optprobe.detours.refusal import Reason, Refusal
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.live_memory import LiveMemory
from gdb_optprobe.guest.text import FtraceSite
from gdb_optprobe.probes.arena_source import ArenaSource
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.stops import Caller, Hit, StopPoint, Stops

_FUNCTION = re.compile(r"([A-Za-z_][\w-]*:)?[A-Za-z_.$][\w.$]*(\s*\+\s*(0[xX][0-9a-fA-F]+|\d+))?")


class Command(Protocol):
    """A command that runs in the guest."""

    @property
    def has_begun(self) -> bool:
        """Return whether the guest has begun it: it may be at another one."""

    @property
    def is_sent(self) -> bool:
        """Return whether the guest was given it: one that boots takes none yet."""

    def outcome(self) -> str:
        """Return what it printed and how it ended; "" while it runs."""

    def when_ended(self, act: Callable[[], None]) -> None:
        """Call `act` when it has ended, in any thread; now, where it has. It replaces what was given before."""

    def close(self) -> None:
        """Give up on it: it runs on, and what it prints is lost."""


@dataclass(frozen=True)
class Ticks:
    """What is done while the guest runs. every: seconds until the first time.

    act: returns the seconds until the next time; None where the run is to end.
    keys: a file descriptor; once it has something to read, it is done at once. None for none.
    """

    every: float
    act: Callable[[], float | None]
    keys: int | None = None


class Debugger(Protocol):
    """The debugger that has stopped the guest; probes/stops.py has what the stopping tiers need of it."""

    def resolve(self, location: str, glob: bool) -> tuple[int, ...]:
        """Return the addresses of a location as a user types it, ascending. Raises OptprobeError."""

    def breakpoints(self) -> frozenset[int]:
        """Return where the user's own breakpoints are now."""

    def callers(self, hit: Hit) -> Iterable[Caller]:
        """Return the callers of the code that is about to run at a hit, the innermost first; none where not known."""

    def run(self, seconds: float | None, until: Command | None = None, ticks: Ticks | None = None) -> str | None:
        """Run the guest, at most so long, and at most until a command in it has ended, or the ticks want to end. Return
        why it stopped, None where that was all. Raises what a tick raises, with the guest stopped.
        """

    def live_memory(self, spans: Sequence[tuple[int, int]]) -> tuple[LiveMemory | None, str]:
        """Return what reads these (start, end) pieces while the guest runs, None where only stops can; and why so.

        Raises OptprobeError where the user asks for a way that does not work.
        """

    def begin(self, command: str) -> Command:
        """Begin a command in the guest: it runs when the guest does. Raises OptprobeError where it takes none."""

    def guard(self) -> None:
        """See that the guest is freed should the debugger die; called before the first probe is written."""

    def is_same_guest(self) -> bool | None:
        """Return whether the guest that was attached to still runs; None where that is not known.

        Raises Unreadable, Unreachable.
        """

    def forget(self) -> None:
        """Drop all that is known of the guest, and of what was put there; the guest is not changed."""


class Tracer(Protocol):
    """The guest's own function tracer, which must keep off a site while a branch of a probe is there."""

    def hold(self, site: FtraceSite) -> None:
        """Mark the site as disabled in the guest's records. Raises Refused where a tracer has come meanwhile."""

    def release(self, site: FtraceSite) -> None:
        """Enable the site again, or later, where a tracer runs now."""

    def hold_all(self, addresses: Sequence[int]) -> None:
        """Do as `hold` with the site at each, in few writes, all or none."""

    def release_all(self, addresses: Sequence[int]) -> None:
        """Do as `release` with the site at each, in few writes."""

    def give_back(self) -> None:
        """Enable the sites that were released while a tracer ran, once none runs."""

    @property
    def kept_off(self) -> Collection[int]:
        """Return the sites that were released while a tracer ran and that it is still kept off."""

    def passed_over(self) -> Sequence[int]:
        """Return sites that a tracer which runs now does not see, though their branch may be gone."""

    def forget(self, site: FtraceSite) -> None:
        """Drop a site: the text around it was unloaded, and the guest's record of it."""


class Modules(Protocol):
    """Text that is loaded and unloaded while the guest runs."""

    def identity(self, address: int) -> object:
        """Return the same as long as the module at `address` stays loaded; None where none is. Raises OptprobeError."""

    def loaded_state(self) -> object:
        """Return another value whenever other modules are loaded, or can be probed. Raises OptprobeError."""

    def location(self, address: int) -> str:
        """Return MODULE:FUNCTION+OFFSET; "" outside of modules."""

    def find(self, location: str) -> Sequence[int]:
        """Return addresses of FUNCTION[+OFFSET] or MODULE:FUNCTION[+OFFSET] in loaded modules. Raises OptprobeError."""

    def loading_text(self, module: int) -> tuple[int, int]:
        """Return start and end of the text of a module that is being loaded, none of which has run yet.

        module: what `on_load` was called with. Raises OptprobeError.
        """

    def on_load(self, call: Callable[[int], None]) -> StopPoint:
        """Stop the guest at each load of a module, before it runs, to `call` with the module. Raises OptprobeError."""

    def can_wait(self, spec: Spec) -> bool:
        """Return whether a probe may wait for its location. Raises OptprobeError where something else forbids it."""

    def waits(self, location: str, why: str) -> Reason:
        """Return what a probe on `location` waits for. why: what has kept it out so far, with a colon before; or ""."""


def can_be_of_module(spec: Spec) -> bool:
    """Return whether a location is a function's name, which may be a module's."""
    return not spec.glob and _FUNCTION.fullmatch(spec.location.strip()) is not None


class NoTracer:
    """Implements Tracer in a guest that has none."""

    def hold(self, site: FtraceSite) -> None:
        """Nothing traces there."""

    def release(self, site: FtraceSite) -> None:
        """Nothing traces there."""

    def hold_all(self, addresses: Sequence[int]) -> None:
        """Nothing traces there."""

    def release_all(self, addresses: Sequence[int]) -> None:
        """Nothing traces there."""

    def give_back(self) -> None:
        """Nothing is held."""

    @property
    def kept_off(self) -> Collection[int]:
        return ()

    def passed_over(self) -> Sequence[int]:
        return ()

    def forget(self, site: FtraceSite) -> None:
        raise AssertionError("this guest has no modules")


class NoModules:
    """Of a guest that never changes its text."""

    def identity(self, address: int) -> object:
        return None

    def loaded_state(self) -> object:
        return None

    def location(self, address: int) -> str:
        return ""

    def find(self, location: str) -> Sequence[int]:
        return ()

    def loading_text(self, module: int) -> tuple[int, int]:
        raise OptprobeError("this guest has no modules")

    def on_load(self, call: Callable[[int], None]) -> StopPoint:
        raise OptprobeError("no text comes or goes in this guest: a probe has nothing to wait for")

    def can_wait(self, spec: Spec) -> bool:
        return can_be_of_module(spec)

    def waits(self, location: str, why: str) -> Reason:
        return Refusal.PENDING.because(location=location, why=why)


@dataclass(frozen=True)
class Target:
    """One stopped guest.

    arena_source: where memory for detours is found. modules: text that comes and goes.
    """

    guest: Guest
    debugger: Debugger
    stops: Stops
    tracer: Tracer
    arena_source: ArenaSource
    modules: Modules = field(default_factory=NoModules)
