"""The record that every instruction set fills, listed in registry.py: the same verbs for each.

Everything here is pure: bytes in, bytes out. Addresses are guest virtual addresses as
unsigned integers. Functions of the same name do the same for every ISA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from gdb_optprobe.isa.abi import Convention, ElfMachine, SystemRegisters
from gdb_optprobe.isa.base import (
    Before,
    Code,
    Dead,
    Effects,
    Hazard,
    Insn,
    Pointer,
    PooledCode,
    ReadMemory,
    Relocated,
)
from gdb_optprobe.isa.codegen import Backend
from gdb_optprobe.isa.return_codegen import ReturnBackend
from gdb_optprobe.isa.routines import RoutineCalls


class Pools(Protocol):
    """Words behind the code of a detour, which it loads in place of making them.

    alignment: of slots: in one of these a pool takes the same room wherever the slot is.
    """

    @property
    def alignment(self) -> int: ...

    def count(self, to: int, pool: int, dead: Dead) -> bytes:
        """Return code for `to` that does what `Isa.count` does, with the counter that the word at `pool` is."""

    def at(self, end: int) -> int:
        """Return where the pool of code that ends at `end` is."""

    def behind(self, end: int, words: Sequence[int]) -> bytes:
        """Return what is from there on: first what no decoder takes for an instruction, then the words."""


class Isa(Protocol):
    """One instruction set.

    name:        as GDB's `show architecture` has it.
    other_modes: what GDB calls the CPU in modes that are not supported.
    alignment:   of instruction addresses.
    pools:       of words that detours have behind their code; None where an instruction holds what it needs.
    earlier:     this instruction set with counts as earlier versions made them, which may be in a guest.
    branch_size: bytes of the branch that replaces an instruction.
    data_reach:  greatest distance of a counter from the code that counts.
    pc, sp, flags: registers' names as GDB has them.
    registers:   all general registers, PC and flags included, as GDB names them.
    breakpoint:  the code of a breakpoint instruction.
    trap:        the code of an instruction that traps, that GDB and the guest do not take for a breakpoint, as long as
                 the shortest instruction.
    traps:       all codes that may be such a trap, as the guest has some for itself; the first is `trap`.
    landing:     the first code of a detour that such a trap leads to: it wipes the saved PC that the trap has left.
    short_registers: those of 4 bytes, as GDB has them.
    stub_numbers: of registers, in packets of QEMU's stub. system: other registers.
    convention:  registers and arguments as users name them. elf: headers of files of its code.
    codegen:     the backend that programs are lowered to. returning: that of return probes; None if not supported.
    routines:    how detours call one routine: the first of these of which nothing is in the way there; none if not
                 supported.
    """

    name: str
    other_modes: tuple[str, ...]
    alignment: int
    pools: Pools | None
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
    system: SystemRegisters
    convention: Convention
    elf: ElfMachine
    codegen: Backend

    @property
    def earlier(self) -> Sequence[Isa]: ...

    @property
    def routines(self) -> Sequence[RoutineCalls]: ...

    @property
    def returning(self) -> ReturnBackend | None: ...

    def for_cpus(self, each: Callable[[str], Sequence[int]]) -> Isa:
        """Return this instruction set with what every CPU of a guest has beyond it, for code that is made.

        each: returns a register of each of them, by GDB's name; raises LookupError where GDB has none of that name.
        """

    def for_guarded_code(self, each: Callable[[str], Sequence[int]]) -> Isa:
        """Return this instruction set for code into which these CPUs may check branches: it is not known.

        each: as `for_cpus` has it.
        """

    def decode(self, code: bytes, address: int) -> list[Insn]:
        """Decode `code` from its first byte, up to the first that is no instruction, or an incomplete one."""

    def branch(self, source: int, target: int) -> bytes:
        """Encode a branch of `branch_size` bytes at `source`. Raises OutOfReach."""

    def branches(self, sources: Sequence[int], targets: Sequence[int]) -> list[bytes]:
        """Encode a `branch` from each of `sources` to that of `targets`. Raises OutOfReach."""

    def redirect(self, insn: Insn, target: int) -> bytes:
        """Encode a direct branch that `relocate` or `branch` made with another target. Raises OutOfReach."""

    def relocate(
        self, insns: Sequence[Insn], to: int, before: Before | None = None, dead: Dead | None = None
    ) -> Relocated:
        """Rewrite `insns` (contiguous) to run at `to`, with the branch back. Raises Unrelocatable.

        dead: before the first of them, if no other is probed: a copy may be shorter for it.
        """

    def hazard(self, insn: Insn) -> Hazard | None:
        """Return why `insn` cannot be moved anywhere; None if it can, or if that depends on the place."""

    def forbidden(self, code: Mapping[int, Insn]) -> Mapping[int, Hazard]:
        """Return the addresses in `code` (a function's) where no tier is possible, with the reasons.

        A breakpoint instruction is not among them: the planner judges it.
        """

    def moves_as_it_is(self, insn: Insn) -> bool:
        """Return whether every copy of `insn` is its own bytes, or nothing: a sweep need not try to move it."""

    def is_landing_pad(self, insn: Insn) -> bool:
        """Return whether an indirect branch must find `insn` where it lands (CET, BTI)."""

    def fills(self, insn: Insn) -> bool:
        """Return whether assemblers fill gaps with `insn`: a nop, a breakpoint."""

    def shadows(self, insn: Insn) -> bool:
        """Return whether `insn` holds off interrupts until the next instruction has run."""

    def restarts(self, insn: Insn) -> bool:
        """Return whether a step may do a part of `insn` and leave the PC on it (a repeated string instruction)."""

    def step_runs_on(self, insn: Insn, behind: Iterable[Insn]) -> bool:
        """Return whether a debugger's step over `insn` may run on past the next instruction, and miss hits meanwhile.

        behind: the code that follows it.
        """

    def dead_at(
        self,
        address: int,
        code: Mapping[int, Insn],
        also: Mapping[int, Sequence[int]] | None = None,
        leaving: Callable[[Insn], Dead] | None = None,
    ) -> Dead:
        """Return what is dead before the instruction at `address`, proven from `code` (a function's, by address) alone.

        also:    where else execution may continue after an instruction, by its address.
        leaving: returns what is dead where a direct call, a jump or a return leaves `code`; else all lives there.
        """

    def dead_at_entry(self) -> Dead:
        """Return what the ABI lets a tracer clobber at the entry of a function that has an ftrace site."""

    def dead_at_return(self) -> Dead:
        """Return what the ABI lets a tracer clobber at the return of a function that has an ftrace site."""

    def bases(self, start: int, code: Mapping[int, Insn]) -> Mapping[int, int]:
        """Return the register value that counters are addressed by, for each instruction of the function at `start`."""

    def count(self, counter: int, to: int, dead: Dead, base: int | None = None) -> bytes:
        """Return code for `to` that adds one, atomically, to the 8-byte `counter` and changes nothing that lives.

        base: of `bases`, if it is known there.
        """

    def counts(
        self, at: int, step: int, counters: Sequence[int], ends: Sequence[int], dead: Dead, moved: bytes = b""
    ) -> bytes:
        """Return what `count` does for each of `counters`, then `moved`, then a branch to that of `ends`.

        They follow one another from `at` on, each `step` bytes long, the rest of it breakpoints.
        Raises OutOfReach, also where `step` is too short for one.
        """

    def pushed(self, insn: Insn) -> int:
        """Return by how many bytes `insn` of a lowered program moves the stack pointer down; negative for up."""

    def saves(self, insn: Insn) -> str:
        """Return the register that `insn` of a lowered program pushes, if callers' frames may depend on it; else ""."""

    def emulate(self, insn: Insn, registers: Mapping[str, int], read: ReadMemory) -> Effects | None:
        """Return the effects of `insn` on these registers; None if it is not emulated."""

    def pointer(self, insn: Insn) -> Pointer | None:
        """Return where an indirect call or jump goes; None of another instruction, or another operand."""

    def switches(self, code: bytes, address: int) -> Mapping[int, range]:
        """Return, by indirect jumps of the function at `address` that stay in it, where the tables that they use are in
        its code.
        """

    def addresses_in(self, insn: Insn) -> Sequence[tuple[int, int]]:
        """Return offset and size of operands of `insn` that may be addresses, or depend on where the image is.

        None of an instruction that may lead elsewhere. With other bytes there it is the same instruction.
        """


def counting(isa: Isa, counter: int, dead: Dead, base: int | None = None) -> Code:
    """Return the code that `Isa.count` does, which may read its counter's address from a pool."""

    def alone(at: int) -> bytes:
        return isa.count(counter, at, dead, base)

    pools = isa.pools
    if pools is None:
        return alone
    return PooledCode(alone, lambda at, pool: pools.count(at, pool, dead), (counter,))


def pooled(isa: Isa, at: int, words: Sequence[int], encode: Callable[[int], bytes]) -> bytes:
    """Return code for `at`, and the pool of its words behind it. encode: by where that is; of one size wherever."""
    pools = isa.pools
    assert pools is not None, "this ISA has pools"
    pool = pools.at(at + len(encode(pools.at(at))))
    code = encode(pool)
    return code + pools.behind(at + len(code), words)


def with_own_pool(isa: Isa, code: Code) -> Code:
    """Return code that nothing follows, with its words behind it where it reads a pool."""
    if not isinstance(code, PooledCode):
        return code
    return lambda at: pooled(isa, at, code.words, lambda pool: code.reading(at, pool))


def slot_unit(isa: Isa) -> int:
    """Return what addresses and sizes of new slots for code are multiples of."""
    return isa.pools.alignment if isa.pools is not None else 1
