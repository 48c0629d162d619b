"""Which probes there are, and at which addresses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdb_optprobe.detours.layout import Detour
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.branch import Branch
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.site import Site


class Registry:
    """Probes by number and sites by address. It changes nothing in the guest."""

    def __init__(self) -> None:
        self._probes: dict[int, Probe] = {}
        self._sites: dict[int, Site] = {}
        self._next = 1

    def next_number(self) -> int:
        number, self._next = self._next, self._next + 1
        return number

    def add(self, probe: Probe, site: Site) -> None:
        self._probes[probe.number] = probe
        self._sites[site.address] = site
        site.probes.append(probe)

    def remove(self, probe: Probe) -> None:
        """Forget a probe; its site goes with the last one there."""
        del self._probes[probe.number]
        site = self._sites[probe.address]
        site.probes.remove(probe)
        if not site.probes:
            del self._sites[probe.address]

    def probes(self, numbers: Sequence[int] | None = None) -> list[Probe]:
        """These probes, in order of creation (None: all). Raises OptprobeError for a number that is not there."""
        if numbers is None:
            return list(self._probes.values())
        for number in numbers:
            if number not in self._probes:
                raise OptprobeError(f"no probe number {number}", "optprobe list shows those that exist")
        return [self._probes[number] for number in sorted(set(numbers))]

    def site(self, address: int) -> Site | None:
        return self._sites.get(address)

    def site_of(self, probe: Probe) -> Site:
        return self._sites[probe.address]

    def sites(self) -> Iterator[Site]:
        """All sites, by address."""
        return iter([self._sites[address] for address in sorted(self._sites)])

    def branches(self) -> Iterator[Branch]:
        """Our branches that stand in the guest's text now."""
        return (
            site.branch for site in self._sites.values() if site.branch is not None and site.branch.sites[0] is site
        )

    def patches(self) -> Iterator[Patch]:
        """What these branches changed in the text."""
        return (branch.patch for branch in self.branches())

    def detour_at(self, pc: int) -> Detour | None:
        """The detour that `pc` is in."""
        detours = (site.detour for site in self._sites.values())
        return next((one for one in detours if one is not None and one.address <= pc < one.end), None)

    def __len__(self) -> int:
        return len(self._probes)
