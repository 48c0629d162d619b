"""Keep the guest's function tracer off the sites where probes have put branches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.patch import Exchange
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.ftrace_sites import DISABLED, WORDS, FtraceSites, is_in_use
from gdb_optprobe.guest.linux.loaded_text import LoadedText
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.guest.text import FtraceSite

MANY = 64
"""Sites of which it is worth knowing what was changed in the records."""

_Flags = tuple[FtraceSites, Mapping[int, int]]
"""Flags of sites, and where their records were found."""


class NoSuchRecord(OptprobeError):
    """The guest's tracer has no record of a site any more."""


class SiteTracer:
    """Implements probes.target.Tracer by the flags in the tracer's records (guest/linux/ftrace_sites.py).

    held: sites with a branch. _still_disabled: sites without one, while a tracer runs that has not counted them, in the
    order in which they came: thousands are then sorted already. _marked: sites that were disabled together, with what
    that changed in their records.
    """

    def __init__(self, text: LoadedText, memory: Memory) -> None:
        self._text, self._memory = text, memory
        self._held: set[int] = set()
        self._still_disabled: dict[int, None] = {}
        self._marked: tuple[Sequence[int], Exchange] | None = None

    def hold(self, site: FtraceSite) -> None:
        self.hold_all([site.address])

    def release(self, site: FtraceSite) -> None:
        self.release_all([site.address])

    def hold_all(self, addresses: Sequence[int]) -> None:
        """Mark the sites as disabled, all or none. Raises Refused when a tracer has come since they were planned."""
        found = self._flags(addresses)
        if sum(len(flags) for _, flags in found) < len(addresses):
            known = {address for _, flags in found for address in flags}
            for address in addresses:
                if address not in known:
                    raise NoSuchRecord(f"the tracer's record of {self._text.spell(address)} is gone")
        # Few words differ among thousands of records.
        words = {word for _, flags in found for word in flags.values()}
        used = {word for word in words if not word & DISABLED and is_in_use(word)}
        for address, word in (row for _, flags in found for row in flags.items()) if used else ():
            if word in used:
                raise Refused(Refusal.FTRACE_IN_USE.because(site=self._text.spell(address)))
        done, count = self._set_disabled(found, True)
        if count >= MANY:
            self._marked = (tuple(addresses), done) if count == len(addresses) else None
        for address in addresses if self._still_disabled else ():
            self._still_disabled.pop(address, None)
        self._held.update(addresses)

    def release_all(self, addresses: Sequence[int]) -> None:
        """Give the sites back; while a tracer runs they stay disabled, as the tracer has not counted them."""
        self._held.difference_update(addresses)
        self._still_disabled |= dict.fromkeys(addresses)
        self.give_back()

    def forget(self, site: FtraceSite) -> None:
        self._held.discard(site.address)
        self._still_disabled.pop(site.address, None)

    def passed_over(self) -> tuple[int, ...]:
        if not (self._held or self._still_disabled) or not self._text.ftrace.tracing():
            return ()
        return tuple(sorted({*self._held, *self._still_disabled}))

    def give_back(self) -> None:
        """Enable the sites that are still disabled, as soon as no tracer runs."""
        if not self._still_disabled or self._text.ftrace.tracing():
            return
        if not self._unmark():
            # Of a module that is about to be unloaded the guest has dropped the records first.
            self._set_disabled(self._flags(self._still_disabled), False)
        self._still_disabled.clear()

    def _unmark(self) -> bool:
        """Enable the sites that are still disabled, where they are those that were disabled together and nothing was
        changed near their records since. Return whether they were.
        """
        if self._marked is None or list(self._still_disabled) != list(self._marked[0]):
            return False
        _, done = self._marked
        self._marked = None
        return patch.take_back(done, self._memory) is not None

    @property
    def kept_off(self) -> frozenset[int]:
        return frozenset(self._still_disabled)

    def _flags(self, addresses: Collection[int]) -> list[_Flags]:
        """Return the flags of the sites at `addresses`; other addresses are left out."""
        start, end = self._text.own
        own = [address for address in addresses if start <= address < end]  # nearly all are
        by_text: dict[int, tuple[FtraceSites, list[int]]] = {}
        # The kernel's own sites know records of modules too, of those that were loaded when they were read: such a
        # record may be freed by now, and hold what it held.
        for address in addresses if len(own) < len(addresses) else ():
            if not start <= address < end:
                sites = self._text.ftrace_of(address)
                by_text.setdefault(id(sites), (sites, []))[1].append(address)
        parts = [*([(self._text.ftrace, own)] if own else []), *by_text.values()]
        return [(sites, sites.flags(some)) for sites, some in parts]

    def _set_disabled(self, found: Iterable[_Flags], disabled: bool) -> tuple[Exchange, int]:
        """Set or clear the flag in the records of these sites, where it is not so. Return what that changed, and of how
        many.
        """
        changed = sorted(
            (at[site], site, word)
            for at, flags in ((sites.record_at, flags) for sites, flags in found)
            for site, word in flags.items()
            if bool(word & DISABLED) != disabled
        )
        # With its address: the record must still be this site's.
        places = [(start, start + WORDS.size) for start, _, _ in changed]
        olds = [WORDS.pack(site, word) for _, site, word in changed]
        news = [WORDS.pack(site, word ^ DISABLED) for _, site, word in changed]
        return patch.exchange_in_runs(places, olds, news, self._memory), len(changed)
