"""Attach points: what one says by its text, `kprobe:MOD:vfs_*`, `u:/bin/bash:readline`, `interval:s:5`."""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.handlers.script import tree
from gdb_optprobe.handlers.script.place import Place, wrong

SHORT = {
    "k": "kprobe", "kr": "kretprobe", "u": "uprobe", "ur": "uretprobe", "t": "tracepoint", "rt": "rawtracepoint",
    "p": "profile", "i": "interval", "s": "software", "h": "hardware", "U": "usdt", "w": "watchpoint",
    "aw": "asyncwatchpoint", "it": "iter", "f": "fentry", "fr": "fexit", "kfunc": "fentry", "kretfunc": "fexit",
}  # fmt: skip
"""Other names of providers."""
UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "hz": 0}
"""Units of time, in nanoseconds; hz counts in a second."""
SOFTWARE = {
    "faults": "page-faults", "cs": "context-switches", "cpu": "cpu-clock",
}  # fmt: skip
"""Other names of events of software."""
PERIODS = {
    "page-faults": 100, "context-switches": 1000, "minor-faults": 100, "cpu-clock": 10**6, "task-clock": 10**6,
}  # fmt: skip
"""How many events of software one hit is where nothing is said; else each."""
_REFUSED = {
    "hardware": "an emulated machine counts no such events",
    "usdt": "its semaphore is a word of the program that would be written",
    "watchpoint": "it needs debug registers of the guest",
    "asyncwatchpoint": "it needs debug registers of the guest",
    "iter": "the guest's own iterators are not run",
    "self": "signals to this program are GDB's",
}
_WILDCARDS = "*?["
_FUNCTIONS = ("kprobe", "kretprobe", "fentry", "fexit")
_PROGRAMS = ("uprobe", "uretprobe")
_PARTS = {
    "BEGIN": "BEGIN", "END": "END", "tracepoint": "tracepoint:SUBSYSTEM:EVENT", "rawtracepoint": "rawtracepoint:EVENT",
    "profile": "profile:hz:99", "interval": "interval:s:1", "software": "software:EVENT:COUNT",
    **{name: f"{name}:FUNCTION" for name in _FUNCTIONS}, **{name: f"{name}:FILE:FUNCTION" for name in _PROGRAMS},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AttachPoint:
    """provider: its long name. target: the module, the file, the subsystem, the event of software, the unit of time.

    name:   the function or event, with wildcards; or the number of units of time, of events of software.
    offset: behind the function's entry.
    """

    where: Place
    provider: str
    target: str = ""
    name: str = ""
    offset: int = 0

    @property
    def period(self) -> int:
        """Return the nanoseconds between two times of an interval or a profile."""
        return period(self.target, int(self.name))

    @property
    def has_wildcard(self) -> bool:
        return any(sign in self.target + self.name for sign in _WILDCARDS)

    def __str__(self) -> str:
        offset = f"+{self.offset}" if self.offset else ""
        return ":".join(part for part in (self.provider, self.target, self.name) if part) + offset


def period(unit: str, count: int) -> int:
    """Return the nanoseconds that a number of units of time is; of hz, between two of them."""
    return 10**9 // count if unit == "hz" else count * UNITS[unit]


def attach_point(point: tree.Point) -> AttachPoint:
    """Return what an attach point says. Raises OptprobeError, pointing."""
    parts = _parts(point.text)
    provider = SHORT.get(parts[0], parts[0])
    if provider in _REFUSED:
        raise wrong(f"{provider} probes are not supported: {_REFUSED[provider]}", point.where)
    if provider not in _PARTS:
        raise wrong(f"Invalid probe type: {parts[0]}", point.where, "kprobe, kretprobe, tracepoint, uprobe, …")
    count, wanted = len(parts) - 1, _PARTS[provider]
    allowed = {
        "BEGIN": (0,), "END": (0,), "rawtracepoint": (1,), "software": (1, 2),
        **dict.fromkeys(_FUNCTIONS, (1, 2)), **dict.fromkeys(_PROGRAMS, (2, 3)),
    }.get(provider, (2,))  # fmt: skip
    if provider in ("BEGIN", "END") and parts[1:] == ["*"]:
        count, parts = 0, parts[:1]
    if provider == "tracepoint" and count == 1 and set(parts[1]) & {*_WILDCARDS}:
        count, parts = 2, [provider, "*", parts[1]]  # an event of any subsystem
    if count not in allowed:
        numbers = " or ".join(map(str, allowed))
        raise wrong(f"{provider} probe type requires {numbers} arguments, found {count}", point.where, wanted)
    if not all(parts[1:]):
        raise wrong(f"an empty part in '{point.text}'", point.where, wanted)
    if provider in _FUNCTIONS or provider in _PROGRAMS:
        return _function(provider, parts, point.where)
    target, name = (parts[1] if count == 2 else "", parts[-1]) if count else ("", "")
    if provider == "software":
        target = SOFTWARE.get(parts[1], parts[1])
        name = parts[2] if count == 2 else str(PERIODS.get(target, 1))
        name = str(_number(name, "software count should be a positive integer", point.where))
    if provider in ("interval", "profile"):
        if target not in UNITS:
            raise wrong(f"{target} is not an accepted unit of time", point.where, "s, ms, us or hz")
        name = str(_number(name, f"{provider} frequency should be a positive integer", point.where))
    return AttachPoint(point.where, provider, target, name)


def _function(provider: str, parts: list[str], where: Place) -> AttachPoint:
    target, name = parts[1] if len(parts) > 2 else "", parts[-1]
    function, plus, offset = name.partition("+")
    if not plus:
        return AttachPoint(where, provider, target, name)
    if provider not in ("kprobe", "uprobe"):
        raise wrong("Offset not allowed", where)
    return AttachPoint(where, provider, target, function, _number(offset, "Invalid offset", where, 0))


def _number(text: str, message: str, where: Place, least: int = 1) -> int:
    try:
        value = int(text, 0) if len(text) < 20 else -1
    except ValueError:
        value = -1
    if value < least:
        raise wrong(message, where)
    return value


def _parts(text: str) -> list[str]:
    """Return what the colons outside quotes separate."""
    found, quoted = [""], False
    for character in text:
        if character == '"':
            quoted = not quoted
        elif character == ":" and not quoted:
            found.append("")
        else:
            found[-1] += character
    return found
