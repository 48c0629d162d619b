"""A text of a few functions and a flat memory, for planner and patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.text import JUMP_LABEL, Area, FtraceSite, Function, Jump, Mark, Whole
from gdb_optprobe.isa.base import Flow
from gdb_optprobe.isa.x86_64 import X86_64

START = 0xFFFFFFFF81000000
NOP5 = bytes.fromhex("0f1f440000")


def code(listing: str) -> bytes:
    """The bytes of a listing: hex digits, then two blanks and what they mean."""
    return b"".join(bytes.fromhex(line.strip().split("  ")[0]) for line in listing.splitlines() if line.strip())


class FakeMemory:
    def __init__(self, address: int, data: bytes) -> None:
        self.address = address
        self.data = bytearray(data)
        self.writes: list[int] = []

    def read(self, address: int, size: int) -> bytes:
        at = address - self.address
        if at < 0 or at + size > len(self.data):
            raise Unreadable(address, size)
        return bytes(self.data[at : at + size])

    def write(self, address: int, data: bytes) -> None:
        self.read(address, len(data))
        self.writes.append(address)
        at = address - self.address
        self.data[at : at + len(data)] = data


@dataclass
class FakeText:
    """One function at START made of `listing`; everything else is what the test says."""

    listing: str
    name: str = "victim"
    where: Area = Area.TEXT
    jumps: tuple[tuple[int, int], ...] = ()
    labels: tuple[tuple[int, int], ...] = ()
    blind: tuple[int, ...] = ()
    noted: tuple[Mark, ...] = ()
    tracers: tuple[FtraceSite, ...] = ()
    compiled: bool = True
    complete: bool = True
    data: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.data = code(self.listing)
        insns = X86_64.decode(self.data, START)
        branches = [i for i in insns if i.flow in (Flow.JUMP, Flow.BRANCH)]
        own = [Jump(i.address, i.target, i.flow.value) for i in branches if i.target]
        jumps = [Jump(START + source, START + target) for source, target in self.jumps]
        jumps += [Jump(START + source, START + target, JUMP_LABEL) for source, target in self.labels]
        whole = Whole(
            {insn.address: insn for insn in insns},
            self.complete,
            tuple(own + jumps),
            tuple(START + at for at in self.blind),
        )
        self.known = Function(
            self.name,
            START,
            START + len(self.data),
            {insn.address: insn for insn in insns},
            lambda: whole,
            self.compiled,
        )

    def area(self, address: int) -> Area:
        return self.where if address >= START else Area.NOT_TEXT

    def function(self, address: int) -> Function | None:
        return self.known if START <= address < self.known.end else None

    def marks(self, start: int, end: int) -> Sequence[Mark]:
        return [mark for mark in self.noted if mark.address < end and start < mark.address + mark.size]

    def ftrace_sites(self, start: int, end: int) -> Sequence[FtraceSite]:
        return [site for site in self.tracers if site.address < end and start < site.end]

    def spell(self, address: int) -> str:
        return f"victim+{address - START}"
