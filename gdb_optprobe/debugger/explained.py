"""The text of `optprobe explain`."""

from __future__ import annotations

from gdb_optprobe.debugger import words
from gdb_optprobe.debugger.table import indented
from gdb_optprobe.probes.views import ExplainView, ReasonView

BEST = "optimized"
WAITS = "PENDING"
STOPS = {"breakpoint": "twice", "boosted": "once", "emulated": "once"}


def lines(view: ExplainView) -> list[str]:
    """Return the text for one address."""
    where = words.place(view.address, view.symbol)
    cost = f"; a hit costs {words.counted(view.instructions, 'instruction')}" if view.instructions else ""
    if view.tier == BEST:
        waits = "; waits until no thread is inside them" if view.waits else ""
        head = view.displaced[0].address if view.displaced else view.address
        place = f" at {head:#x}" if head != view.address else ""
        verdict = f"{where}: would be optimized, {view.patch_size} bytes patched{place}{waits}{cost}"
    elif view.tier:
        stops = f"; a hit stops the guest {STOPS[view.tier]}" if view.tier in STOPS else f"{cost} and a trap"
        verdict = f"{where}: would be {view.tier}{stops}"
    elif view.reason is not None and view.reason.code == WAITS:
        verdict = "would wait for its module"
    else:
        verdict = f"{where}: cannot be probed"
    lines = [verdict]
    for tiers, reason in _refusals(view):
        lines += indented(f"{tiers}{reason.text} ({reason.code})")
        if reason.hint:
            lines += indented(f"HINT: {reason.hint}")
    if view.nearest is not None:
        near = words.place(view.nearest, view.nearest_symbol)
        lines += indented(f"the nearest address that would be optimized: {near}")
    if view.note:
        lines += indented(f"NOTE: {view.note}")
    return lines


def _refusals(view: ExplainView) -> list[tuple[str, ReasonView]]:
    """Return each reason once, with the tiers that it forbids; without tiers where it forbids all."""
    if not view.tier or not view.refused:
        return [("", view.reason)] if view.reason else []
    tiers: dict[ReasonView, list[str]] = {}
    for refused in view.refused:
        tiers.setdefault(ReasonView(refused.code, refused.text, refused.hint), []).append(refused.tier)
    return [(f"not {' or '.join(names)}: ", reason) for reason, names in tiers.items()]
