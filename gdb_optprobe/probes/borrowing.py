"""Have the guest's kernel lend memory before anything is planned: what was planned expires when the guest runs."""

from __future__ import annotations

from collections.abc import Iterable

from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.spec import Spec


def prepare(optimizer: Optimizer, wanted: Iterable[tuple[int, Spec]]) -> bool:
    """Borrow memory where there is no other and one of `wanted`, probes by their addresses, needs some.

    Return whether the guest has run for it. Why there is none nevertheless is what the probes' plans tell.
    """
    if not optimizer.memory.must_borrow():
        return False
    if not any(_needs_memory(optimizer, address, spec) for address, spec in wanted):
        return False
    optimizer.target.debugger.guard()
    try:
        optimizer.take_arena(borrow=True)
    except Refused:
        return True
    return True


def _needs_memory(optimizer: Optimizer, address: int, spec: Spec) -> bool:
    try:
        return spec.is_return or optimizer.plan(address, [spec]).tier not in (
            Tier.BREAKPOINT,
            Tier.EMULATED,
        )
    except Refused:
        return False
