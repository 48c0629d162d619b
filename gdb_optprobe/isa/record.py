"""The record that every instruction set fills, listed in registry.py: the same verbs for each.

Everything here is pure: bytes in, bytes out. Addresses are guest virtual addresses as
unsigned integers. A reader who knows one ISA finds each function of another in the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from gdb_optprobe.isa.abi import Convention, ElfMachine
from gdb_optprobe.isa.base import Before, Dead, Effects, Hazard, Insn, ReadMemory, Relocated
from gdb_optprobe.isa.codegen import Backend
from gdb_optprobe.isa.return_codegen import ReturnBackend


class Isa(Protocol):
    """One instruction set.

    name:        as GDB's `show architecture` has it.
    other_modes: what GDB calls the CPU in modes that are not supported.
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
    short_registers: those of 4 bytes, as GDB has them.
    stub_numbers: of registers, in packets of QEMU's stub.
    convention:  registers and arguments as users name them. elf: what files of its code say.
    codegen:     what programs are lowered to. returning: what return probes need; None where they are not built.
    """

    name: str
    other_modes: tuple[str, ...]
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
    short_registers: tuple[str, ...]
    stub_numbers: Mapping[str, int]
    convention: Convention
    elf: ElfMachine
    codegen: Backend

    @property
    def returning(self) -> ReturnBackend | None: ...

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
        """Whether a single step may do a part of `insn` and leave the PC on it (a string instruction that repeats)."""

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
