"""Keep the guest's function tracer off the sites where probes have put branches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import ftrace_sites
from gdb_optprobe.guest.linux.ftrace_sites import FlagsChange
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
        self._held: dict[int, FtraceSite] = {}
        self._still_disabled: dict[int, FtraceSite] = {}

    def hold(self, site: FtraceSite) -> None:
        """Mark the site as disabled. Raises Refused when a tracer has come since it was planned."""
        record = self._record(site)
        self._still_disabled.pop(site.address, None)
        if not record.disabled:
            if record.in_use:
                raise Refused(Refusal.FTRACE_IN_USE.because(site=self._text.spell(site.address)))
            self._change(ftrace_sites.disable(record))
        self._held[site.address] = site

    def release(self, site: FtraceSite) -> None:
        """Give the site back; while a tracer runs it stays disabled, as the tracer has not counted it."""
        self._held.pop(site.address, None)
        self._still_disabled[site.address] = site
        self.give_back()

    def hold_all(self, sites: Sequence[FtraceSite]) -> None:
        """Do as `hold` with each, of the kernel's own text, in few writes: all or none."""
        records = self._text.ftrace.all_records(site.address for site in sites)
        for site in sites:
            if (record := records.get(site.address)) is None:
                raise NoSuchRecord(f"the tracer's record of {self._text.spell(site.address)} is gone")
            if record.in_use:
                raise Refused(Refusal.FTRACE_IN_USE.because(site=self._text.spell(site.address)))
        self._change_all(ftrace_sites.disable(record) for record in records.values() if not record.disabled)
        for site in sites:
            self._still_disabled.pop(site.address, None)
            self._held[site.address] = site

    def release_all(self, sites: Sequence[FtraceSite]) -> None:
        """Do as `release` with each, in few writes."""
        for site in sites:
            self._held.pop(site.address, None)
            self._still_disabled[site.address] = site
        self.give_back()

    def _change_all(self, changes: Iterable[FlagsChange]) -> None:
        ordered = sorted(changes, key=lambda one: one.at)
        patch.apply_in_runs([Patch(one.at, one.old, one.new) for one in ordered], self._memory)

    def forget(self, site: FtraceSite) -> None:
        self._held.pop(site.address, None)
        self._still_disabled.pop(site.address, None)

    def passed_over(self) -> tuple[int, ...]:
        if not (self._held or self._still_disabled) or not self._text.ftrace.tracing():
            return ()
        return tuple(sorted({*self._held, *self._still_disabled}))

    def give_back(self) -> None:
        """Enable the sites that are still disabled, as soon as no tracer runs."""
        if not self._still_disabled or self._text.ftrace.tracing():
            return
        disabled, self._still_disabled = self._still_disabled, {}
        if len(disabled) > MANY:
            records = self._text.ftrace.all_records(at for at in disabled if self._text.at(at) is None)
            self._change_all(ftrace_sites.enable(record) for record in records.values() if record.disabled)
            disabled = {address: site for address, site in disabled.items() if address not in records}
        for site in disabled.values():
            try:
                record = self._record(site)
            except NoSuchRecord:
                # The module is about to be unloaded: the guest has dropped its records first.
                continue
            if record.disabled:
                self._change(ftrace_sites.enable(record))

    def _record(self, site: FtraceSite) -> ftrace_sites.Record:
        record = self._text.ftrace_of(site.address).record(site.address)
        if record is None:
            raise NoSuchRecord(f"the tracer's record of {self._text.spell(site.address)} is gone")
        return record

    def _change(self, change: ftrace_sites.FlagsChange) -> None:
        patch.apply([Patch(change.at, change.old, change.new)], self._memory)
