"""Find the places where nothing may stop: while a reservation is held, and what a kernel knows by its address.

Between a load-and-reserve and its store-conditional (Power ISA 3.1B, Book II, 1.7.2):

1: ldarx  r9,0,r3        the reservation begins
   add    r9,r4,r9       inside: a probe's program would replace the reservation with its own, and the return
   stdcx. r9,0,r3        from a trap ends it (interrupt_64.S): either way the store fails, for ever
   bne-   1b             outside again
"""

from __future__ import annotations

from collections.abc import Mapping

from gdb_optprobe.isa.base import Hazard, Insn
from gdb_optprobe.isa.ppc64le.fields import TRAP, X31, opcode, to_bytes, word_of, xo
from gdb_optprobe.isa.ppc64le.relocator import hazard
from gdb_optprobe.isa.reservations import inside

_LOADS = frozenset((52, 116, 20, 84, 276))  # lbarx lharx lwarx ldarx lqarx
_STORES = frozenset((694, 726, 150, 214, 182))


_NEVER = (Hazard.TRAP, Hazard.SYSTEM)


def forbidden(code: Mapping[int, Insn]) -> Mapping[int, Hazard]:
    """Return the addresses in `code` (a function's) where no tier is possible, with the reasons.

    Beside reservations: traps, which kernels know by their addresses, and what enters or leaves a kernel or changes the
    machine's state. A trap word that may be a breakpoint is left out.
    """
    breakpoint = to_bytes(TRAP)
    found = {insn.address: why for insn in code.values() if (why := hazard(insn)) in _NEVER and insn.data != breakpoint}
    return found | dict.fromkeys(reserved(code), Hazard.RESERVED)


def reserved(code: Mapping[int, Insn]) -> Mapping[int, Insn]:
    """Return the addresses in `code` (a function's) inside such a pair, with its store, each with the load.

    Nothing may run or stop there.
    """
    return inside(code, lambda insn: _is(insn, _LOADS), lambda insn: _is(insn, _STORES))


def _is(insn: Insn, extended: frozenset[int]) -> bool:
    word = word_of(insn.data)
    return opcode(word) == X31 and xo(word) in extended
