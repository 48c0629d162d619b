"""What a program at an instruction may overwrite freely: dead by the code that follows, or by ABI.

By ABI only where a tracer could clobber the same: at the entry and the return of functions that have an ftrace site,
and at direct calls to them. Assembly helpers, thunks and callers that know their callee rely on more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdb_optprobe.detours.ground import Ground
from gdb_optprobe.guest.text import Fact
from gdb_optprobe.isa.base import Dead, Flow, Insn

NOTHING = Dead()


def at(ground: Ground, insn: Insn) -> Dead:
    """What is dead before `insn`."""
    if ground.site(insn) is not None:
        return ground.isa.dead_at_entry()
    code = ground.function.whole.code
    found = ground.isa.dead_at(insn.address, code, _also(ground), lambda leaver: _leaving(ground, leaver))
    after = ground.function.own.get(insn.end)
    if after is None or ground.site(after) is None:
        return found
    # ppc64le has an instruction before the site: what a tracer may clobber is dead before that too, if it is not read.
    way_out = {insn.address: insn, after.address: after._replace(flow=Flow.RETURN)}
    clobbered = ground.isa.dead_at(insn.address, way_out, None, lambda _: ground.isa.dead_at_entry())
    return Dead(found.flags or clobbered.flags, found.registers | clobbered.registers)


def _leaving(ground: Ground, insn: Insn) -> Dead:
    """What is dead where `insn` leaves the function."""
    if insn.flow is Flow.RETURN:
        return ground.isa.dead_at_return() if ground.is_traced(ground.function.start) else NOTHING
    if insn.target is None or insn.target in ground.function.whole.code:
        return NOTHING
    return ground.isa.dead_at_entry() if ground.is_traced(insn.target) else NOTHING


def _also(ground: Ground) -> Mapping[int, Sequence[int]]:
    """Where else execution may go, now or once the guest has rewritten an instruction: it counts as another path.

    A jump label is a nop or a jump; a fault goes to its fixup; behind a static call that is a nop now anything may be
    called (an address outside of the function makes everything live).
    """
    whole = ground.function.whole
    also: dict[int, list[int]] = {}
    for jump in whole.jumps:
        insn = whole.code.get(jump.source)
        if insn is not None and jump.target != insn.target:
            also.setdefault(jump.source, []).extend([jump.target, insn.end])
    for mark in ground.marks.values():
        if mark.fact is Fact.STATIC_CALL:
            also.setdefault(mark.address, []).append(0)
    return also
