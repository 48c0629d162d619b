"""Keep the guest's function tracer off the sites where probes have put branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import ftrace_sites
from gdb_optprobe.guest.linux.ftrace_sites import DISABLED, FLAGS, State, is_in_use
from gdb_optprobe.guest.linux.loaded_text import LoadedText
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.guest.text import FtraceSite

MANY = 64
"""Sites of which the records are read and written in runs."""


class NoSuchRecord(OptprobeError):
    """The guest's tracer has no record of a site any more."""


class SiteTracer:
    """Implements probes.target.Tracer by the flags in the tracer's records (guest/linux/ftrace_sites.py).

    held: sites with a branch. _still_disabled: sites without one, while a tracer runs that has not counted them.
    """

    def __init__(self, text: LoadedText, memory: Memory) -> None:
        self._text, self._memory = text, memory
        self._held: set[int] = set()
        self._still_disabled: set[int] = set()

    def hold(self, site: FtraceSite) -> None:
        """Mark the site as disabled. Raises Refused when a tracer has come since it was planned."""
        record = self._record(site.address)
        self._still_disabled.discard(site.address)
        if not record.disabled:
            if record.in_use:
                raise Refused(Refusal.FTRACE_IN_USE.because(site=self._text.spell(site.address)))
            self._change(ftrace_sites.disable(record))
        self._held.add(site.address)

    def release(self, site: FtraceSite) -> None:
        """Give the site back; while a tracer runs it stays disabled, as the tracer has not counted it."""
        self.release_all([site.address])

    def hold_all(self, addresses: Sequence[int]) -> None:
        """Do as `hold` with the site at each, of the kernel's own text, in few writes: all or none."""
        states = self._text.ftrace.states(addresses)
        if len(states) < len(addresses):
            at = next(address for address in addresses if address not in states)
            raise NoSuchRecord(f"the tracer's record of {self._text.spell(at)} is gone")
        for address, (_, flags) in states.items():
            if is_in_use(flags):
                raise Refused(Refusal.FTRACE_IN_USE.because(site=self._text.spell(address)))
        self._set_disabled(states, True)
        self._still_disabled.difference_update(addresses)
        self._held.update(addresses)

    def release_all(self, addresses: Sequence[int]) -> None:
        """Do as `release` with the site at each, in few writes."""
        self._held.difference_update(addresses)
        self._still_disabled.update(addresses)
        self.give_back()

    def _set_disabled(self, states: Mapping[int, State], disabled: bool) -> None:
        """Set or clear the flag in these records, where it is not so."""
        changed = sorted(state for state in states.values() if bool(state[1] & DISABLED) != disabled)
        flags = [state[1] for state in changed]
        new = [each | DISABLED if disabled else each & ~DISABLED for each in flags]
        places = [(at + FLAGS, at + FLAGS + 8) for at, _ in changed]
        olds, news = ([each.to_bytes(8, "little") for each in words] for words in (flags, new))
        patch.exchange_in_runs(places, olds, news, self._memory)

    def forget(self, site: FtraceSite) -> None:
        self._held.discard(site.address)
        self._still_disabled.discard(site.address)

    def passed_over(self) -> tuple[int, ...]:
        if not (self._held or self._still_disabled) or not self._text.ftrace.tracing():
            return ()
        return tuple(sorted({*self._held, *self._still_disabled}))

    def give_back(self) -> None:
        """Enable the sites that are still disabled, as soon as no tracer runs."""
        if not self._still_disabled or self._text.ftrace.tracing():
            return
        disabled, self._still_disabled = self._still_disabled, set()
        if len(disabled) > MANY:
            states = self._text.ftrace.states(at for at in disabled if self._text.at(at) is None)
            self._set_disabled(states, False)
            disabled.difference_update(states)
        for address in sorted(disabled):
            try:
                record = self._record(address)
            except NoSuchRecord:
                # The module is about to be unloaded: the guest has dropped its records first.
                continue
            if record.disabled:
                self._change(ftrace_sites.enable(record))

    def _record(self, address: int) -> ftrace_sites.Record:
        record = self._text.ftrace_of(address).record(address)
        if record is None:
            raise NoSuchRecord(f"the tracer's record of {self._text.spell(address)} is gone")
        return record

    def _change(self, change: ftrace_sites.FlagsChange) -> None:
        patch.apply([Patch(change.at, change.old, change.new)], self._memory)
