"""Run programs of a script on the host: BEGIN, END, and whole scripts that need no guest."""

from __future__ import annotations

import os
import socket
import time as clocks
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ctype import UNSIGNED_LONG, CType, Pointer, Void
from gdb_optprobe.handlers.interpreter import Hit, MapContents, run
from gdb_optprobe.handlers.ir import WORD, Clock, Emit, Expr, Literal, Load, Op, Program
from gdb_optprobe.handlers.scope import Missing, Rvalue
from gdb_optprobe.handlers.script.runtime import Runtime
from gdb_optprobe.handlers.script.scope import HitScope, Known, Matched, Meaning
from gdb_optprobe.handlers.script.types import Stack, Time
from gdb_optprobe.handlers.stack_walk import Walk

COMM = b"bpftrace"
"""What comm is in BEGIN and END."""
_COMM_SIZE = 16
SECOND = 10**9
_MILLION = 6364136223846793005
_OF_CLOCK = ("nsecs", "elapsed", "rand")
_NO_CPUS = Missing("per-CPU variables are not known where the host runs the probe")
_ON_HOST = ("BEGIN", "END", "interval")


@dataclass(frozen=True)
class HostScope:
    """The names in a program that the host runs; a HitScope.

    started: nsecs when the script began. numbers: further built-in variables.
    meanings: what is read of the guest for a built-in variable.
    untimed: why the time is not known; None where it is.
    offsets: the address of the kernel's array of the CPUs' offsets of per-CPU variables.
    """

    provider: str = "BEGIN"
    started: int = 0
    pid: int = 0
    numbers: Mapping[str, int] = field(default_factory=dict)
    meanings: Mapping[str, Meaning] = field(default_factory=dict)
    untimed: Missing | None = None
    offsets: Expr | Missing = _NO_CPUS

    def builtin(self, name: str) -> Meaning | Missing:
        if self.untimed is not None and name.partition(" ")[0] in _OF_CLOCK:
            return self.untimed
        if name in self.meanings:
            return self.meanings[name]
        match name:
            case "comm":
                return Known(Literal.text(COMM, _COMM_SIZE), _COMM_SIZE)
            case "pid" | "tid":
                return _number(self.pid)
            case "nsecs" | "nsecs monotonic":
                return Rvalue(Clock(), UNSIGNED_LONG)
            case "nsecs tai" | "nsecs sw_tai":
                difference = fold.constant(clocks.time_ns() - clocks.clock_gettime_ns(clocks.CLOCK_BOOTTIME))
                return Rvalue(fold.binary(Op.ADD, Clock(), difference, 64, False), UNSIGNED_LONG)
            case "elapsed":
                return Rvalue(fold.binary(Op.SUB, Clock(), fold.constant(self.started), 64, False), UNSIGNED_LONG)
            case "rand":
                mixed = fold.binary(Op.MUL, Clock(), fold.constant(_MILLION), 64, False)
                return Rvalue(fold.binary(Op.LSHR, mixed, fold.constant(33), 64, False), UNSIGNED_LONG)
            case "retval":
                return Missing("The retval builtin can only be used with 'kretprobe', 'uretprobe' and 'fexit' probes")
            case "ctx":
                return Missing("ctx is not supported", "arguments are arg0, …; fields of tracepoints are args.NAME")
        if name in self.numbers:
            return _number(self.numbers[name])
        return Missing(f"'{name}' is not known where the host runs the probe")

    def argument(self, number: int) -> Rvalue | Missing:
        return Missing(f"The arg{number} builtin can only be used with 'kprobes', 'uprobes' and 'usdt' probes")

    def register(self, name: str) -> Rvalue | Missing:
        return Missing(f"'{name}' is not known: the host runs the probe")

    def field(self, name: str) -> Meaning | Missing:
        wanted = "tracepoint/fentry/uprobe probes"
        return Missing(f"The args builtin can only be used with {wanted} ({self.provider} used here)")

    def function(self) -> Missing:
        return Missing(f"The func builtin can not be used with '{self.provider}' probes")

    def stack(self, user: bool, depth: int) -> Walk | Missing:
        return Walk((), (fold.constant(0),) * (2 if user else 1))

    def per_cpu(self, address: int, cpu: Expr | None) -> Expr | Missing:
        if isinstance(self.offsets, Missing):
            return self.offsets
        place = fold.binary(Op.MUL, cpu or fold.constant(0), fold.constant(WORD), 64, False)
        offset = Load(fold.binary(Op.ADD, self.offsets, place, 64, False), WORD, signed=False)
        return fold.binary(Op.ADD, offset, fold.constant(address), 64, False)

    def is_mapped(self, address: int, size: int) -> bool:
        return False


