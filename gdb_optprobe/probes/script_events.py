"""Events of a script that functions of the kernel serve: profile by the scheduler's tick, and those of software."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.base import Interrupted
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.guest.script_scope import SECOND, KernelHit
from gdb_optprobe.handlers.ir import Expr
from gdb_optprobe.handlers.parser import parse_expression
from gdb_optprobe.handlers.scope import Missing, Rvalue
from gdb_optprobe.handlers.script import gates
from gdb_optprobe.handlers.script.attach import period
from gdb_optprobe.handlers.script.scope import Gate, Matched, Unsupported
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.handlers.types import Typer
from gdb_optprobe.probes.target import Target

PROVIDERS = ("profile", "software")
TICKS = ("update_process_times", "scheduler_tick", "sched_tick")
TICKING = "profile goes by the tick of the guest's scheduler: an idle CPU has none, a busy one no more than it has"
_NO_CPU = Missing("which CPU a hit is on is not known")


@dataclass(frozen=True, slots=True)
class _Served:
    """What serves an event. event: of the kernel's, first. functions: one of them where that cannot be.

    tests: expressions for the hits that count, of which one has types. registers: the argument with the pt_regs of what
    is interrupted.
    """

    functions: tuple[str, ...]
    event: str = ""
    tests: tuple[str, ...] = ()
    registers: str = ""


PAGE_FAULTS = "page-faults"
_SERVED = {
    "context-switches": _Served(("__switch_to",), "sched_switch"),
    "cpu-migrations": _Served(
        ("set_task_cpu",),
        tests=tuple(f"((struct task_struct *)$arg1)->{cpu} != (unsigned)$arg2" for cpu in ("thread_info.cpu", "cpu")),
    ),
}
_REFUSED = {
    **dict.fromkeys(("minor-faults", "major-faults"), "the kernel counts it where no function begins"),
    **dict.fromkeys(("cpu-clock", "task-clock"), "it needs a timer of the kernel's; profile:hz:N is there"),
    **dict.fromkeys(("alignment-faults", "emulation-faults"), "no function of its own counts it"),
    "dummy": "it never occurs",
    "bpf-output": "there is no BPF program",
}


@dataclass(frozen=True)
class ScriptEvents:
    """events: returns where an event of the kernel's is, or why nowhere. hit: makes the names of a hit."""

    target: Target
    events: Callable[[str, str, str], Sequence[Matched] | Missing]
    hit: Callable[[str, NamesAt, int], KernelHit]

    def matches(self, provider: str, target: str, name: str) -> Sequence[Matched] | Missing:
        """Return where a probe of one of PROVIDERS is attached; none is left out, so a missing one ends the script."""
        found = self._profile(target, int(name)) if provider == "profile" else self._software(target, int(name))
        return Unsupported(found.message, found.hint) if isinstance(found, Missing) else found

    def _profile(self, unit: str, count: int) -> Sequence[Matched] | Missing:
        address = self._function(TICKS)
        if address is None:
            return Missing("no function of the scheduler's tick is known", f"there would be {', '.join(TICKS)}")
        names = self.target.guest.names_at(address)
        if names.cpu is None:
            return _NO_CPU
        if isinstance(names.hertz, Missing):
            return names.hertz
        ticks = max(period(unit, count) * names.hertz // SECOND, 1)
        hit = replace(self.hit("profile", names, address), interrupted=Interrupted())
        gate = partial(gates.in_time, ticks, names.cpu)
        return (Matched(f"profile:{unit}:{count}", hit, address, gate=gate, note=TICKING),)

    def _software(self, event: str, count: int) -> Sequence[Matched] | Missing:
        if event != PAGE_FAULTS and event not in _SERVED:
            why = _REFUSED.get(event, "there is no such event")
            return Missing(f"software:{event} is not supported: {why}", f"{', '.join((PAGE_FAULTS, *_SERVED))} are")
        choices = self._choices(event)
        placed = next(((one, found) for one in choices if (found := self._place(one)) is not None), None)
        if placed is None:
            named = ", ".join(name for one in choices for name in one.functions)
            return Missing(f"no function is known that serves software:{event}", named and f"there would be {named}")
        served, found = placed
        hit = found.hit
        assert isinstance(hit, KernelHit)
        cpu = hit.names.cpu
        if cpu is None:
            return _NO_CPU
        test = _first(served.tests, hit.names)
        if isinstance(test, Missing):
            return test
        interrupted = hit.names.names.dollar(served.registers) if served.registers else None
        if isinstance(interrupted, Rvalue):
            hit = replace(hit, interrupted=Interrupted(interrupted.expr))
        gate = partial(_gate, test, count, cpu)
        return (replace(found, name=f"software:{event}:{count}", hit=hit, gate=gate),)

    def _choices(self, event: str) -> Sequence[_Served]:
        """Return what may serve an event: the first that there is."""
        if event == PAGE_FAULTS:
            return [_Served((name,), registers=where) for name, where in self.target.guest.page_faults]
        return [_SERVED[event]]

    def _place(self, served: _Served) -> Matched | None:
        """Return where an event is served."""
        if served.event:
            found = self.events("rawtracepoint", "", served.event)
            if not isinstance(found, Missing) and found:
                (match,) = found
                assert isinstance(match.hit, KernelHit)
                return replace(match, hit=replace(match.hit, provider="software"), location=match.name)
        address = self._function(served.functions)
        if address is None:
            return None
        return Matched("", self.hit("software", self.target.guest.names_at(address), address), address)

    def _function(self, names: Sequence[str]) -> int | None:
        """Return where the first of these functions that there are is probed."""
        return next(self._functions(names), None)

    def _functions(self, names: Sequence[str]) -> Iterator[int]:
        for name in names:
            try:
                yield self.target.debugger.resolve(name, False)[0]
            except OptprobeError:
                continue


def _gate(test: Expr | None, count: int, cpu: Expr, name: str) -> Gate:
    if test is None:
        return gates.every(count, cpu, name)
    return gates.every_of(test, count, cpu, name)


def _first(tests: Sequence[str], names: NamesAt) -> Expr | Missing | None:
    """Return the first of some expressions that can be compiled, or why the last cannot; None where there are none."""
    found: Expr | Missing | None = None
    for text in tests:
        try:
            return Typer(names.names).value(parse_expression(Fragment.whole(text), names.names.is_type)).expr
        except OptprobeError as error:
            found = Missing(error.message.partition("\n")[0], error.hint)
    return found
