"""The functions of a call graph in a guest: which they are, and the probes that record their calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache

from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.errors import OptprobeError, Unreachable, Unreadable
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.text import Place
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.compile import compile_handler
from gdb_optprobe.handlers.ctype import CType, Enum, Integer
from gdb_optprobe.handlers.ir import Constant, Expr, Load, Op, Program, Register, may_fault, nodes
from gdb_optprobe.handlers.lower_routine import INDEX
from gdb_optprobe.handlers.lower_shared_returns import NUMBER as SHARED
from gdb_optprobe.handlers.parser import parse_expression
from gdb_optprobe.handlers.scope import Lvalue, Missing, Rvalue, Scope
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.handlers.types import Typer
from gdb_optprobe.isa.base import Pointer
from gdb_optprobe.isa.return_codegen import EntryStubs
from gdb_optprobe.probes.graph import records
from gdb_optprobe.probes.graph.callees import Callees, Exits, Reached, exits_of
from gdb_optprobe.probes.graph.gate import Gate, Thread
from gdb_optprobe.probes.graph.kept_exits import KnownExits
from gdb_optprobe.probes.graph.records import WORD
from gdb_optprobe.probes.kretprobe import NEAR, UNBALANCED, check_function, return_backend
from gdb_optprobe.probes.return_program import slot_word
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

    condition: of the root's calls. arguments, values: whether they are recorded. newest: whether a full ring keeps its
    newest records, and is read in the end alone.
    """

    root: str
    depth: int
    also: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    condition: Fragment | None = None
    arguments: bool = False
    values: bool = False
    newest: bool = False


@dataclass(frozen=True, slots=True)
class Traced:
    """A function of the graph. start: of its code. entry: where its probe is.

    parameters: those that are recorded, with their types and the numbers of their registers. more: whether it has
    others. result: the type of what it returns; None where that is not recorded.
    """

    name: str
    start: int
    entry: int
    parameters: tuple[tuple[str, CType, int], ...] = ()
    more: bool = False
    result: CType | None = None

    def brackets(self, words: Sequence[int]) -> str:
        """Return the arguments as newer kernels print them: numbers with a sign, all else in hexadecimal."""
        known = [each for each in self.parameters if each[2] < len(words)]
        parts = [f"{name}={_shown(words[at], type_)}" for name, type_, at in known]
        more = self.more or len(known) < len(self.parameters)
        return f"({', '.join([*parts, *(['...'] if more else [])])})"

    def passed(self, words: Sequence[int]) -> tuple[tuple[str, int | str], ...]:
        """Return the arguments by name: integers, and all else in hexadecimal."""
        return tuple((name, _plain(words[at], type_)) for name, type_, at in self.parameters if at < len(words))

    def returned(self, word: int) -> int | str | None:
        """Return what it returned, in the same form; None where that is not recorded."""
        return _plain(word, self.result) if self.result is not None else None

    def value(self, word: int) -> int:
        """Return what it returned: a register's word without what is above its type, which no ABI defines."""
        return _as_type(word, self.result)


