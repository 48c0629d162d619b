"""An instruction of a program that is probed."""

from __future__ import annotations

from dataclasses import dataclass, field

from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.isa.base import Insn
from gdb_optprobe.probes.placed import Placed
from gdb_optprobe.probes.probe import Probe


@dataclass(frozen=True, slots=True)
class Tail:
    """The jump at the end of an instruction's copy, at `address`."""

    address: int
    jump: bytes

    def trapping(self, trap: bytes) -> bytes:
        """The same with a trap in its place."""
        return trap + self.jump[len(trap) :]


@dataclass(frozen=True, slots=True)
class Step:
    """A trap that stands in place of `tail`. placed: its code. number: in the journal."""

    tail: Tail
    placed: Placed
    number: int


@dataclass
class Point:
    """A probed instruction. number: in the journal.

    needs_copy: it may have to be run out of line. placed: its code, where a trap stands. step: the trap behind it.
    """

    program: Program
    insn: Insn
    needs_copy: bool
    trap: bytes
    number: int
    probes: list[Probe] = field(default_factory=list)
    placed: Placed | None = None
    step: Step | None = None

    @property
    def key(self) -> tuple[int, int]:
        """See objects/user_traps.py."""
        return self.program.offset(self.insn.address), self.program.inode

    @property
    def enabled(self) -> list[Probe]:
        return [probe for probe in self.probes if probe.enabled]
