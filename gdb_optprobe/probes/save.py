"""The set of probes as commands that make it again in a fresh boot of the same kernel, wherever that is loaded.

A location stays as it was typed where it names what it means; addresses become symbol+offset. A probe in a module waits
for it there: `-pending`.

`source` executes any command in a file, also a shell's, so every line is made of our own words and of
fields that are checked (probes/fields.py). A symbol of the guest is used as a location only after that check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields as fields_of
from dataclasses import replace

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.scope import OURS
from gdb_optprobe.guest_text import one_line
from gdb_optprobe.probes import fields
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.target import Target
from gdb_optprobe.probes.views import SavedProbes

HEAD = "# Probes of optprobe: `source` this file where `optprobe` is loaded and the guest has booted."
SESSION_SETTINGS = ("arena", "on_exit", "exit_on_error", "guardian")
"""Settings that are not the probes' but the session's, or hold addresses of this boot."""
REFUSED = "# probe "
"""How a comment begins for a probe with a field that cannot be written."""
ANCHOR = "_stext"
# `*vfs_read+5`: no number, no `$name` alone
_NAMED = re.compile(r"\*\s*\(?\s*[A-Za-z_][\w.]*\s*(?:[-+]\s*\w+\s*)?\)?", re.ASCII)


CanProbe = Callable[[Spec, int], bool]
"""Whether an address can have a probe of this kind."""
ComesBack = Callable[[Probe], bool]
"""Whether its glob, added again, has this probe."""


def commands(
    probes: Sequence[Probe], settings: Settings, target: Target, takes: CanProbe, comes_back: ComesBack
) -> SavedProbes:
    """Return the file for `probes`, in order of their numbers."""
    lines = [HEAD, *_settings(settings)]
    left_out: list[int] = []
    # Those of one `add` have one and the same spec.
    for some in _by_spec(probes):
        try:
            lines += _commands(some, target, takes, comes_back)
        except NotSaved as why:
            left_out += [probe.number for probe in some]
            lines += [comment(line) for line in why.lines]
    return SavedProbes(tuple(lines), len(probes) - len(left_out), tuple(left_out))


def _by_spec(probes: Iterable[Probe]) -> Iterable[list[Probe]]:
    """Return the probes of each spec together, in the order of the first of them."""
    found: dict[int, list[Probe]] = {}
    for probe in probes:
        found.setdefault(id(probe.spec), []).append(probe)
    return found.values()


class NotSaved(Exception):
    """Probes that no command can add again. lines: the comments about them."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__()
        self.lines = lines


def _commands(some: Sequence[Probe], target: Target, takes: CanProbe, comes_back: ComesBack) -> list[str]:
    """Return the commands for probes of one spec. Raises NotSaved."""
    spec = some[0].spec
    try:
        if spec.has_python_handler:
            raise NotSaved(
                [f"{add_command(spec, _location(probe, target))}: its handlers are Python's" for probe in some]
            )
        if spec.program is not None:
            raise NotSaved([f"{add_command(spec, _location(probe, target))}: it is a script's" for probe in some])
        if any(probe.home or not probe.is_in_kernel for probe in some):
            return [line for probe in some for line in _add_lines(probe, _location(probe, target), pending=True)]
        if _is_whole(some, target, takes, comes_back):
            return _add_lines(some[0], spec.location if len(some) > 1 else _as_typed(some[0], target), spec.glob)
        return [line for probe in some for line in _add_lines(probe, _location(probe, target))]
    except OptprobeError as wrong:
        raise NotSaved([f"probe {probe.number}: {wrong.message}" for probe in some]) from None


def comment(text: str) -> str:
    """Return a line that does nothing: the next one is no part of it."""
    return f"# {one_line(text)}".rstrip("\\ ")


def add_command(spec: Spec, location: str, glob: bool = False) -> str:
    """Return the command for a probe of `spec` at `location`. Raises OptprobeError where it cannot be written."""
    location = fields.tidy(location)
    fields.checked(spec, location)
    words = ["optprobe add", location]
    words += ["-glob"] if glob else []
    words += ["-user"] if spec.in_program else []
    words += ["-file", _quoted(spec.file)] if spec.file else []
    words += ["-pid", str(spec.pid)] if spec.pid else []
    words += ["-return"] if spec.is_return and spec.event is None else []
    words += ["-maxactive", str(spec.maxactive)] if spec.maxactive else []
    words += ["-overwrite"] if spec.overwrite else []
    words += ["-pending"] if spec.pending and not spec.in_program else []
    words += ["-name", spec.name] if spec.name else []
    words += ["-tier", spec.tier] if spec.tier else []
    words += [entry_clause(spec)] if entry_clause(spec) else []
    words += _clause(spec.condition, spec.actions if spec.actions != ("count",) else ())
    line = " ".join(words)
    if line.endswith("\\"):
        raise OptprobeError("a command that ends with a backslash continues in the next line")
    return line


