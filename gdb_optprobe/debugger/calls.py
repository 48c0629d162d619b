"""The text for calls that a return probe has seen."""

from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.probes.views import CallsView, OutView

_MOST = 8
"""How many threads of one name are listed by number."""


def accounted(calls: CallsView) -> str:
    """Return how many calls there were, and how many of them ended in which way."""
    return (
        f"calls: {calls.entries} = {calls.returns} returned + {calls.active} under way"
        f" + {calls.missed} missed + {calls.dropped} never returned"
    )


def threads_of(out: Sequence[OutView]) -> str:
    """Return the threads that make these calls, by name."""
    threads: dict[str, list[int]] = {}
    others: dict[str, int] = {}
    for one in out:
        if one.pid is not None:
            threads.setdefault(one.comm, []).append(one.pid)
        else:
            other = one.who or "a thread that cannot be identified now"
            others[other] = others.get(other, 0) + 1
    listed = [f"{name} ({_numbers(pids)})" for name, pids in sorted(threads.items())]
    listed += [other if count == 1 else f"{count} of {other}" for other, count in others.items()]
    return ", ".join(listed)


def _numbers(pids: Sequence[int]) -> str:
    """Return numbers of threads as text. A thread that is in several calls is listed once."""
    once = sorted(set(pids))
    listed = ", ".join(map(str, once[:_MOST]))
    return listed if len(once) <= _MOST else f"{listed} and {len(once) - _MOST} more"
