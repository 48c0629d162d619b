"""aarch64: `AARCH64` is the `Isa`, for any CPU; each verb has a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gdb_optprobe.isa.aarch64 import (
    abi,
    codegen,
    decoder,
    emulator,
    exclusives,
    landing_pads,
    liveness,
    relocator,
    return_codegen,
    routines,
    stepping,
    writer,
)
from gdb_optprobe.isa.aarch64.fields import BRK, HLT, to_bytes
from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.codegen import Backend
from gdb_optprobe.isa.record import Isa, Pools
from gdb_optprobe.isa.return_codegen import ReturnBackend
from gdb_optprobe.isa.routines import RoutineCalls

_FEATURES, _ATOMIC = "ID_AA64ISAR0_EL1", 20  # with the field Atomic: 2 where there is FEAT_LSE
_MORE_FEATURES, _BTI = "ID_AA64PFR1_EL1", 0  # with the field BT: 1 where there is FEAT_BTI


class _AArch64:
    """The verbs of `Isa`.

    has_atomics: of the CPUs, see writer.Counting.
    is_guarded:  the CPUs may check indirect branches: to an instruction that signs a return address, too.
    """

    name = "aarch64"
    other_modes: tuple[str, ...] = ("arm", "aarch64:ilp32")
    alignment = 4
    branch_size = writer.BRANCH_SIZE
    branch_reach = writer.BRANCH_REACH
    data_reach = writer.DATA_REACH
    pc, sp, flags = abi.PC, abi.SP, abi.FLAGS
    registers: tuple[str, ...] = abi.REGISTERS
    # An undefined instruction where no debugger has halting enabled (DDI 0487, HLT). Not udf, which a kprobe of the
    # guest's would run elsewhere: it takes no instruction that generates exceptions (arm64_insn_is_steppable).
    trap = to_bytes(HLT | 0x6F70 << 5)
    traps: tuple[bytes, ...] = (trap,)
    landing = b""  # a frame pointer leads to saved PCs, not past the stack pointer
    breakpoint = to_bytes(BRK)
    short_registers: tuple[str, ...] = abi.SHORT
    stub_numbers: Mapping[str, int] = abi.STUB_NUMBERS
    system = abi.SYSTEM
    convention = abi.CONVENTION
    elf = abi.MACHINE
    routines: Sequence[RoutineCalls] = routines.ROUTINE_CALLS

    decode = staticmethod(decoder.decode)
    branch = staticmethod(writer.branch)
    branches = staticmethod(writer.branches)
    redirect = staticmethod(writer.redirect)
    relocate = staticmethod(relocator.relocate)
    hazard = staticmethod(relocator.hazard)
    forbidden = staticmethod(exclusives.forbidden)
    moves_as_it_is = staticmethod(relocator.moves_as_it_is)
    fills = staticmethod(relocator.fills)
    shadows = staticmethod(relocator.shadows)
    restarts = staticmethod(relocator.restarts)
    step_runs_on = staticmethod(stepping.step_runs_on)
    dead_at = staticmethod(liveness.dead_at)
    dead_at_entry = staticmethod(liveness.dead_at_entry)
    dead_at_return = staticmethod(liveness.dead_at_return)
    pushed = staticmethod(writer.pushed)
    saves = staticmethod(writer.saves)
    emulate = staticmethod(emulator.emulate)
    pointer = staticmethod(emulator.pointer)

    def __init__(self, has_atomics: bool, has_pools: bool = True, is_guarded: bool = False) -> None:
        self._has_atomics, self._is_guarded = has_atomics, is_guarded
        counting = writer.Counting(has_atomics, writer.Pools(has_atomics) if has_pools else None)
        self.count, self.counts = counting.count, counting.counts
        self.pools: Pools | None = counting.pools
        without_pools = [_AArch64(has_atomics, has_pools=False, is_guarded=is_guarded)] if has_pools else []
        self.earlier: Sequence[Isa] = without_pools
        self.codegen: Backend = codegen.BACKEND_LSE if has_atomics else codegen.BACKEND
        self.returning: ReturnBackend | None = (
            return_codegen.RETURN_BACKEND_LSE if has_atomics else return_codegen.RETURN_BACKEND
        )

    def addresses_in(self, insn: Insn) -> Sequence[tuple[int, int]]:
        """Return none: an instruction has no room for an address."""
        return ()

    def switches(self, code: bytes, address: int) -> Mapping[int, range]:
        """Return none: compilers put tables elsewhere."""
        return {}

    def for_cpus(self, each: Callable[[str], Sequence[int]]) -> Isa:
        """Return what all CPUs can run: with atomics where each of them has these."""
        try:
            features = each(_FEATURES)
        except LookupError:
            return self
        return AARCH64_LSE if all(value >> _ATOMIC & 15 >= 2 for value in features) else self

    def for_guarded_code(self, each: Callable[[str], Sequence[int]]) -> Isa:
        """Return this one where it is known that no CPU has the check."""
        try:
            features: Sequence[int] = each(_MORE_FEATURES)
        except LookupError:
            features = (1 << _BTI,)
        return _AArch64(self._has_atomics, is_guarded=True) if any(value >> _BTI & 15 for value in features) else self

    def is_landing_pad(self, insn: Insn) -> bool:
        """Return whether a branch by a register may have to find `insn`: where that is checked, one that signs, too."""
        return landing_pads.is_bti(insn) or (self._is_guarded and landing_pads.is_signing(insn))

    def bases(self, start: int, code: Mapping[int, Insn]) -> Mapping[int, int]:
        """Return no value: no register has one that counters are addressed by."""
        return {}


AARCH64 = _AArch64(has_atomics=False)
AARCH64_LSE = _AArch64(has_atomics=True)
_: Isa = AARCH64
