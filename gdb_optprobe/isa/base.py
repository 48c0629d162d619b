"""Small values that every instruction set uses.

Everything here is pure: bytes in, bytes out. Addresses are guest virtual addresses as
unsigned integers. Functions of the same name do the same for every ISA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

LONGEST = 16
"""Bytes that no instruction of any ISA exceeds."""

WORD = 8

Code = Callable[[int], bytes]
"""Instructions by the address that they will run at, of the same size at every one. The last one falls through."""

Notes = Mapping[int, tuple[str, ...]]
"""What code is for, by the address from which it is: the whole first, then its part; () for what is not known."""

ReadMemory = Callable[[int, int], bytes]

Before = Mapping[int, Code]
"""By the address of an instruction to relocate: code to run just before it, of another probe on it."""


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
        """Return whether the following instruction can be next (a call's return included)."""
        return self.flow in (Flow.NEXT, Flow.BRANCH, Flow.CALL, Flow.INDIRECT_CALL)


@dataclass(frozen=True, slots=True)
class Dead:
    """What a program may overwrite at a point: nothing that runs later reads it before writing it.

    flags:     all arithmetic flags that a counter changes.
    registers: names of general registers, as GDB has them.
    """

    flags: bool = False
    registers: frozenset[str] = field(default_factory=frozenset)


class Pointer(NamedTuple):
    """Where a call or jump through a pointer goes: to the address in a register, or in memory at an offset from it."""

    register: str
    offset: int | None = None


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
    """The effects of an emulated instruction: registers to set, always with the PC, and memory to write."""

    registers: Mapping[str, int]
    writes: tuple[tuple[int, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class NotedCode:
    """A Code that can say what each part of it is for. notes: by where it will run, as `encode`."""

    encode: Code
    notes: Callable[[int], Notes]

    def __call__(self, at: int) -> bytes:
        return self.encode(at)


def notes_of(code: Code, at: int) -> Notes:
    """Return what the parts of code at `at` are for; none where the code does not know."""
    code = code.alone if isinstance(code, PooledCode) else code
    return code.notes(at) if isinstance(code, NotedCode) else {}


@dataclass(frozen=True, slots=True)
class PooledCode:
    """A Code that takes fewer instructions where words lie behind the whole that it is a part of, in a pool.

    alone:   the code without them, as a call returns it.
    reading: the code for an address, with the pool at another one; of the same size everywhere.
    words:   what the pool has to hold, of 8 bytes each.
    notes:   of the code that reads it, by its address.
    """

    alone: Code
    reading: Callable[[int, int], bytes]
    words: tuple[int, ...]
    notes: Callable[[int], Notes] = lambda at: {}

    def __call__(self, at: int) -> bytes:
        return self.alone(at)

    def with_pool(self, pool: int) -> Code:
        """Return the code that reads the pool at an address."""
        return NotedCode(lambda at: self.reading(at, pool), self.notes)


def words_of(parts: Iterable[Code]) -> tuple[int, ...]:
    """Return what the pool of code with these parts has to hold."""
    return tuple(word for part in parts if isinstance(part, PooledCode) for word in part.words)


def with_pool(parts: Iterable[Code], pool: int) -> list[Code]:
    """Return the parts, those that read a pool with the one of all of them at an address."""
    found = list[Code]()
    for part in parts:
        found.append(part.with_pool(pool) if isinstance(part, PooledCode) else part)
        pool += WORD * len(words_of([part]))
    return found


def joined(parts: Sequence[Code]) -> Code:
    """Return the code of all parts, one behind the other."""
    alone = _joined([part.alone if isinstance(part, PooledCode) else part for part in parts])
    if not (words := words_of(parts)):
        return alone

    def reading(at: int, pool: int) -> bytes:
        return _joined(with_pool(parts, pool))(at)

    return PooledCode(alone, reading, words, lambda at: _joined(with_pool(parts, at)).notes(at))


def _joined(parts: Sequence[Code]) -> NotedCode:
    def whole(at: int) -> bytes:
        code = b""
        for part in parts:
            code += part(at + len(code))
        return code

    def notes(at: int) -> Notes:
        found: dict[int, tuple[str, ...]] = {}
        for part in parts:
            found |= {at: (), **notes_of(part, at)}
            at += len(part(at))
        return found

    return NotedCode(whole, notes)


def padded(
    pieces: Sequence[bytes],
    at: int,
    step: int,
    ends: Sequence[int],
    branch: Callable[[int, int], bytes],
    breakpoint: bytes,
    pools: Sequence[bytes] = (),
) -> bytes:
    """Return `pieces`, one each `step` bytes from `at` on, with a branch to each of `ends`, and breakpoints behind it.

    pools: what each has between its branch and these, if any has.
    Raises OutOfReach, also where `step` is too short, or they are not alike.
    """
    whole = []
    places = range(at, at + step * len(pieces), step)
    for place, piece, end, pool in zip(places, pieces, ends, pools or [b""] * len(pieces), strict=True):
        code = piece + branch(place + len(piece), end) + pool
        if len(code) > step or len(piece) != len(pieces[0]):
            raise OutOfReach(place, end)
        whole.append(code + breakpoint * ((step - len(code)) // len(breakpoint)))
    return b"".join(whole)
