"""The records of a call graph in their ring, and the events that they are.

    kind, of the record            words
    BEGAN   the root is entered    task │ PID, state << 32 │ first 8 characters of the thread's name
    DIED    a thread ends          task
    2 + 2n  function n is entered  task │ stack pointer │ argument │ …
    3 + 2n  it has returned        task │ the gate's word │ what it returned
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from gdb_optprobe.maps.ring import Record

WORD = 8
BEGAN, DIED, FIRST = 0, 1, 2
WORDS = 3
"""Of a record, at least."""
STATE = 32
"""The bit of the second word of BEGAN from which on it has the state."""


class State(IntEnum):
    """What a root's call found in the gate, so at its place in the table of threads."""

    FREE = 0  # the call is the outermost one of its thread, which has the place from now on
    OWN = 1  # a call within such a call
    TAKEN = 2  # another thread has the place: what this call calls is not recorded


@dataclass(frozen=True, slots=True)
class Began:
    task: int
    pid: int
    comm: bytes
    state: int


@dataclass(frozen=True, slots=True)
class Died:
    task: int


@dataclass(frozen=True, slots=True)
class Entered:
    """time: ticks of the guest's clock. function: its number. stack: the stack pointer at its entry."""

    cpu: int
    time: int
    task: int
    function: int
    stack: int
    arguments: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Returned:
    """gate: the task in the gate's place meanwhile. value: what was returned."""

    cpu: int
    time: int
    task: int
    function: int
    gate: int
    value: int = 0


Event = Began | Died | Entered | Returned


def entry_kind(function: int) -> int:
    """Return the kind of a record of a function's entry."""
    return FIRST + 2 * function


def return_kind(function: int) -> int:
    """Return the kind of a record of a function's return."""
    return FIRST + 2 * function + 1


def kinds(functions: int) -> frozenset[int]:
    """Return the kinds of records of a graph of so many functions."""
    return frozenset(range(FIRST + 2 * functions))


def events(records: Iterable[Record]) -> Iterator[Event]:
    """Yield what records of known kinds say."""
    for record in records:
        data = record.fields
        words = (int.from_bytes(data[at : at + WORD], "little") for at in range(0, len(data), WORD))
        task, second, third, *more = words
        match record.kind:
            case 0:
                pid = second & (1 << STATE) - 1
                yield Began(task, pid, data[2 * WORD : 3 * WORD], second >> STATE)
            case 1:
                yield Died(task)
            case kind if kind % 2 == 0:
                yield Entered(record.cpu, record.time, task, (kind - FIRST) // 2, second, (third, *more))
            case kind:
                yield Returned(record.cpu, record.time, task, (kind - FIRST) // 2, second, third)
