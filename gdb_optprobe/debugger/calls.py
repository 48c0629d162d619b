"""Calls that a return probe saw entered, in words."""

from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.probes.views import CallsView, OutView

_TOLD = 8
"""Threads of one name that are told by number."""


def accounted(calls: CallsView) -> str:
    """Every call is one of these."""
    return (
        f"calls: {calls.entries} = {calls.returns} returned + {calls.active} under way"
        f" + {calls.missed} missed + {calls.dropped} never returned"
    )


def whose(out: Sequence[OutView]) -> str:
    """The threads that make these calls, by name."""
    threads: dict[str, list[int]] = {}
    others: dict[str, int] = {}
    for one in out:
        if one.pid is not None:
            threads.setdefault(one.comm, []).append(one.pid)
        else:
            who = one.who or "a thread that cannot be told now"
            others[who] = others.get(who, 0) + 1
    told = [f"{name} ({_numbers(pids)})" for name, pids in sorted(threads.items())]
    told += [who if count == 1 else f"{count} of {who}" for who, count in others.items()]
    return ", ".join(told)


def _numbers(pids: Sequence[int]) -> str:
    """A thread that is in several calls is told once."""
    once = sorted(set(pids))
    told = ", ".join(map(str, once[:_TOLD]))
    return told if len(once) <= _TOLD else f"{told} and {len(once) - _TOLD} more"
