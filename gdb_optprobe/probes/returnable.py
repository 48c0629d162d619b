"""Which functions can carry a return probe: those that are entered and left as the ABI has it."""

from __future__ import annotations

from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.guest.text import Function
from gdb_optprobe.isa import returns
from gdb_optprobe.isa.base import Flow
from gdb_optprobe.probes.target import Target

SWITCHES = frozenset(("__switch_to", "__switch_to_asm", "_switch", "ret_from_fork", "ret_from_kernel_thread"))
"""A thread enters them and another one leaves, or they leave for where nobody called them from."""

NEAR = 8
"""Bytes behind the entry within which the tracer's site begins, if there is one."""


def check(address: int, target: Target) -> None:
    """Raises Refused where a probe at `address` cannot see the function return."""
    function = target.text.function(address)
    if target.at_return(address) is None or function is None:
        raise Refused(Refusal.RETURN_NOT_ENTRY.because(address=target.text.spell(address)))
    if function.name in SWITCHES:
        raise Refused(Refusal.RETURN_ELSEWHERE.because(function=function.name))
    if returns.of(target.isa.name) is None:
        raise Refused(Refusal.RETURN_NOT_BUILT.because(missing=target.isa.name))
    if not target.text.ftrace_sites(function.start, address + NEAR):
        raise Refused(Refusal.RETURN_UNTRACED.because(function=function.name))
    if not _returns(function):
        raise Refused(Refusal.RETURN_NEVER.because(function=function.name))


def _returns(function: Function) -> bool:
    """Whether some instruction leaves for good. The parts elsewhere are looked at only where this one does not tell."""
    if any(insn.flow in (Flow.RETURN, Flow.INDIRECT_JUMP) for insn in function.own.values()):
        return True
    code = function.whole.code
    return any(
        insn.flow in (Flow.RETURN, Flow.INDIRECT_JUMP) or (insn.flow is Flow.JUMP and insn.target not in code)
        for insn in code.values()
    )