@dataclass
class Functions:
    """The functions of a graph. root: None before it is found. by_number: of those with probes, as records have it.

    left_out: why functions are not in it, by their names. known: what leads out of functions. bounds: see
    Guest.interrupt_bounds.
    """

    guest: Guest
    request: Request
    known: KnownExits = field(default_factory=KnownExits)
    root: Traced | None = None
    by_number: dict[int, Traced] = field(default_factory=dict)
    depths: dict[int, int] = field(default_factory=dict)
    left_out: dict[str, OptprobeError] = field(default_factory=dict)
    bounds: tuple[int, int] | None = None
    _numbers: int = 1  # the root's is 0

    def below(self, starts: dict[int, int]) -> Reached:
        """Return what functions at these depths reach, as far down as is asked for."""
        found = Callees(cache(self.guest.place), self._exits, self.traced, self._is_wanted)
        return found.reached(starts, self.request.depth)

    def _exits(self, places: Sequence[Place]) -> Sequence[Exits]:
        """Return what leads out of each part of a function; only those of which the code is new are decoded."""
        return [self._exits_by(place, code) for place, code in zip(places, self.guest.code(places), strict=True)]

    def _exits_by(self, place: Place, code: bytes | None) -> Exits:
        if code is None:
            function = self.guest.text.function(place.start)
            return exits_of(function.hot, place, self.guest.pointer) if function is not None else Exits()
        return self.known.of(place, code, self.guest)

    def traced(self, starts: Collection[int]) -> Collection[int]:
        """Return those of the functions that have a tracer's site."""
        entries = zip(starts, self.guest.entries(starts), strict=True)
        return {start for start, entry in entries if self.guest.is_traceable(start, entry + NEAR)}

    def bound(self, number: int) -> int:
        """Return 1 for a function that handlers of interrupts call first, -1 for the one that they call last, else 0.
        """
        if self.bounds is None or (function := self.by_number.get(number)) is None:
            return 0
        return 1 if function.start == self.bounds[0] else -1 if function.start == self.bounds[1] else 0

    def is_callee(self, start: int) -> bool:
        """Return whether the function there may be in the graph where it is called."""
        function = self.guest.place(start)
        return function is not None and self._is_wanted(function.name)

    def _is_wanted(self, name: str) -> bool:
        # What is called where threads are switched runs on the stack of another thread than the current one.
        return name not in UNBALANCED and not any(fnmatchcase(name, glob) for glob in self.request.unwanted)

    def add(self, start: int, depth: int) -> Traced | None:
        """Return a new function of the graph; None where it is there already."""
        if start in self.depths:
            return None
        self.depths[start] = depth
        function = self.guest.place(start)
        name = function.name if function is not None else f"{start:#x}"
        return self._described(Traced(name, start, self.guest.entry(start)))

    def spec(self, function: Traced, at: Gate, into: SharedRecords) -> Spec:
        """Return the probe of a function, which gets a number. Raises OptprobeError.

        Of one that never returns, the entry alone is probed.
        """
        is_root = function is self.root
        number = 0 if is_root else self.take_numbers(1)
        self.by_number[number] = function
        if is_root:
            entry = at.root(self._condition(self.guest.names_at(function.entry).names))
        else:
            entry = at.callee(Constant(number))
        if not self.returns(function):
            return _spec(function.entry, Kind.KPROBE, Program(entry.condition, entry.actions), into)
        slot = return_backend(self.guest).slot
        program = at.root_returned(slot) if is_root else at.returned(Constant(number))
        return replace(_spec(function.entry, Kind.KRETPROBE, program, into), entry=entry, maxactive=CALLS)

    def returns(self, function: Traced) -> bool:
        """Return whether a function returns. Raises Refused where that cannot be seen."""
        try:
            check_function(function.entry, self.guest)
        except Refused as refused:
            if refused.reason.code != Refusal.RETURN_NEVER.code:
                raise
            return False
        return True

    def entries(self, functions: Sequence[Traced], at: Gate, into: SharedRecords) -> tuple[int, Spec]:
        """Return one spec for the entries of functions that never return, and the number of the first by their order.
        """
        first = self.take_numbers(len(functions))
        entry = at.callee(fold.binary(Op.ADD, INDEX, fold.constant(first), 64, False))
        spec = _spec(functions[0].entry, Kind.KPROBE, Program(entry.condition, entry.actions), into)
        return first, replace(spec, glob=True)

    def together(self, functions: Sequence[Traced], at: Gate, into: SharedRecords) -> tuple[int, Spec] | None:
        """Return one spec for the probes of many functions, and the number of the first by the order of their entries;
        None where they cannot share code.
        """
        backend = self.guest.isa.returning
        if backend is None or backend.stubs is None:
            return None
        first = self.take_numbers(len(functions))
        there = (Register(backend.stubs.number), Load(slot_word(backend.slot, SHARED), WORD, False, mapped=True))
        entered, returned = (fold.binary(Op.ADD, each, Constant(first), 64, False) for each in there)
        spec = _spec(functions[0].entry, Kind.KRETPROBE, at.returned(returned), into)
        return first, replace(spec, entry=at.callee(entered, _pushed(backend.stubs)), glob=True)

    def shared_root(self, at: Gate, into: SharedRecords) -> Spec | None:
        """Return the probe of the root as one of functions that share code, so that it leaves nothing behind where its
        thread sleeps. None where it cannot be: its condition needs more than arguments.
        """
        backend, root = self.guest.isa.returning, self.root
        assert root is not None
        condition = self._condition(self.guest.names_at(root.entry).names)
        if backend is None or backend.stubs is None:
            return None
        if condition is not None:
            read = {node.name for node in nodes(condition) if isinstance(node, Register)}
            if may_fault(condition) or not read <= {*self.guest.isa.convention.arguments}:
                return None
        entry = at.root(condition, _pushed(backend.stubs))
        spec = _spec(root.entry, Kind.KRETPROBE, at.root_returned(backend.slot, 1), into)
        return replace(spec, entry=entry, glob=True)

    def take_numbers(self, count: int) -> int:
        """Return the first of so many numbers that no function has. Raises OptprobeError."""
        first, self._numbers = self._numbers, self._numbers + count
        if self._numbers > 1 << records.NUMBER:
            raise OptprobeError("the graph has too many functions", "a smaller -depth, or -not")
        return first

    def gate(self, address: int) -> Gate:
        """Return the gate at an address, and what is recorded. Raises OptprobeError."""
        isa = self.guest.isa
        arguments = isa.convention.arguments[:MOST_ARGUMENTS] if self.request.arguments else ()
        return Gate(address, self._thread(), isa.sp, arguments, isa.convention.result if self.request.values else "")

    def _thread(self) -> Thread:
        """Return the expressions of the running thread. Raises OptprobeError."""
        assert self.root is not None
        names = self.guest.names_at(self.root.entry).names
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
        task, name = _word(names.dollar("task")), Load(comm.address, WORD, False, mapped=True)
        if any(map(may_fault, (task, pid, name))):  # code that functions share has nowhere to count a fault
            raise OptprobeError("the running thread cannot be read here without a fault")
        return Thread(task, birth if not may_fault(birth) else pid, pid, name)

    def learner(self, address: int, number: int, pointer: Pointer, at: Gate, into: SharedRecords) -> Spec:
        """Return the probe on a call through a pointer, which has this number."""
        return _spec(address, Kind.KPROBE, at.learning(Constant(number), pointer), into)

    def learners(self, first: int, pointer: Pointer, at: Gate, into: SharedRecords) -> Spec:
        """Return one spec for the probes on calls through the same pointer, which have numbers from `first` on."""
        number = fold.binary(Op.ADD, INDEX, fold.constant(first), 64, False)
        return replace(_spec(0, Kind.KPROBE, at.learning(number, pointer), into), glob=True)

    def death(self, entry: int, at: Gate, into: SharedRecords) -> Spec:
        """Return the probe on where threads end, entered at `entry`."""
        return _spec(entry, Kind.KPROBE, at.died(), into)

    def _described(self, function: Traced) -> Traced:
        """Return a function with what is recorded of it."""
        parameters: list[tuple[str, CType, int]] = []
        more, registers = False, self.guest.isa.convention.arguments[:MOST_ARGUMENTS]
        if self.request.arguments:
            scope = self.guest.names_at(function.entry).names
            for name in self.guest.parameters(function.entry):
                found = scope.name(name)
                register = _register(found.expr) if isinstance(found, Rvalue) else ""
                if not isinstance(found, Rvalue) or register not in registers:
                    more = True
                    break
                parameters.append((name, found.type, registers.index(register)))
        names = self.guest.names_at_return(function.entry) if self.request.values else None
        value = names.names.dollar("retval") if names is not None else None
        result = value.type if isinstance(value, Rvalue) else None
        return replace(function, parameters=tuple(parameters), more=more, result=result)

    def _condition(self, names: Scope) -> Expr | None:
        return compile_handler(self.request.condition, (), names).condition