class NoKernel:
    """A Kernel that has nothing: scripts of BEGIN, END and interval alone."""

    def __init__(self, scope: HostScope | None = None, constants: Mapping[str, int] | None = None) -> None:
        self._scope = scope or HostScope()
        self._constants = constants or {}

    def type(self, keyword: str, name: str) -> CType | Missing:
        return Missing(f"no type named '{f'{keyword} {name}'.strip()}'", "there is no kernel")

    def constant(self, name: str) -> int | tuple[int, CType] | None:
        return self._constants.get(name)

    def has_types(self) -> bool:
        return False

    def has_header(self, name: str) -> bool:
        return False

    def symbol(self, name: str) -> int | None:
        return None

    def matches(
        self, provider: str, target: str, name: str, offset: int, has_args: bool = True
    ) -> Sequence[Matched] | Missing:
        if provider not in _ON_HOST:
            return ()
        parts = ":".join(part for part in (provider, target, name) if part)
        return (Matched(parts, replace(self._scope, provider=provider)),)

    def unmatched(self, provider: str, target: str, name: str) -> HitScope:
        return replace(self._scope, provider=provider)


class HostNames:
    """Names of numbers where no guest is asked; a Names.

    booted: the time since 1970 in nanoseconds at which the clock `nsecs` began; None where that is not known.
    """

    def __init__(self, booted: int | None = 0) -> None:
        self.booted = booted

    def kernel_symbol(self, address: int) -> str:
        return f"{address:#x}"

    def user_symbol(self, address: int, pid: int) -> str:
        return f"{address:#x}"

    def user(self, number: int) -> str:
        return "root" if number == 0 else str(number)

    def stack(self, words: Sequence[int], stack: Stack, indent: int) -> str:
        return "\n"

    def time(self, nanoseconds: int, time: Time) -> str:
        if time.boot and self.booted is None:
            return "(?)"
        return formatted_time(time.format, nanoseconds + (self.booted or 0 if time.boot else 0))

    def error(self, number: int) -> str:
        return os.strerror(number & 0x7FFFFFFF)

    def control_group(self, number: int) -> str:
        return f"unified:/{number}"

    def address(self, family: int, data: bytes) -> str:
        """Return an address of the internet. The families are numbered as all of Linux's ISAs have it."""
        if family == 2:
            return socket.inet_ntop(socket.AF_INET, data[:4])
        return socket.inet_ntop(socket.AF_INET6, data[:16]) if family == 10 else ""


class NoFiles:
    """A Host that has no files of the guest and runs nothing."""

    def clock(self, format: str) -> str:
        return formatted_time(format, clocks.time_ns())

    def cat(self, name: str, most: int) -> str:
        raise OptprobeError("files of the guest cannot be read")

    def shell(self, command: str) -> str:
        raise OptprobeError("commands are not run")


def formatted_time(format: str, nanoseconds: int) -> str:
    """Return a time since 1970 by a format of strftime; `%f` is the microseconds."""
    seconds, rest = divmod(nanoseconds, SECOND)
    micro = f"{rest // 1000:06}"
    return clocks.strftime(format.replace("%f", micro), clocks.localtime(seconds))


def run_on_host(program: Program, runtime: Runtime, maps: Mapping[str, MapContents], clock: int) -> str:
    """Run a program once and carry out what it asks. Return what is printed."""
    outcome = run(program, Hit({}, _no_memory, clock=clock, maps=maps))
    printed = ""
    for done in outcome.done:
        assert isinstance(done.action, Emit) and done.action.target.kind is not None
        printed += runtime.take(done.action.target.kind, done.data)
    return printed


def _number(value: int) -> Rvalue:
    return Rvalue(fold.constant(value), UNSIGNED_LONG)


def _no_memory(address: int, size: int) -> bytes:
    raise Unreadable(address, size)


def task_pointer(value: int) -> Rvalue:
    """Return a pointer to nothing of a known type."""
    return Rvalue(fold.constant(value), Pointer(Void()))
