"""Which probes there are, and at which instructions of the kernel and of programs."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.detours.refusal import Reason
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.isa.base import LONGEST
from gdb_optprobe.probes.branch import Branch
from gdb_optprobe.probes.count_block import CountBlock
from gdb_optprobe.probes.probe import Presence, Probe
from gdb_optprobe.probes.return_block import ReturnBlock
from gdb_optprobe.probes.site import Site
from gdb_optprobe.probes.user.uprobe_site import UprobeSite


class Registry:
    """Probes of all kinds by number, and their sites: the kernel's by address. It changes nothing in the guest.

    A probe of a block becomes one of its own, at a site of its own, where it is asked for by number or by place.

    user_hooks, event_hooks: our other patches of the kernel's text, while they are there: no probe can be there.
    blocks: counts that were added together, by their numbers. unpack: makes a member of one a probe of its own.
    unpacked: called once members have left for a command that names them.
    """

    def __init__(self) -> None:
        self.user_hooks: tuple[Patch, ...] = ()
        self.event_hooks: tuple[Patch, ...] = ()
        self.blocks: list[CountBlock] = []
        self.unpack: Callable[[CountBlock, int], object] = _cannot_unpack
        self.unpacked: Callable[[], object] = bool
        self._probes: dict[int, Probe] = {}
        self._sites: dict[int, Site] = {}
        self._uprobe_sites: dict[int, UprobeSite] = {}  # by the numbers of their probes
        self._addresses: list[int] = []
        self._reading: list[int] = []
        self._returning = Counter[int]()  # return probes at sites, by address
        self._branches: dict[int, Branch] = {}
        self._heads: list[int] = []
        self._by_slot: dict[int, Branch] = {}
        self._slots: list[int] = []
        self._next = 1
        self._kept: int | None = None
        self._in_blocks: array[int] | None = None  # the sites of all blocks, ascending, since one came or went

    @property
    def hooks(self) -> tuple[Patch, ...]:
        return (*self.user_hooks, *self.event_hooks)

    def next_number(self) -> int:
        if self._kept is not None:
            number, self._kept = self._kept, None
            return number
        number, self._next = self._next, self._next + 1
        return number

    def take_numbers(self, count: int) -> int:
        """Return the first of `count` new numbers that follow one another."""
        first, self._next = self._next, self._next + count
        return first

    def keep_number(self, number: int | None) -> None:
        """Have the next new probe get `number`, which a removed one had; None for a new one."""
        self._kept = number

    @property
    def numbering(self) -> tuple[int, int | None]:
        """Return what the next numbers depend on."""
        return self._next, self._kept

    def renumber(self, numbering: tuple[int, int | None]) -> None:
        """Give the numbers again that were given since then: their probes are removed."""
        self._next, self._kept = numbering

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
        self._note_return(probe, 1)
        if probe.read_registers != frozenset():
            insort(self._reading, probe.address)

    def _note_return(self, probe: Probe, more: int) -> None:
        """Note that a site has one return probe more, or less: of thousands of sites few have any."""
        if probe.is_return:
            self._returning[probe.address] += more
            if not self._returning[probe.address]:
                del self._returning[probe.address]

    def set_absent(self, probe: Probe, presence: Presence, why: Reason) -> None:
        """Add `probe` as pending or gone, or make it so; it leaves its site and keeps its number."""
        if self.has(probe):
            self.leave_site(probe)
        self._put(probe, presence, why)

    def _put(self, probe: Probe, presence: Presence, why: Reason | None) -> None:
        probe.presence, probe.absence = presence, why
        self._probes[probe.number] = probe
        self._next = max(self._next, probe.number + 1)  # the number may be that of an earlier GDB

    def add_block(self, block: CountBlock) -> None:
        """Add the counts of `block`."""
        insort(self.blocks, block, key=lambda one: one.first)
        self._in_blocks = None
        self._next = max(self._next, block.numbers.stop)

    def recording(self) -> Iterator[tuple[Slot, Sequence[int]]]:
        """Yield the memory of rings that probes share, with numbers of probes that write there."""
        for block in self.blocks:
            if block.spec.records is not None:
                yield block.spec.records.memory, [block.first + index for index in block.members]
        for probe in self._probes.values():
            if probe.spec.records is not None:
                yield probe.spec.records.memory, [probe.number]

    def remove_block(self, block: CountBlock) -> None:
        """Forget the counts that are in `block`."""
        self.blocks.remove(block)
        self._in_blocks = None

    def remove_all(self, probes: Sequence[Probe]) -> None:
        """Do as `remove` with each."""
        plain = [one for one in probes if one.is_in_kernel and one.read_registers == frozenset()]
        for probe in plain:
            site = self._sites[probe.address]
            site.probes.remove(probe)
            self._note_return(probe, -1)
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
        self._note_return(probe, -1)
        if probe.read_registers != frozenset():
            _discard(self._reading, probe.address)
        if not site.probes:
            del self._sites[probe.address]
            _discard(self._addresses, probe.address)

    def probes(self, numbers: Sequence[int] | None = None) -> list[Probe]:
        """These probes, in order of their numbers (None: all). Raises OptprobeError for a number that is not there."""
        if numbers is None:
            self._unpack_all()
            return [self._probes[number] for number in sorted(self._probes)]
        found = self._named(numbers)
        self.unpacked()
        return found

    def _named(self, numbers: Sequence[int]) -> list[Probe]:
        for number in numbers:
            if number not in self._probes and not self._unpack_number(number):
                raise OptprobeError(f"no probe number {number}", "optprobe list shows those that exist")
        return [self._probes[number] for number in sorted(set(numbers))]

    def single_probes(self) -> list[Probe]:
        """Return the probes that are in no block, in order of creation."""
        return list(self._probes.values())

    def split(self, numbers: Sequence[int] | None) -> tuple[list[CountBlock], list[Probe]]:
        """Return what has these numbers (None: all): blocks with all of their members, and the other probes.

        Members leave their blocks for a change: where they stay, the change calls `unpacked`.
        Raises OptprobeError for a number that is not there.
        """
        if numbers is None:
            return list(self.blocks), self.single_probes()
        wanted = set(numbers)
        whole = [
            block
            for block in self.blocks
            if len(block) <= len(wanted) and all(block.first + index in wanted for index in block.members)
        ]
        inside = {block.first + index for block in whole for index in block.members}
        return whole, self._named([number for number in numbers if number not in inside])

    def has_more_returns(self, than: int) -> bool:
        """Return whether more than so many functions have return probes that are enabled."""
        blocks = (len(block) for block in self.blocks if block.enabled and isinstance(block, ReturnBlock))
        left = than - sum(blocks)
        singly = (at for at in self._returning if self._sites[at].return_probes)
        return left < 0 or next(islice(singly, left, None), None) is not None

    def block_of(self, number: int) -> tuple[CountBlock, int] | None:
        """Return the block that the probe with this number is in, and its index there."""
        place = bisect_right(self.blocks, number, key=lambda block: block.first)
        for block in self.blocks[:place]:
            if (index := block.with_number(number)) is not None:
                return block, index
        return None

    def _unpack_number(self, number: int) -> bool:
        if (found := self.block_of(number)) is None:
            return False
        self.unpack(*found)
        return True

    def _unpack_all(self) -> None:
        for block in list(self.blocks):
            for index in list(block.members):
                self.unpack(block, index)

    def _unpack_within(self, start: int, end: int) -> None:
        """Unpack the members of blocks at addresses from `start` to before `end`."""
        for block in list(self.blocks) if self._may_be_in_block(start, end) else ():
            for index in block.within(start, end):
                self.unpack(block, index)

    def _may_be_in_block(self, start: int, end: int) -> bool:
        """Return whether a block had a member from `start` to before `end` when it came. Few have any there: asked of
        hundreds of blocks one by one, that takes the time of a plan.
        """
        if self._in_blocks is None:
            self._in_blocks = array("Q", sorted(chain.from_iterable(block.sites for block in self.blocks)))
        place = bisect_left(self._in_blocks, start)
        return place < len(self._in_blocks) and self._in_blocks[place] < end

    def site(self, address: int) -> Site | None:
        if self.blocks and address not in self._sites:
            self._unpack_within(address, address + 1)
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
        """Return the sites in the kernel that are in no block, by address; of these probes, in their order, where some
        are given.
        """
        if probes is None:
            return [self._sites[address] for address in self._addresses]
        return [self._sites[at] for at in dict.fromkeys(probe.address for probe in probes if probe.is_in_kernel)]

    def uprobe_sites(self, probes: Iterable[Probe] | None = None) -> list[UprobeSite]:
        """Return the sites in programs; of these probes, where some are given."""
        numbers = self._uprobe_sites.keys() if probes is None else [probe.number for probe in probes]
        found = (self._uprobe_sites[number] for number in numbers if number in self._uprobe_sites)
        return list({site.key: site for site in found}.values())

    def reading(self) -> Sequence[int]:
        """Return the addresses of the probes that read registers, enabled or not."""
        return self._reading

    def addresses(self) -> Iterator[int]:
        """Yield where sites, branches and hooks are in the kernel's text, those of blocks aside."""
        yield from self._addresses
        yield from self._heads
        for hook in self.hooks:
            yield from range(hook.address, hook.end)

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of all probes."""
        yield from self._probes
        for block in self.blocks:
            yield from (block.first + index for index in block.members)

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
        """Return our installed branches that are in no block, by address."""
        return iter([self._branches[head] for head in self._heads])

    def branch(self, head: int) -> Branch | None:
        """Return the installed branch at `head`."""
        if self.blocks and head not in self._branches:
            self._unpack_within(head, head + 1)
        return self._branches.get(head)

    def branches_within(self, start: int, end: int) -> list[Branch]:
        """Return the installed branches in [start, end)."""
        self._unpack_within(start, end)
        first, last = bisect_left(self._heads, start), bisect_left(self._heads, end)
        return [self._branches[head] for head in self._heads[first:last]]

    def patches(self, start: int, end: int) -> Iterator[Patch]:
        """Yield what our branches and hooks changed in the text between `start` and `end`."""
        yield from (hook for hook in self.hooks if hook.address < end and hook.end > start)
        first = bisect_left(self._heads, start - LONGEST)  # a branch is one instruction
        found = (self._branches[head].patch for head in self._heads[first : bisect_left(self._heads, end)])
        yield from (patch for patch in found if patch.end > start)
        for block in self.blocks:
            if block.enabled:
                inside = block.within(start - LONGEST, end)
                patches = (block.patch(index) for index in inside)
                yield from (patch for patch in patches if patch.end > start)

    def numbers_at(self, address: int) -> Iterator[int]:
        """Yield the numbers of the probes with a branch that covers `address` in the text."""
        for branch in self._branches_near(address):
            if branch.patch.address <= address < branch.patch.end:
                yield from branch.probe_numbers
        for block in self.blocks:
            if block.enabled:
                inside = block.within(address - LONGEST, address + 1)
                yield from (block.first + one for one in inside if address < block.patch(one).end)

    def _branches_near(self, address: int) -> list[Branch]:
        first = bisect_left(self._heads, address - LONGEST)
        return [self._branches[head] for head in self._heads[first : bisect_right(self._heads, address)]]

    def detour_at(self, pc: int) -> Detour | None:
        """Return the detour that `pc` is in; for a pad, one that represents the probed address."""
        place = bisect_right(self._slots, pc)
        if place and pc < (detour := self._by_slot[self._slots[place - 1]].detour).end:
            return detour
        for block in self.blocks:
            if (index := block.slot_at(pc)) is not None:
                return block.detour(index)
        for probe in self._probes.values():
            if (pad := probe.pad) is not None and pad.address <= pc < pad.slot.end:
                return Detour(pad.address, pad.data, probe.address, ((pad.address, probe.address),))
        copies = (site.detour for site in self._sites.values() if site.branch is None)
        return next((copy for copy in copies if copy is not None and copy.address <= pc < copy.end), None)

    def near(self, address: int, distance: int) -> Iterator[Site]:
        """Sites within `distance` bytes of `address`."""
        self._unpack_within(address - distance, address + distance + 1)
        first = bisect_left(self._addresses, address - distance)
        last = bisect_right(self._addresses, address + distance)
        return (self._sites[at] for at in self._addresses[first:last])

    def has_enabled(self, start: int, end: int) -> bool:
        """Return whether a probe at an address from `start` to before `end` is enabled."""
        addresses = self._addresses[bisect_left(self._addresses, start) : bisect_left(self._addresses, end)]
        if any(self._sites[at].enabled for at in addresses):
            return True
        return self._may_be_in_block(start, end) and any(
            block.enabled and block.has_within(start, end) for block in self.blocks
        )

    def has_other(self, start: int, end: int, address: int) -> bool:
        """Return whether there is a probe from `start` to before `end` that is not at `address`."""
        addresses = self._addresses[bisect_left(self._addresses, start) : bisect_left(self._addresses, end)]
        if any(at != address for at in addresses):
            return True
        if not self._may_be_in_block(start, address) and not self._may_be_in_block(address + 1, end):
            return False
        return any(block.has_within(start, address) or block.has_within(address + 1, end) for block in self.blocks)

    def sites_within(self, start: int, end: int) -> list[Site]:
        """Return the sites at addresses from `start` to before `end`."""
        self._unpack_within(start, end)
        first, last = bisect_left(self._addresses, start), bisect_left(self._addresses, end)
        return [self._sites[at] for at in self._addresses[first:last]]

    def abandon(self) -> None:
        """Forget everything: the guest that held it is gone."""
        for site in self._sites.values():
            site.abandon()
        self._uprobe_sites.clear()
        self._heads.clear()
        self._slots.clear()
        self._branches.clear()
        self._by_slot.clear()
        self.blocks.clear()
        self._in_blocks = None

    def __len__(self) -> int:
        return len(self._probes) + sum(map(len, self.blocks))


def _discard(ascending: list[int], number: int) -> None:
    """Remove one `number`, which is there."""
    at = bisect_left(ascending, number)
    assert ascending[at] == number, "it was inserted"
    del ascending[at]


def _cannot_unpack(block: CountBlock, index: int) -> None:
    raise AssertionError("no session has added blocks")
