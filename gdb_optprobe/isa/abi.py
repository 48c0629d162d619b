"""What the ABI of an instruction set states: names of registers, arguments, frames on a stack, ELF files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Holds(Enum):
    """What GDB shows a register as."""

    SIGNED = "long"
    UNSIGNED = "unsigned long"
    CODE = "a function's address"
    FLAGS = "unsigned int"


@dataclass(frozen=True, slots=True)
class Part:
    """A name of a part of a register: its lowest bit, and how many it has."""

    register: str
    shift: int
    bits: int


@dataclass(frozen=True, slots=True)
class SystemRegisters:
    """Registers beside the general ones that GDB does not simply have of each vCPU.

    parts:     by name, parts of other registers.
    printed:   what QEMU 7.2's stub has of the first vCPU alone; the monitor's `info registers` has it of each.
    evaluated: the same, of which the monitor's `p` has the value.
    per_cpu:   the one that is PerCpuBase in the kernel; "" where that is no register.
    fixed:     general ones with what is a CPU's own: a kernel's functions do not change them.
    """

    parts: Mapping[str, Part]
    printed: tuple[str, ...] = ()
    evaluated: tuple[str, ...] = ()
    per_cpu: str = ""
    fixed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Convention:
    """What users call registers, and where a function has its arguments and its result.

    registers:   by name, what GDB shows.
    parts:       names of parts of registers.
    arguments:   registers of a function's first ones. stacked: where the next one is at its entry, from sp.
    aggregate:   bytes of the largest struct that is passed in registers.
    result:      register of what a function returns.
    signed_char: whether a plain char is signed.
    """

    registers: Mapping[str, Holds]
    parts: Mapping[str, Part]
    pc: str
    sp: str
    arguments: Sequence[str]
    stacked: int
    aggregate: int
    result: str
    signed_char: bool


@dataclass(frozen=True, slots=True)
class ElfMachine:
    """What the headers of ELF files and DWARF's call frame information say.

    name:      for caches. number, flags: e_machine and e_flags.
    outermost: a CIE (DWARF 5, 6.4) without its identifier: version 1, no augmentation, factors of 1, the return
               address undefined, the CFA the stack pointer.
    """

    name: str
    number: int
    flags: int
    outermost: bytes


@dataclass(frozen=True, slots=True)
class UserFrames:
    """Where frames on a program's stack have their callers' registers.

    word:    bytes of an address. sp, pc: names of registers.
    cost:    instructions to copy eight bytes of a stack.
    numbers: by DWARF's number, the registers that frames may be described by, and that are recorded of a hit.
    kept:    those of them that a call preserves, unless the frame's description says otherwise.
    link:    the register that a call leaves its return address in; "" where that is on the stack.
    chain:   offset of the return address in the frame that the stack pointer links to; None without such links.
    """

    word: int
    cost: int
    sp: str
    pc: str
    numbers: Mapping[int, str]
    kept: Collection[str]
    link: str = ""
    chain: int | None = None

    @property
    def registers(self) -> tuple[str, ...]:
        """Return the registers that are recorded of a hit, the stack pointer first."""
        return (self.sp, self.pc, *(name for name in self.numbers.values() if name not in (self.sp, self.pc)))
