"""The Python API, inside GDB: `kprobe("vfs_read", pre_handler=…)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gdb_optprobe.debugger.attach import current_session
from gdb_optprobe.handlers.source import Fragment, legible, split
from gdb_optprobe.interrupts import held
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Handler, Kind, Spec
from gdb_optprobe.probes.views import ProbeView


class Handle:
    """One probe. number: as `optprobe list` has it."""

    def __init__(self, session: Session, number: int) -> None:
        self._session = session
        self.number = number

    @property
    def view(self) -> ProbeView:
        """Return everything that is known of the probe now."""
        return self._session.views([self.number])[0]

    @property
    def hits(self) -> int:
        """Return how often its condition was true."""
        return self._session.hits(self.number)

    @property
    def missed(self) -> int:
        """Return how many hits or calls found no room and were not counted."""
        return self._session.missed(self.number)

    @property
    def tier(self) -> str:
        """Return its tier: breakpoint, boosted, emulated, trapped or optimized; "" while it is in no tier."""
        return self.view.tier

    @property
    def address(self) -> int:
        """Return the probed address."""
        return self.view.address

    @held()
    def enable(self) -> None:
        """Let it count again."""
        self._session.enable([self.number])

    @held()
    def disable(self) -> None:
        """Take it out of the guest's code. It keeps its number and what it has counted."""
        self._session.disable([self.number])

    @held()
    def delete(self) -> None:
        """Remove it for good."""
        self._session.delete([self.number])


@held()
def kprobe(
    location: str,
    *,
    when: str = "",
    do: str | Sequence[str] = "count",
    pre_handler: Handler | None = None,
    post_handler: Handler | None = None,
    tier: str = "",
    name: str = "",
    pending: bool = False,
) -> Handle:
    """Add a probe and return its handle. Several addresses or locations make several probes; return the first's handle.

    location: as typed after `optprobe add`; commas separate several.
    when, do: a condition in C and actions, as typed after `if` and `do`. Without Python handlers they run in the guest.
    pre_handler, post_handler: called with the `Hit` where the condition is true, while the guest is stopped before, or
             after, the instruction.
    pending: wait for a function of a module that is not loaded yet.
    Raises OptprobeError.
    """
    session = current_session()
    actions = tuple(part.text for part in split(Fragment.whole(do))) if isinstance(do, str) else tuple(do)
    spec = Spec(
        location,
        condition=when,
        actions=actions,
        tier=tier,
        name=name,
        pending=pending,
        pre_handler=pre_handler,
        post_handler=post_handler,
    )
    return Handle(session, session.add(*_each(spec))[0].number)


@held()
def kretprobe(
    location: str,
    handler: Handler | None = None,
    *,
    when: str = "",
    do: str | Sequence[str] = "count",
    entry_when: str = "",
    save: Mapping[str, str] | None = None,
    entry_handler: Handler | None = None,
    maxactive: int = 0,
    tier: str = "",
    name: str = "",
) -> Handle:
    """Probe the returns of a function and return the probe's handle.

    when, do:   as for kprobe, evaluated after the return: `$retval`, `$elapsed`, `$saved.n`.
    entry_when: a condition at the function's entry; calls for which it is false are not probed.
    save:       expressions evaluated at the entry, by the name n of `$saved.n`.
    handler:    called with the `ReturnHit` where `when` is true, while the guest is stopped after the return.
    entry_handler: called with the `EntryHit` while the guest is stopped at the entry. A true result skips the call.
                `hit.data` is passed on to the ReturnHit of the same call.
    maxactive:  how many active calls are probed at once; 0 for no limit.
    Raises OptprobeError.
    """
    session = current_session()
    spec = Spec(
        location,
        kind=Kind.KRETPROBE,
        condition=when,
        actions=tuple(part.text for part in split(Fragment.whole(do))) if isinstance(do, str) else tuple(do),
        tier=tier,
        name=name,
        pre_handler=entry_handler,
        return_handler=handler,
        entry_condition=Fragment.whole(entry_when) if entry_when.strip() else None,
        entry_actions=tuple(Fragment.whole(f"save {each} = {value}") for each, value in (save or {}).items()),
        maxactive=maxactive,
    )
    return Handle(session, session.add(*_each(spec))[0].number)


def _each(spec: Spec) -> tuple[Spec, ...]:
    """Return a spec for each of the locations that commas separate."""
    return tuple(replace(spec, location=part.text) for part in split(Fragment.whole(legible(spec.location))))
