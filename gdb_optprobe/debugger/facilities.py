"""The text of `optprobe doctor`."""

from __future__ import annotations

import textwrap

from gdb_optprobe.debugger.table import WIDTH
from gdb_optprobe.probes.views import DoctorView, GuestView, ReasonView

_NAMES = {
    "current_thread": "current thread",
    "task_list": "task list",
    "code_memory": "code memory",
    "data_memory": "data memory",
    "ftrace_records": "ftrace records",
    "trap_tier": "trap tier",
    "user_programs": "user programs",
    "gdb": "this GDB",
    "qemu": "this QEMU",
}
_NAME_WIDTH = 16


def lines(found: DoctorView) -> list[str]:
    """Return the text: versions and the guest in one line, then each facility. A reason is spelled out once."""
    told, first = [_headline(found)], dict[ReasonView, str]()
    for facility in found.facilities:
        name = _NAMES.get(facility.name, facility.name)
        if facility.reason is None:
            told += _wrapped(name, f"works: {facility.detail}")
        elif facility.reason in first:
            told += _wrapped(name, f"refused: as {first[facility.reason]} ({facility.reason.code})")
        else:
            first[facility.reason] = name
            told += _refused(name, facility.reason)
    return told


def _headline(found: DoctorView) -> str:
    qemu = f"QEMU {found.qemu}" if found.qemu else "a target without a QEMU version"
    return f"{versions(found)}, {qemu}; {_guest(found.guest)}"


def versions(found: DoctorView) -> str:
    """Return the versions on this side of the connection."""
    return f"optprobe {found.version}, GDB {found.gdb} with Python {found.python}"


def _guest(guest: GuestView) -> str:
    if not guest.architecture:
        return "no guest"
    vcpus = "" if guest.vcpus is None else f", {guest.vcpus} vCPU{'s'[: guest.vcpus != 1]}"
    return f"{guest.architecture}{vcpus}, {guest.banner or 'no Linux kernel that is known'}"


def _refused(name: str, reason: ReasonView) -> list[str]:
    told = _wrapped(name, f"refused: {reason.text} ({reason.code})")
    return told + (_wrapped("", f"HINT: {reason.hint}") if reason.hint else [])


def _wrapped(name: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"{name:<{_NAME_WIDTH}}",
        subsequent_indent=" " * (_NAME_WIDTH + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