def _pushed(stubs: EntryStubs) -> int:
    """Return how many bytes stubs have on the stack in the code that they share."""
    return stubs.continues_at(defaultdict(int), 0, lambda address, size: bytes(size))[1]


def _spec(entry: int, kind: Kind, program: Program, into: SharedRecords) -> Spec:
    return Spec(f"*{entry:#x}", kind, actions=_SHOWN, program=program, records=into)


def _typed(names: Scope, text: str) -> Expr:
    return Typer(names).value(parse_expression(Fragment.whole(text), names.is_type)).expr


def _word(found: object) -> Expr:
    if isinstance(found, Missing):
        raise OptprobeError(found.message, found.hint)
    assert isinstance(found, Rvalue)
    return found.expr


def _register(expression: Expr) -> str:
    """Return the register that an argument is in; "" where it is elsewhere."""
    found = [node for node in nodes(expression) if isinstance(node, Register | Load)]
    return found[0].name if len(found) == 1 and isinstance(found[0], Register) else ""


def _as_type(word: int, type_: CType | None) -> int:
    """Return a register's word as one of a type: extended from its size."""
    if not isinstance(type_, Integer | Enum):
        return word
    word &= (1 << type_.width) - 1
    return (word - (1 << type_.width)) % (1 << 64) if type_.signed and word >> type_.width - 1 else word


def _plain(word: int, type_: CType) -> int | str:
    """Return an integer as such, all else as an address."""
    word = _as_type(word, type_)
    if not isinstance(type_, Integer | Enum):
        return f"{word:#x}"
    return word - (1 << 64) if type_.signed and word >> 63 else word


def _shown(word: int, type_: CType) -> str:
    word = _as_type(word, type_)
    signed = isinstance(type_, Integer | Enum) and type_.signed
    return str(word - (1 << 64) if word >> 63 else word) if signed else f"{word:#x}"
