"""Branches with bytes that something else has changed: they are left alone, with all they lead to.

The guest's own kprobe is on one, say. Once it is gone our bytes are there again, and are removed then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gdb_optprobe.detours.arena import Arena
from gdb_optprobe.detours.patch import TextChanged
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.probes import branch_patch
from gdb_optprobe.probes.branch import Branch
from gdb_optprobe.probes.links import Links
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.shared_maps import SharedMaps


@dataclass
class LostBranches:
    """branches: that could not be removed. counters, maps, rings: that their programs still write, by probe number.
    rings: that probes share.
    """

    branches: list[Branch] = field(default_factory=list)
    counters: dict[int, Slot] = field(default_factory=dict)
    maps: dict[int, SharedMaps] = field(default_factory=dict)
    rings: dict[int, Slot] = field(default_factory=dict)

    def covers(self, address: int) -> bool:
        """Return whether `address` is in the text of one."""
        return any(branch.patch.address <= address < branch.patch.end for branch in self.branches)

    def keep_counter(self, probe: Probe) -> bool:
        """Return whether a lost branch serves `probe`, which is deleted: then its counter stays."""
        if not any(probe.number in branch.probe_numbers for branch in self.branches):
            return False
        if probe.counter is not None:
            self.counters[probe.number] = probe.counter
        if probe.handler.shared is not None:
            self.maps[probe.number] = probe.handler.shared
        if probe.spec.records is not None:
            self.rings[probe.number] = probe.spec.records.memory
        return True

    def recover(self, links: Links, guest: Guest, arena: Arena) -> list[Branch]:
        """Take those away that hold our bytes again, or the original ones, with their links; which those were."""
        back = [branch for branch in self.branches if _is_ours_again(branch, links, guest, arena)]
        self.branches = [branch for branch in self.branches if branch not in back]
        for number in (number for branch in back for number in branch.probe_numbers):
            if (slot := self.counters.pop(number, None)) is not None:
                arena.data.release(slot)
            if (maps := self.maps.pop(number, None)) is not None:
                maps.release(number, arena)
            self.rings.pop(number, None)
        return back


def _is_ours_again(branch: Branch, links: Links, guest: Guest, arena: Arena) -> bool:
    change = branch.patch
    try:
        links.remove(branch)  # it may be lost because they could not be removed
        # A trap that was about to be written when the guest could not be reached any more.
        is_original = guest.machine.read(change.address, len(change.old)) == change.old
        branch_patch.remove(branch, (), guest, arena, lifted=is_original)
    except TextChanged:
        return False
    return True
