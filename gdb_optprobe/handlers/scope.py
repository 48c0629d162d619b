"""What names mean at the probed address: filled one layer up, from the guest's own type information or from DWARF."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gdb_optprobe.handlers.ctype import CType, Scalar
from gdb_optprobe.handlers.ir import Expr, Frame


@dataclass(frozen=True, slots=True)
class Rvalue:
    """A number or a pointer, as a word of its type. mapped: of a pointer, that what it points to can be read."""

    expr: Expr
    type: Scalar
    mapped: bool = False


@dataclass(frozen=True, slots=True)
class Lvalue:
    """An object in memory.

    type:    None where only its address is known: then it has to be cast.
    mapped:  it can be read, in any context.
    per_cpu: `address` is that of the template: each CPU has its own object.
    unit:    of a bit field, the bytes at `address` to be loaded, and by how much it is shifted in them.
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


UNREAD = Missing("memory that may not be mapped cannot be read in this guest")
"""Where nothing is known of its page tables."""


class Scope(Protocol):
    def is_type(self, name: str) -> bool:
        """Whether `name` is a typedef here; not where a parameter or a variable has the same name."""

    def type(self, keyword: str, name: str) -> CType | Missing:
        """The type called `name`: keyword "struct", "union" or "enum", or "" for a typedef and C's own."""

    def name(self, name: str) -> Meaning | Missing:
        """A local, a parameter, an enumerator or a symbol, in this order."""

    def dollar(self, name: str) -> Meaning | Missing:
        """`$name`: a register, one of ours (arg1, retval, pid, …), a convenience variable, in this order."""

    def per_cpu_base(self) -> Expr | Missing:
        """What is added to the address of a per-CPU variable to find this CPU's."""

    def frame(self) -> Frame | Missing:
        """What the stack is unwound from."""

    def is_mapped(self, address: int, size: int) -> bool:
        """Whether these bytes can be read in any context."""
