"""Linux's own kprobe event, armed in a guest as it is to be measured: by a trap, by ftrace, or optimized."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .guest import GuestError

__all__ = ["FILTER", "LIST", "TRIGGER", "linux_event"]

TRACING = "/sys/kernel/tracing"
FOLDER = f"{TRACING}/events/optprobe_own/event"
EVENT = f"{FOLDER}/enable"
FILTER, TRIGGER = "filter", "trigger"
SWITCH = "/proc/sys/debug/kprobes-optimization"
LIST = "cat /sys/kernel/debug/kprobes/list"
# On ppc64le the kernel has a probe of its own there from boot.
BESIDES = "__kretprobe_trampoline"
# The kernel's optimizer works every 5 jiffies.
SECONDS = 20.0


@contextmanager
def linux_event(
    guest: Callable[[str], str],
    location: str,
    optimization: bool,
    tag: str,
    field: str = "",
    file: str = "",
    text: str = "",
    sort: str = "p",
) -> Iterator[None]:
    """Yield an event at `location` for the length of a `with` block; nothing else may be traced meanwhile.

    guest:        runs a command in it; see `Reads.guest`.
    optimization: whether Linux may optimize.
    tag:          what Linux's list is to say of it: FTRACE, OPTIMIZED, or nothing.
    field:        what a record of it holds, if anything.
    sort:         "p" for a kprobe, "r" for a kretprobe.
    file, text:   what is written to a file of the event's: its filter or its trigger.
    GuestError where Linux arms it differently.
    """
    _optimize(guest, optimization)
    guest(f"echo '{sort}:optprobe_own/event {location} {field}' > {TRACING}/kprobe_events")
    if file:
        guest(f"echo '{text}' > {FOLDER}/{file}")
    guest(f"echo 1 > {EVENT}")
    _wait_for(guest, tag)
    yield
    guest(f"echo 0 > {EVENT}")
    if file == TRIGGER:
        guest(f"echo '!{text}' > {FOLDER}/{file}")
    guest(f"echo > {TRACING}/kprobe_events; echo > {TRACING}/trace")
    _optimize(guest, True)


def _optimize(guest: Callable[[str], str], optimization: bool) -> None:
    """Let Linux optimize its probes or not. It has no switch where it never does."""
    guest(f"[ ! -e {SWITCH} ] || echo {int(optimization)} > {SWITCH}")


def _wait_for(guest: Callable[[str], str], tag: str) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        known = guest(f"{LIST}; sleep 0.1").splitlines()
        own = [line for line in known if BESIDES not in line]
        if own and all(f"[{tag}]" in line if tag else "[" not in line for line in own):
            return
        if time.monotonic() > deadline:
            raise GuestError(f"Linux did not arm its probe as [{tag}]: {' '.join(own)}")
