"""The meanings of names at the probed address, provided one layer up from the guest's BTF or from DWARF."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gdb_optprobe.handlers.ctype import CType, Scalar
from gdb_optprobe.handlers.ir import Expr, Frame


@dataclass(frozen=True, slots=True)
class Rvalue:
    """A number or a pointer, as a word of its type. mapped: of a pointer, that its target can be read."""

    expr: Expr
    type: Scalar
    mapped: bool = False


@dataclass(frozen=True, slots=True)
class Lvalue:
    """An object in memory.

    type:    None if only its address is known: then it has to be cast.
    mapped:  it can be read, in any context.
    per_cpu: `address` is that of the template: each CPU has its own object.
    unit:    of a bit field, the bytes at `address` to load, and its lowest bit in them.
    """

    address: Expr
    type: CType | None
    mapped: bool = False
    per_cpu: bool = False
    unit: tuple[int, int] | None = None


Meaning = Rvalue | Lvalue


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a name means nothing here, and what to do: no type information, not available at this address, unknown."""

    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Fields(Missing):
    """The meaning of `args`: no value itself, but its members are the fields of an event.

    names: of the fields, in order. lookup: a field by its name; `name[N]` for one element, where each is kept apart.
    """

    names: tuple[str, ...] = ()
    lookup: Callable[[str], Meaning | Missing | None] = lambda name: None

    @classmethod
    def of(cls, event: str, names: Sequence[str], lookup: Callable[[str], Meaning | Missing | None]) -> Fields:
        has = f"args->{names[0]}; {event} has: {', '.join(names)}" if names else f"{event} has no fields"
        return cls("'args' is no value", has, tuple(names), lookup)


UNREAD = Missing("memory that may not be mapped cannot be read in this guest")
"""Without knowledge of its page tables."""


class Scope(Protocol):
    """Looks names up."""

    def is_type(self, name: str) -> bool:
        """Return whether `name` is a typedef here, and no parameter or variable has the same name."""

    def type(self, keyword: str, name: str) -> CType | Missing:
        """Return the type `name`: keyword "struct", "union" or "enum", or "" for a typedef or a basic type."""

    def name(self, name: str) -> Meaning | Missing:
        """Return a local, a parameter, an enumerator or a symbol, in this order."""

    def dollar(self, name: str) -> Meaning | Missing:
        """Return `$name`: a register, a built-in one (arg1, retval, pid, …), a convenience variable, in this order."""

    def per_cpu_base(self) -> Expr | Missing:
        """Return the base of this CPU's per-CPU variables."""

    def frame(self) -> Frame | Missing:
        """Return what the stack is unwound from."""

    def is_mapped(self, address: int, size: int) -> bool:
        """Return whether these bytes can be read in any context."""
