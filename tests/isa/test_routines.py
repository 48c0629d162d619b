"""A detour's call of a routine: it leads there, and from the routine's registers one finds back to before it."""

from __future__ import annotations

import pytest

from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.base import Flow
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.routines import RoutineCalls
from gdb_optprobe.isa.x86_64 import X86_64

ROUTINE, AT, STACK, BACK = 0xFFFF_FFFF_8100_2000, 0xFFFF_FFFF_8100_0010, 0xFFFF_C900_0000_1000, 0x1234_5678


CALLS = [(isa, calls) for isa in (X86_64, PPC64LE, AARCH64) for calls in isa.routines]


@pytest.mark.parametrize(("isa", "calls"), CALLS, ids=lambda each: getattr(each, "name", ""))
def test_a_call_leads_to_the_routine_and_back(isa: Isa, calls: RoutineCalls) -> None:
    insns = isa.decode(calls.call(ROUTINE, AT), AT)
    (call,) = (insn for insn in insns if insn.flow is Flow.CALL)
    assert call.target == ROUTINE and call.end == AT + calls.behind
    (back,) = isa.decode(calls.back, ROUTINE)
    assert back.flow is Flow.RETURN
    inside = dict.fromkeys(isa.registers, BACK) | {isa.pc: ROUTINE, isa.sp: STACK}
    if calls.link is not None:
        inside |= {calls.link: call.end}
    before = calls.before(inside, lambda at, size: call.end.to_bytes(size, "little"))
    assert before[isa.pc] == AT and {*inside} == {*before}
    changed = {name for name in inside if before[name] != inside[name]}
    assert changed <= calls.changed
