"""Sourced into GDB by tests: plans of functions without a tracer's site, and amid others, as they are made and as they
are kept.

`keep-plans` makes and keeps those of some functions. `compare-plans` makes them again and compares them with those that
are kept, of this boot or of an earlier one. Each prints a line of JSON.
"""

from __future__ import annotations

import json

import gdb

from gdb_optprobe.debugger.attach import attachments, current_session
from gdb_optprobe.detours.cfg import CfgCache
from gdb_optprobe.detours.plan_request import TierLimits
from gdb_optprobe.detours.planner import Plan, PlanRequest, plan
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.probes.kept_plans import KeptPlans

EVERY = 45
LIMITS = TierLimits()


def kept() -> KeptPlans:
    guest = current_session().target.guest
    text = guest.lasting_text()
    assert text is not None, "nothing says that the text is that of another boot"
    return KeptPlans(text, LIMITS, guest.isa, guest.text)


def fresh() -> dict[int, Plan]:
    assert attachments.current is not None and attachments.current.linux is not None
    linux = attachments.current.linux
    functions = [one for one in linux.recovered.symbols.functions() if one.size]
    is_traced = {one.address: bool(linux.core.ftrace.within(one.address, one.address + one.size)) for one in functions}
    untraced = [address for address, has_site in is_traced.items() if not has_site]
    traced = [address for address, has_site in is_traced.items() if has_site]
    others = map(linux.text.function, traced[:: 4 * EVERY])
    amid = [[*function.own][len(function.own) // 2] for function in others if function is not None and function.own]
    cfgs, found = CfgCache(linux.isa, linux.text), dict[int, Plan]()
    for address in [*untraced[::EVERY], *amid]:
        try:
            found[address] = plan(PlanRequest(address), cfgs, LIMITS)
        except Refused:
            continue
    return found


class KeepPlans(gdb.Command):
    """Keep the plans of some functions."""

    def __init__(self) -> None:
        super().__init__("keep-plans", gdb.COMMAND_USER)

    def invoke(self, _: str, from_tty: bool) -> None:
        made = fresh()
        kept().store(made.values())
        print(json.dumps({"made": len(made)}))


class ComparePlans(gdb.Command):
    """Compare plans with those that are kept."""

    def __init__(self) -> None:
        super().__init__("compare-plans", gdb.COMMAND_USER)

    def invoke(self, _: str, from_tty: bool) -> None:
        made = fresh()
        known = {one.address: one for one in kept().load(frozenset(made))}
        others = [f"{at:#x}: {known[at]}, not {made[at]}" for at in known if known[at] != made[at]]
        tiers = sorted({one.tier.value for one in known.values()})
        print(json.dumps({"compared": len(known), "made": len(made), "others": others[:4], "tiers": tiers}))


KeepPlans()
ComparePlans()
