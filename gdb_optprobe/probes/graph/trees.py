"""The trees of calls that events of a graph make, one for each outermost call of the root.

    thread ── contexts ──┬─ the thread's stack   │ root │ a │ b │      open calls, the innermost last
                         └─ an interrupt's stack │ c │                 entered meanwhile, with the thread's task
An entry is in an interrupt if its stack pointer is not below that of the context's first call, within a stack's size.
Where interrupts are handled on the thread's own stack, there are functions that their handlers call first and last:
what is called between these two, from there on down the stack, is in a context of its own, too.
An interrupt may come between the time of a record and its place in the ring: it is in the call that its time is in, and
in no tree where the root has ended by then.
Calls with frames that are gone by then never return: nothing closes them, as in Linux's function_graph.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from gdb_optprobe.probes.graph.records import Began, Died, Entered, Event, Returned, State

STACK = 1 << 14
"""Bytes of a thread's stack, at least: anything deeper is on another one."""
DEEPEST = 200
"""Open calls of a thread, and of interrupts in it: four times as many as Linux's own tracer follows
(kernel/trace/fgraph.c).
"""


@dataclass(slots=True)
class Call:
    """One call. end: of one that has returned: the CPU, the time, the value.

    is_interrupt: a call that an interrupt's handler makes. begins: the first one, where that is known.
    """

    function: int
    cpu: int
    time: int
    stack: int
    arguments: tuple[int, ...] = ()
    calls: list[Call] = field(default_factory=list)
    end: tuple[int, int, int] | None = None
    is_interrupt: bool = False
    begins: bool = False

    @property
    def ticks(self) -> int | None:
        """Return how long it took; None where it has not returned."""
        return self.end[1] - self.time if self.end is not None else None


class Ending(Enum):
    """How the record of a tree ended."""

    RETURNED = "the root has returned"
    DIED = "its thread has ended within the root"
    OPEN = "the root has not returned"
    LOST = "what came next is lost"


@dataclass(frozen=True, slots=True)
class Tree:
    """A call of the root, with all that was recorded within it. comm: the thread's name, as the guest has it.

    is_early: whether it began when not all functions were in the graph that calls through pointers in it lead to.
    """

    root: Call
    pid: int
    comm: bytes
    ending: Ending
    is_early: bool = False


@dataclass(slots=True)
class _Thread:
    """state: of the gate. contexts: never empty ones, once the root is entered. root: None before that.

    interrupts: of handlers of interrupts that have not ended, the innermost one last: where the stack pointer was as
    they began, and the call that they interrupted.
    """

    pid: int
    comm: bytes
    state: int
    interrupts: list[tuple[int, Call]] = field(default_factory=list)
    contexts: list[list[Call]] = field(default_factory=list)
    root: Call | None = None

    def tree(self, ending: Ending) -> Tree | None:
        return Tree(self.root, self.pid, self.comm, ending) if self.root is not None else None


@dataclass
class Trees:
    """Makes trees of events, which come in the order of their records.

    unfollowed: calls of the root without records of their callees, as another thread had their place in the gate. No
    tree is made of these. strays: events outside of any tree.
    functions: the numbers of those that are probed; None for any. senseless: entries that no probe of the graph makes:
    the guest, or what else writes there, has made them.
    bound: returns 1 for a function that handlers of interrupts call first, -1 for the one that they call last, else 0.
    """

    functions: Container[int] | None = None
    bound: Callable[[int], int] = lambda function: 0
    unfollowed: int = 0
    strays: int = 0
    senseless: int = 0
    _threads: dict[int, _Thread] = field(default_factory=dict)

    def take(self, events: Iterable[Event]) -> Iterator[Tree]:
        """Yield the trees that end with these events."""
        for event in events:
            found: Tree | None = None
            match event:
                case Began(task, pid, comm, state):
                    if state != State.OWN or task not in self._threads:
                        found = self._end(task, Ending.DIED)  # else the task would have kept its place
                        self._threads[task] = _Thread(pid, comm, state)
                case Died(task):
                    found = self._end(task, Ending.DIED)
                case Entered(task=task):
                    if self.functions is not None and event.function not in self.functions:
                        self.senseless += 1
                    elif (thread := self._threads.get(task)) is None:
                        self.strays += 1
                    elif not _enter(thread, event, self.bound(event.function) > 0):
                        self.senseless += 1
                case Returned(task=task):
                    if (thread := self._threads.get(task)) is None or not _leave(thread, event):
                        self.strays += 1
                    elif thread.contexts:
                        if self.bound(event.function) < 0:
                            del thread.interrupts[-1:]
                    else:
                        thread.state = thread.state if event.has_place else State.TAKEN
                        found = self._end(task, Ending.RETURNED)
            if found is not None:
                yield found

    def cut(self, ending: Ending) -> Iterator[Tree]:
        """Yield the trees that are not complete, and forget them."""
        for task in list(self._threads):
            if (found := self._end(task, ending)) is not None:
                yield found

    def _end(self, task: int, ending: Ending) -> Tree | None:
        thread = self._threads.pop(task, None)
        if thread is None:
            return None
        if thread.state == State.TAKEN:
            self.unfollowed += 1
            return None
        return thread.tree(ending)


