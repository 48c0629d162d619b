"""What runs in place of a kernel's handler of traps, or before it: where it comes in, and the verbs it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.codegen import Emitter, Label


@dataclass(frozen=True, slots=True)
class Entry:
    """Where ours comes in, and what the kernel's own code has done by then.

    kernels:   where the kernel's own goes on with a trap.
    displaced: what runs before that: the instruction in whose place ours was branched to; None where that was a call.
    saved:     by register, where it is in this CPU's own memory, where that is how registers are saved by then.
    stale:     a byte of that memory that is 0 where the registers to return with are not in the CPU (any more).
    """

    kernels: int
    displaced: Insn | None = None
    saved: Mapping[str, int] = field(default_factory=dict)
    stale: int = 0


class TrapEmitter(Emitter, Protocol):
    """An emitter with these verbs more, whose pool is free for use behind `begin`."""

    def begin(self, users: Label) -> None:
        """The first of all. users: where a trap of user mode goes."""

    def trapped_at(self) -> str:
        """The register that has the PC of the trap now, for good."""

    def go_on_at(self, address: str) -> None:
        """Who has trapped goes on there."""

    def end(self) -> None:
        """Back to who has trapped, with nothing more done about it."""

    def kernels(self) -> None:
        """On to the kernel's own, which finds everything as if nobody had come between."""


class Trapping(Protocol):
    """How an ISA makes such emitters.

    traps: masks and values of the instructions that the kernel takes for such a trap; size: the bytes of each.
    """

    traps: tuple[tuple[int, int], ...]
    size: int

    def emitter(self, entry: Entry) -> TrapEmitter: ...
