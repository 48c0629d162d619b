"""The names of a script at a place in the guest's kernel, from the names that conditions have there (scope.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.base import Interrupted
from gdb_optprobe.guest.linux.clock import LogClock
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.handlers import fold, stack_walk
from gdb_optprobe.handlers.ctype import UNSIGNED_INT, UNSIGNED_LONG, CType, Enum, Integer, Pointer, size_of
from gdb_optprobe.handlers.ir import WORD, Clock, Constant, Expr, Load, Op
from gdb_optprobe.handlers.parser import parse_expression
from gdb_optprobe.handlers.scope import Fields, Lvalue, Missing, Rvalue
from gdb_optprobe.handlers.script.scope import Meaning
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.handlers.stack_walk import Walk
from gdb_optprobe.handlers.types import Typer

SECOND = 10**9
_MULTIPLIER = 6364136223846793005
_OURS = {"pid": "tgid", "tid": "pid", "comm": "comm", "cpu": "cpu", "curtask": "task"}
"""bpftrace's names, and ours."""
_OF_TASK = {
    "uid": "$task->cred->uid.val",
    "gid": "$task->cred->gid.val",
    "cgroup": "$task->cgroups->dfl_cgrp->kn->id",
}
_RETURNS = ("kretprobe", "uretprobe", "fexit")
_ENTRIES = ("kprobe", "uprobe", "fentry", "rawtracepoint")
_OF_FUNCTIONS = ("kprobe", "kretprobe", "fentry", "fexit", "uprobe", "uretprobe")
_EVENTS = ("tracepoint", "rawtracepoint")
_PROGRAM_COUNTERS = ("ip", "nip", "pc")


@dataclass(frozen=True, slots=True)
class Timing:
    """How ticks become nanoseconds since the guest's start. hertz: ticks in a second.

    offset: nanoseconds since the start where the clock's ticks are 0. started: nanoseconds when the script began.
    """

    hertz: int | Missing
    offset: int = 0
    started: int | Missing = 0

    def nanoseconds(self) -> Expr | Missing:
        """Return the time since the guest's start: 64 bits of ticks by a factor of as many, for two hundred years."""
        return self.hertz if isinstance(self.hertz, Missing) else LogClock.of_rate(self.hertz, self.offset).now


