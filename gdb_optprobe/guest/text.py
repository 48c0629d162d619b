"""The code of a guest: the interface `Text`, implemented by a kernel's arch.

    function           hot part                      cold part (somewhere else)
    ┌──────────────┐   ┌───────────────────┐         ┌───────────────────┐
    │ parts ───────┼──►│ insn insn insn …  │◄──jump──┤ insn insn …       │
    │ jumps        │   │      ▲            │         └───────────────────┘
    │ blind_jumps  │   │      └─ a mark: "the kernel rewrites these bytes"
    └──────────────┘   └───────────────────┘

A layer that decides (detours/planner.py) reads facts here and never a kernel's tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Protocol

from gdb_optprobe.isa.base import Hazard, Insn


class Area(Enum):
    """The kind of code at an address."""

    TEXT = "text"
    ENTRY = "entry text"  # may run on the user's page tables, before the kernel's own state is set up
    EARLY = "early text"  # runs before the kernel's page tables are set up
    COPIED = "copied text"  # a template: the guest copies it elsewhere
    LOADED = "text of a module that is loaded"
    MODULE = "memory for modules"  # in which no text is known
    INIT = "init text"  # freed after boot
    RESERVATION = "between a load that reserves memory and its store"
    TRAP = "a trap that the guest knows by its address"
    SYSTEM = "an instruction that enters or leaves the kernel, or changes the machine's state"
    NOT_TEXT = "no text"


PROBED = (Area.TEXT, Area.LOADED)
"""Where probes may be."""
FORBIDDEN = {Hazard.TRAP: Area.TRAP, Hazard.SYSTEM: Area.SYSTEM, Hazard.RESERVED: Area.RESERVATION}
"""The area of an address at which its ISA forbids stops and detours (`Isa.forbidden`)."""

Overlay = Callable[[int, bytes], bytes]
"""From memory's bytes at an address to the original ones: without the branches of probes, say."""


class Fact(Enum):
    """A fact from the guest's own tables about some bytes of text."""

    EXCEPTION = "a fault of this instruction is recovered by its address"
    JUMP_LABEL = "the guest rewrites this jump or nop at any time"
    STATIC_CALL = "the guest rewrites this call at any time"
    LOCK_PREFIX = "the guest turns this prefix into a lock when another CPU comes"
    BARRIER = "the guest switches this barrier on and off at any time"
    RESTART = "the guest starts again from elsewhere where an interrupt comes at this instruction"
    BUG = "a trap that the guest recognises by its address"
    KPROBE = "a kprobe of the guest's own is registered here, and may be armed at any time"
    KPROBE_BREAKPOINT = "its breakpoint is here, in place of the original instruction's first byte"
    KPROBE_JUMP = "its jump is here, in place of the original instructions"
    UNKNOWN = "the guest's tables that list this instruction are not known"


KPROBES = (Fact.KPROBE, Fact.KPROBE_BREAKPOINT, Fact.KPROBE_JUMP)
"""What says that a kprobe of the guest's own is there."""


@dataclass(frozen=True, slots=True)
class Mark:
    """`fact` holds for the bytes [address, address + size)."""

    fact: Fact
    address: int
    size: int


JUMP_LABEL = "jump label"
"""The kind of a jump that the kernel switches on and off."""


@dataclass(frozen=True, slots=True)
class Jump:
    """Execution may pass from `source` to `target` without a return address being saved.

    kind: in words, as a reader of a refusal sees it: "a … at `source` lands at `target`".
    """

    source: int
    target: int
    kind: str = "jump"


@dataclass(frozen=True, slots=True)
class FtraceSite:
    """The place where a function calls its tracer; a nop while it has none.

    in_use: a tracer is there, or may come because the guest manages the site.
    idle:   the bytes that must be there without a tracer.
    """

    address: int
    size: int
    in_use: bool
    idle: bytes

    @property
    def end(self) -> int:
        return self.address + self.size


@dataclass(frozen=True, slots=True)
class IdleSites:
    """Sites that no tracer is at, ascending: all hold the same bytes."""

    addresses: Sequence[int] = ()
    idle: bytes = b""

    def __len__(self) -> int:
        return len(self.addresses)

    def site(self, address: int) -> FtraceSite:
        return FtraceSite(address, len(self.idle), False, self.idle)


