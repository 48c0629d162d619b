"""What every instruction set fills: the same verbs, the same small values.

Everything here is pure: bytes in, bytes out. Addresses are guest virtual addresses as
unsigned integers. A reader who knows one ISA finds each function of another in the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from gdb_optprobe.isa.code import Code

LONGEST = 16
"""Bytes that no instruction of any ISA exceeds."""

ReadMemory = Callable[[int, int], bytes]

Before = Mapping[int, Code]
"""By the address of an instruction to relocate: code to run each time just before it, of another probe on it."""


class Flow(Enum):
    """Where execution goes after an instruction."""

    NEXT = "next"  # the following instruction, always
    JUMP = "jump"  # a direct target, always
    BRANCH = "branch"  # a direct target or the following instruction
    CALL = "call"  # a direct target, then (on return) the following instruction
    INDIRECT_JUMP = "indirect jump"
    INDIRECT_CALL = "indirect call"
    RETURN = "return"
    TRAP = "trap"  # a breakpoint or an undefined instruction
    SYSTEM = "system"  # leaves or enters the kernel: iret, sysret, syscall, rfid, sc


class Insn(NamedTuple):
    """One decoded instruction. A tuple, because a kernel has millions of them.

    text:   assembler text, in the syntax that GDB's users read.
    target: the destination of a direct branch or call; None otherwise.
    """

    address: int
    data: bytes
    text: str
    flow: Flow
    target: int | None = None

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def end(self) -> int:
        return self.address + len(self.data)

    @property
    def falls_through(self) -> bool:
        """Whether the following instruction can be next (a call's return included)."""
        return self.flow in (Flow.NEXT, Flow.BRANCH, Flow.CALL, Flow.INDIRECT_CALL)


@dataclass(frozen=True, slots=True)
class Dead:
    """What may be overwritten freely at a point: nothing that runs later reads it before writing it.

    flags:     all arithmetic flags that a counter changes.
    registers: names of general registers, as GDB has them.
    """

    flags: bool = False
    registers: frozenset[str] = field(default_factory=frozenset)


class Hazard(Enum):
    """Why an instruction cannot run away from its address (or not at all under a probe)."""

    UNDECODABLE = "cannot be decoded"
    TRAP = "is a breakpoint or an undefined instruction"
    SYSTEM = "enters or leaves the kernel"
    MASKS_INTERRUPTS = "holds off interrupts and exceptions for one instruction"
    READS_ITS_ADDRESS = "depends on its own address in a way that cannot be rewritten"
    OUT_OF_REACH = "refers to memory that cannot be reached from the detour"
    BRANCH_INSIDE = "branches into the middle of the displaced instructions"
    RETURNS_INSIDE = "is a call that returns into the middle of the displaced instructions"
    RESERVED = "is between a load that reserves memory and its store"
    NOT_SUPPORTED = "is not supported by the relocator yet"


class Unrelocatable(Exception):
    """`insn` cannot be moved, for the reason `hazard`."""

    def __init__(self, hazard: Hazard, insn: Insn) -> None:
        super().__init__(f"{insn.text} at {insn.address:#x} {hazard.value}")
        self.hazard = hazard
        self.insn = insn


class OutOfReach(Exception):
    """A branch from `source` cannot reach `target`."""

    def __init__(self, source: int, target: int) -> None:
        super().__init__(f"a branch at {source:#x} cannot reach {target:#x}")
        self.source = source
        self.target = target


@dataclass(frozen=True, slots=True)
class Relocated:
    """Displaced instructions, rewritten to run at `address`, ending in a branch back where they fall through.

    origins: (offset in data, original address) of each instruction's first byte in the copy, ascending;
             the branch back has the address it goes to. Unwinder, stepper and quiescence use it.
    """

    address: int
    data: bytes
    origins: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Effects:
    """What an emulated instruction does: registers to set (the PC always among them) and memory to write."""

    registers: Mapping[str, int]
    writes: tuple[tuple[int, bytes], ...] = ()


class Isa(Protocol):
    """One instruction set.

    alignment:   of instruction addresses.
    branch_size: bytes of the branch that replaces an instruction.
    data_reach:  how far from the code that counts a counter may be.
    pc, sp, flags: registers' names as GDB has them.
    registers:   all general registers, PC and flags included, as GDB names them.
    breakpoint:  the code of a breakpoint instruction.
    trap:        the code of one that traps and that nobody takes for a breakpoint, as long as the shortest instruction.
    traps:       all codes of which one may be such a trap, by what the guest takes for traps of its own; the first is
                 `trap`.
    landing:     what a detour begins with to which such a trap leads: it wipes out what says that somebody is there.
    """

    name: str
    alignment: int
    branch_size: int
    branch_reach: int
    data_reach: int
    pc: str
    sp: str
    flags: str
    registers: tuple[str, ...]
    breakpoint: bytes
    trap: bytes
    traps: tuple[bytes, ...]
    landing: bytes

    def decode(self, code: bytes, address: int) -> list[Insn]:
        """Sweep `code` from its first byte; ends before the first byte that is no instruction, or an incomplete one."""

    def branch(self, source: int, target: int) -> bytes:
        """A branch of `branch_size` bytes at `source`. Raises OutOfReach."""

    def redirect(self, insn: Insn, target: int) -> bytes:
        """A direct branch of a copy, as `relocate` or `branch` made it, with another target. Raises OutOfReach."""

    def relocate(
        self, insns: Sequence[Insn], to: int, before: Before | None = None, dead: Dead | None = None
    ) -> Relocated:
        """`insns` (contiguous) rewritten to run at `to`, with the branch back. Raises Unrelocatable.

        dead: what is dead before the first of them, where no other is to be probed: a copy may be shorter for it.
        """

    def hazard(self, insn: Insn) -> Hazard | None:
        """Why `insn` cannot be moved wherever it is moved to; None where that depends on the place alone."""

    def forbidden(self, code: Mapping[int, Insn]) -> Mapping[int, Hazard]:
        """The addresses in `code` (a function's) where nothing may stop and nothing may run: no tier is possible.

        A breakpoint instruction is not among them: whose it is, others know.
        """

    def moves_as_it_is(self, insn: Insn) -> bool:
        """Whether every copy of `insn` is its own bytes, or nothing: a sweep of a kernel need not try to move it."""

    def fills(self, insn: Insn) -> bool:
        """Whether `insn` is one that assemblers fill gaps with: a nop, a breakpoint."""

    def shadows(self, insn: Insn) -> bool:
        """Whether `insn` holds off interrupts until the instruction behind it has run."""

    def restarts(self, insn: Insn) -> bool:
        """Whether a single step may do a part of `insn` and leave the PC on it (x86: string instructions with rep)."""

    def dead_at(
        self,
        address: int,
        code: Mapping[int, Insn],
        also: Mapping[int, Sequence[int]] | None = None,
        leaving: Callable[[Insn], Dead] | None = None,
    ) -> Dead:
        """What is dead before the instruction at `address`, proven from `code` (a function's, by address) alone.

        also:    where else execution may go after an instruction, by its address. Outside `code` everything lives,
        leaving: but for what is dead where a direct call, a jump or a return leaves `code`.
        """

    def dead_at_entry(self) -> Dead:
        """What the ABI lets a tracer clobber at the entry of a function that has an ftrace site."""

    def dead_at_return(self) -> Dead:
        """What the ABI lets a tracer clobber at the return of a function that has an ftrace site."""

    def bases(self, start: int, code: Mapping[int, Insn]) -> Mapping[int, int]:
        """By instruction of the function that begins at `start`: what the register holds that counters are named by."""

    def count(self, counter: int, to: int, dead: Dead, base: int | None = None) -> bytes:
        """Code to run at `to` that adds one, atomically, to the 8-byte `counter`, and changes nothing that lives.

        base: of `bases`, where it is known there.
        """

    def pushed(self, insn: Insn) -> int:
        """By how many bytes `insn`, one of a program of ours, moves the stack pointer down; negative for up."""

    def emulate(self, insn: Insn, registers: Mapping[str, int], read: ReadMemory) -> Effects | None:
        """What `insn` does to these registers; None where it is not one we emulate."""
