"""Registers that can be dead, and where the procedure call standard makes them so; for isa/liveness.py.

flags is NZCV, which no count changes. sp, x18 and x29 never are dead. x30 dies at a call. Helpers in assembly, and
callers of functions without an ftrace site, rely on what the standard calls volatile.
"""

from __future__ import annotations

from gdb_optprobe.isa.aarch64.abi import CLOBBERED_AT_RETURN, CLOBBERED_BY_TRACER, RESERVED
from gdb_optprobe.isa.aarch64.register_effects import ALL_NAMES, NZCV, effects_of
from gdb_optprobe.isa.base import Dead, Flow, Insn
from gdb_optprobe.isa.liveness import Liveness, RegisterEffects


def _uses(insn: Insn) -> RegisterEffects | None:
    return None if insn.flow in (Flow.TRAP, Flow.SYSTEM) else effects_of(insn.data)


dead_at = Liveness(
    registers={name: 1 << bit for bit, name in enumerate(ALL_NAMES) if name not in RESERVED},
    flags=NZCV,
    uses=_uses,
).dead_at


def dead_at_entry() -> Dead:
    """Return what the ABI lets a tracer clobber at the entry of a function that has an ftrace site."""
    return Dead(True, CLOBBERED_BY_TRACER)


def dead_at_return() -> Dead:
    """Return what the ABI lets a tracer clobber at the return of a function that has an ftrace site."""
    return Dead(True, CLOBBERED_AT_RETURN)
