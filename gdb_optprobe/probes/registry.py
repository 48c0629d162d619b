"""Which probes there are, and at which addresses."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence

from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.refusal import Reason
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.isa.base import LONGEST
from gdb_optprobe.probes.branch import Branch
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.site import Site


class Registry:
    """Probes by number and sites by address. It changes nothing in the guest.

    hooks: what else of ours stands in the kernel's text, for as long as it does: no probe can be there.
    """

    def __init__(self) -> None:
        self.hooks: tuple[Patch, ...] = ()
        self._probes: dict[int, Probe] = {}
        self._sites: dict[int, Site] = {}
        self._addresses: list[int] = []
        self._reading: list[int] = []
        self._branches: dict[int, Branch] = {}
        self._heads: list[int] = []
        self._by_slot: dict[int, Branch] = {}
        self._slots: list[int] = []
        self._next = 1

    def next_number(self) -> int:
        number, self._next = self._next, self._next + 1
        return number

    def use_number(self, number: int) -> None:
        """New probes come behind it."""
        self._next = max(self._next, number + 1)

    def add(self, probe: Probe, site: Site) -> None:
        probe.waits = None
        self._probes[probe.number] = probe
        if site.address not in self._sites:
            insort(self._addresses, site.address)
        self._sites[site.address] = site
        site.probes.append(probe)
        if probe.read_registers != frozenset():
            insort(self._reading, probe.address)

    def set_absent(self, probe: Probe, why: Reason) -> None:
        """`probe` is nowhere in the guest, and keeps its number. Its site goes with the last one there."""
        if probe.waits is None and self.has(probe):
            self._leave(probe)
        self._probes[probe.number] = probe
        probe.waits = why

    def remove(self, probe: Probe) -> None:
        """Forget a probe; its site goes with the last one there."""
        del self._probes[probe.number]
        if probe.waits is None:
            self._leave(probe)

    def _leave(self, probe: Probe) -> None:
        site = self._sites[probe.address]
        site.probes.remove(probe)
        if probe.read_registers != frozenset():
            self._reading.remove(probe.address)
        if not site.probes:
            del self._sites[probe.address]
            self._addresses.remove(probe.address)

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
        """Whether it was not removed."""
        return self._probes.get(probe.number) is probe

    def site_of(self, probe: Probe) -> Site:
        """Of one that is somewhere in the guest."""
        return self._sites[probe.address]

    def sites(self) -> Iterator[Site]:
        """All sites, by address."""
        return iter([self._sites[address] for address in self._addresses])

    @property
    def has_readers(self) -> bool:
        """Whether any probe reads registers."""
        return bool(self._reading)

    def readers(self, start: int, end: int) -> Iterator[Probe]:
        """The enabled probes from `start` to before `end` that read registers."""
        addresses = self._reading[bisect_left(self._reading, start) : bisect_left(self._reading, end)]
        probes = (probe for at in dict.fromkeys(addresses) for probe in self._sites[at].enabled)
        return (probe for probe in probes if probe.read_registers != frozenset())

    # branches ----------------------------------------------------------------------------------------------------

    def add_branch(self, branch: Branch) -> None:
        """`branch` was written."""
        insort(self._heads, branch.plan.head)
        insort(self._slots, branch.detour.address)
        self._branches[branch.plan.head] = self._by_slot[branch.detour.address] = branch

    def remove_branch(self, branch: Branch) -> None:
        """`branch` is in the guest no more, or not ours any more."""
        self._heads.remove(branch.plan.head)
        self._slots.remove(branch.detour.address)
        del self._branches[branch.plan.head], self._by_slot[branch.detour.address]

    def branches(self) -> Iterator[Branch]:
        """Our branches that stand in the guest's text now, by address."""
        return iter([self._branches[head] for head in self._heads])

    def branch(self, head: int) -> Branch | None:
        """The branch that stands at `head`."""
        return self._branches.get(head)

    def branches_within(self, start: int, end: int) -> list[Branch]:
        """Those that stand from `start` to before `end`."""
        first, last = bisect_left(self._heads, start), bisect_left(self._heads, end)
        return [self._branches[head] for head in self._heads[first:last]]

    def patches(self, start: int, end: int) -> Iterator[Patch]:
        """What our branches and hooks changed in the text between `start` and `end`."""
        yield from (hook for hook in self.hooks if hook.address < end and hook.end > start)
        first = bisect_left(self._heads, start - LONGEST)  # a branch is one instruction
        found = (self._branches[head].patch for head in self._heads[first : bisect_left(self._heads, end)])
        yield from (patch for patch in found if patch.end > start)

    def detour_at(self, pc: int) -> Detour | None:
        """The detour that `pc` is in; of a pad, one that stands for the probed address."""
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
        """The guest that held it all is gone."""
        for site in self._sites.values():
            site.abandon()
        self._heads.clear()
        self._slots.clear()
        self._branches.clear()
        self._by_slot.clear()

    def __len__(self) -> int:
        return len(self._probes)
