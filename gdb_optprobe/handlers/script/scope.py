"""What a script's names mean, provided one layer up: by the guest's kernel, and at each probe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gdb_optprobe.handlers.ctype import CType
from gdb_optprobe.handlers.ir import Expr, Literal, Statement, StringLoad
from gdb_optprobe.handlers.scope import Lvalue, Missing, Rvalue
from gdb_optprobe.handlers.stack_walk import Walk


@dataclass(frozen=True, slots=True)
class Known:
    """A text that is known, or can be read. size: with its 0."""

    operand: Literal | StringLoad
    size: int


Meaning = Rvalue | Lvalue | Known


@dataclass(frozen=True, slots=True)
class Unsupported(Missing):
    """Why no probe of this kind is ever attached: a script that has one is refused, also where others match."""


@dataclass(frozen=True, slots=True)
class Unmatched(Missing):
    """Why nothing has a name, and which one may be meant."""


@dataclass(frozen=True, slots=True)
class Gate:
    """What lets only some hits through. statements: of every hit. passes: an expression behind them, 0 for those that
    are not.
    """

    statements: tuple[Statement, ...]
    passes: Expr


@dataclass(frozen=True, slots=True)
class Matched:
    """One place where a probe is attached.

    name:     as `probe` says it, after wildcards: `kprobe:vfs_read`.
    address:  of the probed instruction; 0 where the host runs the probe.
    location: the event that serves it, where `name` is not that.
    gate:     of the hits that are not all events: returns it by a name that no other probe has.
    note:     how the events differ from bpftrace's.
    """

    name: str
    hit: HitScope
    address: int = 0
    location: str = ""
    gate: Callable[[str], Gate] | None = None
    note: str = ""


class HitScope(Protocol):
    """The names at one attach point."""

    def builtin(self, name: str) -> Meaning | Missing:
        """Return a built-in variable: pid, tid, uid, gid, comm, cpu, nsecs, elapsed, curtask, retval, rand, …"""

    def argument(self, number: int) -> Rvalue | Missing:
        """Return `arg0`, …: registers and the stack at a function's entry."""

    def register(self, name: str) -> Rvalue | Missing:
        """Return `reg("ip")`: a register by its name in Linux's pt_regs."""

    def field(self, name: str) -> Meaning | Missing:
        """Return `args.name`: a tracepoint's field, or a function's parameter."""

    def function(self) -> Expr | tuple[Expr, Expr] | Missing:
        """Return the address of the probed function, for `func`; two words of a program's, see types.Symbol."""

    def stack(self, user: bool, depth: int) -> Walk | Missing:
        """Return how a program has a stack, and the words of which the host makes its frames."""

    def per_cpu(self, address: int, cpu: Expr | None) -> Expr | Missing:
        """Return the address of a CPU's copy of a per-CPU variable; of this CPU's where `cpu` is None."""

    def is_mapped(self, address: int, size: int) -> bool:
        """Return whether these bytes can be read in any context."""


class Kernel(Protocol):
    """The guest's kernel: what does not depend on the probe."""

    def type(self, keyword: str, name: str) -> CType | Missing:
        """Return a type: keyword "struct", "union" or "enum", or "" for a typedef."""

    def constant(self, name: str) -> int | tuple[int, CType] | None:
        """Return an enumerator with its type, or a constant of its headers."""

    def has_types(self) -> bool:
        """Return whether the kernel describes its types: BPFTRACE_HAVE_BTF."""

    def has_header(self, name: str) -> bool:
        """Return whether what scripts take from a header is known without it."""

    def symbol(self, name: str) -> int | None:
        """Return the address of a symbol, for `kaddr`."""

    def matches(
        self, provider: str, target: str, name: str, offset: int, has_args: bool = True
    ) -> Sequence[Matched] | Missing:
        """Return where a probe is attached; none where nothing matches.

        provider: its long name, such as "kprobe". target: the module, the file, the subsystem, the unit of time.
        has_args: whether the probe uses a field of `args`.
        """

    def unmatched(self, provider: str, target: str, name: str) -> HitScope:
        """Return names for a probe that is attached nowhere: they have types, so that the script can be checked."""
