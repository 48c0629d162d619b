"""Probes on events of the kernel's: where they go, and what names mean there."""

from __future__ import annotations

import re

from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.guest.linux.event_name import EventName
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.probes.spec import Kind, Spec

_FIELD = re.compile(r"\bargs\s*(?:->|\.)")


def kind_of(location: str) -> Kind | None:
    """Return the kind of the probes that serve the event that a location names; None where it names no event."""
    event = Spec(location).event
    if event is None:
        return None
    if not event.is_syscall:
        return Kind.TRACEPOINT
    return Kind.KRETPROBE if event.returns else Kind.KPROBE


def handled(spec: Spec) -> EventName | None:
    """Return the event that a handler is registered for; None where the spec needs none.

    One that has no use for fields has the arguments alone, which cost nothing.
    """
    event = spec.event
    if event is None or event.is_syscall:
        return None
    # What a script compiled has no text that names fields.
    has_fields = spec.program is not None or any(_FIELD.search(part) for part in (spec.condition, *spec.actions))
    return event if has_fields and not event.is_raw else event.raw


def names_at(spec: Spec, address: int, guest: Guest) -> NamesAt:
    """Return what names mean at `address` in a probe of `spec`. Raises OptprobeError."""
    event = spec.event
    return guest.names_at(address) if event is None else guest.event_names_at(event, address)


def names_at_return(spec: Spec, address: int, guest: Guest) -> NamesAt | None:
    """Return the same after the return of the function entered at `address`; None for no entry."""
    event = spec.event
    return guest.names_at_return(address) if event is None else guest.event_names_at(event, address, returned=True)
