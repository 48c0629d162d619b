"""The guest's kernel as a script sees it: its types and symbols, and where a probe of the script is attached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import abi
from gdb_optprobe.guest.linux import event_name
from gdb_optprobe.guest.linux.clock import last_tick
from gdb_optprobe.guest.linux.event_name import EventName
from gdb_optprobe.guest.linux.script_constants import CONSTANTS, has_header
from gdb_optprobe.guest.linux.tracepoints import TOO_MANY, too_many
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.guest.script_scope import KernelHit, Timing
from gdb_optprobe.handlers.ctype import CType
from gdb_optprobe.handlers.ir import Constant
from gdb_optprobe.handlers.scope import Lvalue, Missing, Rvalue
from gdb_optprobe.handlers.script.host import HostScope
from gdb_optprobe.handlers.script.scope import HitScope, Matched, Meaning, Unmatched, Unsupported
from gdb_optprobe.probes import script_events
from gdb_optprobe.probes.script_events import ScriptEvents
from gdb_optprobe.probes.script_programs import PROGRAMS, ScriptPrograms
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.tracepoint_handlers import with_known_fields

FUNCTIONS = ("kprobe", "kretprobe", "fentry", "fexit")
EVENTS = ("tracepoint", "rawtracepoint")
PROBED = (*FUNCTIONS, *EVENTS, *script_events.PROVIDERS, *PROGRAMS)
RETURNS = ("kretprobe", "fexit")
ON_HOST = ("BEGIN", "END", "interval")
_OF_OWN_PROCESS = {"pid": 0, "tid": 0, "comm": 0, "uid": 0, "gid": 0, "cgroup": 1}
"""In BEGIN and END, which bpftrace runs in its own process: root's, in the first control group."""
_OF_CPU = (*_OF_OWN_PROCESS, "cpu", "numaid", "curtask", "jiffies")
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

    def matches(
        self, provider: str, target: str, name: str, offset: int, has_args: bool = True
    ) -> Sequence[Matched] | Missing:
        if provider in ON_HOST:
            parts = ":".join(part for part in (provider, target, name) if part)
            return (Matched(parts, self._on_host(provider)),)
        if provider in EVENTS:
            return self._events(provider, target, name, has_args)
        if provider in script_events.PROVIDERS:
            return ScriptEvents(self.target, self._events, self._hit).matches(provider, target, name)
        if provider in PROGRAMS:
            return self.programs.matches(provider, target, name, offset, self.timing)
        if provider not in PROBED:
            known = ", ".join((*PROBED, "interval", "BEGIN", "END"))
            return Unsupported(f"{provider} probes are not supported yet", f"{known} are")
        try:
            return [*self._functions(provider, target, name, offset)]
        except OptprobeError as error:
            return () if target else Unmatched(error.message, error.hint)

    def _on_host(self, provider: str) -> HostScope:
        numbers = {} if provider == "interval" else _OF_OWN_PROCESS
        meanings = {name: meaning for name, meaning in self._at_stop.items() if name not in numbers}
        scope = replace(self.host, provider=provider, meanings=meanings, numbers=numbers)
        offsets = self._names.names.name("__per_cpu_offset") if self._names is not None else None
        return replace(scope, offsets=offsets.address) if isinstance(offsets, Lvalue) else scope

    @cached_property
    def _at_stop(self) -> Mapping[str, Meaning]:
        """What built-in variables are while the guest is stopped: those of the first CPU and its thread."""
        names = self.target.guest.names_at_stop()
        if names is None:
            return {}
        hit = self._hit("interval", names, 0)
        found = {name: hit.builtin(name) for name in _OF_CPU}
        return {name: meaning for name, meaning in found.items() if not isinstance(meaning, Missing)}

    def unmatched(self, provider: str, target: str, name: str) -> HitScope:
        if self._names is None or provider not in PROBED:
            return replace(self.host, provider=provider)
        if provider in PROGRAMS:
            return self.programs.unmatched(provider, self.timing)
        return self._hit(provider, self._names, 0)

    def _hit(self, provider: str, names: NamesAt, address: int) -> KernelHit:
        return KernelHit(provider, names, address, self.timing, abi.of(self.target.guest.isa).result)

    def _functions(self, provider: str, target: str, name: str, offset: int) -> Iterator[Matched]:
        """Yield the functions of a name, which may have wildcards, that a probe can be attached to.

        Raises OptprobeError where there is none.
        """
        glob = any(sign in name for sign in "*?[")
        for address in self.target.debugger.resolve(f"{target}:{name}" if target else name, glob):
            guest, at = self.target.guest, address + offset
            names = guest.names_at_return(at) if provider in RETURNS else guest.names_at(at)
            if names is None:
                continue
            spelled = guest.symbol(address).partition("+")[0] if glob else name
            whole = ":".join(part for part in (provider, target, spelled) if part)
            hit = self._hit(provider, names, address)
            yield Matched(f"{whole}+{offset}" if offset else whole, hit, at)

    def listed(self, provider: str, target: str, name: str, offset: int) -> Sequence[str] | Missing:
        """Return the names of what a pattern matches, ascending."""
        event = event_name.parse(f"{provider}:{target}:{name}" if target else f"{provider}:{name}")
        if provider not in EVENTS or event is None:
            found = self.matches(provider, target, name, offset)
            if isinstance(found, Unmatched):
                return ()
            return found if isinstance(found, Missing) else sorted({match.name for match in found})
        try:
            return sorted(map(str, self.target.guest.events(event)))
        except OptprobeError as error:
            return Missing(error.message, error.hint)

    def _events(self, provider: str, system: str, name: str, has_args: bool = True) -> Sequence[Matched] | Missing:
        """Return the events of a name, which may have wildcards."""
        event = event_name.parse(":".join(filter(None, (provider, system, name))))
        if event is None:
            return ()
        try:
            if not event.is_glob:
                return [*self._event(event, has_args)]
            return self._of_wildcards(event, has_args)
        except OptprobeError as error:
            return Missing(error.message, error.hint)

    def _of_wildcards(self, event: EventName, has_args: bool) -> Sequence[Matched] | Missing:
        """Return the events that a name means but for those without the fields asked for. Raises OptprobeError."""
        events = self.target.guest.events(event)
        if why_not := too_many(event, sum(not one.is_syscall for one in events)):
            return Unsupported(why_not, TOO_MANY)
        found, left_out = with_known_fields(events, lambda one: [*self._event(one, has_args)])
        matches = [match for some in found.values() for match in some]
        if not (left_out and matches):
            return matches
        why = next(iter(left_out.values()))
        note = f"could not attach {', '.join(map(str, left_out))}, skipping: {why.message}"
        return [replace(matches[0], note=note), *matches[1:]]

    def _event(self, event: EventName, has_args: bool) -> Iterator[Matched]:
        """Yield where a probe of one event is. Raises OptprobeError."""
        guest, served = self.target.guest, event
        if not event.is_syscall:
            # A handler that has no use for fields has the arguments alone, which cost nothing.
            served = event if has_args else event.raw
            self.try_handler(served)
        provider, location = str(event).partition(":")[0], str(served) if served != event else ""
        for address in guest.event_addresses(served):
            hit = self._hit(provider, guest.event_names_at(served, address, served.returns), address)
            yield Matched(str(event), hit, address, location)
