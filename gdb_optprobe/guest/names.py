"""The meaning of names at a probed address, passed in to a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gdb_optprobe.guest.linux.arch.base import Interrupted, Reads
from gdb_optprobe.handlers.ir import Expr
from gdb_optprobe.handlers.scope import UNREAD, Missing, Scope
from gdb_optprobe.handlers.stack_walk import Walker

UNWALKED = Missing("the stacks of this guest are not known")
UNTIMED = Missing("how fast this guest's clock runs is not known")


@dataclass(frozen=True, slots=True)
class NamesAt:
    """The meaning of names at an address, and what else programs there need.
    per_cpu: see isa.codegen.EntryState.
    cpu:     this CPU's number.
    hertz:   ticks of Clock in a second.
    reads:   how memory that may not be mapped is read.
    walker:  how a hit finds its callers, or those of the code that is interrupted meanwhile.
    user_walker: how it finds the frames of the program that its thread runs.
    """

    names: Scope
    per_cpu: int | None = None
    cpu: Expr | None = None
    reads: Reads | Missing = UNREAD
    hertz: int | Missing = UNTIMED
    walker: Callable[[Interrupted | None], Walker | Missing] = lambda interrupted: UNWALKED
    user_walker: Callable[[], Walker | Missing] = lambda: UNWALKED