def _enter(thread: _Thread, event: Entered, begins: bool) -> bool:
    """Open a call; return whether the thread can be in so many. begins: whether a handler of an interrupt does."""
    contexts = thread.contexts
    place = _context(thread, event.stack)
    if begins and contexts:
        around = contexts[-1][-1]
        begins = all(call is not around for _, call in thread.interrupts)
        thread.interrupts.append((event.stack, around))
        place = None
    if place is not None:
        del contexts[place + 1 :]  # these interrupts are over
        calls = contexts[place]
        while calls[-1].stack < event.stack:
            calls.pop()
    if sum(map(len, contexts)) >= DEEPEST:
        return False
    above = contexts[-1][-1] if contexts else None
    call = Call(event.function, event.cpu, event.time, event.stack, event.arguments)
    if above is None:
        thread.root = call
    else:
        call.calls = _take_interrupts(above.calls, call.cpu, call.time) if place is not None else []
        above.calls.append(call)
    if place is None:
        call.is_interrupt, call.begins = above is not None, begins and above is not None
        contexts.append([call])
    else:
        contexts[place].append(call)
    return True


def _context(thread: _Thread, stack: int) -> int | None:
    """Return the place of the context that a call with this stack pointer is in; None where it has none yet."""
    on_stack = [at for at, calls in enumerate(thread.contexts) if _is_on_stack(stack, calls[0])]
    if not on_stack or not thread.interrupts:
        return on_stack[0] if on_stack else None
    first = thread.contexts[on_stack[0]][0]
    thread.interrupts = [one for one in thread.interrupts if one[0] >= stack or not _is_on_stack(one[0], first)]
    handlers = [at for at, _ in thread.interrupts if _is_on_stack(at, first) and at < first.stack]
    if not handlers:
        return on_stack[0]
    return next((at for at in on_stack if thread.contexts[at][0].stack <= min(handlers)), None)


def _leave(thread: _Thread, event: Returned) -> bool:
    """Close the innermost open call of the function; return whether there is one."""
    for place, calls in reversed([*enumerate(thread.contexts)]):
        for at in reversed(range(len(calls))):
            if calls[at].function == event.function:
                calls[at].end = event.cpu, event.time, event.value
                later = [one for each in calls[at:] for one in _take_interrupts(each.calls, event.cpu, event.time)]
                del calls[at:]
                if calls or place:
                    (calls or thread.contexts[place - 1])[-1].calls += later
                del thread.contexts[place + bool(calls) :]
                return True
    return False


def _take_interrupts(calls: list[Call], cpu: int, time: int) -> list[Call]:
    """Remove the last of these calls, as long as they are of interrupts on this CPU behind this time; return them."""
    first = len(calls)
    while first and calls[first - 1].is_interrupt and calls[first - 1].cpu == cpu and calls[first - 1].time > time:
        first -= 1
    taken = calls[first:]
    del calls[first:]
    return taken


def _is_on_stack(pointer: int, first: Call) -> bool:
    return first.stack - STACK < pointer <= first.stack
