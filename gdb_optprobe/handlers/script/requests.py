"""What a program asks of the host, in the order of its statements: bpftrace's asynchronous actions.

Each is one kind of record in the ring; the kind's number is its place in the script's list of requests. The record's
fields are the values of `parts`, each as its type's bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.handlers.script.types import Type


@dataclass(frozen=True, slots=True)
class Printf:
    format: str
    parts: tuple[Type, ...] = ()


@dataclass(frozen=True, slots=True)
class Cat:
    """The name of a file, by a format."""

    format: str
    parts: tuple[Type, ...] = ()


@dataclass(frozen=True, slots=True)
class System:
    """A command of the host's shell, by a format."""

    format: str
    parts: tuple[Type, ...] = ()


@dataclass(frozen=True, slots=True)
class PrintMap:
    """top: how many of the greatest; 0 for all. divisor: of each value."""

    map: str
    top: int = 0
    divisor: int = 1
    parts: tuple[Type, ...] = ()


@dataclass(frozen=True, slots=True)
class PrintValue:
    parts: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class Clear:
    map: str
    parts: tuple[Type, ...] = ()


@dataclass(frozen=True, slots=True)
class Zero:
    map: str
    parts: tuple[Type, ...] = ()


@dataclass(frozen=True, slots=True)
class ShowTime:
    """`time(format)`: of the moment when the host carries it out."""

    format: str
    parts: tuple[Type, ...] = ()


@dataclass(frozen=True, slots=True)
class Join:
    """The first part is how many texts there are."""

    between: str
    parts: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class Exit:
    """Its part is the status."""

    parts: tuple[Type, ...]


Request = Printf | Cat | System | PrintMap | PrintValue | Clear | Zero | ShowTime | Join | Exit
