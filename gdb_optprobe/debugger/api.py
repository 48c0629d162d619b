"""The Python API, inside GDB: `kprobe("vfs_read", pre_handler=…)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gdb_optprobe.debugger.attach import current_session
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.source import Fragment, legible, split
from gdb_optprobe.interrupts import held
from gdb_optprobe.maps import aggregate
from gdb_optprobe.maps.aggregate import Linear, Powers
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Handler, Kind, Spec
from gdb_optprobe.probes.views import ObjectView, ProbeView, RecordView


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
    def maps(self) -> Mapping[str, Any]:
        """Return what its actions gathered, by action as it was typed.

        A number, None where there was no value, or of a histogram a tuple of buckets (low, high, count) that are not
        empty. With `by` a mapping from the key to that; several keys are a tuple.
        """
        return {each.action: _gathered(each) for each in self._report().objects}

    @property
    def records(self) -> Sequence[RecordView]:
        """Return what `record`, `print` and `stack` kept, the oldest first: cpu, time, values, text, stack.

        since_boot: the time in nanoseconds, as the kernel's log has it, or None. lost_before, lost_after: how many were
        lost there.
        """
        return self._report().records

    def value(self, action: str, *key: float | str) -> int:
        """Return what an action gathered: a number, or of a histogram how many values it has.

        action: as it was typed, or its first characters where no other action begins with them.
        key:    of an action with `by`, each of its keys. What was not seen has the count and the sum 0.
        Raises OptprobeError, also where a `min`, `max` or `avg` had no value yet.
        """
        report = self._report()
        if action == "count" and not key and "count" in report.actions:
            return report.hits
        found, words = _words(report, action, key)
        if isinstance(found.aggregate, Powers | Linear):
            return sum(words)
        number = aggregate.value(found.aggregate, words)
        if not isinstance(number, int):
            raise _no_value(report, found)
        return number

    def quantile(self, action: str, percent: float, *key: float | str) -> int:
        """Return a number that at least `percent` of a histogram's values are not above: the end of their bucket.

        action, key: as of `value`. Raises OptprobeError.
        """
        report = self._report()
        found, words = _words(report, action, key)
        if not isinstance(found.aggregate, Powers | Linear):
            raise OptprobeError(f"'{found.action}' is no histogram", "hist(EXPR), lhist(EXPR, …) and latency are")
        if not 0 < percent <= 100:
            raise OptprobeError(f"{percent:g} is no percentage above 0 and up to 100", "50 is the median")
        bucket = aggregate.quantile(aggregate.buckets(found.aggregate, words), percent)
        if bucket is None:
            raise _no_value(report, found)
        if bucket.high is None:
            what = f"{percent:g} % of the values of '{found.action}' reach beyond {bucket.low}, where it ends"
            raise OptprobeError(what, "a greater MAX")
        return bucket.high - 1

    def _report(self) -> ProbeView:
        """Return all that is known of the probe, with what its actions gathered."""
        return self._session.reports([self.number])[0]

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
    pending: wait for a function of a module that is not loaded yet, or of a kernel that has not started.
    Raises OptprobeError.
    """
    session = current_session(pending)
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


def _words(report: ProbeView, action: str, key: tuple[float | str, ...]) -> tuple[ObjectView, Sequence[int]]:
    """Return an action's result, and its words for a key."""
    same = [each for each in report.objects if each.action == action]
    found = same or [each for each in report.objects if each.action.startswith(action)]
    if len(found) != 1:
        actions = ", ".join(repr(each.action) for each in report.objects)
        what = f"{len(found) or 'none'} of the actions of probe {report.number} begin with '{action}'"
        raise OptprobeError(what, f"it has: {actions}" if actions else "it only counts: $optprobe_hits(N)")
    (one,) = found
    if len(key) != one.keys:
        takes = f"{one.keys} keys" if one.keys != 1 else "one key"
        raise OptprobeError(f"'{one.action}' takes {takes}, not {len(key)}", "optprobe report shows its keys")
    return one, next((row.words for row in one.rows if row.key == key), aggregate.initial(one.aggregate))


def _no_value(report: ProbeView, found: ObjectView) -> OptprobeError:
    return OptprobeError(f"'{found.action}' of probe {report.number} has no value yet", "optprobe report")


def _gathered(found: ObjectView) -> Any:
    if not found.keys:
        return aggregate.value(found.aggregate, found.rows[0].words) if found.rows else None
    values = {row.key: aggregate.value(found.aggregate, row.words) for row in found.rows}
    return values if found.keys > 1 else {key: value for (key,), value in values.items()}


def _each(spec: Spec) -> tuple[Spec, ...]:
    """Return a spec for each of the locations that commas separate."""
    return tuple(replace(spec, location=part.text) for part in split(Fragment.whole(legible(spec.location))))
