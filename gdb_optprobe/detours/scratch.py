"""The scratch registers of a program at an instruction: dead by the code that follows, or by ABI.

The ABI decides only where a tracer could clobber the same: at the entry and the return of functions that have an ftrace
site, and at direct calls to them. Assembly helpers, thunks and callers that know their callee rely on more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdb_optprobe.detours.cfg import Cfg
from gdb_optprobe.guest.text import Fact
from gdb_optprobe.isa.base import Dead, Flow, Insn

NOTHING = Dead()


def dead_before(cfg: Cfg, insn: Insn) -> Dead:
    """Return the registers and flags that are dead before `insn`."""
    if cfg.ftrace_site(insn) is not None:
        return cfg.isa.dead_at_entry()
    code = cfg.function.whole.code
    found = cfg.isa.dead_at(insn.address, code, _other_successors(cfg), lambda last: _dead_at_exit(cfg, last))
    after = cfg.function.own.get(insn.end)
    if after is None or cfg.ftrace_site(after) is None:
        return found
    # There may be an instruction before the site: what a tracer may clobber is dead before that too, if it is not read.
    way_out = {insn.address: insn, after.address: after._replace(flow=Flow.RETURN)}
    clobbered = cfg.isa.dead_at(insn.address, way_out, None, lambda _: cfg.isa.dead_at_entry())
    return Dead(found.flags or clobbered.flags, found.registers | clobbered.registers)


def _dead_at_exit(cfg: Cfg, insn: Insn) -> Dead:
    """Return what is dead where `insn` leaves the function."""
    if insn.flow is Flow.RETURN:
        return cfg.isa.dead_at_return() if cfg.is_traced(cfg.function.start) else NOTHING
    if insn.target is None or insn.target in cfg.function.whole.code:
        return NOTHING
    return cfg.isa.dead_at_entry() if cfg.is_traced(insn.target) else NOTHING


def _other_successors(cfg: Cfg) -> Mapping[int, Sequence[int]]:
    """Return where else execution may continue, now or once the guest has rewritten an instruction.

    Each counts as another path. A jump label is a nop or a jump; a fault goes to its fixup; a static call that is a
    nop now may call anything (an address outside of the function makes everything live).
    """
    whole = cfg.function.whole
    also: dict[int, list[int]] = {}
    for jump in whole.jumps:
        insn = whole.code.get(jump.source)
        if insn is not None and jump.target != insn.target:
            also.setdefault(jump.source, []).extend([jump.target, insn.end])
    for mark in cfg.marks.values():
        if mark.fact is Fact.STATIC_CALL:
            also.setdefault(mark.address, []).append(0)
    return also
