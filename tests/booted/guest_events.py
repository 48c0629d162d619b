"""Sourced into GDB by tests: `guest-event-hits` prints the hits of the guest's own kprobe events, as JSON.

They are read from the guest's memory while it is stopped, so that ours are read at the same instant: reading
kprobe_profile in the guest would itself call what is being counted. kernel/trace/trace_kprobe.c, struct trace_kprobe:
`nhit` is one counter for each CPU; dyn_event_list (trace_dynevent.c) links all events by their first member.
"""

from __future__ import annotations

import json

import gdb

from gdb_optprobe.debugger.attach import attachments

MOST = 10_000


def hits() -> dict[str, int]:
    """Hits by `symbol+offset` of every kprobe event that is defined now."""
    assert attachments.current is not None
    linux = attachments.current.linux
    assert linux is not None
    kernel = linux.kernel
    head = kernel.address("dyn_event_list")
    cpus = kernel.address("__per_cpu_offset")
    count = len(attachments.current.machine.vcpus())
    found: dict[str, int] = {}
    entry = kernel.word(head)
    for _ in range(MOST):
        if entry == head:
            break
        counters = kernel.word(entry + kernel.offset("trace_kprobe", "nhit"))
        place = kernel.word(entry + kernel.offset("trace_kprobe", "rp.kp.addr"))
        total = sum(kernel.word(counters + kernel.word(cpus + 8 * cpu) & (1 << 64) - 1) for cpu in range(count))
        found[str(kernel.symbols.at(place))] = total
        entry = kernel.word(entry)
    return found


class GuestEventHits(gdb.Command):
    """Print the hits of the guest's own kprobe events."""

    def __init__(self) -> None:
        super().__init__("guest-event-hits", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        gdb.write(json.dumps(hits()) + "\n")


GuestEventHits()