def entry_clause(spec: Spec) -> str:
    """Return the part of a return probe's command that is about the entry; empty where there is none."""
    condition = spec.entry_condition.text if spec.entry_condition is not None else ""
    words = _clause(condition, tuple(action.text for action in spec.entry_actions))
    return " ".join(["entry", *words]) if words else ""


def _clause(condition: str, actions: Sequence[str]) -> list[str]:
    words = ["if", fields.tidy(condition)] if condition.strip() else []
    return [*words, "do", ", ".join(map(fields.tidy, actions))] if actions else words


def with_variables(lines: Sequence[str], value: Callable[[str], int | None]) -> tuple[str, ...]:
    """Return `lines`, and before the probes the values of the debugger's variables in them, without our own."""
    text = "\n".join(line for line in lines if line.startswith("optprobe add"))
    names = [name for name in dict.fromkeys(re.findall(r"\$([A-Za-z_]\w*)", text, re.ASCII)) if name not in OURS]
    values = ((name, value(name)) for name in names)
    return (lines[0], *(f"set ${name} = {number}" for name, number in values if number is not None), *lines[1:])


def _add_lines(probe: Probe, location: str, glob: bool = False, pending: bool = False) -> list[str]:
    lines = [add_command(replace(probe.spec, pending=pending or probe.spec.pending), location, glob)]
    return lines if probe.enabled else [*lines, "optprobe disable $optprobe"]


def _settings(settings: Settings) -> Iterator[str]:
    """Yield those that shape probes, where they are not what they are by default."""
    for field in fields_of(Settings):
        value = getattr(settings, field.name)
        if field.name in SESSION_SETTINGS or value == field.default:
            continue
        text = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
        yield f"set optprobe {field.name.replace('_', '-')} {text}"
    if settings.arena is not None:
        yield f"# set optprobe arena {settings.arena}: addresses of that boot"


def _is_whole(probes: Sequence[Probe], target: Target, takes: CanProbe, comes_back: ComesBack) -> bool:
    """Return whether one `add` makes all of `probes` and no other, enabled as they are."""
    if len(probes) == 1 and not probes[0].spec.glob:
        return True
    if not all(probe.enabled for probe in probes):
        return False
    spec = probes[0].spec
    try:
        found = set(target.debugger.resolve(spec.location, spec.glob))
    except OptprobeError:
        return False
    there = {probe.address for probe in probes}
    if not there <= found or (spec.glob and not all(map(comes_back, probes))):
        return False
    # Where one could be and is not, it was deleted.
    return not any(takes(spec, address) for address in found - there)


def _as_typed(probe: Probe, target: Target) -> str:
    """Return the location as typed, where it has the same meaning in another boot."""
    typed = probe.spec.location.strip()
    if typed.startswith("*"):
        return typed if _NAMED.fullmatch(typed) else _location(probe, target)
    try:
        single = len(target.debugger.resolve(typed, False)) == 1
    except OptprobeError:
        single = False
    return typed if single else _location(probe, target)


def _location(probe: Probe, target: Target) -> str:
    """Return symbol+offset, if the symbol is unique; else an offset from the kernel's start."""
    if probe.home or not probe.is_in_kernel:
        return probe.home or probe.spec.location
    if (event := probe.spec.event) is not None:
        return str(target.guest.event_at(event, probe.address))
    name = target.guest.symbol(probe.address)
    # The guest's: what is no name would be evaluated.
    if fields.is_function(name) and _resolved(name, target) == (probe.address,):
        return name
    start = _resolved(f"*{ANCHOR}+0", target)
    return f"*{ANCHOR}+{probe.address - start[0]:#x}" if start else f"*{probe.address:#x}"


def _resolved(place: str, target: Target) -> tuple[int, ...]:
    try:
        return target.debugger.resolve(place, False)
    except OptprobeError:
        return ()


def _quoted(path: str) -> str:
    """Return a path as an option takes it. Raises OptprobeError."""
    if re.fullmatch(r"[^\s\"'()\[\]{}-][^\s\"'()\[\]{}]*", path):
        return path
    quote = next((quote for quote in "\"'" if quote not in path and "\\" not in path), "")
    if not quote:
        raise OptprobeError(f"the path '{one_line(path)}' cannot be quoted")
    return f"{quote}{path}{quote}"