@dataclass(frozen=True)
class KernelHit:
    """A HitScope. provider: the kind of the probe. entry: the address of the probed function.

    program: the inode of the file that has it, which its address is one of; 0 for the kernel.
    """

    provider: str
    names: NamesAt
    entry: int
    timing: Timing = field(default_factory=lambda: Timing(Missing("the clock is not known")))
    result: str = ""
    """The register of a return value."""
    interrupted: Interrupted | None = None
    """What the stack is that of, where it is not the hit's."""
    register_of: Callable[[str], Rvalue | None] = lambda name: None
    program: int = 0
    parameters: Callable[[], Mapping[str, CType]] = dict
    """Those of the program's function that is entered here, in order. Raises OptprobeError."""

    def builtin(self, name: str) -> Meaning | Missing:
        scope = self.names.names
        if name in _OURS:
            return scope.dollar(_OURS[name])
        match name:
            case "uid" | "gid" | "cgroup":
                return self._typed(_OF_TASK[name])
            case "nsecs" | "nsecs monotonic" | "elapsed":
                now = self.timing.nanoseconds()
                if isinstance(now, Missing):
                    return now
                begun = self.timing.started if name == "elapsed" else 0
                if isinstance(begun, Missing):
                    return begun
                started = fold.constant(begun)
                return Rvalue(fold.binary(Op.SUB, now, started, 64, False), UNSIGNED_LONG)
            case "rand":
                mixed = _product(Clock(), fold.constant(_MULTIPLIER))
                return Rvalue(fold.binary(Op.LSHR, mixed, fold.constant(33), 64, False), UNSIGNED_LONG)
            case "numaid":
                return self._node()
            case "jiffies":
                found = scope.name("jiffies_64")
                return Lvalue(found.address, UNSIGNED_LONG, found.mapped) if isinstance(found, Lvalue) else found
            case "retval" if self.provider in _RETURNS:
                found = scope.dollar(self.result)
                return Rvalue(found.expr, UNSIGNED_LONG) if isinstance(found, Rvalue) else found
            case "retval":
                return Missing("The retval builtin can only be used with 'kretprobe', 'uretprobe' and 'fexit' probes")
        return Missing(f"'{name}' is not supported in {self.provider} probes")

    def _node(self) -> Meaning | Missing:
        """Return the number of this CPU's node, which a kernel with CONFIG_NUMA has."""
        found = self.names.names.name("numa_node")
        if not isinstance(found, Lvalue) or not isinstance(found.address, Constant):
            return found if isinstance(found, Missing) else Missing("numa_node is no variable")
        place = self.per_cpu(found.address.value, None)
        return place if isinstance(place, Missing) else Lvalue(place, UNSIGNED_INT, mapped=True)

    def _typed(self, text: str) -> Meaning | Missing:
        part = Fragment.whole(text)
        try:
            return Typer(self.names.names).value(parse_expression(part, self.names.names.is_type))
        except OptprobeError as error:
            return Missing(error.message.partition("\n")[0], error.hint)

    def argument(self, number: int) -> Rvalue | Missing:
        if self.provider not in _ENTRIES:
            return Missing(f"The arg{number} builtin can only be used with 'kprobes', 'uprobes' and 'usdt' probes")
        found = self.names.names.dollar(f"arg{number + 1}")
        return found if not isinstance(found, Lvalue) else Missing(f"arg{number} is no word")

    def register(self, name: str) -> Rvalue | Missing:
        """Return a register by its name in pt_regs: with or without the letter that tells its size."""
        for tried in (["pc"] if name in _PROGRAM_COUNTERS else [name, f"r{name}"]):
            found = self.names.names.dollar(tried)
            if isinstance(found, Rvalue) and not isinstance(found.type, Pointer):
                return Rvalue(found.expr, UNSIGNED_LONG)
        return Missing(f"'{name}' is not a valid register on this architecture")

    def field(self, name: str) -> Meaning | Missing:
        event = self.names.names.name("args")
        if isinstance(event, Fields):
            found = event.lookup(name)
            return Missing(f"no field '{name}'", event.hint) if found is None else found
        if self.provider in ("fentry", "fexit"):
            return self.names.names.name(name)
        if self.provider in _EVENTS and isinstance(event, Missing):
            return event
        if self.program and self.provider == "uprobe":
            return self._parameter(name)
        wanted = "tracepoint/fentry/uprobe probes"
        return Missing(f"The args builtin can only be used with {wanted} ({self.provider} used here)")

    def _parameter(self, name: str) -> Meaning | Missing:
        """Return a parameter of a program's function, of those that are passed as the ABI passes numbers."""
        try:
            known = self.parameters()
        except OptprobeError as error:
            return Missing(error.message, error.hint)
        if name not in known:
            what = f"it has: {', '.join(known)}" if known else "arg0, … are its arguments"
            why = f"no parameter '{name}'" if known else "no debug information tells the parameters of this function"
            return Missing(why, what)
        for number, (each, type_) in enumerate(known.items()):
            if not isinstance(type_, Integer | Enum | Pointer) or (size_of(type_) or 0) > WORD:
                break
            if each == name:
                found = self.argument(number)
                if isinstance(found, Missing) or isinstance(type_, Pointer):
                    return found if isinstance(found, Missing) else Rvalue(found.expr, type_)
                return Rvalue(fold.convert(found.expr, type_.width, type_.signed), type_)
        return Missing(f"where '{name}' is passed is not known", "it, or one before it, is no number and no pointer")

    def function(self) -> Expr | tuple[Expr, Expr] | Missing:
        if self.provider not in _OF_FUNCTIONS:
            return Missing(f"The func builtin can not be used with '{self.provider}' probes")
        entry = fold.constant(self.entry)
        return (entry, fold.constant(self.program)) if self.program else entry

    def stack(self, user: bool, depth: int) -> Walk | Missing:
        found = self.names.user_walker() if user else self.names.walker(self.interrupted)
        if isinstance(found, Missing):
            return found
        walk = stack_walk.walk(found, depth)
        if not user:
            return walk
        process = self.builtin("pid")
        if not isinstance(process, Lvalue):
            return process if isinstance(process, Missing) else Missing("the process is not known")
        return replace(walk, words=(*walk.words, Load(process.address, 4, signed=False, mapped=process.mapped)))

    def per_cpu(self, address: int, cpu: Expr | None) -> Expr | Missing:
        scope = self.names.names
        if cpu is None:
            base = scope.per_cpu_base()
            return base if isinstance(base, Missing) else fold.binary(Op.ADD, base, fold.constant(address), 64, False)
        offsets = scope.name("__per_cpu_offset")
        if not isinstance(offsets, Lvalue):
            return offsets if isinstance(offsets, Missing) else Missing("__per_cpu_offset is no array")
        place = fold.binary(Op.ADD, offsets.address, _product(cpu, fold.constant(8)), 64, False)
        return fold.binary(Op.ADD, Load(place, 8, False), fold.constant(address), 64, False)

    def is_mapped(self, address: int, size: int) -> bool:
        return self.names.names.is_mapped(address, size)


def _product(left: Expr, right: Expr) -> Expr:
    return fold.binary(Op.MUL, left, right, 64, False)
