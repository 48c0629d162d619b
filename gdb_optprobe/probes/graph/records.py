"""The records of a call graph in their ring, and the events that they are.

    kind                            words
    BEGAN     the root is entered   task │ PID, state << 32           │ first 8 characters of the thread's name
    DIED      a thread ends         task
    ENTERED   a function is         task │ number, stack pointer << 16 │ argument │ …
    RETURNED  it has returned       task │ number, gate << 16          │ what it returned
    LED       through a pointer     task │ the call's number           │ where to
The number is that of the function; `gate` is the task in the thread's place of the gate. The upper 16 bits of both
words, which are those of all addresses of the kernel, have no room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from gdb_optprobe.maps.ring import Record

WORD = 8
BEGAN, DIED, ENTERED, RETURNED, LED = KINDS = range(5)
WORDS = 3
"""Of a record, at least."""
STATE = 32
"""The bit of the second word of BEGAN from which on it has the state."""
NUMBER = 16
"""Bits of a function's number."""


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
    """time: ticks of the guest's clock. function: its number. stack: the stack pointer at its entry, 48 bits of it."""

    cpu: int
    time: int
    task: int
    function: int
    stack: int
    arguments: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Returned:
    """has_place: whether the thread has its place in the gate. value: what was returned."""

    cpu: int
    time: int
    task: int
    function: int
    has_place: bool
    value: int = 0


@dataclass(frozen=True, slots=True)
class Led:
    """A call through a pointer leads elsewhere than the last time. site: its number."""

    site: int
    target: int


Event = Began | Died | Entered | Returned | Led


def events(records: Iterable[Record]) -> Iterator[Event]:
    """Yield what records of these kinds say."""
    for record in records:
        data = record.fields
        words = (int.from_bytes(data[at : at + WORD], "little") for at in range(0, len(data), WORD))
        task, second, third, *more = words
        function, upper = second & (1 << NUMBER) - 1, second >> NUMBER
        match record.kind:
            case 0:
                pid = second & (1 << STATE) - 1
                yield Began(task, pid, data[2 * WORD : 3 * WORD], second >> STATE)
            case 1:
                yield Died(task)
            case 2:
                yield Entered(record.cpu, record.time, task, function, upper, (third, *more))
            case 3:
                has_place = upper == task & (1 << 64 - NUMBER) - 1
                yield Returned(record.cpu, record.time, task, function, has_place, third)
            case 4:
                yield Led(second, third)
