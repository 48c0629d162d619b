"""The name of an event of the kernel's, as a location has it: `tracepoint:SYSTEM:EVENT`, `rawtracepoint:EVENT`.

    tracepoint:syscalls:sys_enter_read      the entry of the system call's function
    tracepoint:syscalls:sys_exit_read       its return
    tracepoint:raw_syscalls:sys_enter       the entry of the function that calls all of them
    tracepoint:sched:sched_switch           a tracepoint, on which a handler is registered
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = r"[\w*?\[\]!-]+"
_EVENT = re.compile(
    rf"tracepoint:({_NAME}):({_NAME})|rawtracepoint:(?:({_NAME}):)?({_NAME})", re.ASCII
)
ENTER, EXIT = "sys_enter", "sys_exit"
SYSCALLS, RAW_SYSCALLS = "syscalls", "raw_syscalls"


@dataclass(frozen=True, slots=True)
class EventName:
    """system: "" where it is not named. is_raw: its arguments are asked for, not its fields."""

    system: str
    event: str
    is_raw: bool = False

    @property
    def is_syscall(self) -> bool:
        """Whether the functions of system calls serve it, and no tracepoint."""
        return not self.is_raw and self.system in (SYSCALLS, RAW_SYSCALLS)

    @property
    def returns(self) -> bool:
        """Whether it occurs where a function returns."""
        return self.is_syscall and self.event.startswith(EXIT)

    @property
    def is_glob(self) -> bool:
        return any(character in "*?[" for character in self.system + self.event)

    @property
    def is_several_handlers(self) -> bool:
        """Whether it may be several tracepoints, each of which has a handler of its own."""
        return self.is_glob and not self.is_syscall

    @property
    def raw(self) -> EventName:
        """Return the name of its arguments, where it is one event."""
        return EventName("", self.event, is_raw=True)

    @property
    def syscall(self) -> str:
        """Return NAME of `sys_enter_NAME`; "" where it is of all system calls."""
        return self.event.removeprefix(ENTER).removeprefix(EXIT).removeprefix("_")

    def __str__(self) -> str:
        kind = "rawtracepoint" if self.is_raw else "tracepoint"
        return ":".join(filter(None, (kind, self.system, self.event)))


def parse(location: str) -> EventName | None:
    """Return the event that a location names; None where it names none."""
    found = _EVENT.fullmatch(location.strip())
    if found is None:
        return None
    system, event, raw_system, raw_event = found.groups()
    return EventName(raw_system or "", raw_event, True) if raw_event else EventName(system, event)
