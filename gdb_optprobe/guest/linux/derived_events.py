"""Tracepoints and their events where kallsyms has no names of data (CONFIG_KALLSYMS_ALL).

    __tracepoint_NAME            __traceiter_NAME reads its `funcs`
    __start___tracepoints_ptrs   for_each_kernel_tracepoint makes it, and the end
    event_NAME                   the member of the list `ftrace_events` with that tracepoint
    ftrace_events                trace_event_update_all and others that walk the list begin with it
    global_trace                 tracing_on and tracing_off make it

Each is accepted only where the memory that it leads to says the same: a tracepoint has its name and its iterator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from struct import iter_unpack

from gdb_optprobe.budget import Budget
from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest.linux.derived_data import Code, Derived
from gdb_optprobe.guest.linux.event_fields import CALL, EVENT, TRACE
from gdb_optprobe.guest.linux.kernel import MASK, Kernel
from gdb_optprobe.guest.linux.list_head import members
from gdb_optprobe.guest.linux.tracepoints import ITERATOR, LONGEST_NAME, POINTER, SYMBOL, TABLE
from gdb_optprobe.guest_text import until_zero

LIST = "ftrace_events"
WALKERS = ("trace_event_update_all", "__trace_early_add_events", "event_trace_add_tracer")
SWITCHES = ("tracing_on", "tracing_off")
MOST_EVENTS = 1 << 14
LARGEST_TABLE = 1 << 16
GLOBAL = 1
"""TRACE_ARRAY_FL_GLOBAL, kernel/trace/trace.h."""

Of = Callable[[Code, Kernel], Derived]
"""Derives names. Raises OptprobeError where it cannot."""


def tracepoint(code: Code, kernel: Kernel, name: str) -> int | None:
    """Return the address of a tracepoint; None where there is none of that name. Raises OptprobeError."""
    iterator = kernel.symbols.address(ITERATOR + name)
    if iterator is None:
        return None
    for used in code.constants_of(ITERATOR + name).used:
        at = used - kernel.offset("tracepoint", "funcs")
        if code.word(at + kernel.offset("tracepoint", "iterator")) == iterator and _name(kernel, at) == name:
            return at
    return None


def event(code: Code, kernel: Kernel, events: Mapping[int, int], name: str) -> int | None:
    """Return the address of the event of a tracepoint. events: as `events` returned them. Raises OptprobeError."""
    at = tracepoint(code, kernel, name)
    return events.get(at) if at is not None else None


def events(kernel: Kernel) -> Mapping[int, int]:
    """Return the addresses of all events that have one, by what may be their tracepoint. Raises OptprobeError."""
    node, of = kernel.offset(CALL, "list"), kernel.offset(CALL, "tp")
    budget = Budget(MOST_EVENTS, "the list of events", "events")
    found = [*members(kernel, kernel.address(LIST), node, budget)]
    return {kernel.word(call + of): call for call in found}


def list_of_events(code: Code, kernel: Kernel) -> Derived:
    """Derive the head of the list: the one that all functions that walk it begin with."""
    used = [set(found) for name in WALKERS if (found := code.constants_of(name).used)]
    node, of = kernel.offset(CALL, "list"), kernel.offset(CALL, "class")
    heads = [head for head in (set.intersection(*used) if len(used) > 1 else ()) if _is_list(kernel, head, node, of)]
    return {LIST: heads[0] if len(heads) == 1 else None}


def _is_list(kernel: Kernel, head: int, node: int, of: int) -> bool:
    """Return whether it is a list of events: the first and the last lead back, and each is of a class."""
    try:
        first, last = kernel.word(head), kernel.word(head + 8)
        if kernel.word(first + 8) != head or kernel.word(last) != head or head == first:
            return False
        return all(kernel.memory.read(kernel.word(at - node + of), 1) for at in (first, last))
    except Unreadable:
        return False


def table(code: Code, kernel: Kernel) -> Derived:
    """Derive the table of distances to tracepoints: each has a name and an iterator."""
    made = code.constants_of("for_each_kernel_tracepoint").made
    for start, end in pairwise(made):
        if 0 < end - start <= LARGEST_TABLE and not (end - start) % POINTER.size:
            rows = [distance for (distance,) in iter_unpack(POINTER.format, kernel.read(start, end))]
            ends = (start + rows[0], end - POINTER.size + rows[-1])
            if all(tracepoint(code, kernel, _name(kernel, at & MASK)) == at & MASK for at in ends):
                return dict(zip(TABLE, (start, end), strict=True))
    return dict.fromkeys(TABLE)


def global_trace(code: Code, kernel: Kernel) -> Derived:
    """Derive the kernel's own trace: it is marked as that, and in the list of all."""
    made = [set(code.constants_of(name).made) for name in SWITCHES]
    node, flags = kernel.offset("trace_array", "list"), kernel.offset("trace_array", "flags")
    found = [at for at in set.intersection(*made) if _is_global(kernel, at + node, at + flags)]
    return {TRACE: found[0] if len(found) == 1 else None}


def _is_global(kernel: Kernel, node: int, flags: int) -> bool:
    try:
        marked = int.from_bytes(kernel.memory.read(flags, 4), "little") & GLOBAL
        return bool(marked) and kernel.word(kernel.word(node) + 8) == node == kernel.word(kernel.word(node + 8))
    except Unreadable:
        return False


def _name(kernel: Kernel, at: int) -> str:
    return until_zero(kernel.memory.read(kernel.word(at + kernel.offset("tracepoint", "name")), LONGEST_NAME))


SOURCES: Mapping[str, Of] = {
    LIST: list_of_events,
    TRACE: global_trace,
    **dict.fromkeys(TABLE, table),
}


def derives(name: str) -> bool:
    """Return whether such a name is derived here."""
    return name in SOURCES or name.startswith((SYMBOL, EVENT))


def derive(code: Code, kernel: Kernel, name: str, known: Callable[[], Mapping[int, int]]) -> Derived:
    """Derive a name, and those that are found with it. known: returns what `events` does, read once."""
    try:
        if (source := SOURCES.get(name)) is not None:
            return source(code, kernel)
        if name.startswith(SYMBOL):
            return {name: tracepoint(code, kernel, name.removeprefix(SYMBOL))}
        if name.startswith(EVENT):
            return {name: event(code, kernel, known(), name.removeprefix(EVENT))}
    except OptprobeError:
        pass
    return {name: None}
