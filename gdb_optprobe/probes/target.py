"""What a session needs of one guest. `debugger/attach.py` fills it; tests fill it with fakes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.trap_calls import TrapCalls
from gdb_optprobe.guest.machine import Machine
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.guest.saved_pcs import SavedWords
from gdb_optprobe.guest.text import FtraceSite, Function, Text
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.probes.arena_source import ArenaSource
from gdb_optprobe.probes.stops import StopPoint, Stops
from gdb_optprobe.probes.user.target import UserTarget


class Tracer(Protocol):
    """The guest's own function tracer, which must keep off a site while a branch of a probe is there."""

    def hold(self, site: FtraceSite) -> None:
        """Mark the site as disabled in the guest's records. Raises Refused where a tracer has come meanwhile."""

    def release(self, site: FtraceSite) -> None:
        """Enable the site again, or later, where a tracer runs now."""

    def give_back(self) -> None:
        """Enable the sites that were released while a tracer ran, once none runs."""

    def passed_over(self) -> Sequence[int]:
        """Return sites that a tracer which runs now does not see, though their branch may be gone."""

    def forget(self, site: FtraceSite) -> None:
        """Drop a site: the text around it was unloaded, and the guest's record of it."""


class Modules(Protocol):
    """Text that comes and goes while the guest runs."""

    def identity(self, address: int) -> object:
        """The same for as long as the module at `address` stays loaded; None where none is. Raises OptprobeError."""

    def staying(self) -> object:
        """Another value whenever other modules are there that can be probed."""

    def home(self, address: int) -> str:
        """MODULE:FUNCTION+OFFSET; "" elsewhere."""

    def find(self, location: str) -> Sequence[int]:
        """Addresses of FUNCTION[+OFFSET] or MODULE:FUNCTION[+OFFSET] in the modules that are loaded."""

    def arrived(self, module: int) -> tuple[int, int]:
        """Start and end of a module's text, of which nothing has run yet. Raises OptprobeError."""

    def listen(self, on_load: Callable[[int], None]) -> StopPoint:
        """Have `on_load` called for each module before it runs, with what `arrived` takes. Raises OptprobeError."""


class NoModules:
    """Of a guest whose text is always the same."""

    def identity(self, address: int) -> object:
        return None

    def staying(self) -> object:
        return None

    def home(self, address: int) -> str:
        return ""

    def find(self, location: str) -> Sequence[int]:
        return ()

    def arrived(self, module: int) -> tuple[int, int]:
        raise OptprobeError("this guest has no modules")

    def listen(self, on_load: Callable[[int], None]) -> StopPoint:
        raise OptprobeError("no text comes or goes in this guest: a probe has nothing to wait for")


def _no_user() -> UserTarget:
    raise OptprobeError(
        "programs are probed in a Linux guest, and GDB's symbol file is of no Linux kernel",
        "symbol-file without a name, then add-symbol-file FILE for symbols of a program",
    )


def _no_traps() -> TrapCalls:
    raise OptprobeError("this guest's handler of traps is not known")


@dataclass(frozen=True)
class Target:
    """One stopped guest.

    arena_source:   where memory for detours is found.
    saved:          everywhere a PC may be saved now. hides: whether a return address may be elsewhere all the same.
    stacks_missing: why that cannot be told of every stack, in words; "" when it can.
    symbol:         "vfs_read+0x13" for an address; "" where none is known.
    completions:    names that begin with a prefix.
    resolve:        the addresses of a location as a user types it; raises OptprobeError.
    breakpoints:    where the user's own breakpoints stand now.
    scope:          what names mean at an address, for compiled handlers.
    backtrace:      the PCs of a hit's frames, by its registers and the stack from its stack pointer on; see
                    guest.linux.backtrace.
    at_return:      what names mean where the function that is entered at an address has returned; None: no entry.
    entered:        whether it is known that calls enter a function where it starts, and return to who called.
    bypassed:       why calls of the function that is entered at an address may not come by it, in words; "" where
                    nothing is known of that, or it is no entry.
    modules:        text that comes and goes.
    hidden_returns: where tracers of the guest's own have calls return to.
    trap_calls:     where the guest calls its handler of traps. Raises OptprobeError where that is not known.
    user:           what probes on programs need. Raises OptprobeError where there can be none.
    still_there:    whether the same kernel runs; None where that cannot be told. Raises Unreadable, Unreachable.
    moment:         as long as no vCPU can have run, the same; where that is not known, never the same.
    forget:         know nothing more of the guest, nor of what was put there; nothing is changed.
    guard:          called before the first probe is written: see that the guest is freed should the debugger die.
    step_out:       single-step every vCPU that is in one of these ranges until it is not.
    """

    machine: Machine
    isa: Isa
    text: Text
    stops: Stops
    tracer: Tracer
    arena_source: ArenaSource
    saved: Callable[[], Iterable[SavedWords]]
    stacks_missing: str
    symbol: Callable[[int], str]
    completions: Callable[[str], Sequence[str]]
    resolve: Callable[[str, bool], tuple[int, ...]]
    breakpoints: Callable[[], frozenset[int]]
    scope: Callable[[int], NamesAt]
    backtrace: Callable[[Mapping[str, int], bytes], Iterable[tuple[int, bool]]] = lambda registers, stack: ()
    at_return: Callable[[int], NamesAt | None] = lambda address: None
    entered: Callable[[Function], bool] = lambda function: True
    bypassed: Callable[[int], str] = lambda address: ""
    hidden_returns: tuple[int, ...] = ()
    moment: Callable[[], object] = object
    forget: Callable[[], None] = lambda: None
    guard: Callable[[], None] = lambda: None
    step_out: Callable[[Sequence[tuple[int, int]]], None] = lambda ranges: None
    modules: Modules = field(default_factory=NoModules)
    hides: Callable[[], bool] = lambda: True
    trap_calls: Callable[[], TrapCalls] = _no_traps
    still_there: Callable[[], bool] | None = None
    user: Callable[[], UserTarget] = _no_user
