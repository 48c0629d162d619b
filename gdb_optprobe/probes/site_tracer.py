"""Keep the guest's function tracer off the sites where probes have put branches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gdb_optprobe.detours import patch
from gdb_optprobe.detours.refusal import Refusal, Refused
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.ftrace_sites import DISABLED, FLAGS, FtraceSites, State, is_in_use
from gdb_optprobe.guest.linux.loaded_text import LoadedText
from gdb_optprobe.guest.machine import Memory
from gdb_optprobe.guest.text import FtraceSite

WORD = 8


class NoSuchRecord(OptprobeError):
    """The guest's tracer has no record of a site any more."""


class SiteTracer:
    """Implements probes.target.Tracer by the flags in the tracer's records (guest/linux/ftrace_sites.py).

    held: sites with a branch. _still_disabled: sites without one, while a tracer runs that has not counted them, in the
    order in which they came: thousands are then sorted already.
    """

    def __init__(self, text: LoadedText, memory: Memory) -> None:
        self._text, self._memory = text, memory
        self._held: set[int] = set()
        self._still_disabled: dict[int, None] = {}

    def hold(self, site: FtraceSite) -> None:
        self.hold_all([site.address])

    def release(self, site: FtraceSite) -> None:
        self.release_all([site.address])

    def hold_all(self, addresses: Sequence[int]) -> None:
        """Mark the sites as disabled, all or none. Raises Refused when a tracer has come since they were planned."""
        states = self._states(addresses)
        for address in addresses if len(states) < len(addresses) else ():
            if address not in states:
                raise NoSuchRecord(f"the tracer's record of {self._text.spell(address)} is gone")
        # Few words differ among thousands of records.
        used = {flags for flags in {flags for _, flags in states.values()} if not flags & DISABLED and is_in_use(flags)}
        for address, (_, flags) in states.items() if used else ():
            if flags in used:
                raise Refused(Refusal.FTRACE_IN_USE.because(site=self._text.spell(address)))
        self._set_disabled(states, True)
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
        # Of a module that is about to be unloaded the guest has dropped the records first.
        self._set_disabled(self._states(self._still_disabled), False)
        self._still_disabled.clear()

    @property
    def kept_off(self) -> frozenset[int]:
        return frozenset(self._still_disabled)

    def _states(self, addresses: Collection[int]) -> dict[int, State]:
        """Return the records of the sites at `addresses`; other addresses are left out."""
        found = self._text.ftrace.states(addresses)  # of the kernel's own text, as nearly all are
        by_text: dict[int, tuple[FtraceSites, list[int]]] = {}
        for address in addresses if len(found) < len(addresses) else ():
            if address in found:
                continue
            sites = self._text.ftrace_of(address)
            by_text.setdefault(id(sites), (sites, []))[1].append(address)
        for sites, some in by_text.values():
            found |= sites.states(some)
        return found

    def _set_disabled(self, states: Mapping[int, State], disabled: bool) -> None:
        """Set or clear the flag in these records, where it is not so."""
        changed = sorted(state for state in states.values() if bool(state[1] & DISABLED) != disabled)
        places = [(at + FLAGS, at + FLAGS + WORD) for at, _ in changed]
        words = {flags: flags.to_bytes(WORD, "little") for flags in {flags for _, flags in changed}}
        words |= {flags ^ DISABLED: (flags ^ DISABLED).to_bytes(WORD, "little") for flags in words}
        olds, news = [words[flags] for _, flags in changed], [words[flags ^ DISABLED] for _, flags in changed]
        patch.exchange_in_runs(places, olds, news, self._memory)
