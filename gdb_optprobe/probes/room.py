"""Memory for a probe's results. A refusal names the sizes that would fit."""

from __future__ import annotations

from collections.abc import Callable

from gdb_optprobe.detours.refusal import Reason, Refusal, Refused
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.probe import Probe


def reserve(probe: Probe, optimizer: Optimizer, action: Callable[[], object]) -> None:
    """Have `action` reserve it. Raises Refused, with what would fit."""
    try:
        action()
    except Refused as refused:
        if refused.reason.code != Refusal.ARENA_FULL.code:
            raise
        needed, free = probe.handler.size, optimizer.find_arena().data.largest
        if needed <= free:
            raise
        text = f"{refused.reason.text}: what the actions gather takes {needed} bytes, and {free} are free"
        smaller = probe.handler.fitting(free)
        hint = f"this fits: {', '.join(smaller.sizes)}" if smaller is not None else refused.reason.hint
        raise Refused(Reason(refused.reason.code, text, hint)) from None
