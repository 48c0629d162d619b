"""Registers that can be dead, and where the ABI makes them so; for isa/liveness.py.

flags is CR0; the other fields of CR are among the registers, as cr1 to cr7, and so are CTR and LR, which dies at a
call. r1, r2 and r13 never are dead. `_savegpr0_29`, the entry of a module's function and other assembly rely on what
the ABI calls volatile.
"""

from __future__ import annotations

from gdb_optprobe.isa.base import Dead, Flow, Insn
from gdb_optprobe.isa.liveness import Liveness, RegisterEffects
from gdb_optprobe.isa.ppc64le.abi import CLOBBERED_AT_RETURN, CLOBBERED_BY_TRACER, RESERVED
from gdb_optprobe.isa.ppc64le.register_effects import ALL_NAMES, CR0, effects_of


def _uses(insn: Insn) -> RegisterEffects | None:
    return None if insn.flow in (Flow.TRAP, Flow.SYSTEM) else effects_of(insn.data)


dead_at = Liveness(
    registers={name: 1 << bit for bit, name in enumerate(ALL_NAMES) if name not in RESERVED and 1 << bit != CR0},
    flags=CR0,
    uses=_uses,
).dead_at


def dead_at_entry() -> Dead:
    """Return what the ABI lets a tracer clobber at the entry of a function that has an ftrace site."""
    return Dead(True, CLOBBERED_BY_TRACER)


def dead_at_return() -> Dead:
    """Return what the ABI lets a tracer clobber at the return of a function that has an ftrace site."""
    return Dead(True, CLOBBERED_AT_RETURN)
