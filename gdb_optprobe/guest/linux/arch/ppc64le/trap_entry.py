"""Traps on ppc64le: `tdi 31,r0,0`, which is a program check on every CPU.

No `trap`, which GDB takes for a breakpoint of its own, and no illegal word, which may be a hypervisor's interrupt, and
which the guest's own kprobes would execute elsewhere: they refuse `tdi` (asm/probes.h, can_single_step).

Our handler runs before the kernel has saved the registers on a stack (arch/powerpc/kernel/exceptions-64s.S):

    r9            CR                                  in the paca, r13: r9 to r13, CTR
    r10           nothing                             SPRG2: nothing, scratch of vectors (asm/reg.h)
    r11, r12      SRR0, SRR1                          MSR: EE and, by us, RI are off, so SRR0 and SRR1 stay
Meanwhile r0 is in SPRG2, and CR in CTR. An interrupt's way back that was trapped in must load SRR0 and SRR1 again.
"""

from __future__ import annotations

from gdb_optprobe.isa.base import Dead
from gdb_optprobe.isa.codegen import EntryState, Label, RegisterPool
from gdb_optprobe.isa.ppc64le import codegen
from gdb_optprobe.isa.ppc64le.abi import CTR
from gdb_optprobe.isa.ppc64le.encodings import NONE, FarBranch, number, plain
from gdb_optprobe.isa.ppc64le.fields import word_of
from gdb_optprobe.isa.ppc64le.value_codegen import SCRATCH
from gdb_optprobe.isa.trapping import Entry, TrapEmitter, Trapping

_PACA, _CR, _FREE, _SRR0, _SRR1 = "r13", "r9", "r10", "r11", "r12"
_PR = 1 << 14
_POOL = (_FREE, _CR, _SRR1)
SAVED = (CTR, "r9", "r10", "r11", "r12", "r13")
"""What must have been saved in the paca. r13 leads to all of them: it is restored last."""


class _TrapEmitter(codegen.PowerEmitter):
    """See isa.trapping.TrapEmitter."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(EntryState(Dead(True, frozenset(_POOL))))
        self._entry = entry
        self.pool = RegisterPool(_POOL)

    def begin(self, users: Label) -> None:
        self._code(plain("mtsprg2", SCRATCH), plain("mtctr", _CR))
        self.branch_bits(_SRR1, _PR, True, users)

    def trapped_at(self) -> str:
        return _SRR0

    def continue_at(self, address: str) -> None:
        self._code(number("addi", SCRATCH, NONE, 0), plain("mtmsrd", SCRATCH), plain("mtsrr0", address))

    def end(self) -> None:
        self._code(number("addi", SCRATCH, NONE, 0), number("stb", SCRATCH, _PACA, self._entry.stale))
        self._code(plain("mfctr", _CR), plain("mtcr", _CR), plain("mfsprg2", SCRATCH))
        for name in SAVED:
            register = _CR if name == CTR else name
            self._code(number("ld", register, _PACA, self._entry.saved[name]))
            if name == CTR:
                self._code(plain("mtctr", register))
        self._code(plain("rfid"))

    def kernels(self) -> None:
        self._code(plain("mfctr", _CR), plain("mfsrr1", _SRR1), plain("mfsprg2", SCRATCH))
        assert self._entry.displaced is not None
        self._code(word_of(self._entry.displaced.data))
        self._items.append(FarBranch(self._entry.kernels))


class _Trapping:
    # tw, td, tdi and twi (asm/probes.h, is_trap): a kprobe of the guest's own where our trap was removed.
    traps: tuple[tuple[int, int], ...] = (
        (0xFC00_07FE, 0x7C00_0008),
        (0xFC00_07FE, 0x7C00_0088),
        (0xF800_0000, 0x0800_0000),
    )
    size = 4

    def emitter(self, entry: Entry) -> TrapEmitter:
        return _TrapEmitter(entry)


TRAPPING = _Trapping()
_: Trapping = TRAPPING
