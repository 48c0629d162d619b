"""Which probes there are, and at which instructions of the kernel and of programs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence

from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.refusal import Reason
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.isa.base import LONGEST
from gdb_optprobe.probes.branch import Branch
from gdb_optprobe.probes.probe import Presence, Probe
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.user.uprobe_site import UprobeSite


class Registry:
    """Probes of all kinds by number, and their sites: the kernel's by address. It changes nothing in the guest.

    hooks: our other patches of the kernel's text, while they are there: no probe can be there.
    """

    def __init__(self) -> None:
        self.hooks: tuple[Patch, ...] = ()
        self._probes: dict[int, Probe] = {}
        self._sites: dict[int, Site] = {}
        self._uprobe_sites: dict[int, UprobeSite] = {}  # by the numbers of their probes
        self._addresses: list[int] = []
        self._reading: list[int] = []
        self._branches: dict[int, Branch] = {}
        self._heads: list[int] = []
        self._by_slot: dict[int, Branch] = {}
        self._slots: list[int] = []
        self._next = 1
        self._kept: int | None = None

    def next_number(self) -> int:
        if self._kept is not None:
            number, self._kept = self._kept, None
            return number
        number, self._next = self._next, self._next + 1
        return number

    def keep_number(self, number: int | None) -> None:
        """Have the next new probe get `number`, which a removed one had; None for a new one."""
        self._kept = number

    def add(self, probe: Probe, site: Site | UprobeSite) -> None:
        """Add `probe`, which is at `site`."""
        self._put(probe, Presence.HERE, None)
        site.probes.append(probe)
        if isinstance(site, UprobeSite):
            self._uprobe_sites[probe.number] = site
            return
        if site.address not in self._sites:
            insort(self._addresses, site.address)
        self._sites[site.address] = site
        if probe.read_registers != frozenset():
            insort(self._reading, probe.address)

    def set_absent(self, probe: Probe, presence: Presence, why: Reason) -> None:
        """Add `probe` as pending or gone, or make it so; it leaves its site and keeps its number."""
        if self.has(probe):
            self.leave_site(probe)
        self._put(probe, presence, why)

    def _put(self, probe: Probe, presence: Presence, why: Reason | None) -> None:
        probe.presence, probe.absence = presence, why
        self._probes[probe.number] = probe
        self._next = max(self._next, probe.number + 1)  # the number may be that of an earlier GDB

    def add_all(self, probes: Sequence[tuple[Probe, Site]], branches: Sequence[Branch]) -> None:
        """Add probes, each at a new site of its own in the kernel, that read no registers, and their branches."""
        for probe, site in probes:
            self._put(probe, Presence.HERE, None)
            site.probes.append(probe)
            self._sites[site.address] = site
        self._addresses = sorted(self._sites)
        self._branches |= {branch.plan.head: branch for branch in branches}
        self._by_slot |= {branch.detour.address: branch for branch in branches}
        self._heads, self._slots = sorted(self._branches), sorted(self._by_slot)

    def remove_branches(self, branches: Sequence[Branch]) -> None:
        """Do as `remove_branch` with each."""
        for branch in branches:
            del self._branches[branch.plan.head], self._by_slot[branch.detour.address]
        self._heads, self._slots = sorted(self._branches), sorted(self._by_slot)

    def remove_all(self, probes: Sequence[Probe]) -> None:
        """Do as `remove` with each."""
        plain = [one for one in probes if one.is_in_kernel and one.read_registers == frozenset()]
        for probe in plain:
            site = self._sites[probe.address]
            site.probes.remove(probe)
            if not site.probes:
                del self._sites[probe.address]
            del self._probes[probe.number]
        self._addresses = sorted(self._sites)
        for probe in probes:
            if self.has(probe):
                self.remove(probe)

    def remove(self, probe: Probe) -> None:
        """Forget a probe."""
        self.leave_site(probe)
        del self._probes[probe.number]

    def leave_site(self, probe: Probe) -> None:
        """Remove `probe` from its site, if it has one; a site goes with its last probe."""
        if (uprobe_site := self._uprobe_sites.pop(probe.number, None)) is not None:
            uprobe_site.probes.remove(probe)
        if not probe.is_in_kernel:
            return
        site = self._sites[probe.address]
        site.probes.remove(probe)
        if probe.read_registers != frozenset():
            _discard(self._reading, probe.address)
        if not site.probes:
            del self._sites[probe.address]
            _discard(self._addresses, probe.address)

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

    def has(self, probe: Probe) -> bool:
        """Return whether it was not removed."""
        return self._probes.get(probe.number) is probe

    def site_of(self, probe: Probe) -> Site:
        """Return the site of a probe that is in the kernel."""
        return self._sites[probe.address]

    def uprobe_site_of(self, probe: Probe) -> UprobeSite:
        """Return the site of a probe that is in a program."""
        return self._uprobe_sites[probe.number]

    def sites(self, probes: Iterable[Probe] | None = None) -> list[Site]:
        """Return the sites in the kernel, by address; of these probes, in their order, where some are given."""
        if probes is None:
            return [self._sites[address] for address in self._addresses]
        return [self._sites[at] for at in dict.fromkeys(probe.address for probe in probes if probe.is_in_kernel)]

    def uprobe_sites(self, probes: Iterable[Probe] | None = None) -> list[UprobeSite]:
        """Return the sites in programs; of these probes, where some are given."""
        numbers = self._uprobe_sites.keys() if probes is None else [probe.number for probe in probes]
        found = (self._uprobe_sites[number] for number in numbers if number in self._uprobe_sites)
        return list({site.key: site for site in found}.values())

    @property
    def has_readers(self) -> bool:
        """Whether any probe reads registers."""
        return bool(self._reading)

    def readers(self, start: int, end: int) -> Iterator[Probe]:
        """Yield the enabled probes from `start` to before `end` that read registers."""
        addresses = self._reading[bisect_left(self._reading, start) : bisect_left(self._reading, end)]
        probes = (probe for at in dict.fromkeys(addresses) for probe in self._sites[at].enabled)
        return (probe for probe in probes if probe.read_registers != frozenset())

    # branches ----------------------------------------------------------------------------------------------------

    def add_branch(self, branch: Branch) -> None:
        """Register `branch`, which was written."""
        insort(self._heads, branch.plan.head)
        insort(self._slots, branch.detour.address)
        self._branches[branch.plan.head] = self._by_slot[branch.detour.address] = branch

    def remove_branch(self, branch: Branch) -> None:
        """Remove `branch`, which is not in the guest any more, or is not ours any more."""
        _discard(self._heads, branch.plan.head)
        _discard(self._slots, branch.detour.address)
        del self._branches[branch.plan.head], self._by_slot[branch.detour.address]

    def branches(self) -> Iterator[Branch]:
        """Return our installed branches, by address."""
        return iter([self._branches[head] for head in self._heads])

    def branch(self, head: int) -> Branch | None:
        """Return the installed branch at `head`."""
        return self._branches.get(head)

    def branches_within(self, start: int, end: int) -> list[Branch]:
        """Return the installed branches in [start, end)."""
        first, last = bisect_left(self._heads, start), bisect_left(self._heads, end)
        return [self._branches[head] for head in self._heads[first:last]]

    def patches(self, start: int, end: int) -> Iterator[Patch]:
        """Yield what our branches and hooks changed in the text between `start` and `end`."""
        yield from (hook for hook in self.hooks if hook.address < end and hook.end > start)
        first = bisect_left(self._heads, start - LONGEST)  # a branch is one instruction
        found = (self._branches[head].patch for head in self._heads[first : bisect_left(self._heads, end)])
        yield from (patch for patch in found if patch.end > start)

    def detour_at(self, pc: int) -> Detour | None:
        """Return the detour that `pc` is in; for a pad, one that represents the probed address."""
        place = bisect_right(self._slots, pc)
        if place and pc < (detour := self._by_slot[self._slots[place - 1]].detour).end:
            return detour
        for probe in self._probes.values():
            if (pad := probe.pad) is not None and pad.address <= pc < pad.slot.end:
                return Detour(pad.address, pad.data, probe.address, ((pad.address, probe.address),))
        copies = (site.detour for site in self._sites.values() if site.branch is None)
        return next((copy for copy in copies if copy is not None and copy.address <= pc < copy.end), None)

    def near(self, address: int, distance: int) -> Iterator[Site]:
        """Sites within `distance` bytes of `address`."""
        first = bisect_left(self._addresses, address - distance)
        last = bisect_right(self._addresses, address + distance)
        return (self._sites[at] for at in self._addresses[first:last])

    def abandon(self) -> None:
        """Forget everything: the guest that held it is gone."""
        for site in self._sites.values():
            site.abandon()
        self._uprobe_sites.clear()
        self._heads.clear()
        self._slots.clear()
        self._branches.clear()
        self._by_slot.clear()

    def __len__(self) -> int:
        return len(self._probes)


def _discard(ascending: list[int], number: int) -> None:
    """Remove one `number`, which is there."""
    at = bisect_left(ascending, number)
    assert ascending[at] == number, "it was inserted"
    del ascending[at]
