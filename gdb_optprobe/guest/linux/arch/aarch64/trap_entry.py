"""Traps in the kernel on aarch64: `hlt`, an undefined instruction to a CPU, of which ELR_EL1 has the PC.

Our handler runs before the kernel has saved a register (arch/arm64/kernel/entry.S, kernel_entry):

    sp ─►   0  struct pt_regs, with nothing in it yet      all registers are the interrupted code's
          104  x13                                         but sp, which is its less the size of that;
          112  x14, x15                                    NZCV is in SPSR_EL1, PC in ELR_EL1
          128  x16, x17
               …
     frame ─►  the interrupted stack

Those that we use are put where the kernel is about to put them. Interrupts, debug exceptions and SErrors are masked
from the exception to `eret`, which no other exception comes between: all memory used is mapped. All other synchronous
exceptions in the kernel come here too, page faults among them: ESR_EL1 says which, before more than two registers are
saved.
"""

from __future__ import annotations

from gdb_optprobe.guest.linux.arch.aarch64.user_traps import CLASS_SHIFT, REGISTERS
from gdb_optprobe.isa.aarch64.abi import SP
from gdb_optprobe.isa.aarch64.codegen import A64Emitter
from gdb_optprobe.isa.aarch64.encodings import FarBranch, bits, branch_on_zero, number, pair, plain, scaled
from gdb_optprobe.isa.aarch64.fields import HLT, UDF, word_of
from gdb_optprobe.isa.aarch64.spill import SCRATCH
from gdb_optprobe.isa.base import Dead
from gdb_optprobe.isa.codegen import EntryState, Label, RegisterPool
from gdb_optprobe.isa.trapping import Entry, TrapEmitter, Trapping

_POOL = ("x16", "x15", "x14", "x13")
_FIRST, _PAIR, _SINGLE = ("x16", SCRATCH), ("x14", "x15"), "x13"


class _TrapEmitter(A64Emitter):
    """See isa.trapping.TrapEmitter."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(EntryState(Dead(True, frozenset(_POOL))))
        self._entry = entry
        self._not_undefined = Label()
        self.pool = RegisterPool(_POOL)

    def begin(self, users: Label) -> None:
        """Begin the hook. Nothing of user mode comes here: it has vectors of its own."""
        self._code(_pair("str_pair", _FIRST), plain("get_esr_el1", SCRATCH))
        self._code(bits("ubfm", SCRATCH, SCRATCH, CLASS_SHIFT, CLASS_SHIFT + 5))
        self._items.append(branch_on_zero("cbnz", SCRATCH, self._not_undefined))
        self._code(_pair("str_pair", _PAIR), scaled("str", _SINGLE, SP, REGISTERS[_SINGLE], 8))

    def trapped_at(self) -> str:
        pc = self.pool.allocate()
        self._code(plain("get_elr_el1", pc))
        return pc

    def continue_at(self, address: str) -> None:
        self._code(plain("set_elr_el1", address))

    def end(self) -> None:
        self._restore()
        self._code(_pair("ldr_pair", _FIRST), number("addi", SP, SP, self._entry.frame), plain("eret"))

    def kernels(self) -> None:
        self._restore()
        self.bind(self._not_undefined)
        self._code(_pair("ldr_pair", _FIRST))
        assert self._entry.displaced is not None
        self._code(word_of(self._entry.displaced.data))
        self._items.append(FarBranch(self._entry.kernels))

    def _restore(self) -> None:
        self._code(scaled("ldr", _SINGLE, SP, REGISTERS[_SINGLE], 8), _pair("ldr_pair", _PAIR))


def _pair(name: str, registers: tuple[str, str]) -> int:
    return pair(name, *registers, REGISTERS[registers[0]])


class _Trapping:
    traps: tuple[tuple[int, int], ...] = ((0xFFE0_001F, HLT), (0xFFFF_0000, UDF))  # with any number
    size = 4

    def emitter(self, entry: Entry) -> TrapEmitter:
        return _TrapEmitter(entry)


TRAPPING = _Trapping()
_: Trapping = TRAPPING