@dataclass(frozen=True, slots=True)
class Place:
    """A function, or a part of one with a symbol of its own, that is not decoded."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class EnteredFunction:
    """A function and the address of a probe on its entry. code: from `start` on, as memory has it."""

    site: int
    name: str
    start: int
    code: bytes


@dataclass(frozen=True, slots=True)
class Foreign:
    """A patch at `address` that is not ours; which instructions it covers is not known. why: in words, where that
    helps.
    Instructions decoded behind it, in the same function, may be wrong.
    """

    address: int
    is_jump: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Whole:
    """A function with the parts of it that the compiler put elsewhere, and all that leads into it.

    code:        instructions by address, of all parts.
    complete:    every part was decoded to its end, and all that leads into the function is known.
    jumps:       all jumps that start in the part asked for or lead into it, wherever they start; pointers to places
                 inside it are jumps of where they are kept. Of the other parts, what tables of the kernel say.
    blind_jumps: addresses of jumps with unknown targets, which may be inside this function.
    missing:     why the jumps into the function cannot be found, in words; "" where they are known or not needed.
    """

    code: Mapping[int, Insn]
    complete: bool
    jumps: tuple[Jump, ...] = ()
    blind_jumps: tuple[int, ...] = ()
    missing: str = ""


@dataclass(frozen=True)
class Function:
    """One function, decoded from its start.

    end:      of the hot part, padding included.
    own:      instructions of the part [start, end), by address.
    compiled: a compiler made it: traps behind a path's last instruction are filler, indirect tail jumps leave it.
    look:     finds out the whole; most probes never need it.
    by_abi:   its callers rely on what the ABI keeps, and on nothing more.
    search:   finds the first patch in the part [start, end) that is not ours and that nothing explains.
    gather:   decodes all parts, and does not ask what leads into them; None where `look` takes no longer.
    entries:  finds where in [start, end) execution may come to otherwise than from the instruction before, as often as
              there are ways, or None where that is not known; None where `look` finds that too.
    """

    name: str
    start: int
    end: int
    own: Mapping[int, Insn]
    look: Callable[[], Whole]
    compiled: bool = True
    search: Callable[[], Foreign | None] = lambda: None
    by_abi: bool = False
    gather: Callable[[], Mapping[int, Insn]] | None = None
    entries: Callable[[], Collection[int] | None] | None = None

    @cached_property
    def code(self) -> Mapping[int, Insn]:
        """Instructions of all parts, by address."""
        return self.gather() if self.gather is not None else self.whole.code

    @cached_property
    def foreign(self) -> Foreign | None:
        return self.search()

    @cached_property
    def whole(self) -> Whole:
        return self.look()

    @cached_property
    def hot(self) -> tuple[Insn, ...]:
        """Instructions of the part [start, end), ascending."""
        return tuple(self.own[at] for at in sorted(self.own))

    def jumps_into(self, start: int, end: int) -> Iterator[Jump]:
        """Yield the jumps to strictly inside [start, end): a branch may be placed at `start` itself."""
        return (jump for jump in self.whole.jumps if start < jump.target < end)

    def run(self, address: int, size: int) -> tuple[Insn, ...]:
        """Return the instructions that cover `size` bytes from `address` on, or fewer where the code ends."""
        found: list[Insn] = []
        at = address
        while at < address + size and (insn := self.own.get(at)) is not None:
            found.append(insn)
            at = insn.end
        return tuple(found)


class Text(Protocol):
    """The guest's code, without anything that probes have written."""

    def area(self, address: int) -> Area: ...

    def function(self, address: int) -> Function | None:
        """Return the function around `address`; None where no symbol says that there is one."""

    def marks(self, start: int, end: int) -> Sequence[Mark]:
        """Return the facts about the bytes [start, end) from the guest's tables."""

    def ftrace_sites(self, start: int, end: int) -> Sequence[FtraceSite]:
        """Return the sites that overlap [start, end), as the guest has them now."""

    def spell(self, address: int) -> str:
        """Return an address for a reader: 0xffffffff81000010 <name+16>."""
