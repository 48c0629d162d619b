"""The codegen backend of the code that runs before a kernel's handler of traps, or in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.codegen import Emitter, Label


@dataclass(frozen=True, slots=True)
class Entry:
    """Where the hook is entered, and what the kernel's code has done by then.

    kernels:   the address where the kernel's handler continues.
    displaced: the instruction that the branch to the hook replaces, to run before that; None if a call was replaced.
    saved:     by register, its place in this CPU's per-CPU memory, if the kernel has saved registers there by then.
    stale:     a byte of that memory that is 0 if the registers to return with are not in the CPU any more.
    frame:     bytes by which that code has lowered the stack pointer, if it has: memory of its own.
    """

    kernels: int
    displaced: Insn | None = None
    saved: Mapping[str, int] = field(default_factory=dict)
    stale: int = 0
    frame: int = 0


class TrapEmitter(Emitter, Protocol):
    """An emitter with verbs for traps. All registers of its pool are free behind `begin`."""

    def begin(self, users: Label) -> None:
        """Begin the hook. users: the label for a trap of user mode."""

    def trapped_at(self) -> str:
        """Return the register that has the PC of the trap from now on."""

    def continue_at(self, address: str) -> None:
        """Have the trapped code continue at an address."""

    def end(self) -> None:
        """Return to the trapped code."""

    def kernels(self) -> None:
        """Continue with the kernel's handler, with everything as the trap has left it."""


class Trapping(Protocol):
    """Makes such emitters.

    traps: masks and values of the instructions that the kernel takes for such a trap. size: the bytes of each.
    """

    traps: tuple[tuple[int, int], ...]
    size: int

    def emitter(self, entry: Entry) -> TrapEmitter: ...
