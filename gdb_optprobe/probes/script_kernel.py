"""The guest's kernel as a script sees it: its types and symbols, and where a probe of the script is attached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import abi
from gdb_optprobe.guest.linux import event_name
from gdb_optprobe.guest.linux.clock import last_tick
from gdb_optprobe.guest.linux.event_name import EventName
from gdb_optprobe.guest.linux.script_constants import CONSTANTS, has_header
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.guest.script_scope import KernelHit, Timing
from gdb_optprobe.handlers.ctype import CType
from gdb_optprobe.handlers.ir import Constant
from gdb_optprobe.handlers.scope import Lvalue, Missing, Rvalue
from gdb_optprobe.handlers.script.host import HostScope
from gdb_optprobe.handlers.script.scope import HitScope, Matched, Unsupported
from gdb_optprobe.probes import script_events
from gdb_optprobe.probes.script_events import ScriptEvents
from gdb_optprobe.probes.script_programs import PROGRAMS, ScriptPrograms
from gdb_optprobe.probes.target import Target

FUNCTIONS = ("kprobe", "kretprobe", "fentry", "fexit")
EVENTS = ("tracepoint", "rawtracepoint")
PROBED = (*FUNCTIONS, *EVENTS, *script_events.PROVIDERS, *PROGRAMS)
RETURNS = ("kretprobe", "fexit")
ON_HOST = ("BEGIN", "END", "interval")
_ANYWHERE = ("schedule", "vfs_read", "start_kernel")
"""Functions of every kernel: what names mean apart from a probe is asked at one."""
_NO_TIME = Missing("the guest's time is not known where the host runs the probe", "it has no symbol of its ticks")
_NO_FUNCTION = Missing("none of the kernel's own functions is known", f"there would be {', '.join(_ANYWHERE)}")


@dataclass(frozen=True)
class ScriptKernel:
    """A Kernel for scripts. host: names in the programs that the host runs.

    try_handler: has a handler of a tracepoint while a script is compiled (TracepointHandlers.trial).
    """

    target: Target
    host: HostScope = field(default_factory=HostScope)
    try_handler: Callable[[EventName], object] = lambda event: None

    @cached_property
    def _names(self) -> NamesAt | None:
        for name in _ANYWHERE:
            try:
                addresses = self.target.debugger.resolve(name, False)
            except OptprobeError:
                continue
            return self.target.guest.names_at(addresses[0])
        return None

    @cached_property
    def programs(self) -> ScriptPrograms:
        """The guest's programs and libraries."""
        return ScriptPrograms(self.target.guest)

    @cached_property
    def timing(self) -> Timing:
        """How the guest's clock becomes nanoseconds since its start."""
        if self._names is None:
            return Timing(_NO_FUNCTION)
        since_start = self.target.guest.clock()
        offset = since_start(0) if since_start is not None else 0
        return Timing(self._names.hertz, offset, self.host.untimed or self.host.started)

    def now(self) -> int | Missing:
        """Return the time in nanoseconds since the guest's start, at a stop: as late as its last tick.

        A vCPU's own clock cannot be read from outside.
        """
        found = last_tick(self._variable)
        return _NO_TIME if found is None else found

    def _variable(self, name: str) -> int | None:
        address = self.symbol(name)
        return None if address is None else int.from_bytes(self.target.guest.machine.read(address, 8), "little")

    def type(self, keyword: str, name: str) -> CType | Missing:
        return _NO_FUNCTION if self._names is None else self._names.names.type(keyword, name)

    def constant(self, name: str) -> int | tuple[int, CType] | None:
        found = self._names.names.name(name) if self._names is not None else None
        if isinstance(found, Rvalue) and isinstance(found.expr, Constant):
            return found.expr.value
        return CONSTANTS.get(name)

    def has_types(self) -> bool:
        return not isinstance(self.type("struct", "task_struct"), Missing)

    def has_header(self, name: str) -> bool:
        return has_header(name)

    def symbol(self, name: str) -> int | None:
        found = self._names.names.name(name) if self._names is not None else None
        if isinstance(found, Lvalue) and isinstance(found.address, Constant):
            return found.address.value
        return None

    def matches(self, provider: str, target: str, name: str, offset: int) -> Sequence[Matched] | Missing:
        if provider in ON_HOST:
            parts = ":".join(part for part in (provider, target, name) if part)
            return (Matched(parts, self._on_host(provider)),)
        if provider in EVENTS:
            return self._events(provider, target, name)
        if provider in script_events.PROVIDERS:
            return ScriptEvents(self.target, self._events, self._hit).matches(provider, target, name)
        if provider in PROGRAMS:
            return self.programs.matches(provider, target, name, offset, self.timing)
        if provider not in PROBED:
            known = ", ".join((*PROBED, "interval", "BEGIN", "END"))
            return Unsupported(f"{provider} probes are not supported yet", f"{known} are")
        return [*self._functions(provider, target, name, offset)]

    def _on_host(self, provider: str) -> HostScope:
        offsets = self._names.names.name("__per_cpu_offset") if self._names is not None else None
        if not isinstance(offsets, Lvalue):
            return replace(self.host, provider=provider)
        return replace(self.host, provider=provider, offsets=offsets.address)

    def unmatched(self, provider: str, target: str, name: str) -> HitScope:
        if self._names is None or provider not in PROBED:
            return replace(self.host, provider=provider)
        if provider in PROGRAMS:
            return self.programs.unmatched(provider, self.timing)
        return self._hit(provider, self._names, 0)

    def _hit(self, provider: str, names: NamesAt, address: int) -> KernelHit:
        return KernelHit(provider, names, address, self.timing, abi.of(self.target.guest.isa).result)

    def _functions(self, provider: str, target: str, name: str, offset: int) -> Iterator[Matched]:
        """Yield the functions of a name, which may have wildcards, that a probe can be attached to."""
        glob = any(sign in name for sign in "*?[")
        try:
            addresses = self.target.debugger.resolve(f"{target}:{name}" if target else name, glob)
        except OptprobeError:
            return
        for address in addresses:
            guest, at = self.target.guest, address + offset
            names = guest.names_at_return(at) if provider in RETURNS else guest.names_at(at)
            if names is None:
                continue
            spelled = guest.symbol(address).partition("+")[0] if glob else name
            whole = ":".join(part for part in (provider, target, spelled) if part)
            hit = self._hit(provider, names, address)
            yield Matched(f"{whole}+{offset}" if offset else whole, hit, at)

    def _events(self, provider: str, system: str, name: str) -> Sequence[Matched] | Missing:
        """Return the events of a name, which may have wildcards where functions of system calls serve them."""
        guest, event = self.target.guest, event_name.parse(":".join(filter(None, (provider, system, name))))
        if event is None:
            return ()
        try:
            if not event.is_syscall and not event.is_glob:
                self.try_handler(event)
            matches = []
            for address in guest.event_addresses(event):
                one = guest.event_at(event, address)
                names = guest.event_names_at(one, address, one.returns)
                hit = self._hit(provider, names, address)
                matches.append(Matched(str(one), hit, address))
        except OptprobeError as error:
            return Missing(error.message, error.hint)
        return matches
