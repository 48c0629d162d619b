"""The functions of a call graph in a guest: which they are, and the probes that record their calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.errors import OptprobeError, Unreachable, Unreadable
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.handlers.compile import compile_handler
from gdb_optprobe.handlers.ctype import CType, Enum, Integer
from gdb_optprobe.handlers.ir import Expr, Load, Program, Register, may_fault
from gdb_optprobe.handlers.parser import parse_expression
from gdb_optprobe.handlers.scope import Lvalue, Missing, Rvalue, Scope
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.handlers.types import Typer
from gdb_optprobe.isa.base import Pointer
from gdb_optprobe.probes.graph.callees import Callees, Reached
from gdb_optprobe.probes.graph.gate import Gate, Thread
from gdb_optprobe.probes.graph.records import WORD
from gdb_optprobe.probes.kretprobe import NEAR, UNBALANCED, check_function, return_backend
from gdb_optprobe.probes.shared_records import SharedRecords
from gdb_optprobe.probes.spec import Kind, Spec

MOST_ARGUMENTS = 6
"""Of a function that are recorded, as Linux does."""
CALLS = 32
"""Calls of one function at once, in all threads, that are recorded."""
_SHOWN = ("{ … }",)
"""The action that listings show of a graph's probe."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a graph is asked for. depth: levels of calls below the root. also, unwanted: globs of names.

    condition: of the root's calls. arguments, values: whether they are recorded.
    """

    root: str
    depth: int
    also: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    condition: Fragment | None = None
    arguments: bool = False
    values: bool = False


@dataclass(frozen=True, slots=True)
class Traced:
    """A function of the graph. number: in records. start: of its code. entry: where its probe is.

    parameters: those that are recorded, with their types. more: whether it has others. has_value: whether it is
    recorded what it returns. returns: whether it returns at all.
    """

    number: int
    name: str
    start: int
    entry: int
    parameters: tuple[tuple[str, CType], ...] = ()
    more: bool = False
    has_value: bool = False
    returns: bool = True

    def brackets(self, words: Sequence[int]) -> str:
        """Return the arguments as newer kernels print them: numbers with a sign, all else in hexadecimal."""
        parts = [f"{name}={_shown(word, type_)}" for (name, type_), word in zip(self.parameters, words, strict=False)]
        return f"({', '.join([*parts, *(['...'] if self.more else [])])})"


@dataclass
class Functions:
    """The functions of a graph, in the order of their numbers. The root is the first.

    left_out: why functions are not in it, by their names.
    """

    guest: Guest
    request: Request
    traced: list[Traced] = field(default_factory=list)
    depths: dict[int, int] = field(default_factory=dict)
    left_out: dict[str, OptprobeError] = field(default_factory=dict)

    def below(self, starts: dict[int, int]) -> Reached:
        """Return what functions at these depths reach, as far down as is asked for."""
        guest = self.guest
        found = Callees(guest.text.function, self.is_traced, guest.pointer, self._is_wanted)
        return found.reached(starts, self.request.depth)

    def is_traced(self, start: int) -> bool:
        """Return whether the function there has a tracer's site."""
        return bool(self.guest.text.ftrace_sites(start, self.guest.entry(start) + NEAR))

    def is_callee(self, start: int) -> bool:
        """Return whether the function there may be in the graph where it is called."""
        function = self.guest.text.function(start)
        return function is not None and self._is_wanted(function.name)

    def _is_wanted(self, name: str) -> bool:
        # What is called where threads are switched runs on the stack of another thread than the current one.
        return name not in UNBALANCED and not any(fnmatchcase(name, glob) for glob in self.request.unwanted)

    def add(self, start: int, depth: int) -> Traced | None:
        """Return a new function of the graph; None where it is there, or cannot be, which `left_out` says then."""
        if start in self.depths:
            return None
        self.depths[start] = depth
        function = self.guest.text.function(start)
        name = function.name if function is not None else f"{start:#x}"
        entry = self.guest.entry(start)
        try:
            check_function(entry, self.guest)
            returns = True
        except Refused as refused:
            if refused.reason.code != Refusal.RETURN_NEVER.code:
                self.left_out[name] = refused
                return None
            returns = False
        found = Traced(len(self.traced), name, start, entry, returns=returns)
        found = self._described(found)
        self.traced.append(found)
        return found

    def drop(self, function: Traced, why: OptprobeError) -> None:
        """Leave out a function that was added last."""
        assert self.traced.pop() is function
        self.left_out[function.name] = why

    def spec(self, function: Traced, at: Gate, into: SharedRecords) -> Spec:
        """Return the probe of a function. Raises OptprobeError."""
        names = self.guest.names_at(function.entry).names
        stack = Register(self.guest.isa.sp)
        arguments = [_word(names.name(name)) for name, _ in function.parameters]
        is_root = function.number == 0
        if is_root:
            entry = at.root(0, self._condition(names), stack, arguments)
        else:
            entry = at.callee(function.number, stack, arguments)
        if not function.returns:
            # Of a root that never returns all is in the entry's program.
            program = Program(entry.condition, entry.actions)
            return _spec(function.entry, Kind.KPROBE, program, into)
        value = self._value(function)
        if is_root:
            program = at.root_returned(0, value, return_backend(self.guest).slot)
        else:
            program = at.returned(function.number, value)
        return replace(_spec(function.entry, Kind.KRETPROBE, program, into), entry=entry, maxactive=CALLS)

    def thread(self) -> Thread:
        """Return the expressions of the running thread. Raises OptprobeError."""
        names = self.guest.names_at(self.traced[0].entry).names
        comm = names.dollar("comm")
        if isinstance(comm, Missing):
            raise OptprobeError(comm.message, comm.hint)
        assert isinstance(comm, Lvalue)
        pid = _typed(names, "$pid")
        try:
            birth = _typed(names, "$task->start_time")
        except (Unreadable, Unreachable):
            raise
        except OptprobeError:
            birth = pid
        return Thread(
            _word(names.dollar("task")),
            birth if not may_fault(birth) else pid,
            pid,
            Load(comm.address, WORD, False, mapped=True),
        )

    def learner(self, site: int, pointer: Pointer, at: Gate) -> Spec:
        """Return the probe on a call through a pointer."""
        return Spec(f"*{site:#x}", Kind.KPROBE, actions=_SHOWN, program=at.learning(site, pointer))

    def death(self, entry: int, at: Gate, into: SharedRecords) -> Spec:
        """Return the probe on where threads end, entered at `entry`."""
        return _spec(entry, Kind.KPROBE, at.died(), into)

    def _described(self, function: Traced) -> Traced:
        """Return a function with what is recorded of it."""
        parameters: list[tuple[str, CType]] = []
        more = False
        if self.request.arguments:
            scope = self.guest.names_at(function.entry).names
            for name in self.guest.parameters(function.entry):
                found = scope.name(name)
                if not isinstance(found, Rvalue) or len(parameters) == MOST_ARGUMENTS:
                    more = True
                    break
                parameters.append((name, found.type))
        has_value = self._value(function) is not None
        return replace(function, parameters=tuple(parameters), more=more, has_value=has_value)

    def _value(self, function: Traced) -> Expr | None:
        """Return what a function returns, where that is asked for and known."""
        names = self.guest.names_at_return(function.entry) if self.request.values and function.returns else None
        found = names.names.dollar("retval") if names is not None else None
        return found.expr if isinstance(found, Rvalue) else None

    def _condition(self, names: Scope) -> Expr | None:
        return compile_handler(self.request.condition, (), names).condition


def _spec(entry: int, kind: Kind, program: Program, into: SharedRecords) -> Spec:
    return Spec(f"*{entry:#x}", kind, actions=_SHOWN, program=program, records=into)


def _typed(names: Scope, text: str) -> Expr:
    return Typer(names).value(parse_expression(Fragment.whole(text), names.is_type)).expr


def _word(found: object) -> Expr:
    if isinstance(found, Missing):
        raise OptprobeError(found.message, found.hint)
    assert isinstance(found, Rvalue)
    return found.expr


def _shown(word: int, type_: CType) -> str:
    signed = isinstance(type_, Integer | Enum) and type_.signed
    return str(word - (1 << 64) if word >> 63 else word) if signed else f"{word:#x}"
