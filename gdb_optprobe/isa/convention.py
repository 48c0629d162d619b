"""What a user may call registers, and where a function's arguments are: a convention that each ISA states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Holds(Enum):
    """What GDB shows a register as."""

    SIGNED = "long"
    UNSIGNED = "unsigned long"
    CODE = "a function's address"
    FLAGS = "unsigned int"


@dataclass(frozen=True, slots=True)
class Part:
    """A name of a part of a register: its lowest bit, and how many it has."""

    register: str
    shift: int
    bits: int


@dataclass(frozen=True, slots=True)
class Convention:
    """registers: by name, what GDB shows.

    parts:       names of parts of registers.
    arguments:   registers of a function's first ones. stacked: where the next one is at its entry, from sp.
    aggregate:   bytes of the largest struct that is passed in registers.
    result:      register of what a function returns.
    signed_char: whether a plain char is signed.
    """

    registers: Mapping[str, Holds]
    parts: Mapping[str, Part]
    pc: str
    sp: str
    arguments: Sequence[str]
    stacked: int
    aggregate: int
    result: str
    signed_char: bool
